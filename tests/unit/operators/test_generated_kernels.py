"""Kernels that torch.compile wrote: bytes only where the order of its arguments leaves one answer."""

from __future__ import annotations

from typing import Any

import pytest

from opscope.hardware.devices import DataType
from opscope.operators.arguments import parse_arguments
from opscope.operators.call_cost import CallCost, CostEvidence, FlopSource
from opscope.operators.distinct_calls import TritonLaunch
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


def test_one_tensor_that_is_computed_on_is_overwritten() -> None:
    one = cost("triton_poi_fused_gelu_view_6", [8, 128])
    assert (one.read_bytes, one.written_bytes) == (2 * N, 2 * N)
    assert (one.evidence, one.data_type) == (CostEvidence.KERNEL_ARGUMENTS, DataType.FP32)
    assert (one.flop_count, one.flop_source) == (5 * N, FlopSource.FUSED_NAMES)


def test_one_tensor_that_is_made_of_nothing_is_written() -> None:
    one = cost("triton_poi_fused_full_view_0", [8, 128])
    assert (one.read_bytes, one.written_bytes, one.flop_count) == (0, 2 * N, 0)
    assert one.flop_source is FlopSource.NONE


def test_one_tensor_of_masks_may_be_either() -> None:
    assert moved("triton_poi_fused_arange_ge_where_0", [8, 128]) == (None, None)


def test_a_copy_reads_the_first_and_writes_the_second() -> None:
    one = cost("triton_poi_fused_clone_transpose_view_1", [8, 128], [128, 8], extents=(8, 128))
    assert (one.read_bytes, one.written_bytes, one.flop_count) == (2 * N, 2 * N, 0)


def test_what_is_as_large_as_the_run_is_the_result() -> None:
    in_place = cost("triton_poi_fused_add_mul_2", [8, 128], [128], [128])
    assert (in_place.read_bytes, in_place.written_bytes) == (2 * N + 512, 2 * N)
    last = cost("triton_poi_fused_add_mul_2", [128], [128], [8, 128])
    assert (last.read_bytes, last.written_bytes) == (512, 2 * N)


def test_several_possible_results_are_no_answer() -> None:
    one = cost(
        "triton_per_fused_add_native_layer_norm_view_5", *[[8, 128]] * 2, [128], [128], extents=(8, 128)
    )
    assert (one.read_bytes, one.written_bytes, one.evidence) == (None, None, None)
    assert one.reason == "which of its tensors the generated kernel writes is not recorded"
    assert one.flop_count == 7 * N + N  # the normalization, and the addition before


def test_reductions_may_write_one_element_a_row() -> None:
    assert moved("triton_red_fused_sum_0", [8, 128], [8], extents=(8, 128)) == (2 * N, 16)
    assert cost("triton_red_fused_sum_0", [8, 128], [8], extents=(8, 128)).flop_count == N
    assert moved("triton_red_fused_add_sum_0", [8, 128], [128], [8], extents=(8, 128)) == (None, None)


def test_parts_of_tensors_have_no_size() -> None:
    one = cost("triton_poi_fused_embedding_0", [8], [50000, 128], [8, 128])
    assert one.min_bytes is None
    assert "parts of tensors" in str(one.reason)


def test_a_softmax_counts_once() -> None:
    whole = cost("triton_per_fused__softmax_0", [8, 128], extents=(8, 128))
    parts = cost("triton_per_fused__softmax_exp_prepare_softmax_online_sub_0", [8, 128], extents=(8, 128))
    assert whole.flop_count == parts.flop_count == 4 * N


def test_a_name_of_ten_operators_may_lack_some() -> None:
    ten = "abs_cos_erf_exp_log_neg_relu_sigmoid_sin_sqrt"
    assert cost(f"triton_poi_fused_{ten}_0", [8, 128]).flop_count is None
    assert cost(f"triton_poi_fused_{ten}_tanh_0", [8, 128]).flop_count is not None


def test_an_operator_without_definition_leaves_operations_unknown() -> None:
    one = cost("triton_poi_fused_frobnicate_0", [8, 128])
    assert one.flop_count is None
    assert one.reason is not None


def test_the_compilers_own_counts_win() -> None:
    one = cost("triton_poi_fused_add_1", [8, 128], [8, 128], num_gb=6 * N / 1e9, flop=77.0)
    assert (one.flop_count, one.flop_source) == (77, FlopSource.RECORDED)
    assert (one.read_bytes, one.written_bytes, one.evidence) == (4 * N, 2 * N, CostEvidence.RECORDED)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"mutated_arg_names": ["in_out_ptr0"], "num_store": 1}, (6 * N, 2 * N)),
        ({"mutated_arg_names": [], "num_store": 1}, (4 * N, 2 * N)),
        ({"mutated_arg_names": ["in_out_ptr0"], "num_store": 2}, (4 * N, 4 * N)),
        ({"mutated_arg_names": [], "num_store": 9}, (None, None)),
        ({"mutated_arg_names": ["in_ptr1"], "num_store": 1}, (None, None)),
        ({"num_store": 1}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_the_source_tells_what_is_written(
    source: dict[str, Any], expected: tuple[int | None, int | None]
) -> None:
    assert moved("triton_poi_fused_add_1", *[[8, 128]] * 3, source=source) == expected


def stored(*, load: int, store: int, changed: int = 0) -> dict[str, Any]:
    names = [f"in_out_ptr{number}" for number in range(changed)]
    return {"mutated_arg_names": names, "num_store": store, "num_load": load}


def test_a_result_in_a_used_buffer_is_not_read_if_nothing_loads_it() -> None:
    kernel = "triton_poi_fused_add_1"
    assert moved(kernel, *[[8, 128]] * 2, source=stored(load=1, store=1, changed=1)) == (2 * N, 2 * N)
    assert moved(kernel, *[[8, 128]] * 2, source=stored(load=2, store=1, changed=1)) == (4 * N, 2 * N)


class TestParts:
    """Tensors larger than the run, of which a part is read."""

    def test_a_load_reads_an_element_for_each_of_the_run(self) -> None:
        source = stored(load=1, store=1)
        assert moved("triton_poi_fused_select_1", [3, 8, 128], [8, 128], source=source) == (2 * N, 2 * N)

    def test_two_loads_read_both_halves(self) -> None:
        source = stored(load=2, store=1)
        assert moved("triton_poi_fused_mul_silu_split_1", [8, 256], [8, 128], source=source) == (4 * N, 2 * N)

    def test_no_more_is_read_than_there_is(self) -> None:
        source = stored(load=9, store=1)
        assert moved("triton_poi_fused_add_slice_1", [3, 8, 128], [8, 128], source=source) == (6 * N, 2 * N)

    def test_a_table_is_read_where_indices_point(self) -> None:
        tensors = ([8], [50_000, 128], [8, 128])
        source = stored(load=2, store=1)
        assert moved("triton_poi_fused_embedding_0", *tensors, source=source) == (2 * N + 16, 2 * N)

    @pytest.mark.parametrize(
        ("tensors", "source"),
        [
            (([3, 8, 128], [8, 128]), None),  # loads are not known
            (([3, 8, 128], [8, 128], [8, 128]), stored(load=3, store=1)),  # nor whose they are
            (([3, 8, 128], [4, 128], [8, 128]), stored(load=2, store=1)),  # part of the second may be unread
        ],
    )
    def test_what_is_not_told_stays_unknown(self, tensors: Any, source: dict[str, Any] | None) -> None:
        assert moved("triton_poi_fused_add_slice_1", *tensors, source=source) == (None, None)

    def test_windows_have_no_size(self) -> None:
        source = stored(load=4, store=1)
        kernel = "triton_poi_fused_max_pool2d_with_indices_1"
        assert moved(kernel, [16, 256], [8, 128], source=source) == (None, None)


def test_contradicting_arguments_are_a_reason() -> None:
    call = parse_arguments("triton_poi_fused_gelu_0", shapes=[[-1]], types=[HALF])
    one = cost_of_generated(call, TritonLaunch("triton_poi_fused_gelu_0", None, None, None))
    assert (one.min_bytes, one.flop_count) == (None, None)
    assert "negative" in str(one.reason)
