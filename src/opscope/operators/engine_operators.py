"""Costs of operators that serving engines register: vLLM's, SGLang's, aiter's, torch's symmetric memory.

Simple ones are rows of `engine_operators.toml`. What arguments alone do not tell has a rule here: experts of
a mixture, whose weights no argument names, from the tiles in their products' names and the grids of these;
and attention over a cache, from the numbers of queries and keys in the engine's own annotation of the step.
Where a trace does not tell even that, the cost is unknown with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from math import ceil, prod
from typing import Any

import msgspec
import tomli

from opscope.hardware.devices import DataType
from opscope.model.session import Session
from opscope.operators.arguments import CallArguments, TensorArgument, distinct_bytes, type_of
from opscope.operators.call_cost import CallCost, CostEvidence, FlopSource
from opscope.operators.distinct_calls import DistinctCall
from opscope.provenance.kernel_names import DecodedKernel, decode
from opscope.provenance.packaged import lazy_pattern
from opscope.provenance.serving import serving_step

_KERNELS_SQL = """
SELECT n.name, a.grid_x, a.grid_y, a.grid_z FROM device_activities a JOIN kernel_names n USING (name_id)
WHERE a.operator_id = ? AND a.kind = 'kernel' ORDER BY a.start_ns, a.activity_id"""


class EngineCalls:
    """Costs of calls of engines' operators in one Session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows = _rows()

    def cost(self, call: DistinctCall, arguments: CallArguments) -> CallCost | None:
        """The cost of a call; None of an operator that no row names."""
        row = self._rows.get(call.name)
        if row is None or arguments.defect is not None:
            return None
        try:
            return (
                _RULES[row["kind"]](self, row, call, arguments) if "kind" in row else _plain(row, arguments)
            )
        except _UntoldError as error:
            return CallCost(reason=str(error))

    def kernels(self, call: DistinctCall) -> list[_Kernel]:
        """The kernels of one of the calls, in order."""
        if call.example_id is None:
            return []
        rows = self._session.query(_KERNELS_SQL, [call.example_id])
        return [
            _Kernel(decode(name), None if None in grid else (grid[0], grid[1], grid[2]))
            for name, *grid in rows
        ]

    def rank_count(self) -> int | None:
        """Ranks of the recorded job; None if not recorded."""
        counts = self._session.query("SELECT DISTINCT world_size FROM traces")
        return int(counts[0][0]) if len(counts) == 1 and counts[0][0] else None


@cache
def _rows() -> Mapping[str, Any]:
    text = resources.files("opscope.operators").joinpath("engine_operators.toml").read_text(encoding="utf-8")
    rows: dict[str, Any] = tomli.loads(text)
    return rows


class _Kernel(msgspec.Struct, frozen=True):
    decoded: DecodedKernel
    grid: tuple[int, int, int] | None


class _UntoldError(Exception):
    """The cost does not follow from the recording; its text is the reason."""


def _plain(row: Mapping[str, Any], arguments: CallArguments) -> CallCost:
    """The cost by a row of positions."""
    read = sum(_bytes(arguments, at) for at in row.get("reads", ()))
    written = sum(_bytes(arguments, at) for at in row.get("writes", ()))
    changed = sum(_bytes(arguments, at) for at in row.get("changes", ()))
    written += sum(_bytes(arguments, at) for at in row.get("makes", ()))
    for count, kind in row.get("writes_as", ()):
        written += _tensor(arguments, count).element_count * _size(_tensor(arguments, kind))
    for table, places in row.get("gathers", ()):
        of = _tensor(arguments, table)
        if not of.shape:
            raise _UntoldError(_NO_TENSOR)
        rows = min(_tensor(arguments, places).element_count, of.shape[0])
        read += rows * prod(of.shape[1:]) * _size(of)
    per_element = row.get("flops", 0)
    count = per_element * _tensor(arguments, row["of"]).element_count if per_element else 0
    return CallCost(
        count,
        FlopSource.DEFINITION if count else FlopSource.NONE,
        read + changed,
        written + changed,
        DataType.FP32 if count else None,
        CostEvidence.SHAPE_RULES,
    )


_NO_TENSOR = "a tensor that its cost follows from was not recorded"


def _tensor(arguments: CallArguments, position: int) -> TensorArgument:
    found = arguments.arguments[position] if position < len(arguments) else None
    if not isinstance(found, TensorArgument):
        raise _UntoldError(_NO_TENSOR)
    return found


def _bytes(arguments: CallArguments, position: int) -> int:
    size = distinct_bytes(_tensor(arguments, position))
    if size is None:
        raise _UntoldError(_NO_TENSOR)
    return size


def _size(tensor: TensorArgument) -> int:
    known = type_of(tensor)
    if known is None:
        raise _UntoldError(_NO_TENSOR)
    return known.size_bytes


def _all_reduce(
    calls: EngineCalls, row: Mapping[str, Any], call: DistinctCall, arguments: CallArguments
) -> CallCost:
    """Each rank reads its tensor and gets the sum; it adds its share of the others'."""
    tensor = _tensor(arguments, row.get("tensor", 0))
    known, size = type_of(tensor), _bytes(arguments, row.get("tensor", 0))
    ranks = calls.rank_count()
    additions = None if ranks is None else tensor.element_count * (ranks - 1) // ranks
    return CallCost(
        additions,
        None if additions is None else FlopSource.DEFINITION,
        size,
        size,
        None if known is None or not additions else known.compute_type,
        CostEvidence.SHAPE_RULES,
        None if additions is not None else "the number of ranks was not recorded",
    )


def _scaled_product(
    calls: EngineCalls, row: Mapping[str, Any], call: DistinctCall, arguments: CallArguments
) -> CallCost:
    """A product of two matrices with scales; results are given first, or made in 16 bits."""
    makes = bool(row.get("makes"))
    first, second = _tensor(arguments, 0 if makes else 1), _tensor(arguments, 1 if makes else 2)
    if len(first.shape) != 2 or len(second.shape) != 2 or first.shape[1] != second.shape[0]:
        raise _UntoldError("its recorded matrices do not fit")
    (rows, depth), columns = first.shape, second.shape[1]
    known = type_of(first)
    written = rows * columns * 2 if makes else _bytes(arguments, 0)
    scales = range(2 if makes else 3, 4 if makes else 5)
    read = _bytes(arguments, 0 if makes else 1) + _bytes(arguments, 1 if makes else 2)
    read += sum(_bytes(arguments, at) for at in scales if _is_tensor(arguments, at))
    return CallCost(
        2 * rows * columns * depth,
        FlopSource.REGISTRY,
        read,
        written,
        None if known is None else known.operand_type,
        CostEvidence.SHAPE_RULES,
    )


def _is_tensor(arguments: CallArguments, position: int) -> bool:
    return position < len(arguments) and isinstance(arguments.arguments[position], TensorArgument)


class _Experts(msgspec.Struct, frozen=True):
    """The two products of a mixture of experts."""

    tokens: int  # tokens of the batch
    chosen: int  # experts that each token is sent to
    count: int  # experts there are
    first: tuple[int, int]  # columns and depth of the first product
    second: tuple[int, int]  # likewise
    weight_bits: float  # of one weight, its share of the scales included
    data_type: DataType | None  # whose peak limits them

    @property
    def flop_count(self) -> int:
        return 2 * self.tokens * self.chosen * (prod(self.first) + prod(self.second))

    @property
    def weight_bytes(self) -> int:
        """Of the experts that are used, if tokens choose them evenly."""
        share = 1 - (1 - self.chosen / self.count) ** self.tokens
        used = max(self.chosen, round(self.count * share))
        return ceil(used * (prod(self.first) + prod(self.second)) * self.weight_bits / 8)


def _experts(
    calls: EngineCalls, row: Mapping[str, Any], call: DistinctCall, arguments: CallArguments
) -> CallCost:
    """Weights are among the arguments: tokens, both weights, and what each token chose."""
    hidden, first, second, chosen = (_tensor(arguments, at) for at in range(4))
    if len(hidden.shape) != 2 or len(first.shape) != 3 or len(second.shape) != 3 or len(chosen.shape) != 2:
        raise _UntoldError("its recorded weights are not those of experts")
    known = type_of(first)
    bits = 8 * _size(first)
    found = _Experts(
        hidden.shape[0], chosen.shape[1], first.shape[0], first.shape[1:], second.shape[1:], bits,
        None if known is None else known.operand_type,
    )  # fmt: skip
    return _cost_of_experts(found, hidden, CostEvidence.SHAPE_RULES)


def _cost_of_experts(found: _Experts, hidden: TensorArgument, evidence: CostEvidence) -> CallCost:
    tokens = distinct_bytes(hidden)
    if tokens is None or not 0 < found.chosen <= found.count:
        raise _UntoldError(_NO_TENSOR)
    return CallCost(
        found.flop_count, FlopSource.REGISTRY, tokens + found.weight_bytes, tokens, found.data_type, evidence
    )


def _experts_by_tiles(
    calls: EngineCalls, row: Mapping[str, Any], call: DistinctCall, arguments: CallArguments
) -> CallCost:
    """No argument is a weight: the products' tiles and grids tell columns, rows and experts of a token."""
    hidden, router = _tensor(arguments, 0), _tensor(arguments, 1)
    if len(hidden.shape) != 2 or len(router.shape) != 2:
        raise _UntoldError(_NO_WEIGHTS)
    products = [one for one in calls.kernels(call) if one.decoded.family in ("grouped_gemm", "moe_gemm")]
    if len(products) != 2 or any(one.grid is None for one in products):
        raise _UntoldError(_NO_WEIGHTS)
    for read in (_exported_tiles, _triton_tiles):
        found = read(hidden.shape, router.shape[1], products)
        if found is not None:
            return _cost_of_experts(found, hidden, CostEvidence.LAUNCH_TILES)
    raise _UntoldError(_NO_WEIGHTS)


_NO_WEIGHTS = (
    "the weights of its experts are no arguments, and its kernels' names and grids do not tell their sizes"
)
_GATED = lazy_pattern(r"_(?:swiglu|swiGlu|geGlu|geglu)(?:_|$)")
# Bits of a weight: of its number, and its share of the scale of its block.
_WEIGHT_BITS = {"MxE2m1": 4.25, "E2m1": 4.5, "MxE4m3": 8.25, "E4m3": 8, "Bfloat16": 16, "Fp16": 16,
                "mxfp4": 4.25, "mxfp8": 8.25, "bf16": 16, "fp16": 16, "fp8e4nv": 8, "fp8e5": 8}  # fmt: skip
_PEAKS = {
    **dict.fromkeys(("E4m3", "fp8e4nv", "fp8e5"), DataType.FP8),
    **dict.fromkeys(("Bfloat16", "bf16"), DataType.BF16),
    **dict.fromkeys(("Fp16", "fp16"), DataType.FP16),
    "E2m1": DataType.FP4,
}

# TensorRT-LLM's batched products: weights are A where the result is transposed; tokens are padded to whole
# tiles for each expert, so the tiles along them are those of all rows and a part of one for each expert.
_EXPORTED = lazy_pattern(
    r"bmm_\w+?_(?P<a>(?:Mx)?(?:E\dm\d|Bfloat16|Fp16))(?P<b>(?:Mx)?(?:E\dm\d|Bfloat16|Fp16))"
    r"_Fp32_t(?P<m>\d+)x(?P<n>\d+)x\d+"
)


def _exported_tiles(shape: tuple[int, ...], experts: int, products: Sequence[_Kernel]) -> _Experts | None:
    matches = [_EXPORTED.match(one.decoded.name) for one in products]
    if None in matches:
        return None
    tokens = shape[0]
    sizes = []
    chosen = set()
    for match, one in zip(matches, products, strict=True):
        assert match is not None and one.grid is not None
        if "_transOut" not in one.decoded.name:
            return None
        tile_columns, tile_rows = int(match["m"]), int(match["n"])
        sizes.append(one.grid[0] * tile_columns)
        rows = one.grid[1] * tile_rows - experts * (tile_rows - 1)
        chosen |= {
            k for k in range(1, experts + 1) if 0 <= tokens * k - rows < tile_rows or rows == tokens * k
        }
    types = (matches[0]["a"], matches[0]["b"])  # type: ignore[index]
    return _as_experts((*shape, experts), products[0], sizes, chosen, types)


# Triton's grouped products: as many blocks of rows as routing can need, times blocks of columns.
# Source: triton python/triton_kernels, `routing.py` (`n_blocks`).
_TRITON = lazy_pattern(
    r"_(?:p_)?matmul_ogs_[NT]+_(?:[a-z0-9]+?)x(?P<b>bf16|fp16|fp8e\w+?)x(?P<a>bf16|fp16|mxfp[48]|fp8e\w+?)"
    r"_(?P<n>\d+)x(?P<m>\d+)x\d+x(?P<split>\d+)"
)


def _triton_tiles(shape: tuple[int, ...], experts: int, products: Sequence[_Kernel]) -> _Experts | None:
    matches = [_TRITON.match(one.decoded.name) for one in products]
    if None in matches:
        return None
    tokens, depth = shape
    chosen, sizes = set(), []
    for k in range(1, experts + 1):
        found = []
        for match, one in zip(matches, products, strict=True):
            assert match is not None and one.grid is not None
            # Blocks that rows may fill whichever experts they choose.
            rows, block = tokens * k, int(match["n"])
            filled = rows if rows <= experts else experts - 1 - (experts - rows - 1) // block
            blocks = filled * int(match["split"])
            if one.grid[0] % blocks:
                break
            found.append(one.grid[0] // blocks * int(match["m"]))
        else:
            if ceil(depth / int(matches[1]["m"])) * int(matches[1]["m"]) == found[1]:  # type: ignore[index]
                chosen.add(k)
                sizes = found
    types = (matches[0]["a"], matches[0]["b"])  # type: ignore[index]
    return _as_experts((*shape, experts), products[0], sizes, chosen, types)


def _as_experts(
    sizes: tuple[int, ...], first: _Kernel, columns: Sequence[int], chosen: set[int], types: tuple[str, str]
) -> _Experts | None:
    """The products, where one of the numbers of experts a token in `chosen` fits the grids."""
    tokens, depth, experts = sizes
    if len(chosen) != 1 or len(columns) != 2 or types[0] not in _WEIGHT_BITS:
        return None
    inner = columns[0] // 2 if _GATED.search(first.decoded.name) else columns[0]
    wider = types[1].removeprefix("Mx")
    return _Experts(
        tokens, chosen.pop(), experts, (columns[0], depth), (columns[1], inner), _WEIGHT_BITS[types[0]],
        _PEAKS.get(wider),
    )  # fmt: skip


_NO_STEP = "how many keys its queries see was not recorded (an engine's annotation of the step tells it)"
_WINDOWED = "its kernel attends within a window, which was not recorded"
_MAY_BE_WINDOWED = "its kernel serves whole and windowed attention alike, and the window was not recorded"
_WINDOW = re.compile(r"Sliding|Chunked|_swa_|LocalAttention")
_EITHER = re.compile(r"^kernel_unified_attention_[23]d")


def _attention(
    calls: EngineCalls, row: Mapping[str, Any], call: DistinctCall, arguments: CallArguments
) -> CallCost:
    """Queries, keys and values of the batch are arguments; what the cache holds the annotation tells."""
    query, key = _tensor(arguments, 0), _tensor(arguments, 1)
    kernels = calls.kernels(call)
    names = [one.decoded.name for one in kernels]
    if any(_WINDOW.search(name) for name in names):
        raise _UntoldError(_WINDOWED)
    if any(_EITHER.match(name) for name in names):
        raise _UntoldError(_MAY_BE_WINDOWED)
    step = None if call.engine_step is None else serving_step(call.engine_step)
    if step is None or step.attended_pairs is None or step.keys is None or not step.tokens:
        raise _UntoldError(_NO_STEP)
    width, key_width = (prod(one.shape) // one.shape[0] for one in (query, key))
    main = max(kernels, key=lambda one: "attention" in (one.decoded.family or ""), default=None)
    is_fp8 = main is not None and re.search(r"Qkv?E4m3|KvE4m3|e4m3", main.decoded.name) is not None
    known = type_of(query)
    cache_bytes = 2 * step.keys * key_width * (1 if is_fp8 else _size(key))
    return CallCost(
        4 * step.attended_pairs * width,
        FlopSource.REGISTRY,
        step.tokens * width * _size(query) + cache_bytes,
        step.tokens * width * (_size(_tensor(arguments, 3)) if _is_tensor(arguments, 3) else 2),
        DataType.FP8 if is_fp8 else None if known is None else known.operand_type,
        CostEvidence.ENGINE_STEP,
    )


_Rule = Callable[[EngineCalls, Mapping[str, Any], DistinctCall, CallArguments], CallCost]
_RULES: Mapping[str, _Rule] = {
    "all_reduce": _all_reduce,
    "scaled_product": _scaled_product,
    "experts": _experts,
    "experts_by_tiles": _experts_by_tiles,
    "attention": _attention,
}
