"""Kernels that torch.compile wrote: bytes only where the order of its arguments leaves one answer."""

from __future__ import annotations

from typing import Any

import pytest

from opscope.hardware.devices import DataType
from opscope.operators.arguments import parse_arguments
from opscope.operators.distinct_calls import TritonLaunch
from opscope.operators.effects import CallCost, CostEvidence, FlopSource
from opscope.operators.generated_kernels import cost_of_generated

HALF = "c10::Half"
N = 8 * 128


def cost(
    kernel: str,
    *tensors: list[int],
    extents: tuple[int, ...] = (N,),
    num_gb: float | None = None,
    flop: float | None = None,
    source: dict[str, Any] | None = None,
) -> CallCost:
    call = parse_arguments(
        kernel,
        shapes=[*tensors, *[[] for _ in extents]],
        types=[HALF] * len(tensors) + ["Scalar"] * len(extents),
        concrete=[""] * len(tensors) + [str(extent) for extent in extents],
    )
    return cost_of_generated(call, TritonLaunch(kernel, "c0", num_gb, flop), source)


def moved(*args: Any, **kwargs: Any) -> tuple[int | None, int | None]:
    one = cost(*args, **kwargs)
    return one.read_bytes, one.written_bytes


X, ROWS, ROW = [8, 128], [8], [128]
BY_ROWS = (8, 128)
UNKNOWN = (None, None)


def stored(*, load: int, store: int, changed: int = 0) -> dict[str, Any]:
    names = [f"in_out_ptr{number}" for number in range(changed)]
    return {"mutated_arg_names": names, "num_store": store, "num_load": load}


@pytest.mark.parametrize(
    ("kernel", "tensors", "extents", "expected"),
    [
        # One tensor is overwritten if computed on, written if made of nothing; of masks it may be either.
        ("poi_fused_gelu_view_6", [X], (N,), (2 * N, 2 * N, 5 * N, FlopSource.FUSED_NAMES)),
        ("poi_fused_full_view_0", [X], (N,), (0, 2 * N, 0, FlopSource.NONE)),
        ("poi_fused_arange_ge_where_0", [X], (N,), UNKNOWN),
        # A copy reads the first and writes the second.
        ("poi_fused_clone_transpose_view_1", [X, [128, 8]], BY_ROWS, (2 * N, 2 * N, 0)),
        # What is as large as the run is the result; several such are no answer.
        ("poi_fused_add_mul_2", [X, ROW, ROW], (N,), (2 * N + 512, 2 * N)),
        ("poi_fused_add_mul_2", [ROW, ROW, X], (N,), (512, 2 * N)),
        ("per_fused_add_native_layer_norm_view_5", [X, X, ROW, ROW], BY_ROWS, (None, None, 7 * N + N)),
        # Reductions may write one element a row.
        ("red_fused_sum_0", [X, ROWS], BY_ROWS, (2 * N, 16, N)),
        ("red_fused_add_sum_0", [X, ROW, ROWS], BY_ROWS, UNKNOWN),
        # Parts of tensors have no size.
        ("poi_fused_embedding_0", [ROWS, [50000, 128], X], (N,), UNKNOWN),
    ],
)
def test_what_the_order_of_arguments_tells(kernel, tensors, extents, expected):
    one = cost(f"triton_{kernel}", *tensors, extents=extents)
    found = (one.read_bytes, one.written_bytes, one.flop_count, one.flop_source)
    assert found[: len(expected)] == expected
    if one.min_bytes is not None:
        assert (one.evidence, one.data_type) == (CostEvidence.KERNEL_ARGUMENTS, DataType.FP32)
    else:
        assert one.evidence is None
        reason = (
            "parts of tensors"
            if "embedding" in kernel
            else "which of its tensors the generated kernel writes"
        )
        assert reason in str(one.reason)


TEN = "abs_cos_erf_exp_log_neg_relu_sigmoid_sin_sqrt"


@pytest.mark.parametrize(
    ("operators", "flop"),
    [
        # A softmax counts once, whole or in its parts; a name of ten operators may lack some.
        ("_softmax", 4 * N),
        ("_softmax_exp_prepare_softmax_online_sub", 4 * N),
        (TEN, None),
        (f"{TEN}_tanh", 10 * N),  # a change of sign is none
        ("frobnicate", None),
    ],
)
def test_operations_are_those_of_the_names(operators: str, flop: int | None) -> None:
    one = cost(f"triton_per_fused_{operators}_0", X, extents=BY_ROWS)
    assert one.flop_count == flop
    assert flop is not None or one.reason is not None


def test_the_compilers_own_counts_win() -> None:
    one = cost("triton_poi_fused_add_1", X, X, num_gb=6 * N / 1e9, flop=77.0)
    assert (one.flop_count, one.flop_source) == (77, FlopSource.RECORDED)
    assert (one.read_bytes, one.written_bytes, one.evidence) == (4 * N, 2 * N, CostEvidence.RECORDED)


@pytest.mark.parametrize(
    ("operators", "tensors", "source", "expected"),
    [
        ("add", [X, X, X], {"mutated_arg_names": ["in_out_ptr0"], "num_store": 1}, (6 * N, 2 * N)),
        ("add", [X, X, X], {"mutated_arg_names": [], "num_store": 1}, (4 * N, 2 * N)),
        ("add", [X, X, X], {"mutated_arg_names": ["in_out_ptr0"], "num_store": 2}, (4 * N, 4 * N)),
        ("add", [X, X, X], {"mutated_arg_names": [], "num_store": 9}, UNKNOWN),
        ("add", [X, X, X], {"mutated_arg_names": ["in_ptr1"], "num_store": 1}, UNKNOWN),
        ("add", [X, X, X], {"num_store": 1}, UNKNOWN),
        ("add", [X, X, X], {}, UNKNOWN),
        # A result in a used buffer is not read if nothing loads it.
        ("add", [X, X], stored(load=1, store=1, changed=1), (2 * N, 2 * N)),
        ("add", [X, X], stored(load=2, store=1, changed=1), (4 * N, 2 * N)),
        # Of tensors larger than the run each load reads an element for each of the run, at most all,
        ("select", [[3, 8, 128], X], stored(load=1, store=1), (2 * N, 2 * N)),
        ("mul_silu_split", [[8, 256], X], stored(load=2, store=1), (4 * N, 2 * N)),
        ("add_slice", [[3, 8, 128], X], stored(load=9, store=1), (6 * N, 2 * N)),
        # a table is read where indices point; windows have no size,
        ("embedding", [ROWS, [50_000, 128], X], stored(load=2, store=1), (2 * N + 16, 2 * N)),
        ("max_pool2d_with_indices", [[16, 256], X], stored(load=4, store=1), UNKNOWN),
        # nor what loads that were not counted read, whose they are, or if part of the second is unread.
        ("add_slice", [[3, 8, 128], X], None, UNKNOWN),
        ("add_slice", [[3, 8, 128], X, X], stored(load=3, store=1), UNKNOWN),
        ("add_slice", [[3, 8, 128], [4, 128], X], stored(load=2, store=1), UNKNOWN),
    ],
)
def test_what_the_source_tells(operators, tensors, source, expected):
    assert moved(f"triton_poi_fused_{operators}_1", *tensors, source=source) == expected


def test_contradicting_arguments_are_a_reason() -> None:
    call = parse_arguments("triton_poi_fused_gelu_0", shapes=[[-1]], types=[HALF])
    one = cost_of_generated(call, TritonLaunch("triton_poi_fused_gelu_0", None, None, None))
    assert (one.min_bytes, one.flop_count) == (None, None)
    assert "negative" in str(one.reason)
