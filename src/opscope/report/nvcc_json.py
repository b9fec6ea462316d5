"""The document `opscope nvcc --json` prints: every number exactly, unknown null, units in the names.

Its keys are a contract (`schema_version` 1); keys may be added, none changes its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opscope._version import __version__
from opscope.analysis.compiled_file import CompiledFile, KernelOutlook
from opscope.analysis.static_occupancy import BlockOccupancy
from opscope.hardware.architectures import Target, architecture
from opscope.kernels.ptx import FunctionUse
from opscope.provenance.demangle import demangle
from opscope.report.analysis_json import finding_record
from opscope.report.nvcc_report import NvccCode

__all__ = ["NVCC_SCHEMA_VERSION", "nvcc_json"]

NVCC_SCHEMA_VERSION = 1


def nvcc_json(
    compiled: CompiledFile,
    command: Sequence[str],
    *,
    codes: Sequence[NvccCode] = (),
    output: str | None = None,
    exit_code: int | None = None,
) -> dict[str, Any]:
    """A compiled file as JSON values; kernels by target, then in the order of ptxas.

    Args:
        compiled: What was compiled.
        command: Of nvcc, which makes the same.
        codes: Texts that were asked for.
        output: The file that was written; None if none stays.
        exit_code: Of the program; None if it was not run.
    """
    compilation = compiled.compilation
    request = compilation.request
    return {
        "schema_version": NVCC_SCHEMA_VERSION,
        "opscope_version": __version__,
        "source": str(request.source),
        "product": str(request.product),
        "output": output,
        "command": list(command),
        "nvcc": {
            "path": compilation.nvcc.path,
            "release": compilation.nvcc.release,
            "version": compilation.nvcc.version,
        },
        "targets": [_target(target) for target in request.targets],
        "ptx": request.ptx and request.ptx.ptx_name,
        "dynamic_shared_bytes": compiled.dynamic_shared_bytes,
        "kernels": [_kernel(outlook) for outlook in compiled.outlooks],
        "functions": [_function(function) for function in compilation.functions],
        "findings": [finding_record(finding) for finding in compiled.findings],
        "code": [code._asdict() for code in codes],
        "exit_code": exit_code,
    }


def _target(target: Target) -> dict[str, Any]:
    known = architecture(target.compute_capability)
    return {
        "target": target.name,
        "compute_capability": target.compute_capability,
        "architecture": known and known.name,
    }


def _kernel(outlook: KernelOutlook) -> dict[str, Any]:
    kernel, occupancy = outlook.kernel, outlook.occupancy
    use = kernel.use
    return {
        "name": kernel.name,
        "symbol": use.symbol,
        "target": kernel.target.name,
        "registers": kernel.registers,
        "shared_bytes": use.shared_bytes,
        "stack_bytes": kernel.stack_bytes,
        "spill_store_bytes": use.spill_store_bytes,
        "spill_load_bytes": use.spill_load_bytes,
        "constant_bytes": kernel.constant_bytes,
        "barriers": use.barriers,
        "launch_bounds": {"max_threads": kernel.max_threads, "min_blocks": kernel.min_blocks},
        "occupancy": [_block(block) for block in occupancy.blocks],
        "best_block": occupancy.best and _block(occupancy.best),
        "largest_block_threads": occupancy.largest_threads,
        "no_occupancy_because": occupancy.reason,
    }


def _block(block: BlockOccupancy) -> dict[str, Any]:
    held = block.residency
    return {
        "threads": block.threads,
        "blocks_per_sm": held.blocks_per_sm if held else 0,
        "warps_per_sm": held.warps_per_sm if held else 0,
        "occupancy": block.occupancy,
        "limited_by": [str(limiter) for limiter in held.limiters] if held else [],
    }


def _function(function: FunctionUse) -> dict[str, Any]:
    return {
        "name": demangle(function.symbol) or function.symbol,
        "symbol": function.symbol,
        "target": function.target,
        "stack_bytes": function.stack_bytes,
        "spill_store_bytes": function.spill_store_bytes,
        "spill_load_bytes": function.spill_load_bytes,
    }
