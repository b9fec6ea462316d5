"""From a workload's name to its spec: `bert`, `transformer`, `file.py:function`, `package.module:factory`.

Importing this module does not import torch; `resolve` does, to settle the device and the dtype.
"""

from __future__ import annotations

from dataclasses import replace

from opscope.errors import InputError
from opscope.workloads.runtime import check_dtype, resolve_device, resolve_dtype
from opscope.workloads.target import target_builder
from opscope.workloads.workload import Builder, Workload, WorkloadOptions, WorkloadSpec

_ATTN_IMPLEMENTATIONS = ("eager", "sdpa")


def _bert(options: WorkloadOptions, batch_size: int, seq_len: int) -> Workload:
    from opscope.workloads.models import build_bert  # noqa: PLC0415 - imports torch

    return build_bert(options, batch_size, seq_len)


def _transformer(options: WorkloadOptions, batch_size: int, seq_len: int) -> Workload:
    from opscope.workloads.models import build_transformer  # noqa: PLC0415

    return build_transformer(options, batch_size, seq_len)


BUILTIN_WORKLOADS: dict[str, Builder] = {"bert": _bert, "transformer": _transformer}


def resolve(name: str, options: WorkloadOptions | None = None) -> WorkloadSpec:
    """The spec of a workload, with the device, the dtype and the user's function already checked."""
    builder = BUILTIN_WORKLOADS.get(name) or (target_builder(name) if ":" in name else None)
    if builder is None:
        hint = f"Use {', '.join(BUILTIN_WORKLOADS)}, file.py:function or package.module:factory"
        if name.endswith(".py"):
            hint = f"Name the function to profile: {name}:function"
        raise InputError(f"'{name}' is not a workload", hint=hint)
    options = options or WorkloadOptions()
    if options.attn_implementation not in _ATTN_IMPLEMENTATIONS:
        raise InputError(
            f"'{options.attn_implementation}' is not an attention implementation",
            hint=f"Use {' or '.join(_ATTN_IMPLEMENTATIONS)}",
        )
    for field, value in (("layers", options.layers), ("hidden", options.hidden)):
        if value is not None and value < 1:
            raise InputError(f"{field}={value} is not a model size", hint="Sizes start at 1")
    if (options.use_real_bert or options.weights) and name != "bert":
        raise InputError(f"'{name}' has no real BERT", hint="--use-real-bert and --weights belong to 'bert'")
    settled = replace(options, dtype=resolve_dtype(options.dtype), device=resolve_device(options.device))
    if settled.train and settled.dtype == "float16" and name in BUILTIN_WORKLOADS:
        raise InputError(
            "AdamW on float16 parameters divides by zero: its epsilon of 1e-8 is below float16's range",
            hint="Train in bfloat16 or float32",
        )
    check_dtype(settled.dtype, settled.device)
    return WorkloadSpec(name, settled, builder)
