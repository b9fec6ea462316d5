"""What all verbs share: their common options, consoles, output files and sources."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.console import Console

from opscope.errors import InputError, OpscopeError
from opscope.model.files import write_text
from opscope.report.document import Document, first_screen, only_sections
from opscope.report.json_encoding import to_json
from opscope.report.languages import Language, language_of, translated, translated_words
from opscope.report.markdown import render_markdown
from opscope.report.terminal import render_terminal
from opscope.units import format_fraction

if TYPE_CHECKING:
    from opscope.analysis.summary import Summary
    from opscope.model.session import Session
    from opscope.report.html.figures import Chart
from opscope.visible_text import visible, without_secrets

STDERR = 2  # the file descriptor, where a program's output goes that must not mix with JSON

Top = Annotated[int, Parameter(validator=Number(gte=1))]
All = Annotated[bool, Parameter(name="--all")]
Output = Annotated[Path | None, Parameter(name=["--output", "-o"])]
Merge = Annotated[bool, Parameter(name="--merge")]
Words = Annotated[tuple[str, ...], Parameter(show_default=False)]

_READING = Group("Report", sort_key=0)


@dataclass(frozen=True)
class _Parts:
    brief: bool
    section: tuple[str, ...]
    full: bool

    def of(self, document: Document) -> Document:
        """What is to be read of a report.

        Raises:
            InputError: It has no such section.
        """
        if self.section:
            return only_sections(document, self.section, in_language)
        return first_screen(document) if self.brief else document

    def rows(self, top: int | None) -> int | None:
        """How many rows tables have: all of them in a full report."""
        return None if self.full else top


@Parameter(name="*", group=_READING)
@dataclass(frozen=True)
class Parts(_Parts):
    """How much of a report is printed.

    Args:
        brief: Print the first screen alone: what it comes to, and what to change.
        section: Print the first screen and these sections, by the beginning of their titles: change, kernels.
        full: Print everything: all rows, and all that is known of each.
    """

    brief: bool = False
    section: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = ()
    full: bool = False


@Parameter(name="*", group=_READING)
@dataclass(frozen=True)
class ProgramParts(_Parts):
    """The same for verbs that a program follows: one section after each --section.

    Args:
        brief: Print the first screen alone: what it comes to, and what to change.
        section: Print the first screen and this section, by the beginning of its title; once for each.
        full: Print everything: all rows, and all that is known of each.
    """

    brief: bool = False
    section: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    full: bool = False


_WHOLE = Parts()

# Part of the time in which something waits for a CPU; an idle machine that runs one program has 1 or 2 %.
_LOADED = 0.2
_PIPED_WIDTH = 120
_WIDEST = 200


# What reports are written in while this process runs one verb.
_language = Language.EN
_ASKED_BY = ("OPSCOPE_LANG", "LC_ALL", "LC_MESSAGES", "LANG")


def use_language(asked: str | None) -> None:
    """Write reports in a language from now on: the one asked for, else that of the environment."""
    global _language  # noqa: PLW0603 - one for all that a command prints
    _language = Language(asked) if asked else language_of(os.environ.get(name) for name in _ASKED_BY)


def in_language(text: str) -> str:
    """A line that is no report, in the language of reports."""
    return translated_words(text, _language)


def error_text(error: OpscopeError, *, has_program: bool = False) -> str:
    """What an error says, in the language of reports; options behind a program are the program's own."""
    if has_program and (error.hint or "").endswith("--force"):
        error = InputError(
            error.message, source=error.source, hint="Overwrite it with --force, before the program"
        )
    told = [in_language(one) for one in (error.message, error.hint) if one]
    return str(error) if _language is Language.EN else f"{error.where}{'。'.join(told)}"


def note(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"note: {visible(in_language(text))}\n")


def say(text: str) -> None:
    """One line on stderr, as it is but for what cannot be seen."""
    sys.stderr.write(f"{visible(text)}\n")


@contextmanager
def load_noticed() -> Iterator[None]:
    """Around what is measured: one line afterwards if the CPUs were too busy with other work for it."""
    from opscope.capture.environment import cpu_pressure_fraction  # noqa: PLC0415 - only to measure

    before, process = cpu_pressure_fraction(), os.getpid()
    try:
        yield
    finally:
        fractions = [one or 0.0 for one in (before, cpu_pressure_fraction())]
        if max(fractions) > _LOADED and os.getpid() == process:  # a script may have forked
            told = " and ".join(map(format_fraction, fractions))
            note(
                f"the machine is loaded, times may be too long: work waited for a CPU {told} of the time "
                "(before and after measuring)"
            )


def show(
    as_json: Callable[[], Any],
    as_document: Callable[[], Document],
    *,
    json: bool,
    reading: Parts | ProgramParts = _WHOLE,
    on_stderr: bool = False,
) -> None:
    """Print a result: as the one JSON document on stdout, or as a report.

    Args:
        as_json: Makes its JSON values.
        as_document: Makes its report.
        json: Which of them is printed.
        reading: How much of the report.
        on_stderr: Print the report on stderr: stdout is a program's own.
    """
    if json:
        print_json(as_json())
    else:
        print_document(as_document(), reading=reading, on_stderr=on_stderr)


class _PipeConsole(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`, which maps every failure to an exit code."""
        raise BrokenPipeError


def stdout_console() -> Console:
    """Console for results: as wide as the terminal up to 200 columns; 120 where there is none."""
    return _wide_console(sys.stdout)


def stderr_console() -> Console:
    """Console for progress and notes."""
    return Console(file=sys.stderr, highlight=False)


def _wide_console(stream: TextIO) -> Console:
    probe = Console(file=stream)
    has_width = probe.is_terminal or "COLUMNS" in os.environ
    width = min(probe.width, _WIDEST) if has_width else _PIPED_WIDTH
    return _PipeConsole(file=stream, width=width, highlight=False, soft_wrap=False)


def print_document(
    document: Document, *, reading: Parts | ProgramParts = _WHOLE, on_stderr: bool = False
) -> None:
    """Print what is to be read of a report on stdout, or on stderr where stdout is a program's own."""
    stream = sys.stderr if on_stderr else sys.stdout
    shown = translated(reading.of(document), _language)
    _wide_console(stream).print(render_terminal(shown), crop=False)


def markdown(document: Document) -> str:
    """A report Document as Markdown."""
    return render_markdown(translated(document, _language))


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(to_json(document))


def say_wrote(paths: Iterable[Path], *, on_stderr: bool) -> None:
    """One line `Wrote PATH` for each file, on stderr where stdout carries JSON."""
    stream = sys.stderr if on_stderr else sys.stdout
    for path in paths:
        stream.write(f"Wrote {visible(str(path))}\n")


def command_line() -> str:
    """What was typed, to be typed again; without what looks like a password or a key."""
    return shlex.join(["opscope", *without_secrets(sys.argv[1:])])


def write_page(path: Path, document: Document, charts: Sequence[Chart] = ()) -> Path:
    """Write a report with its pictures as one HTML file, with the command that made it."""
    from opscope.report.html.page import render_page  # noqa: PLC0415 - seldom asked

    with status("Drawing"):
        return write_text(path, render_page(document, charts, command=command_line(), language=_language))


def write_recording_page(
    path: Path, session: Session, summary: Summary, *, top: int | None, trace: str = ""
) -> Path:
    """Likewise of a recording.

    Args:
        path: The file.
        session: The recording, open.
        summary: Of it.
        top: Operators in detail; all if None.
        trace: Address of the trace beside the page, where both are served.
    """
    from opscope.report.html.page import session_page  # noqa: PLC0415 - seldom asked

    with status("Drawing"):
        page = session_page(
            session, summary, top=top, command=command_line(), trace=trace, language=_language
        )
        return write_text(path, page)


_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """The seconds of `90s`, `10m` or `1h`.

    Raises:
        InputError: It is not a time.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None:
        raise InputError(f"'{text}' is not a time", hint="Write 90s, 10m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def check_outputs(paths: Iterable[Path | None], *, force: bool, inputs: Iterable[object] = ()) -> None:
    """Stop before work is done whose result could not be written, or would replace what is read.

    Args:
        paths: Files to write; None for those not asked for.
        force: Regular files may be replaced.
        inputs: Files and folders that are read.

    Raises:
        InputError: One of the files exists and `force` is false, is a folder, or is an input.
    """
    existing = [path for path in paths if path is not None and path.exists()]
    read = [file for one in inputs if one is not None for file in _files_of(str(one))] if existing else []
    for path in existing:
        if path.is_dir():
            raise InputError("it is a folder", source=path, hint="Name a file")
        if any(path.samefile(file) for file in read):
            raise InputError("it is read by this command", source=path, hint="Write to another file")
        if path.is_file() and not force:
            raise InputError("the file exists", source=path, hint="Overwrite it with --force")


def _files_of(source: str) -> list[Path]:
    """The file, or the traces of the folder; nothing where there are none, or of an address."""
    from opscope.ingest.source import find_traces  # noqa: PLC0415 - only where a file is to be replaced

    try:
        return [] if "://" in source else [one.path for one in find_traces(source) if one.path is not None]
    except InputError:
        return []


@contextmanager
def status(message: str) -> Iterator[Callable[[str], object]]:
    """A spinner on stderr while something runs, with a way to change its message; none off a terminal."""
    console = stderr_console()
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(message) as shown:
        yield shown.update


def open_source(sources: Sequence[str], **options: Any) -> Session:
    """The saved Session, or the traces as a new one; options as of `load`."""
    from opscope.results import load  # noqa: PLC0415 - imports DuckDB

    message = f"Reading {sources[0]}" + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
    with status(message) as say:
        return load(
            sources[0] if len(sources) == 1 else list(sources),
            note=note,
            on_done=lambda count: say(f"{message}: {count:,} read"),
            **options,
        )
