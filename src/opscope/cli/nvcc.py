"""`opscope nvcc`: compile a CUDA file; registers, spills and occupancy of its kernels."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from opscope.cli import console
from opscope.errors import InputError
from opscope.hardware.architectures import Target, parse_target
from opscope.hardware.devices import search_devices
from opscope.hardware.driver import require_nvcc, visible_gpus
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
)
from opscope.report.nvcc import nvcc_document, nvcc_json

_PTX = "ptx"
_WITHOUT_GPU = "sm_90"  # of the H100 and H200


def nvcc(
    source: Annotated[Path, Parameter(name="FILE.cu")],
    /,
    *,
    arch: console.Words = (),
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    nvcc_option: console.Options = (),
    force: console.Force = False,
    json: console.Json = False,
    dynamic_shared: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
) -> int:
    """Compile a CUDA file; show registers, spills and occupancy of its kernels.

    Prints the equivalent nvcc command, and for each kernel and target registers, shared memory, stack,
    spills, constant memory and possible occupancy.

    Example: opscope nvcc add.cu -o add

    Args:
        source: The file.
        arch: Comma-separated targets: sm_90, sm_90a, a GPU (h200), native (the GPUs here, the default;
            without any sm_90), all, or all-major; ptx in the list also embeds PTX, which the drivers of newer
            GPUs compile (always included in all and all-major).
        output: The program to write; without it only the kernels are shown.
        nvcc_option: An option for nvcc, such as --nvcc-option=-O3; may be repeated.
        dynamic_shared: Bytes of dynamic shared memory per block, for occupancy.
    """
    if source.suffix != ".cu":
        raise InputError("not a .cu file", source=source, hint="nvcc takes CUDA C++ for what ends in .cu")
    if not source.is_file():
        raise InputError("a folder" if source.is_dir() else "no such file", source=source)
    if output is not None:
        console.check_outputs([output], force=force, inputs=[source])
    compiler = read_nvcc(require_nvcc())
    targets, ptx_of = _targets(compiler, arch)
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
        place = output or Path(folder) / source.stem
        request = Request(source, place, output is not None, targets, ptx_of, nvcc_option, dynamic_shared)
        with console.status(f"Compiling {source.name}"):
            compilation = compile_source(compiler, request, os.environ)
    # It makes the program, in the current folder where none is written.
    command = request.command(compiler.path, output=output or Path(source.stem))
    written = None if output is None else str(output)
    console.Showing(json=json).show(
        lambda: nvcc_json(compilation, command, output=written), lambda: nvcc_document(compilation, command)
    )
    console.say_wrote([] if output is None else [output], on_stderr=json)
    return 0


def _targets(compiler: Nvcc, arch: Sequence[str]) -> tuple[tuple[Target, ...], Target | None]:
    def native() -> list[str]:
        if found := [gpu.compute_capability for gpu in visible_gpus()]:
            return found
        console.note(
            f"no GPU is here: compiling for {_WITHOUT_GPU}. Choose another with --arch, such as h200"
        )
        return [_WITHOUT_GPU]

    words = [word.strip() for text in arch or (NATIVE,) for word in text.split(",") if word.strip()]
    targets = choose_targets(
        [target for word in words if word != _PTX for target in _named(word)] or [NATIVE],
        compiler.targets,
        native=native,
    )
    return targets, ptx_target(targets) if any(word in (_PTX, ALL, ALL_MAJOR) for word in words) else None


def _named(word: str) -> list[str]:
    """The word itself, or the target of the GPU or architecture it names."""
    is_target = word in (NATIVE, ALL, ALL_MAJOR) or parse_target(word) is not None
    if is_target or word.lower().startswith(("sm_", "compute_")):
        return [word]
    found = search_devices(word).architectures
    if len(found) > 1:
        names = ", ".join(f"{one.target} ({one.products or one.name})" for one in found)
        raise InputError(f"'{word}' means several targets", hint=f"Choose of {names}")
    return [found[0].target] if found else [word]
