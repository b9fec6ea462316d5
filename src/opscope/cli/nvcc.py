"""`opscope nvcc`: compile a CUDA file; registers, spills and occupancy of its kernels.

Of a program that is run, standard output is its own, and what is said of it goes to standard error; with
`--json` the other way round, so that standard output is one JSON document.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from opscope.analysis.compiled_file import CompiledFile, examine_compilation
from opscope.cli.console import (
    STDERR,
    Output,
    Words,
    check_outputs,
    print_document,
    print_json,
    say_wrote,
    status,
)
from opscope.errors import InputError
from opscope.hardware.architectures import Target, architecture, parse_target
from opscope.hardware.devices import search_devices
from opscope.hardware.driver import CudaDevice, visible_gpus
from opscope.hardware.occupancy import BLOCK_SIZES
from opscope.hardware.toolkit import require_nvcc
from opscope.kernels.disassembly import file_sass
from opscope.kernels.ptx import ptx_functions
from opscope.model.files import scratch_prefix
from opscope.nvcc.command import (
    ALL,
    ALL_MAJOR,
    NATIVE,
    BuildProduct,
    Nvcc,
    choose_targets,
    default_name,
    ptx_target,
    read_nvcc,
    refuse_options,
    runs_on,
)
from opscope.nvcc.compile import Compilation, Request, compile_source, request_command, run_compiled
from opscope.provenance.demangle import demangle
from opscope.report.nvcc import NvccCode, nvcc_document, nvcc_json

_FAMILY_RELEASE = "12.9"  # PTX ISA 8.8, CUDA 12.9: targets with the letter f
_KEYWORDS = (NATIVE, ALL, ALL_MAJOR)


@dataclass(frozen=True)
class OccupancyOptions:
    """What occupancy is given for.

    Args:
        block_size: Block sizes, with commas between them.
        dynamic_shared: Bytes of shared memory that launches ask for, for each block.
    """

    block_size: str = ",".join(map(str, BLOCK_SIZES))
    dynamic_shared: Annotated[int, Parameter(validator=Number(gte=0))] = 0


@dataclass(frozen=True)
class Showing:
    """Code to print.

    Args:
        show_sass: The machine code of each kernel (needs cuobjdump: CUDA toolkit, or pip install triton).
        show_ptx: The PTX of each kernel.
    """

    show_sass: bool = False
    show_ptx: bool = False


_Options = Annotated[tuple[str, ...], Parameter(show_default=False, allow_leading_hyphen=True)]
_Occupancy = Annotated[OccupancyOptions, Parameter(name="*", group=Group("Occupancy"))]
_Showing = Annotated[Showing, Parameter(name="*", group=Group("Code"))]


def nvcc(
    source: Annotated[Path, Parameter(name="FILE.cu")],
    /,
    *arguments: Annotated[str, Parameter(name="ARGS")],
    arch: Words = (),
    ptx: bool = False,
    run: bool = False,
    emit: BuildProduct | None = None,
    output: Output = None,
    nvcc_option: _Options = (),
    force: bool = False,
    json: bool = False,
    occupancy: _Occupancy = OccupancyOptions(),
    showing: _Showing = Showing(),
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
            default), all, or all-major.
        ptx: Also embed PTX, which the drivers of newer GPUs compile; always so with all and all-major.
        run: Run the program. Without -o it is not kept.
        emit: What to make: program (the default), object, shared, fatbin, cubin, or nothing to look at the
            kernels alone.
        output: The file to write; by default named like the source, in the current folder.
        nvcc_option: One more option of nvcc, such as --nvcc-option=-O3; may be given many times.
        force: Overwrite an existing file.
        json: Print one JSON document and nothing else.
        occupancy: What occupancy is given for.
        showing: Code to print.
    """
    product = emit or BuildProduct.PROGRAM
    block_sizes = _block_sizes(occupancy.block_size)
    _check(source, arguments, product, nvcc_option, run=run)
    kept = _kept_output(source, output, product, run=run, force=force)
    machine = _Machine(read_nvcc(require_nvcc()))
    targets, ptx_of = _targets(machine, arch, product, with_ptx=ptx)
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
        # What is not kept stands there as long as it is run or looked at.
        place = Path(folder) / default_name(source, product) if kept is None else kept
        request = Request(source, place, product, targets, ptx_of, nvcc_option)
        if run:
            _check_runnable(machine, request)
        with status(f"Compiling {source.name}"):
            compilation = compile_source(machine.nvcc, request, os.environ)
            codes = _codes(compilation, showing)
        compiled = examine_compilation(
            compilation,
            block_sizes=block_sizes,
            dynamic_shared_bytes=occupancy.dynamic_shared,
        )
        return _finish(compiled, codes, kept, arguments, run=run, json=json)


@dataclass(frozen=True)
class _Machine:
    """The compiler and the GPUs here."""

    nvcc: Nvcc

    @cached_property
    def gpus(self) -> tuple[CudaDevice, ...]:
        return visible_gpus()

    def capabilities(self) -> list[str]:
        """Of the GPUs here.

        Raises:
            InputError: There is none.
        """
        if not self.gpus:
            known = ", ".join(target.name for target in self.nvcc.targets if target.is_general)
            raise InputError(
                "there is no GPU here whose target could be taken",
                hint=f"Choose with --arch: {known}, a GPU's name (h200), all-major, or all. "
                "`opscope devices` says which GPU has which",
            )
        return [gpu.compute_capability for gpu in self.gpus]


def _finish(
    compiled: CompiledFile,
    codes: Sequence[NvccCode],
    kept: Path | None,
    arguments: Sequence[str],
    *,
    run: bool,
    json: bool,
) -> int:
    """Print what is known, then run the program; its exit code belongs to the JSON."""
    request = compiled.compilation.request
    output = kept or Path(default_name(request.source, request.product))
    # It makes the same, in the current folder where nothing stays.
    command = request_command(compiled.compilation.nvcc, request, output)
    if not json:
        print_document(nvcc_document(compiled, command, codes), on_stderr=run)
    if kept is not None:
        say_wrote([kept], on_stderr=run or json)
    sys.stdout.flush()
    code = None
    if run:
        code = run_compiled(request.output, arguments, os.environ, stdout=STDERR if json else None)
    if json:
        written = None if kept is None else str(kept)
        print_json(nvcc_json(compiled, command, codes=codes, output=written, exit_code=code))
    return code or 0


def _check(
    source: Path, arguments: Sequence[str], product: BuildProduct, options: Sequence[str], *, run: bool
) -> None:
    if source.suffix != ".cu":
        raise InputError("not a .cu file", source=source, hint="nvcc takes CUDA C++ for what ends in .cu")
    if not source.is_file():
        what = "a folder" if source.is_dir() else "no such file"
        raise InputError(what, source=source)
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
    if run and product is not BuildProduct.PROGRAM:
        raise InputError(f"--run needs a program, and --emit {product} makes none")


def _block_sizes(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) for word in words):
        raise InputError(f"'{text}' is not a list of block sizes", hint="Such as --block-size 128,256")
    return list(dict.fromkeys(map(int, words)))


def _kept_output(
    source: Path, output: Path | None, product: BuildProduct, *, run: bool, force: bool
) -> Path | None:
    """The file that stays; None where none does."""
    if product is BuildProduct.NOTHING:
        if output is not None:
            raise InputError("--emit nothing writes no file", hint="Leave -o out")
        return None
    if output is None and run:
        return None
    chosen = Path(default_name(source, product)) if output is None else output
    check_outputs([chosen], force=force, inputs=[source])
    return chosen


def _targets(
    machine: _Machine, arch: Sequence[str], product: BuildProduct, *, with_ptx: bool
) -> tuple[tuple[Target, ...], Target | None]:
    words = [word.strip() for text in arch or (NATIVE,) for word in text.split(",") if word.strip()]
    meant = [target for word in words for target in _named(word)]
    targets = choose_targets(
        meant,
        machine.nvcc.targets,
        native=machine.capabilities,
        explain=lambda target: _explain(target, machine.nvcc.release),
    )
    has_ptx = with_ptx or any(word in (ALL, ALL_MAJOR) for word in words)
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


def _check_runnable(machine: _Machine, request: Request) -> None:
    """Stop if no GPU here runs the code: its launches would fail, and a program may not notice."""
    if not machine.gpus:
        raise InputError("--run needs a GPU, and there is none here", hint="Leave --run out to compile alone")
    for gpu in machine.gpus:
        if runs_on(request.targets, request.ptx, gpu.compute_capability):
            return
    gpus = ", ".join(dict.fromkeys(f"{gpu.name} ({gpu.compute_capability})" for gpu in machine.gpus))
    names = ", ".join(target.name for target in request.targets)
    raise InputError(f"code for {names} does not run on {gpus}", hint="--arch native compiles for it")


def _codes(compilation: Compilation, showing: Showing) -> tuple[NvccCode, ...]:
    request = compilation.request
    found: list[NvccCode] = []
    if showing.show_ptx:
        for name, text in compilation.ptx.items():
            found += _named_code({one.symbol: one.text for one in ptx_functions(text)}, name, "ptx")
    if showing.show_sass:
        for target in request.targets:
            texts = file_sass(request.output, target.name)
            found += _named_code(texts, target.name, "sass")
    return tuple(found)


def _named_code(texts: Mapping[str, str], target: str, language: str) -> list[NvccCode]:
    return [NvccCode(demangle(symbol) or symbol, target, language, text) for symbol, text in texts.items()]
