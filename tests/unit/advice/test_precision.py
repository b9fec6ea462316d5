"""float32 products without tensor cores, and what another type would save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.analysis.efficiency import Bound, TensorCoreUse
from opscope.hardware.devices import DataType
from opscope.model.finding import Finding, Severity
from opscope.testing import TraceBuilder

from .conftest import H200, MEASURED, call, codes, host, limits, only, product, trace

Program = Callable[..., tuple[Finding, ...]]
STEP_NS = 6_000_000


def program(name: str = "gemm", *, backward: bool = False) -> TraceBuilder:
    """One step of products of 6 ms in all."""
    builder = trace().step(1, 0, 7000).operator("aten::mm", 10, 20).launch(15).kernel(name, 100, 6000)
    return builder.operator("MulBackward0", 40, 5) if backward else builder


def slow(**facts: Any) -> dict[str, Any]:
    """48 float32 products on CUDA cores, 5 ms of 6; a host of 1 ms."""
    return {
        "calls": [product(1024, 768, 768, 5_000_000, calls=48, **facts)],
        "hosts": [host(STEP_NS, 1_000_000)],
    }


def test_tf32_off_is_found_with_its_gain(advise_on: Program) -> None:
    found = only(advise_on(program(), **slow()), "tf32_off")
    assert found.severity is Severity.WARNING
    assert "83.3 % of device time" in found.message
    assert "aten::mm" in found.message
    assert "set_float32_matmul_precision" in (found.change or "")
    assert "cudnn" not in (found.change or "")
    assert found.evidence["device_ns"] == 5_000_000
    assert found.evidence["call_ids"] == [0]
    # 48 products of 8×12 tiles take 8 µs each in TF32.
    assert found.estimated_gain_ns_per_step == pytest.approx(5_000_000 - 48 * 8_000, rel=0.02)
    assert "TF32" in (found.gain_basis or "")


def test_the_gain_stops_at_the_host(advise_on: Program) -> None:
    values = {**slow(), "hosts": [host(STEP_NS, 4_500_000)]}
    found = only(advise_on(program(), **values), "tf32_off")
    assert found.estimated_gain_ns_per_step == pytest.approx(STEP_NS + 10 * 1000 - 4_500_000)


def test_a_gain_that_the_host_hides_is_told_without_promising(advise_on: Program) -> None:
    values = {**slow(), "hosts": [host(STEP_NS, 9_000_000)]}
    found = only(advise_on(program(), **values), "tf32_off")
    assert found.estimated_gain_ns_per_step == 0
    assert found.severity is Severity.INFO
    assert "the host is the slower side" in (found.gain_basis or "")


def test_products_on_tensor_cores_are_left_alone(advise_on: Program) -> None:
    values = slow(type_name="c10::BFloat16", data_type=DataType.BF16, tensor_cores=TensorCoreUse.USED)
    assert codes(advise_on(program(), **values)) == []


def test_tf32_products_are_told_of_16_bits_only(advise_on: Program) -> None:
    values = slow(tensor_cores=TensorCoreUse.USED, data_type=DataType.FP32)
    assert codes(advise_on(program(), **values)) == ["reduced_precision"]


def test_few_products_are_no_reason(advise_on: Program) -> None:
    values = {**slow(), "calls": [product(1024, 768, 768, 200_000, calls=48)]}
    assert codes(advise_on(program(), **values)) == []


def test_an_old_device_has_no_tf32(advise_on: Program) -> None:
    volta = TraceBuilder(
        deviceProperties=[{**H200, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "numSms": 80}]
    )
    volta.step(1, 0, 7000).operator("aten::mm", 10, 20).launch(15).kernel("gemm", 100, 6000)
    found = advise_on(volta, **slow())
    assert codes(found) == ["reduced_precision"]
    assert "float16" in found[0].message
    assert "bfloat16" not in (found[0].change or "")


def test_without_the_devices_rates_no_gain_is_made_up(advise_on: Program) -> None:
    unknown = limits()
    found = advise_on(program(), **slow(), known_limits=type(unknown)(unknown.name))
    assert [finding.estimated_gain_ns_per_step for finding in found] == [None, None]
    assert all("unknown" in (finding.gain_basis or "") for finding in found)


def test_autocast_pays_for_its_casts_in_training(advise_on: Program) -> None:
    inference = only(advise_on(program(), **slow()), "reduced_precision")
    training = only(advise_on(program(backward=True), **slow()), "reduced_precision")
    assert training.estimated_gain_ns_per_step is not None
    assert inference.estimated_gain_ns_per_step is not None
    assert training.estimated_gain_ns_per_step < inference.estimated_gain_ns_per_step
    assert "casting the operands" in (training.gain_basis or "")


def test_casting_the_whole_model_halves_what_memory_bounds(advise_on: Program) -> None:
    gelu = call("aten::gelu", 1_000_000, calls=10, bound=Bound.MEMORY, call_id=1)
    hosts = [host(STEP_NS, 100_000)]
    with_gelu = {"calls": [*slow()["calls"], gelu], "hosts": hosts}
    found = only(advise_on(program(), **with_gelu), "reduced_precision")
    alone = only(advise_on(program(), **{**slow(), "hosts": hosts}), "reduced_precision")
    assert (found.estimated_gain_ns_per_step or 0) - (alone.estimated_gain_ns_per_step or 0) == pytest.approx(
        500_000, abs=20_000
    )


def test_a_convolution_counts_at_the_share_of_the_rate_that_it_reaches(advise_on: Program) -> None:
    flop_count = int(MEASURED[DataType.FP32] * 0.1e-3 / 2)
    conv = call(
        "aten::cudnn_convolution",
        4_000_000,
        calls=40,
        data_type=DataType.FP32,
        tensor_cores=TensorCoreUse.ELIGIBLE,
        bound=Bound.COMPUTE,
        fraction=0.5,
        flop_count=flop_count,
    )
    found = only(advise_on(program(), calls=[conv], hosts=[host(STEP_NS, 1e6)]), "tf32_off")
    each_ns = flop_count / (MEASURED[DataType.TF32] * 0.5) * 1e9 + 3_500
    assert found.estimated_gain_ns_per_step == pytest.approx(4_000_000 - 40 * each_ns)
    assert "cudnn.allow_tf32" in (found.change or "")
    assert "matmul" not in (found.change or "")


UNALIGNED = "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x4_nn_align1"


def test_an_odd_vocabulary_is_found_by_its_kernel(advise_on: Program) -> None:
    facts: dict[str, Any] = {
        "type_name": "c10::BFloat16",
        "data_type": DataType.BF16,
        "tensor_cores": TensorCoreUse.USED,
        "kernels": [UNALIGNED],
    }
    values = {"calls": [product(8192, 50257, 768, 3_000_000, **facts)], "hosts": [host(STEP_NS, 1e6)]}
    found = only(advise_on(program(UNALIGNED), **values), "unaligned_products")
    assert "8192×768 by 768×50257" in found.message
    assert found.estimated_gain_ns_per_step is not None
    assert 1_000_000 < found.estimated_gain_ns_per_step < 3_000_000
    aligned = {**values, "calls": [product(8192, 50304, 768, 3_000_000, **facts)]}
    assert codes(advise_on(program(UNALIGNED), **aligned)) == []


def test_an_odd_size_in_a_fast_kernel_is_left_alone(advise_on: Program) -> None:
    facts: dict[str, Any] = {
        "type_name": "c10::BFloat16",
        "data_type": DataType.BF16,
        "tensor_cores": TensorCoreUse.USED,
        "kernels": ["nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT"],
    }
    values = {"calls": [product(8192, 50257, 768, 3_000_000, **facts)], "hosts": [host(STEP_NS, 1e6)]}
    assert codes(advise_on(program(facts["kernels"][0]), **values)) == []


def test_what_ran_before_the_window_does_not_count(advise_on: Program) -> None:
    early = product(1024, 768, 768, 5_000_000, calls=48, attribution="before_window")
    assert codes(advise_on(program(), calls=[early], hosts=[host(STEP_NS, 1e6)])) == []
