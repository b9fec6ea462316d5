"""Least bytes and operations of a Triton kernel that torch.compile wrote, from the tensors it was given.

The compiler passes tensors that are overwritten in place first, then those that are read, then those that are
written (`in_out_ptr*`, `in_ptr*`, `out_ptr*`), then the numbers of elements. How many there are of each kind
is not in the trace: it is taken from what the generated source states, else from sizes and from the operators
in the kernel's name where these leave one answer; else the bytes stay unknown.

Source: torch/_inductor/codegen/common.py (`KernelArgs.python_argdefs`), triton.py; PyTorch 2.6 to 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile
from math import prod
from typing import Any

import msgspec

from opscope.data import packaged_toml
from opscope.operators.arguments import CallArguments, TensorArgument, distinct_bytes
from opscope.operators.distinct_calls import TritonLaunch
from opscope.operators.effects import (
    CallCost,
    CostEvidence,
    FlopSource,
    UnrecordedError,
    computing_type,
    require,
)
from opscope.operators.operator_table import OPERATORS
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.provenance.kernel_names.decoder import decode

# What a kernel does with a tensor: whether it reads, and whether it writes it.
_Role = tuple[bool, bool]
_READ, _WRITTEN, _CHANGED = (True, False), (False, True), (True, True)


_SOFTMAX = frozenset(("_softmax", "_log_softmax"))
_REDUCTIONS = frozenset(("fused_reduction", "scan"))
# torch._inductor.config.kernel_name_max_ops
_KEPT_NAMES = 10


@cache
def _operators() -> Mapping[str, frozenset[str]]:
    lists = packaged_toml(__package__, "generated_kernels.toml")
    return {name: frozenset(words.split()) for name, words in lists.items()}


class _Generated(msgspec.Struct, frozen=True):
    kernel: DecodedKernel
    tensors: tuple[TensorArgument, ...]
    extents: tuple[int, ...]

    @property
    def operators(self) -> tuple[str, ...]:
        return self.kernel.fused_operators

    @property
    def names_all(self) -> bool:
        """Whether the name lists all operators: releases that drop some keep ten."""
        return bool(self.operators) and not (
            self.kernel.fused_operators_may_be_cut and len(self.operators) == _KEPT_NAMES
        )

    @property
    def element_count(self) -> int | None:
        return prod(self.extents) if self.extents else None

    @property
    def result_sizes(self) -> frozenset[int]:
        """Element counts that a result can have; empty if unknown."""
        if self.element_count is None:
            return frozenset()
        if self.kernel.family in _REDUCTIONS and len(self.extents) > 1:
            return frozenset((self.element_count, prod(self.extents[:-1])))
        return frozenset((self.element_count,))


def cost_of_generated(
    call: CallArguments, launch: TritonLaunch, source: Mapping[str, Any] | None = None
) -> CallCost:
    stated = source or {}
    # Its last arguments are the numbers of elements.
    values: Iterator[Any] = (getattr(one, "value", None) for one in reversed(call.arguments))
    extents = tuple(takewhile(lambda one: isinstance(one, int) and not isinstance(one, bool), values))[::-1]
    generated = _Generated(decode(launch.kernel), call.tensors, extents)
    flop_count, flop_source = _flops(generated, launch.flop or stated.get("kernel_flop"))
    num_gb = launch.num_gb or stated.get("kernel_num_gb")
    # Generated code computes in fp32, or in fp64 on such elements.
    data_type = computing_type(generated.tensors)
    evidence = CostEvidence.RECORDED if num_gb else CostEvidence.KERNEL_ARGUMENTS
    try:
        read, written = _moved(generated, stated, num_gb)
    except UnrecordedError as error:
        return CallCost(flop_count, flop_source, data_type=data_type, reason=call.defect or str(error))
    reason = (
        None if flop_count is not None else "no definition of all operators in the generated kernel's name"
    )
    return CallCost(flop_count, flop_source, read, written, data_type, evidence, reason)


def _moved(generated: _Generated, stated: Mapping[str, Any], num_gb: float | None) -> tuple[int, int]:
    lists = _operators()
    sizes = [size for tensor in generated.tensors if (size := distinct_bytes(tensor)) is not None]
    require(0 < len(sizes) == len(generated.tensors), "no tensors were recorded of the generated kernel")
    roles = _stated_roles(generated, stated) or _inferred_roles(generated)
    if num_gb:
        # The compiler's count of all bytes; of unknown roles, one result is assumed.
        total = round(num_gb * 1e9)
        made = sizes[0] if total > sum(sizes) else sizes[-1]
        if roles is not None:
            made = sum(size for size, role in zip(sizes, roles, strict=True) if role[1])
        return total - min(made, total), min(made, total)
    require(len(sizes) == 1 or lists["untold"].isdisjoint(generated.operators), _PARTS)
    if roles is None:
        raise UnrecordedError("which of its tensors the generated kernel writes is not recorded")
    read_sizes = [size if role[0] else 0 for size, role in zip(sizes, roles, strict=True)]
    if len(sizes) > 1 and not lists["choosing"].isdisjoint(generated.operators):
        read_sizes = _chosen(generated, stated, read_sizes)
    return sum(read_sizes), sum(size for size, role in zip(sizes, roles, strict=True) if role[1])


_PARTS = "the generated kernel touches parts of tensors that its arguments do not tell"
# What may be counted whole though only a part of it may be read: tables of positions, of types.
_NEGLIGIBLE_SHARE = 0.01


def _chosen(generated: _Generated, stated: Mapping[str, Any], sizes: Sequence[int]) -> list[int]:
    """Bytes read of each tensor where parts are: of a larger one, an element a load for each of the run."""
    run, loads = generated.element_count, stated.get("num_load")
    read = [position for position, size in enumerate(sizes) if size]
    larger = [at for at in read if run is not None and generated.tensors[at].element_count > run]
    smaller = [at for at in read if run is None or generated.tensors[at].element_count < run]
    if run is None or not isinstance(loads, int) or (len(larger) > 1 and loads != len(read)):
        raise UnrecordedError(_PARTS)
    chosen = list(sizes)
    for at in larger:
        own_loads = loads - (len(read) - 1)  # each of the others is loaded once at least
        require(len(read) == 1 or own_loads == 1, _PARTS)
        chosen[at] = min(sizes[at], own_loads * run * (sizes[at] // generated.tensors[at].element_count))
    require(sum(chosen[at] for at in smaller) <= _NEGLIGIBLE_SHARE * sum(chosen), _PARTS)
    return chosen


def _stated_roles(generated: _Generated, stated: Mapping[str, Any]) -> tuple[_Role, ...] | None:
    """Roles by what the source says it changes and how often it stores; None if that is not clear."""
    changed, stores = stated.get("mutated_arg_names"), stated.get("num_store")
    if not isinstance(changed, list) or not isinstance(stores, int):
        return None
    is_named = all(isinstance(name, str) and name.startswith("in_out_ptr") for name in changed)
    count, in_place = len(generated.tensors), len(changed)
    made = stores - in_place
    given = count - in_place - made
    if not is_named or made < 0 or given < 0 or not stores:
        return None
    # Each tensor given to be read is loaded once at least; loads for no more leave none for the others.
    reused = _WRITTEN if stated.get("num_load") == given else _CHANGED
    return *[reused] * in_place, *[_READ] * given, *[_WRITTEN] * made


def _inferred_roles(generated: _Generated) -> tuple[_Role, ...] | None:
    """Roles by sizes and names; None where they leave several answers."""
    lists = _operators()
    operators, count = generated.operators, len(generated.tensors)
    if not generated.names_all:
        return None
    if count == 1:
        # The only tensor: a kernel that computes needs something to read.
        others = frozenset(operators) - lists["creations"] - lists["movements"]
        if lists["creations"].isdisjoint(operators) or not others <= lists["masking"]:
            return (_CHANGED,)
        return None if others else (_WRITTEN,)
    sizes = generated.result_sizes
    results = [at for at, tensor in enumerate(generated.tensors) if tensor.element_count in sizes]
    # Of operators there is one at least.
    if count == 2 and (lists["movements"] | lists["unary"]).issuperset(operators):
        results = [1]
    if results == [0]:
        return _CHANGED, *[_READ] * (count - 1)
    if results == [count - 1]:
        return *[_READ] * (count - 1), _WRITTEN
    return None


def _flops(generated: _Generated, recorded: Any) -> tuple[int | None, FlopSource | None]:
    if isinstance(recorded, (int, float)) and recorded > 0:
        return round(recorded), FlopSource.RECORDED
    operators = generated.operators
    if not generated.names_all or not generated.tensors:
        return None, None
    lists = _operators()
    kinds = ["creations", "movements", "choosing", "placing", "untold"]
    kinds += ["softmax_parts"] if not _SOFTMAX.isdisjoint(operators) else []
    computing = [one for one in operators if not any(one in lists[kind] for kind in kinds)]
    counts = [OPERATORS[one].operations if one in OPERATORS else None for one in computing]
    whole = [one for one in counts if isinstance(one, int)]
    if len(whole) < len(counts):
        return None, None
    # On all that the kernel runs over, else on its largest tensor.
    elements = generated.element_count or max(tensor.element_count for tensor in generated.tensors)
    total = elements * sum(whole)
    return (total, FlopSource.FUSED_NAMES) if total else (0, FlopSource.NONE)
