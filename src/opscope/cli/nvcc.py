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
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from opscope.cli import console
from opscope.errors import InputError
from opscope.hardware.architectures import Target, architecture, parse_target
from opscope.hardware.devices import search_devices
from opscope.hardware.driver import CudaDevice, require_nvcc, visible_gpus
from opscope.hardware.occupancy import BLOCK_SIZES
from opscope.kernels.code import file_sass, ptx_functions
from opscope.model.files import scratch_prefix
from opscope.nvcc.compile import (
    ALL,
    ALL_MAJOR,
    NATIVE,
    BuildProduct,
    Nvcc,
    Request,
    choose_targets,
    compile_source,
    default_name,
    ptx_target,
    read_nvcc,
    refuse_options,
    run_compiled,
    runs_on,
)
from opscope.provenance.demangle import demangle
from opscope.report.nvcc import NvccCode, nvcc_document, nvcc_json

_FAMILY_RELEASE = "12.9"  # PTX ISA 8.8, CUDA 12.9: targets with the letter f
_PTX = "ptx"
_KEYWORDS = (NATIVE, ALL, ALL_MAJOR)


_Occupancy = Parameter(group=Group("Occupancy"))


def nvcc(
    source: Annotated[Path, Parameter(name="FILE.cu")],
    /,
    *arguments: Annotated[str, Parameter(name="ARGS")],
    arch: console.Words = (),
    run: bool = False,
    emit: BuildProduct | None = None,
    show: Annotated[tuple[Literal["ptx", "sass"], ...], console.Several] = (),
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    nvcc_option: console.Options = (),
    force: console.Force = False,
    json: console.Json = False,
    block_size: Annotated[str, _Occupancy] = ",".join(map(str, BLOCK_SIZES)),
    dynamic_shared: Annotated[int, _Occupancy, Parameter(validator=Number(gte=0))] = 0,
) -> int:
    """Compile a CUDA file: opscope nvcc FILE.cu [OPTIONS] [--run -- ARGS…].

    Prints the equivalent nvcc command, and for each kernel and target registers, shared memory, stack,
    spills, constant memory and possible occupancy. With --run the program runs, and its exit code is passed
    on.

    Example: opscope nvcc add.cu --run

    Args:
        source: The file.
        arguments: Arguments of the program, after --. Only with --run.
        arch: Comma-separated targets: sm_90, sm_90a, a GPU (h200), native (the GPUs here, the default), all,
            or all-major; ptx in the list also embeds PTX, which the drivers of newer GPUs compile (always
            included in all and all-major).
        run: Run the program. Without -o it is not kept.
        emit: What to build: program (the default), object, shared, fatbin, cubin, or nothing (only show the
            kernels).
        show: Print the PTX of each kernel (ptx) or its machine code (sass; needs cuobjdump: CUDA toolkit, or
            pip install triton).
        output: The file to write; by default named like the source, in the current folder.
        nvcc_option: An option for nvcc, such as --nvcc-option=-O3; may be repeated.
        block_size: Comma-separated block sizes.
        dynamic_shared: Bytes of dynamic shared memory per block.
    """
    product = emit or BuildProduct.PROGRAM
    sizes = [word.strip() for word in block_size.split(",") if word.strip()]
    if not sizes or not all(word.isdecimal() and int(word) for word in sizes):
        raise InputError(f"'{block_size}' is not a list of block sizes", hint="Such as --block-size 128,256")
    _check(source, arguments, nvcc_option, run=run)
    if run and product is not BuildProduct.PROGRAM:
        raise InputError(f"--run needs a program, and --emit {product} makes none")
    if output is not None and product is BuildProduct.NOTHING:
        raise InputError("--emit nothing writes no file", hint="Leave -o out")
    named = Path(default_name(source, product)) if output is None else output
    kept = None if product is BuildProduct.NOTHING or (output is None and run) else named
    if kept is not None:
        console.check_outputs([kept], force=force, inputs=[source])
    compiler, gpus = read_nvcc(require_nvcc()), cache(visible_gpus)
    targets, ptx_of = _targets(compiler, gpus, arch, product)
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
        # What is not kept stands there as long as it is run or looked at.
        place = Path(folder) / default_name(source, product) if kept is None else kept
        blocks = tuple(dict.fromkeys(map(int, sizes)))
        request = Request(source, place, product, targets, ptx_of, nvcc_option, blocks, dynamic_shared)
        if run:
            _check_runnable(gpus(), request)
        with console.status(f"Compiling {source.name}"):
            compilation = compile_source(compiler, request, os.environ)
            texts = [
                (target, "ptx", {one.symbol: one.text for one in ptx_functions(text)})
                for target, text in (compilation.ptx.items() if "ptx" in show else ())
            ]
            if "sass" in show:
                texts += [(one.name, "sass", file_sass(place, one.name)) for one in targets]
            codes = [
                NvccCode(demangle(symbol) or symbol, target, language, text)
                for target, language, found in texts
                for symbol, text in found.items()
            ]
        # It makes the same, in the current folder where nothing stays.
        command = request.command(compiler.path, kept or Path(default_name(source, product)))
        if not json:
            console.print_document(nvcc_document(compilation, command, codes), on_stderr=run)
        if kept is not None:
            console.say_wrote([kept], on_stderr=run or json)
        sys.stdout.flush()
        code = (
            run_compiled(place, arguments, os.environ, stdout=console.STDERR if json else None)
            if run
            else None
        )
        if json:
            written = None if kept is None else str(kept)
            console.print_json(nvcc_json(compilation, command, codes=codes, output=written, exit_code=code))
    return code or 0


def _check(source: Path, arguments: Sequence[str], options: Sequence[str], *, run: bool) -> None:
    if source.suffix != ".cu":
        raise InputError("not a .cu file", source=source, hint="nvcc takes CUDA C++ for what ends in .cu")
    if not source.is_file():
        raise InputError("a folder" if source.is_dir() else "no such file", source=source)
    refuse_options(options)
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
    compiler: Nvcc, gpus: Callable[[], Sequence[CudaDevice]], arch: Sequence[str], product: BuildProduct
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
        explain=lambda target: _explain(target, compiler.release),
    )
    has_ptx = any(word in (_PTX, ALL, ALL_MAJOR) for word in words)
    if product is BuildProduct.CUBIN and (len(targets) > 1 or has_ptx):
        raise InputError(
            "a cubin is machine code for one target", hint="Choose one with --arch, or --emit fatbin"
        )
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


def _explain(target: Target, release: str) -> str | None:
    """Which CUDA toolkits build for a target that this one does not."""
    known = architecture(target.compute_capability)
    if known is None:
        return f"no GPU of compute capability {target.compute_capability} is known here"
    least, last = known.least_cuda_version, known.last_cuda_version
    if last is not None and _number(last) < _number(release):
        return f"{known.name}, for which CUDA {least} to {last} build"
    if _number(release) < _number(least):
        return f"{known.name}, for which CUDA {least} and newer build"
    if target.suffix == "f" and _number(release) < _number(_FAMILY_RELEASE):
        return f"targets of a family come with CUDA {_FAMILY_RELEASE}"
    if target.suffix and known.specific_target is None:
        return f"{known.name} has no features of its own"
    return known.note


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _check_runnable(gpus: Sequence[CudaDevice], request: Request) -> None:
    """Stop if no GPU here runs the code: its launches would fail, and a program may not notice."""
    if not gpus:
        raise InputError("--run needs a GPU, and there is none here", hint="Leave --run out to compile alone")
    if any(runs_on(request.targets, request.ptx, gpu.compute_capability) for gpu in gpus):
        return
    here = ", ".join(dict.fromkeys(f"{gpu.name} ({gpu.compute_capability})" for gpu in gpus))
    names = ", ".join(target.name for target in request.targets)
    raise InputError(f"code for {names} does not run on {here}", hint="--arch native compiles for it")
