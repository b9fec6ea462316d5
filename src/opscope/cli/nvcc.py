"""`opscope nvcc`: compile a CUDA file; registers, spills and occupancy of its kernels.

Of a program that is run, standard output is its own, and what is said of it goes to standard error; with
`--json` the other way round, so that standard output is one JSON document.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from opscope.cli import console
from opscope.errors import InputError
from opscope.hardware.architectures import Target, parse_target
from opscope.hardware.devices import search_devices
from opscope.hardware.driver import CudaDevice, require_nvcc, visible_gpus
from opscope.model.files import scratch_prefix
from opscope.nvcc.compile import (
    ALL,
    ALL_MAJOR,
    NATIVE,
    Nvcc,
    Request,
    choose_targets,
    compile_source,
    ptx_target,
    read_nvcc,
    runs_on,
)
from opscope.report.nvcc import nvcc_document, nvcc_json
from opscope.toolchain.programs import run_attached

_PTX = "ptx"
_KEYWORDS = (NATIVE, ALL, ALL_MAJOR)


def nvcc(
    source: Annotated[Path, Parameter(name="FILE.cu")],
    /,
    *arguments: Annotated[str, Parameter(name="ARGS")],
    arch: console.Words = (),
    run: bool = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    nvcc_option: console.Options = (),
    force: console.Force = False,
    json: console.Json = False,
    dynamic_shared: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
) -> int:
    """Compile a CUDA file: opscope nvcc FILE.cu [OPTIONS] [--run -- ARGS…].

    Prints the nvcc command that does the same, and for each kernel and target registers, shared memory,
    stack, spills, constant memory and the occupancy it can reach. With --run the program runs, and its exit
    code is passed on.

    Example: opscope nvcc add.cu --run

    Args:
        source: The file.
        arguments: Of the program, after --. Only with --run.
        arch: Targets, with commas between them: sm_90, sm_90a, a GPU (h200), native (the GPUs here, the
            default), all, or all-major; ptx among them also embeds PTX, which the drivers of newer GPUs
            compile (always so with all and all-major).
        run: Run the program; without -o it is not kept.
        output: The program to write; without it, and without --run, the kernels are looked at.
        nvcc_option: One more option of nvcc, such as --nvcc-option=-O3; may be given many times.
        dynamic_shared: Bytes of shared memory that launches ask for, for each block; occupancy counts them.
    """
    _check(source, arguments, run=run)
    if output is not None:
        console.check_outputs([output], force=force, inputs=[source])
    compiler, gpus = read_nvcc(require_nvcc()), cache(visible_gpus)
    targets, ptx_of = _targets(compiler, gpus, arch)
    code = None
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
        # What is not kept stands there as long as it is run or looked at.
        place, is_program = output or Path(folder) / source.stem, run or output is not None
        request = Request(source, place, is_program, targets, ptx_of, nvcc_option, dynamic_shared)
        if run:
            _check_runnable(gpus(), request)
        with console.status(f"Compiling {source.name}"):
            compilation = compile_source(compiler, request, os.environ)
        # It makes the program, in the current folder where nothing stays.
        command = request.command(compiler.path, output=output or Path(source.stem))
        if not json:
            console.print_document(nvcc_document(compilation, command), on_stderr=run)
        if output is not None:
            console.say_wrote([output], on_stderr=run or json)
        sys.stdout.flush()
        if run:
            stdout = console.STDERR if json else None
            ended = run_attached([str(place.resolve()), *arguments], "the program", place, stdout=stdout)
            if ended.was_interrupted:
                raise KeyboardInterrupt
            code = ended.shell_code
        if json:
            written = None if output is None else str(output)
            console.print_json(nvcc_json(compilation, command, output=written, exit_code=code))
    return code or 0


def _check(source: Path, arguments: Sequence[str], *, run: bool) -> None:
    if source.suffix != ".cu":
        raise InputError("not a .cu file", source=source, hint="nvcc takes CUDA C++ for what ends in .cu")
    if not source.is_file():
        raise InputError("a folder" if source.is_dir() else "no such file", source=source)
    if arguments and not run:
        if parse_target(arguments[0]) is not None:
            raise InputError(
                f"'{arguments[0]}' is not understood", hint="Commas separate targets: --arch sm_80,sm_90"
            )
        raise InputError(
            f"'{arguments[0]}' is for a program that is not run",
            hint="Add --run; or compile one file at a time",
        )


def _targets(
    compiler: Nvcc, gpus: Callable[[], Sequence[CudaDevice]], arch: Sequence[str]
) -> tuple[tuple[Target, ...], Target | None]:
    def native() -> list[str]:
        if not gpus():
            known = ", ".join(target.name for target in compiler.targets if target.is_general)
            raise InputError(
                "there is no GPU here whose target could be taken",
                hint=f"Choose with --arch: {known}, a GPU's name (h200), all-major, or all. "
                "`opscope devices` says which GPU has which",
            )
        return [gpu.compute_capability for gpu in gpus()]

    words = [word.strip() for text in arch or (NATIVE,) for word in text.split(",") if word.strip()]
    targets = choose_targets(
        [target for word in words if word != _PTX for target in _named(word)] or [NATIVE],
        compiler.targets,
        native=native,
    )
    has_ptx = any(word in (_PTX, ALL, ALL_MAJOR) for word in words)
    return targets, ptx_target(targets) if has_ptx else None


def _named(word: str) -> list[str]:
    """The word itself, or the target of the GPU or architecture it names."""
    if word in _KEYWORDS or parse_target(word) is not None or word.lower().startswith(("sm_", "compute_")):
        return [word]
    found = search_devices(word).architectures
    if len(found) > 1:
        names = ", ".join(f"{one.target} ({one.products or one.name})" for one in found)
        raise InputError(f"'{word}' means several targets", hint=f"Choose of {names}")
    return [found[0].target] if found else [word]


def _check_runnable(gpus: Sequence[CudaDevice], request: Request) -> None:
    """Stop if no GPU here runs the code: its launches would fail, and a program may not notice."""
    if not gpus:
        raise InputError("--run needs a GPU, and there is none here", hint="Leave --run out to compile alone")
    if any(runs_on(request.targets, request.ptx, gpu.compute_capability) for gpu in gpus):
        return
    here = ", ".join(dict.fromkeys(f"{gpu.name} ({gpu.compute_capability})" for gpu in gpus))
    names = ", ".join(target.name for target in request.targets)
    raise InputError(f"code for {names} does not run on {here}", hint="--arch native compiles for it")
