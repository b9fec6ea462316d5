"""The `opscope` command: its verbs, and what every way to fail becomes.

Exit codes: 0 fine, 1 an OpscopeError (or a failed configuration), 2 usage, 3 a regression was found, 4 a
gate had too little to judge by, 130 interrupted (143 by SIGTERM, 129 by SIGHUP). A user's mistake is one line
on stderr (wrapped on a terminal); the traceback comes with `--debug`. Imports no verb before it is called.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter

from opscope._version import __version__
from opscope.errors import OpscopeError
from opscope.signals import ending_signals_raise, interrupted_by, is_of_signal, signals_interrupt

_OF_ALL = ("-h", "--help", "--version", "--debug")
_LANGUAGE = ("--lang", "--lang=en", "--lang=zh", "en", "zh")
# Verbs whose arguments end with a script and its own arguments.
_WITH_SCRIPT = ("run", "try")


def separate_script(tokens: Sequence[str]) -> list[str]:
    """The tokens of a command line, with `--` before the script if the verb is `run` or `try`.

    The script is the first token that is neither an option nor an option's value.
    """
    verb = next((token for token in tokens if token in _WITH_SCRIPT), None)
    if verb is None:
        return list(tokens)
    start = tokens.index(verb) + 1
    is_separate = verb == "try" and "--" in tokens  # options of several values may hold files
    if is_separate or any(token not in (*_OF_ALL, *_LANGUAGE) for token in tokens[: start - 1]):
        return list(tokens)
    index, options = start, {"--lang": False, **declared_options(verb)}
    while index < len(tokens):
        token = tokens[index]
        if token == "--":
            break
        if not token.startswith("-"):
            is_target = token.endswith(".py") or token == "torchrun" or "-m" in tokens[start:index]
            if verb == "try" and not is_target:
                index += 1  # one of several values, or a workload, whose options may follow
                continue
            return [*tokens[:index], "--", *tokens[index:]]
        index += 1 if options.get(token, True) or "=" in token else 2
    return list(tokens)


def declared_options(verb: str) -> dict[str, bool]:
    """Whether an option of a verb is a flag, which takes no value, by each of its names."""
    app = _app((verb,))
    declared = app[verb].assemble_argument_collection(default_parameter=app.default_parameter)
    options = {name: one.is_flag() for one in declared for name in one.names if name.startswith("-")}
    return {**options, **dict.fromkeys(_OF_ALL, True)}


EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_REGRESSION = 3
EXIT_INCONCLUSIVE = 4
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

# Verbs that run a program of the user's in this process, which finds the interpreter as it always is.
_RUN_PROGRAMS = frozenset({"profile", "run", "bench"})


def entry_point() -> None:
    code = command_line()
    if _RUN_PROGRAMS.isdisjoint(sys.argv):
        if code > 128:  # the signal may have ended the removal of temporary files too
            import shutil  # noqa: PLC0415 - for a signal alone
            import tempfile  # noqa: PLC0415

            from opscope.model.files import scratch_prefix  # noqa: PLC0415

            for folder in Path(tempfile.gettempdir()).glob(f"{scratch_prefix()}*"):
                shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError, ValueError):  # then the interpreter says what it can
            sys.stdout.flush()
            sys.stderr.flush()
            atexit._run_exitfuncs()
            os._exit(code)  # taking modules and tables apart is a twentieth of the time
    sys.exit(code)


def command_line() -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, and what is opened next takes its place
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its escape, not a traceback.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        with ExitStack() as ends:
            ends.enter_context(ending_signals_raise())
            if _RUN_PROGRAMS.isdisjoint(sys.argv):
                gc.disable()  # modules and reports live until the end: garbage takes a tenth of the time
                ends.enter_context(signals_interrupt())
                # NumPy starts a thread per core for algebra that is not done here; programs that others of
                # these verbs start, in processes of their own, would inherit it.
                if {"try", "trace", "ncu", "nvcc", "doctor", "devices"}.isdisjoint(sys.argv):
                    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
                    # Freed memory is kept (M_MMAP_, M_TRIM_THRESHOLD): to have it anew takes up to a twelfth.
                    if not any(word.startswith("--memory-limit") for word in sys.argv):
                        with suppress(AttributeError, OSError, TypeError):  # another C library than glibc
                            _ = (mallopt := ctypes.CDLL(None).mallopt)(-3, 8 << 20), mallopt(-1, 128 << 20)
            code = main()
    except KeyboardInterrupt as error:  # right before the verb, or right after it
        code = _interrupted(*error.args)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: Arguments without the program's name; those of this process if None.
    """
    tokens = list(sys.argv[1:] if argv is None else argv)
    own = len(tokens)
    try:
        first = next((token for token in tokens if token not in (*_OF_ALL, *_LANGUAGE)), "")
        if first and not any(first in verbs for verbs in VERBS.values()) and Path(first).exists():
            tokens.insert(tokens.index(first), "analyze")
        tokens = separate_script(tokens)
        own = tokens.index("--") if "--" in tokens else len(tokens)
        tokens[:own] = ["/dev/stdin" if token == "-" else token for token in tokens[:own]]
        is_unread = own + 1 < len(tokens) and not _reads_arguments(Path(tokens[own + 1]))
        if is_unread:
            _note_options_after(tokens[:own], tokens[own + 2 :])
        code = _dispatch(tokens)
        if code == EXIT_USAGE and not is_unread:
            _note_options_after(tokens[:own], tokens[own + 2 :])
        return 128 + interrupted_by() if code == EXIT_INTERRUPTED else code
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a defect of opscope still exits cleanly
        return _ended(error, tokens, own)


def _ended(error: BaseException, tokens: Sequence[str], own: int) -> int:
    """One line on stderr, and the exit code."""
    if isinstance(error, CycloptsError):
        command = " ".join(("opscope", *(error.command_chain or ())))
        return _fail(f"{error}\nTry: {command} --help", EXIT_USAGE)
    if isinstance(error, BrokenPipeError):
        return _broken_pipe()
    # What a signal interrupted may be told as an error of the input, or of the engine (its RuntimeError).
    if is_of_signal(error) or str(error) == "Query interrupted":
        return _interrupted()
    if "--debug" in tokens[:own]:
        traceback.print_exc()
    told = f"internal error, {type(error).__name__}: {error}. Run again with --debug and report it"
    if isinstance(error, OpscopeError):
        from opscope.cli.console import error_text  # noqa: PLC0415 - the verb has imported it

        told = error_text(error, has_program=own < len(tokens))
    elif isinstance(error, OSError):  # what the system refuses: a full disk, too many open files
        where = f"{error.filename}: " if error.filename else ""
        told = f"{where}{error.strerror or error}. Run again with --debug to see where"
    elif type(error).__name__ == "OutOfMemoryException":
        told = "out of memory. Raise --memory-limit, or leave it out"
    _fail(told, EXIT_ERROR)
    if isinstance(error, OpscopeError):
        said = error.message.splitlines()[-1]  # by a program that `try` ran
        _note_options_after(tokens[:own], [one for one in tokens[own + 2 :] if one in said])
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # a full stdout is given up
        _broken_pipe()
    return EXIT_ERROR


def _reads_arguments(script: Path) -> bool:
    """Whether a program may read its arguments: itself, or by a module beside it."""
    try:
        text = script.read_text(errors="replace") if script.suffix == ".py" else "argv"
        beside = {one.stem for one in script.parent.iterdir()} - {script.stem}
    except OSError:
        return True
    imported = re.findall(r"^\s*(?:from|import) +(\w+)", text, re.MULTILINE)
    reads = re.search("argv|parse|click|fire|typer|tyro|hydra|absl", text, re.IGNORECASE)
    return bool(reads) or not beside.isdisjoint(imported)


def _note_options_after(own: Sequence[str], arguments: Sequence[str]) -> None:
    """Say which arguments that a program did not take are options of the verb that runs it."""
    verb = next((one for one in own if one in (*_WITH_SCRIPT, "trace")), None)
    options = declared_options(verb).keys() - set(_OF_ALL) if verb is not None else set()
    ours = [one for one in arguments if one.partition("=")[0] in options]
    if ours:
        text = f"{ours[0]} stands after the script, so the script got it: options of opscope come before it"
        _fail(text, EXIT_USAGE, kind="note: ")


def _dispatch(tokens: list[str]) -> int:
    app = _app(tokens)

    @app.meta.default
    def run(
        *verb_and_arguments: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        debug: bool = False,
        lang: Literal["en", "zh"] | None = None,
    ) -> Any:
        """Run one verb.

        Args:
            verb_and_arguments: The verb and what it takes.
            debug: Show the traceback of an error.
            lang: Language of reports: en or zh; else OPSCOPE_LANG, then the locale.
        """
        if not {"--help", "-h", "--version"}.intersection(tokens) and tokens:
            from opscope.cli.console import use_language  # noqa: PLC0415 - help needs none of what it imports

            use_language(lang)
        return app(verb_and_arguments, **quietly)

    quietly: dict[str, Any] = {"exit_on_error": False, "print_error": False, "result_action": "return_value"}
    # Or it would exit before `main` says what is kept.
    app.suppress_keyboard_interrupt = app.meta.suppress_keyboard_interrupt = False
    code = app.meta(tokens, **quietly)
    sys.stdout.flush()
    return code if isinstance(code, int) else EXIT_OK


# What each verb does, by group; its module is named like it, but `try`, which is a word of Python.
VERBS = {
    "Start here": {
        "analyze": "Report where the device time of recorded traces goes",
        "run": "Profile an unmodified script",
        "try": "Apply changes to your own program and measure each",
    },
    "Look closer at a recording": {
        "compare": "Compare two benchmark results, or two recordings",
        "explain": "Explain an operator, a kernel, a category or a source file",
        "extract": "Write a recorded operator call as a Python file that runs alone",
        "sql": "Query the tables of a trace or a saved session",
        "stats": "Print nsys' statistics of a trace: calls, kernels, copies",
    },
    "Measure": {
        "bench": "Compare implementations: a suite, or functions of your own",
        "ncu": "Read hardware counters, or profile a program with Nsight Compute",
        "profile": "Profile a workload over batch sizes and sequence lengths",
        "trace": "Record any CUDA program: kernels, copies, calls",
    },
    "Machine and tools": {
        "devices": "Show GPUs: architecture, compute capability, -arch flag, limits and peak rates",
        "doctor": "Check this machine: torch, CUDA, GPUs, profiler, counters",
        "nvcc": "Compile a CUDA file; show registers, spills and occupancy",
    },
}


def _app(tokens: Sequence[str]) -> App:
    options = Group("Options", sort_key=len(VERBS))
    app = App(
        name="opscope",
        group_commands=options,
        group_parameters=options,
        help="Where every nanosecond of GPU time goes in PyTorch.",
        version=__version__,
        version_flags=["--version"],
        default_parameter=Parameter(negative=(), show_default=False),
        help_format="plaintext",  # Markdown takes half of the time that `opscope --help` takes
        help_epilogue="Exit codes: 0 fine, 1 an error, 2 wrong usage, 130 interrupted.",
    )
    for place, (title, verbs) in enumerate(VERBS.items()):
        group = Group(title, sort_key=place)
        for verb, summary in verbs.items():
            module = "try_changes" if verb == "try" else verb
            # An import string: the module is loaded when its verb runs, or tells what it does itself.
            app.command(
                f"opscope.cli.{module}:{module}",
                name=verb,
                group=group,
                help=None if verb in tokens else summary,
                help_format="markdown",
            )
    if not tokens or tokens[0].startswith("-"):  # a verb has no use for what that imports
        app.register_install_completion_command(help="Complete verbs and options in this shell")
    return app


def _interrupted(number: int | None = None) -> int:
    message = "interrupted: files already written are kept, nothing else was written"
    return _fail(message, 128 + (number or interrupted_by()), kind="")


def _fail(message: str, code: int, *, kind: str = "error: ") -> int:
    """Say it on stderr: as wide as a terminal, or as COLUMNS has it, and else unwrapped, to be searched."""
    from opscope.visible_text import visible  # noqa: PLC0415 - not needed where nothing fails

    text = f"{kind}{visible(message)}"
    if sys.stderr.isatty() or "COLUMNS" in os.environ:
        from opscope.cli.console import wide_console  # noqa: PLC0415

        how: dict[str, Any] = dict.fromkeys(
            ("expand_tabs", "replace_whitespace", "break_long_words", "break_on_hyphens"), False
        )
        width, indent = wide_console(sys.stderr).width, " " * len(kind)
        text = "\n".join(fill(line, width, subsequent_indent=indent, **how) for line in text.split("\n"))
    print(text, file=sys.stderr)  # noqa: T201
    return code


def _broken_pipe() -> int:
    # The reader has gone; Python would complain again when it flushes stdout at exit.
    with suppress(OSError, ValueError):  # stdout is no file: nothing is left to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141  # 128 + SIGPIPE
