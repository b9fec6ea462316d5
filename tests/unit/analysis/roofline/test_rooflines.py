"""Rooflines of alike calls, and sums of many: exact in nanoseconds, fractions of like with like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opscope.analysis.roofline import Bound, Roofline, RooflineModel, combine, roofline_of
from opscope.analysis.tensor_cores import TensorCoreUse
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits
from opscope.operators.call_cost import FlopSource

from .conftest import cost, launches, work

GEMM = "cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4"
H2D = "Memcpy HtoD (Pageable -> Device)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture
def model(limits: DeviceLimits) -> RooflineModel:
    return RooflineModel(limits, "9.0")


def test_a_memory_bound_call(model: RooflineModel) -> None:
    # 400 MB at 4 TB/s need 100 us.
    found = roofline_of(
        work(cost(100_000_000, 400_000_000), launches(total_ns=250_000, count=2), repeats=2), model
    )
    assert (found.flop_count, found.min_bytes) == (200_000_000, 800_000_000)
    assert (found.attainable_ns, found.fraction) == (pytest.approx(200_000), pytest.approx(0.8))
    assert (found.bound, found.bound_ns) == (Bound.MEMORY, {Bound.MEMORY: 250_000})
    assert found.arithmetic_intensity == 0.25
    assert found.achieved_bytes_per_s == pytest.approx(3.2e12)
    assert (found.cache_resident_ns, found.excess_ns) == (0, 0)


def test_a_compute_bound_product(model: RooflineModel) -> None:
    product = cost(40_000_000_000, 1_000_000, DataType.FP32, FlopSource.REGISTRY)
    found = roofline_of(work(product, launches(GEMM, 125_000)), model)
    assert (found.attainable_ns, found.fraction) == (pytest.approx(100_000), pytest.approx(0.8))
    assert (found.bound, found.data_type, found.tensor_cores) == (
        Bound.COMPUTE, DataType.TF32, TensorCoreUse.USED,
    )  # fmt: skip


def test_data_of_the_cache_may_come_faster_than_memory_gives_it(model: RooflineModel) -> None:
    found = roofline_of(work(cost(0, 40_000_000), launches(total_ns=8_000)), model)
    assert (found.fraction, found.excess_ns) == (pytest.approx(1.25), 0)
    assert found.cache_resident_ns > 0
    assert found.bound is Bound.MEMORY


def test_more_than_memory_can_give_is_no_fraction(model: RooflineModel) -> None:
    found = roofline_of(work(cost(0, 400_000_000), launches(total_ns=80_000)), model)
    assert (found.attainable_ns, found.fraction, found.held_ns) == (None, None, 0)
    assert (found.excess_ns, found.costed_ns, found.bound) == (80_000, 80_000, Bound.MEMORY)
    assert roofline_of(work(cost(0, 400_000_000), launches(total_ns=96_000)), model).fraction is not None


def test_a_cache_may_spare_memory_a_part(model: RooflineModel) -> None:
    # 80 MB need 20 us; 50 of them from the cache leave 7.5.
    found = roofline_of(work(cost(0, 80_000_000), launches(total_ns=18_000)), model)
    assert (found.cache_resident_ns, found.excess_ns) == (18_000, 0)
    assert roofline_of(work(cost(0, 80_000_000), launches(total_ns=7_400)), model).excess_ns == 7_400
    assert roofline_of(work(cost(0, 80_000_000), launches(total_ns=21_000)), model).cache_resident_ns == 0


def test_no_cache_explains_more_operations_than_the_peak(model: RooflineModel) -> None:
    winograd = cost(10_000_000, 1_000, DataType.FP32)
    assert roofline_of(work(winograd, launches(total_ns=100)), model).excess_ns == 100


@pytest.mark.parametrize("kernel", [H2D, NCCL])
def test_what_goes_over_another_link_is_not_held_against_memory(model: RooflineModel, kernel: str) -> None:
    found = roofline_of(work(cost(0, 400_000_000), launches(kernel, 900_000, quality=None)), model)
    assert (found.min_bytes, found.costed_ns, found.held_ns) == (400_000_000, 900_000, 0)
    assert (found.fraction, found.bound) == (None, None)


def test_unknown_cost_has_time_alone(model: RooflineModel) -> None:
    found = roofline_of(work(cost(None, 4), launches(total_ns=9_000)), model)
    assert (found.device_ns, found.costed_ns, found.held_ns) == (9_000, 0, 0)
    assert (found.flop_count, found.min_bytes, found.fraction, found.bound) == (None, None, None, None)


def test_unknown_limits_leave_the_achieved_rates() -> None:
    found = roofline_of(work(cost(1_000, 2_000), launches(total_ns=100_000)), RooflineModel(None))
    assert (found.flop_count, found.attainable_ns, found.fraction, found.bound) == (1_000, None, None, None)
    assert found.achieved_flop_per_s == pytest.approx(1e7)


def test_an_unknown_peak_holds_only_what_computes_nothing(limits: DeviceLimits) -> None:
    model = RooflineModel(replace(limits, peaks={}), "9.0")
    assert roofline_of(work(cost(5, 400_000_000), launches()), model).fraction is None
    assert roofline_of(work(cost(0, 400_000_000), launches()), model).fraction == pytest.approx(1)


def test_a_cache_of_unknown_size_may_be_as_large_as_any(limits: DeviceLimits) -> None:
    model = RooflineModel(replace(limits, l2_bytes=None))
    assert roofline_of(work(cost(0, 100_000_000), launches(total_ns=20_000)), model).cache_resident_ns
    assert roofline_of(work(cost(0, 270_000_000), launches(total_ns=20_000)), model).excess_ns == 20_000


def test_together_fractions_are_of_what_is_held(model: RooflineModel) -> None:
    parts = [
        roofline_of(work(cost(0, 400_000_000), launches(total_ns=200_000)), model),
        roofline_of(work(cost(0, 8), launches(H2D, 100_000, quality=None)), model),
        roofline_of(work(cost(None, None), launches(total_ns=50_000)), model),
    ]
    whole = combine(parts)
    assert (whole.device_ns, whole.costed_ns, whole.held_ns) == (350_000, 300_000, 200_000)
    assert whole.fraction == pytest.approx(0.5)
    assert whole.bound is Bound.MEMORY  # known for 200 of 350 us
    assert combine([*parts, parts[1]]).bound is None  # for 200 of 450 us
    assert combine([*parts, parts[1], parts[1]]).fraction is None  # held: 200 of 500 us costed


def test_the_type_and_tensor_cores_are_those_of_most_of_the_time_of_products() -> None:
    used = Roofline(5, 5, 1, 1, data_type=DataType.TF32, tensor_cores=TensorCoreUse.USED)
    eligible = Roofline(7, 7, 1, 1, data_type=DataType.FP32, tensor_cores=TensorCoreUse.ELIGIBLE)
    copy = Roofline(90, 90, 0, 1, tensor_cores=TensorCoreUse.NOT_APPLICABLE)
    unknown = Roofline(8, 0)
    assert combine([used, eligible, copy]).tensor_cores is TensorCoreUse.ELIGIBLE
    assert combine([used, eligible, copy]).data_type is DataType.FP32
    assert combine([used, eligible, unknown]).tensor_cores is None
    assert combine([copy, unknown]).tensor_cores is TensorCoreUse.NOT_APPLICABLE
    assert combine([]).tensor_cores is None


PARTS = st.lists(
    st.builds(
        lambda ns, costed, flops, size, bound, share: Roofline(
            device_ns=ns,
            costed_ns=ns if costed else 0,
            flop_count=flops if costed else None,
            min_bytes=size if costed else None,
            attainable_ns=ns * share if costed else None,
            bound_ns={} if bound is None else {bound: ns},
        ),
        st.integers(0, 10**12),
        st.booleans(),
        st.integers(0, 10**15),
        st.integers(0, 10**12),
        st.none() | st.sampled_from(list(Bound)),
        st.floats(0, 1),
    ),
    max_size=8,
)


@given(PARTS, st.randoms())
def test_sums_are_exact_and_know_no_order(parts: list[Roofline], random: object) -> None:
    whole = combine(parts)
    assert whole.device_ns == sum(part.device_ns for part in parts)
    assert whole.costed_ns == sum(part.costed_ns for part in parts)
    assert sum(whole.bound_ns.values()) == sum(ns for part in parts for ns in part.bound_ns.values())
    assert whole.costed_ns <= whole.device_ns
    assert whole.fraction is None or whole.fraction <= 1 + 1e-9
    mirrored = combine(parts[::-1])
    assert (mirrored.device_ns, mirrored.flop_count, mirrored.bound_ns) == (
        whole.device_ns, whole.flop_count, whole.bound_ns,
    )  # fmt: skip


@given(PARTS, PARTS)
def test_sums_of_sums_are_sums(first: list[Roofline], second: list[Roofline]) -> None:
    whole, nested = combine([*first, *second]), combine([combine(first), combine(second)])
    for name in ("device_ns", "costed_ns", "flop_count", "min_bytes", "bound_ns"):
        assert getattr(whole, name) == getattr(nested, name)
    assert (whole.attainable_ns or 0) == pytest.approx(nested.attainable_ns or 0)
