"""What all verbs share: their common options, consoles, output files and sources."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

from cyclopts import Group, Parameter
from cyclopts.validators import mutually_exclusive
from rich.console import Console

from opscope.errors import InputError, OpscopeError
from opscope.model.files import write_text
from opscope.report.document import Document, FactList, Section, only_sections
from opscope.report.json_encoding import to_json, write_json
from opscope.report.languages import Language, language_of, translated, translated_words
from opscope.report.terminal import render_terminal
from opscope.units import format_fraction

if TYPE_CHECKING:
    from opscope.analysis.summary import Summary
    from opscope.model.session import Session
    from opscope.report.html.figures import Chart
    from opscope.workloads.workload import WorkloadOptions
from opscope.visible_text import visible, without_secrets

STDERR = 2  # the file descriptor, where a program's output goes that must not mix with JSON


def _check_top(_: object, top: int | str) -> None:
    if top != "all" and int(top) < 1:
        raise ValueError("Must be >= 1, or all.")


Json = Annotated[bool, Parameter(help="Print one JSON document and nothing else.")]
Force = Annotated[bool, Parameter(help="Overwrite existing files.")]
Top = Annotated[
    int | Literal["all"],
    Parameter(validator=_check_top, help="Rows of long tables, largest first; all shows every row."),
]
Output = Annotated[
    tuple[Path, ...],
    Parameter(
        name=["--output", "-o"],
        help="Also write the report to FILE.md, FILE.html (with pictures) or FILE.json; may be repeated.",
    ),
]
Words = tuple[str, ...]  # one after each option
Several = Parameter(consume_multiple=True)
FORMAT = Parameter(group=Group("Output format", validator=mutually_exclusive))  # one of several
Options = Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True)]  # of another program
Record = Annotated[
    tuple[Literal["stack", "modules", "memory"], ...],
    Several,
    Parameter(
        help="Also record Python stacks (stack), calls of nn.Modules (modules) or allocations (memory)."
    ),
]
WorkloadParameters = Annotated[
    Words,
    Several,
    Parameter(
        name="--param",
        help="How a workload is built, NAME=VALUE: dtype (float32, float16, bfloat16), layers, hidden, "
        "attn_implementation (sdpa or eager), weights (a checkpoint of the real BERT: a hub name, folder).",
    ),
]

_REPORT = Group("Report", sort_key=0)


@Parameter(name="*")
@dataclass(frozen=True)
class Parts:
    section: Annotated[
        tuple[str, ...],
        Several,
        Parameter(
            group=_REPORT,
            help="Print the first screen and these sections, named by a word of their titles: change, "
            "kernels; first for the first screen only.",
        ),
    ] = ()
    full: Annotated[
        bool, Parameter(group=_REPORT, help="Print everything: all sections, rows and details.")
    ] = False

    @property
    def is_screen(self) -> bool:
        """Whether it is about one screen, as nothing is asked for."""
        return not self.full and self.section in ((), ("first",))

    def rows(self, top: int | Literal["all"]) -> int | None:
        """How many rows tables have: all of them in a full report."""
        return None if self.full or top == "all" else top


@dataclass(frozen=True)
class ProgramParts(Parts):
    """The same for verbs that a program follows: one section after each --section."""

    section: Annotated[
        tuple[str, ...],
        Parameter(
            group=_REPORT,
            help="Print the first screen and this section, named by a word of its title; may be repeated; "
            "first for the first screen only.",
        ),
    ] = ()


@dataclass(frozen=True)
class Showing(Parts):
    """What is read of a result, and where it goes."""

    json: Json = False
    output: Output = ()
    force: Force = False

    def show(
        self,
        as_json: Callable[[], Any],
        as_document: Callable[[], Document],
        *,
        is_printed: bool = True,
        on_stderr: bool = False,
        charts: Callable[[], Sequence[Chart]] = tuple,
    ) -> None:
        """Print a result: as the one JSON document on stdout, or as a report; and write it to files."""
        if self.json:
            print_json(as_json())
        elif is_printed:
            print_document(as_document(), reading=self, on_stderr=on_stderr)
        write_reports(
            self.output, as_json, as_document, lambda path: write_page(path, as_document(), charts())
        )
        say_wrote(self.output, on_stderr=self.json or on_stderr or not is_printed)


@dataclass(frozen=True)
class ProgramShowing(ProgramParts, Showing):
    """The same for verbs that a program follows."""


READING, SHOWING, PROGRAM_PARTS, PROGRAM_SHOWING = Parts(), Showing(), ProgramParts(), ProgramShowing()

# Of a report longer than so many lines these lines of its head are said again at its end.
_SCREEN, _CONCLUSIONS = 60, frozenset({"Step", "Change 1", "Best set", "Verdict", "Result"})


# What reports are written in while this process runs one verb.
_language = Language.EN


def use_language(asked: str | None) -> None:
    """Write reports in a language from now on: the one asked for, else that of the environment."""
    global _language  # noqa: PLW0603 - one for all that a command prints
    names = ("OPSCOPE_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    _language = Language(asked) if asked else language_of(map(os.environ.get, names))


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
    sys.stderr.write(f"note: {visible(in_language(text))}\n")


def say(text: str) -> None:
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
        # An idle machine that runs one program lets something wait for a CPU 1 or 2 % of the time.
        if max(fractions) > 0.2 and os.getpid() == process:  # a script may have forked
            told = " and ".join(map(format_fraction, fractions))
            note(
                f"the machine is loaded, times may be too long: work waited for a CPU {told} of the time "
                "(before and after measuring)"
            )


def write_reports(
    output: Iterable[Path],
    as_json: Callable[[], Any],
    as_document: Callable[[], Document],
    as_page: Callable[[Path], object],
) -> None:
    for path in output:
        if path.suffix == ".json":
            write_json(path, as_json())
        elif is_page(path):
            as_page(path)
        else:
            write_text(path, markdown(as_document()))


def is_page(path: Path) -> bool:
    return path.suffix.lower() in (".html", ".htm")


def recorded(record: Sequence[str]) -> dict[str, Any]:
    names = {"stack": "with_stack", "modules": "with_modules", "memory": "profile_memory"}
    return {name: word in record for word, name in names.items()}


def workload_options(texts: Iterable[str], **given: Any) -> WorkloadOptions:
    """How a workload is built, of `NAME=VALUE`s."""
    from opscope.workloads.workload import WorkloadOptions  # noqa: PLC0415 - only for workloads

    kinds = {"dtype": str, "attn_implementation": str, "layers": int, "hidden": int, "weights": str}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in kinds or not value:
            known = ", ".join(f"{one}=…" for one in kinds)
            raise InputError(f"'{text}' is no parameter of workloads", hint=f"They are {known}")
        try:
            given[name] = kinds[name](value)
        except ValueError as error:
            raise InputError(f"'{text}' is not a number", hint="Such as --param layers=2") from error
    return WorkloadOptions(**given)


class _PipeConsole(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`, which maps every failure to an exit code."""
        raise BrokenPipeError


def stderr_console() -> Console:
    return Console(file=sys.stderr, highlight=False)


def wide_console(stream: TextIO) -> Console:
    """Console for results: as wide as the terminal up to 200 columns; 120 where there is none."""
    probe = Console(file=stream)
    has_width = probe.is_terminal or "COLUMNS" in os.environ
    width = min(probe.width, 200) if has_width else 120
    return _PipeConsole(file=stream, width=width, highlight=False, emoji=False, soft_wrap=False)


def print_document(document: Document, *, reading: Parts = READING, on_stderr: bool = False) -> None:
    """Print what is to be read of a report on stdout, or on stderr where stdout is a program's own."""
    stream = sys.stderr if on_stderr else sys.stdout
    told = only_sections(document, reading.section, in_language) if reading.section else document
    console = wide_console(stream)
    with console.capture() as printed:
        console.print(render_terminal(translated(told, _language)), crop=False)
    stream.write(printed.get())
    facts = next((one.facts for one in told.blocks if isinstance(one, FactList)), ())
    again = FactList(tuple(one for one in facts if one[0] in _CONCLUSIONS))
    # A change alone, without what it is measured by, is no conclusion.
    if {label for label, _ in again.facts} - {"Change 1"} and printed.get().count("\n") > _SCREEN:
        ending = Document("", sections=(Section("", (again,)),))
        console.print("", render_terminal(translated(ending, _language)), crop=False)


def markdown(document: Document) -> str:
    from opscope.report.markdown import render_markdown  # noqa: PLC0415 - seldom asked

    return render_markdown(translated(document, _language))


def print_json(document: Any) -> None:
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


def write_recording_page(path: Path, session: Session, summary: Summary, *, top: int | None) -> Path:
    from opscope.report.html.page import session_page  # noqa: PLC0415 - seldom asked

    with status("Drawing"):
        page = session_page(session, summary, top=top, command=command_line(), language=_language)
        return write_text(path, page)


def check_outputs(paths: Iterable[Path | None], *, force: bool, inputs: Iterable[object] = ()) -> None:
    """Stop before work is done whose result could not be written, or would replace what is read."""
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


Told = Callable[[str, int, int], object]


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Told]:
    """A bar on stderr: what runs, how many have run, how long the rest may take; none off a terminal."""
    from rich.progress import (  # noqa: PLC0415 - for verbs that take long
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    stream = stderr_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stream, disable=quiet or not stream.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)


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
