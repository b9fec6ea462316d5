"""Products without tensor cores, of odd sizes or too small, and what another type would save."""

import pytest
from msgspec.structs import replace

from fakes import H200, TraceBuilder
from opscope.advice import assess
from opscope.advice.rules import rule_book
from opscope.analysis.launch_quality import TensorCoreUse
from opscope.analysis.roofline import Bound
from opscope.hardware.devices import DataType
from opscope.model.finding import Severity

from .conftest import call, codes, host, limits, only, product, told, trace

STEP_NS = 6_000_000


def program(*, backward=False):
    """One step of products of 6 ms in all."""
    builder = trace().step(1, 0, 7000).operator("aten::linear", 5, 30).operator("aten::mm", 10, 20)
    builder.launch(15).kernel("gemm", 100, 6000)
    return builder.operator("MulBackward0", 40, 5) if backward else builder


def slow(**facts):
    """48 float32 products on CUDA cores, 5 ms of 6; a host of 1 ms."""
    return {
        "calls": [product(1024, 768, 768, 5_000_000, calls=48, **facts)],
        "hosts": [host(STEP_NS, 1_000_000)],
    }


V100 = {"name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "numSms": 80, "totalGlobalMem": 16_935_682_048}
VOLTA = {**H200, **V100}


@pytest.mark.parametrize(
    ("device", "kernel", "code", "change"),
    [
        (H200, "ampere_sgemm_128x64_tn", "tf32_off", 'torch.set_float32_matmul_precision("high")   # matrix'),
        (VOLTA, "volta_sgemm_128x64_tn", "reduced_precision",
         "dtype=torch.float16):\n    output = model(batch)"),
    ],
)  # fmt: skip
def test_where_types_are_unknown_names_of_kernels_tell_of_float32(load, device, kernel, code, change):
    builder = TraceBuilder(deviceProperties=[device])
    for at in range(0, 400, 20):
        builder.operator("aten::mm", at, 15).launch(at + 5).kernel(kernel, 5 * at + 10, 95)
    finding = only(assess(load(builder)).advice, code)
    assert change in (finding.change or "")
    assert not finding.is_gain_known


def test_a_gain_that_the_host_hides_is_told_without_promising(advise_on):
    values = {**slow(), "hosts": [host(STEP_NS, 9_000_000)]}
    found = told(advise_on(program(), **values), "tf32_off", "the host is the slower side", has_gain=True)
    assert (found.estimated_gain_ns_per_step, found.severity) == (0, Severity.INFO)


def test_what_tf32_and_old_devices_leave_to_16_bits(advise_on):
    calls = [*slow()["calls"], product(64, 64, 64, 9, tensor_cores=TensorCoreUse.USED, call_id=1)]  # it is on
    assert codes(advise_on(program(), **{**slow(), "calls": calls})) == ["reduced_precision"]
    values = slow(tensor_cores=TensorCoreUse.USED, data_type=DataType.FP32)
    assert codes(advise_on(program(), **values)) == ["reduced_precision"]
    volta = TraceBuilder(deviceProperties=[VOLTA])
    volta.step(1, 0, 7000).operator("aten::mm", 10, 20).launch(15).kernel("gemm", 100, 6000)
    found = advise_on(volta, **slow())
    assert codes(found) == ["reduced_precision"]
    assert "float16" in found[0].message
    assert "bfloat16" not in (found[0].change or "")


def test_code_of_kinds_that_were_not_found_is_left_out_and_other_lines_stay(advise_on):
    book = rule_book()
    rule = book.rules["advice.tf32_off"]
    longer = replace(rule, change=f"import torch\n{(rule.change or '').strip()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(book.rules, rule.code, longer)
        change = only(advise_on(program(), **slow()), "tf32_off").change
    assert change == 'import torch\ntorch.set_float32_matmul_precision("high")   # matrix products'


def test_without_the_devices_rates_no_gain_is_made_up(advise_on):
    unknown = limits()
    found = advise_on(program(), **slow(), known_limits=type(unknown)(unknown.name))
    assert [finding.estimated_gain_ns_per_step for finding in found] == [None, None]
    assert all("unknown" in (finding.gain_basis or "") for finding in found)


def test_autocast_pays_for_its_casts_in_training(advise_on):
    inference = only(advise_on(program(), **slow()), "reduced_precision")
    training = only(advise_on(program(backward=True), **slow()), "reduced_precision")
    assert training.estimated_gain_ns_per_step < inference.estimated_gain_ns_per_step
    assert "casting the operands" in (training.gain_basis or "")
    assert training.change == 'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = model(batch)'
    assert inference.change == (
        "model = model.to(torch.bfloat16)   # inference\n"
        "batch = batch.to(torch.bfloat16)   # each floating-point input"
    )


def test_functions_of_tensors_have_no_weights_to_cast(advise_on):
    program = trace().step(1, 0, 7000).operator("aten::mm", 10, 20).launch(15).kernel("gemm", 100, 6000)
    found = only(advise_on(program, **slow()), "reduced_precision")
    assert found.change is None


def test_at_worst_autocast_makes_the_host_a_quarter_slower(advise_on, asked):
    advise_on(program(backward=True), **{**slow(), "hosts": [host(STEP_NS, 4_000_000)]})
    added_ns = [arguments[0] for one in asked for name, arguments in one if name == "add_host"]
    # Likely are two casts of each of 48 products, of 6 µs.
    assert sorted(set(added_ns)) == [2 * 48 * 6_000, 4_000_000 / 4]


def test_casting_the_whole_model_halves_what_memory_bounds(advise_on):
    gelu = call("aten::gelu", 1_000_000, calls=10, bound=Bound.MEMORY, call_id=1)
    hosts = [host(STEP_NS, 100_000)]
    with_gelu = {"calls": [*slow()["calls"], gelu], "hosts": hosts}
    found = only(advise_on(program(), **with_gelu), "reduced_precision")
    alone = only(advise_on(program(), **{**slow(), "hosts": hosts}), "reduced_precision")
    gains_ns = [one.estimated_gain_ns_per_step or 0 for one in (found, alone)]
    assert gains_ns[0] - gains_ns[1] == pytest.approx(500_000, abs=20_000)


@pytest.mark.parametrize("operator", ["aten::cudnn_convolution", "aten::_cudnn_rnn", "aten::lstm"])
@pytest.mark.parametrize(
    ("code", "line"), [("tf32_off", "cudnn.allow_tf32"), ("reduced_precision", "model.to(torch.bfloat16)")]
)
def test_layers_that_were_not_measured_have_no_gain(advise_on, operator, code, line):
    """Convolutions of images that are known, and products, have."""
    layer = call(
        operator, 4_000_000, calls=40, data_type=DataType.FP32, tensor_cores=TensorCoreUse.ELIGIBLE,
        bound=Bound.COMPUTE, fraction=0.5, flop_count=1_000_000,
    )  # fmt: skip
    found = advise_on(program(), calls=[layer], hosts=[host(STEP_NS, 1e6)])
    finding = told(found, code, f"{operator} of such sizes were not measured", has_gain=False)
    has_line = operator == "aten::cudnn_convolution" or code != "tf32_off"
    assert (line in (finding.change or "")) is has_line
    # It is a change of the first screen all the same, without a number.
    assert (finding.is_to_try, finding.is_gain_known) == (bool(finding.change), False)


HALF = {"type_name": "c10::BFloat16", "data_type": DataType.BF16, "tensor_cores": TensorCoreUse.USED}
EARLY = product(1024, 768, 768, 5_000_000, calls=48, attribution="before_window")
MUL = call("aten::mul", 5_000_000, shapes=[[1024]], types=["c10::Half"], bound=Bound.MEMORY)
LEFT_ALONE = {
    "in 16 bits": {**slow(), "calls": [MUL]},
    "on tensor cores": slow(**HALF),
    "few": {**slow(), "calls": [product(1024, 768, 768, 200_000, calls=48)]},
    "before the window": {**slow(), "calls": [EARLY]},
}


@pytest.mark.parametrize("values", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_products_that_do_well_are_left_alone(advise_on, values):
    assert codes(advise_on(program(), **values)) == []
