"""What a compilation tells as findings: what costs time in the kernels. One without spills has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opscope.model.finding import Finding, Severity
from opscope.nvcc.compile import Compilation, CompiledKernel
from opscope.provenance.demangle import demangle

_MOST_REGISTERS = 255  # Source: CUDA C++ Programming Guide 13.0, Technical Specifications


def findings_of(compilation: Compilation) -> tuple[Finding, ...]:
    """All findings: spills of kernels and of functions, then a stack that is no spill."""
    return (*_spills(compilation), *_local_memory(compilation))


def _spills(compilation: Compilation) -> Iterator[Finding]:
    for kernel in compilation.kernels:
        use = kernel.use
        if use.spill_store_bytes or use.spill_load_bytes:
            yield Finding(
                "nvcc.spills",
                Severity.WARNING,
                f"{kernel.name} spills for {kernel.target.name}: each thread writes "
                f"{use.spill_store_bytes:,} bytes to local memory and reads {use.spill_load_bytes:,} back, "
                f"because {kernel.registers} registers are not enough.",
                suggestion=f"{_more_registers(kernel)}.",
                evidence=_evidence(kernel),
            )
    for function in compilation.functions:
        if function.spill_store_bytes:
            name = demangle(function.symbol) or function.symbol
            yield Finding(
                "nvcc.function_spills",
                Severity.INFO,
                f"{name}, which kernels call, keeps {function.spill_store_bytes} bytes "
                f"of registers in local memory for {function.target}.",
                suggestion="A call keeps its caller's registers there; __forceinline__ saves it, unless the "
                "function recurs.",
                evidence={
                    "function": name,
                    "target": function.target,
                    "spill_store_bytes": function.spill_store_bytes,
                    "spill_load_bytes": function.spill_load_bytes,
                },
            )


def _more_registers(kernel: CompiledKernel) -> str:
    less = "keep fewer values in a thread (smaller tiles, less unrolling)"
    if kernel.registers >= _MOST_REGISTERS:
        return f"A thread has no more than {_MOST_REGISTERS}: {less}"
    if kernel.max_threads is None:
        return f"{less.capitalize()}, or raise -maxrregcount"
    if kernel.min_blocks is None:
        bounds = f"__launch_bounds__({kernel.max_threads}"
        return f"{bounds}) makes ptxas save them for more blocks; {bounds}, 1) lets it take more. Or {less}"
    bounds = f"__launch_bounds__({kernel.max_threads}, {kernel.min_blocks})"
    return f"{bounds} leaves no more: ask for fewer threads or blocks, or {less}"


def _local_memory(compilation: Compilation) -> Iterator[Finding]:
    """A stack that is no spill: arrays that no register can hold."""
    for kernel in compilation.kernels:
        spilled = kernel.use.spill_store_bytes or kernel.use.spill_load_bytes
        if kernel.stack_bytes and not spilled:
            yield Finding(
                "nvcc.local_memory",
                Severity.INFO,
                f"{kernel.name} keeps {kernel.stack_bytes} bytes of each thread in local memory for "
                f"{kernel.target.name}.",
                suggestion="An array whose index the compiler does not know, or a call that is not inlined; "
                "unroll the loop over it, or hold it in shared memory.",
                evidence=_evidence(kernel),
            )


def _evidence(kernel: CompiledKernel) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "target": kernel.target.name,
        "registers": kernel.registers,
        "stack_bytes": kernel.stack_bytes,
        "spill_store_bytes": kernel.use.spill_store_bytes,
        "spill_load_bytes": kernel.use.spill_load_bytes,
    }
