"""What the CUDA C++ kernels use of a multiprocessor, as nvcc reports it: registers, shared memory, spills.

Needs nvcc but no GPU and no PyTorch, so that a machine without a GPU can tell whether a change made a kernel
spill. The flags are those of the build, without those that torch adds.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from opscope.errors import MeasurementError
from opscope.kernels.build import NVCC_FLAGS, compiler_message, cuda_sources
from opscope.kernels.ptxas_report import parse_ptxas
from opscope.kernels.symbols import demangled, short_name
from opscope.kernels.toolkit import require_nvcc

__all__ = ["ARCHITECTURES", "KernelResources", "compile_report", "parse_report", "report_rows"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")  # Ampere (A100), Hopper (H100, H200), Blackwell (B200)

_JOBS = 2


@dataclass(frozen=True)
class KernelResources:
    """What one kernel uses, compiled for one architecture.

    Args:
        source: Name of the `.cu` file.
        architecture: For example `"sm_90"`.
        name: With its template arguments, without namespace and parameters; mangled where no demangler is.
        registers: Of each thread.
        shared_bytes: Static shared memory of each block.
        stack_bytes: Local memory of each thread, spills included.
        spill_store_bytes: Written by each thread to local memory because registers did not suffice.
        spill_load_bytes: Read back by each thread.
    """

    source: str
    architecture: str
    name: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


def compile_report(
    architectures: Sequence[str] = ARCHITECTURES, sources: Sequence[Path] | None = None
) -> tuple[KernelResources, ...]:
    """The resources of every kernel, by source, architecture and the order in which ptxas compiled them.

    Args:
        architectures: That this nvcc knows.
        sources: The `.cu` files; those of this package if None.

    Raises:
        DependencyError: There is no nvcc.
        MeasurementError: A file does not compile.
    """
    nvcc = require_nvcc()
    jobs = [(file, one) for file in sources or cuda_sources() for one in architectures]
    with ThreadPoolExecutor(_JOBS) as pool:
        reports = pool.map(lambda job: _compile(nvcc, *job), jobs)
    return tuple(kernel for report in reports for kernel in report)


def report_rows(report: Sequence[KernelResources]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of a table: one row per kernel, its registers and spills by architecture."""
    architectures = list(dict.fromkeys(kernel.architecture for kernel in report))
    kernels: dict[tuple[str, str], dict[str, KernelResources]] = {}
    for kernel in report:
        kernels.setdefault((kernel.source, kernel.name), {})[kernel.architecture] = kernel
    header = ("source", "kernel", *(f"registers, {one}" for one in architectures), "shared bytes", "spills")
    rows = []
    for (source, name), compiled in kernels.items():
        registers = [str(compiled[one].registers) if one in compiled else "" for one in architectures]
        shared = max(one.shared_bytes for one in compiled.values())
        spilled = [one.architecture for one in compiled.values() if one.spill_store_bytes]
        rows.append((source, name, *registers, str(shared), ", ".join(spilled) or "none"))
    return header, rows


def parse_report(text: str, source: str, architecture: str) -> list[KernelResources]:
    """The kernels in what `nvcc -Xptxas -v` wrote."""
    return [
        KernelResources(
            source=source,
            architecture=architecture,
            name=short_name(demangled(use.symbol)),
            registers=use.registers,
            shared_bytes=use.shared_bytes,
            stack_bytes=use.stack_bytes,
            spill_store_bytes=use.spill_store_bytes,
            spill_load_bytes=use.spill_load_bytes,
        )
        for use in parse_ptxas(text)
        if use.registers is not None
    ]


def _compile(nvcc: str, source: Path, architecture: str) -> list[KernelResources]:
    with tempfile.TemporaryDirectory() as folder:
        output = ["-cubin", "-o", str(Path(folder) / "kernels.cubin")]
        command = [
            nvcc,
            *NVCC_FLAGS,
            "-std=c++17",
            f"-arch={architecture}",
            "-Xptxas=-v",
            *output,
            str(source),
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        message = compiler_message(done.stderr + done.stdout)
        raise MeasurementError(f"{source.name} does not compile for {architecture}:\n{message}")
    return parse_report(done.stderr + done.stdout, source.name, architecture)
