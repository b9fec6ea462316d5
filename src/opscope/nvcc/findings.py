"""What a compilation tells as findings: what costs time in the kernels. One without spills has none."""

from __future__ import annotations

from opscope.model.finding import Finding, Severity
from opscope.nvcc.compile import Compilation, CompiledKernel
from opscope.provenance.demangle import demangle

_MOST_REGISTERS = 255  # Source: CUDA C++ Programming Guide 13.0, Technical Specifications


def findings_of(compilation: Compilation) -> tuple[Finding, ...]:
    """All findings: spills of kernels and of functions, then a stack that is no spill."""
    spills, functions, stacks = [], [], []
    for kernel in compilation.kernels:
        use, target = kernel.use, kernel.target.name
        evidence = {
            "kernel": kernel.name,
            "target": target,
            "registers": kernel.registers,
            "stack_bytes": kernel.stack_bytes,
            "spill_store_bytes": use.spill_store_bytes,
            "spill_load_bytes": use.spill_load_bytes,
        }
        if use.spill_store_bytes or use.spill_load_bytes:
            spilled = Finding(
                "nvcc.spills",
                Severity.WARNING,
                f"{kernel.name} spills for {target}: each thread writes {use.spill_store_bytes:,} bytes to "
                f"local memory and reads {use.spill_load_bytes:,} back, because {kernel.registers} registers "
                "are not enough.",
                f"{_more_registers(kernel)}.",
                evidence=evidence,
            )
            spills.append(spilled)
        elif kernel.stack_bytes:  # arrays that no register can hold
            kept = Finding(
                "nvcc.local_memory",
                Severity.INFO,
                f"{kernel.name} keeps {kernel.stack_bytes} bytes of each thread in local memory for "
                f"{target}.",
                "An array whose index the compiler does not know, or a call that is not inlined; unroll the "
                "loop over it, or hold it in shared memory.",
                evidence=evidence,
            )
            stacks.append(kept)
    for function in compilation.functions:
        if function.spill_store_bytes:
            name = demangle(function.symbol) or function.symbol
            spilled = Finding(
                "nvcc.function_spills",
                Severity.INFO,
                f"{name}, which kernels call, keeps {function.spill_store_bytes} bytes "
                f"of registers in local memory for {function.target}.",
                "A call keeps its caller's registers there; __forceinline__ saves it, unless the "
                "function recurs.",
                evidence={
                    "function": name,
                    "target": function.target,
                    "spill_store_bytes": function.spill_store_bytes,
                    "spill_load_bytes": function.spill_load_bytes,
                },
            )
            functions.append(spilled)
    return (*spills, *functions, *stacks)


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
