"""Attention made of single operators is recognized by order and sizes, and by nothing less."""

import pytest

from case_tables import cases
from opscope.advice.attention_pattern import composed_attention
from opscope.advice.kernel_times import AttentionMask, AttentionWork, Rates, attention_ns, attention_type
from opscope.analysis.launch_quality import TensorCoreUse
from opscope.hardware.devices import DataType
from opscope.model.queries import sql
from opscope.operators.products import AttentionSizes

from .conftest import call, codes, host, limits, only, trace

HALF = "c10::BFloat16"

COPY_Q = ("aten::copy_", [[8, 12, 128, 64], [8, 12, 128, 64], []], 4)
COPY_K = ("aten::copy_", [[8, 12, 64, 128], [8, 12, 64, 128], []], 4)
SCORES = ("aten::bmm", [[96, 128, 64], [96, 64, 128]], 9)
SCALE = ("aten::mul", [[8, 12, 128, 128], []], 3)
MASK = ("aten::add", [[8, 12, 128, 128], [8, 1, 1, 128], []], 3)
SOFTMAX = ("aten::_softmax", [[8, 12, 128, 128], [], []], 4)
DROPOUT = ("aten::native_dropout", [[8, 12, 128, 128], [], []], 4)
VALUES = ("aten::bmm", [[96, 128, 128], [96, 128, 64]], 10)
COPY_OUT = ("aten::copy_", [[8, 128, 12, 64], [8, 128, 12, 64], []], 4)
LINEAR = ("aten::addmm", [[768], [1024, 768], [768, 768], [], []], 40)
FORWARD = [COPY_Q, COPY_K, SCORES, SCALE, SOFTMAX, COPY_Q, VALUES, COPY_OUT]


def run(operators, type_name="float", times=10):
    """One step that calls these operators so many times, 10 µs apart on the host."""
    builder = trace()
    at, busy = 10.0, 20.0
    builder.step(1, 0, 10 + 10.0 * times * len(operators))
    for name, shapes, device_us in operators * times:
        types = [type_name if shape else "Scalar" for shape in shapes]
        builder.operator(name, at, 8, **{"Input Dims": shapes, "Input type": types})
        builder.launch(at + 4).kernel(f"kernel of {name}", max(busy, at + 6), device_us)
        at += 10
        busy = max(busy, at) + device_us
    return builder


def found_in(session):
    """Sizes, direction, mask and number of operators of each."""
    patterns = composed_attention(session.records(sql("opscope.advice", "attention_contexts")))
    return [(*_numbers(one.work), len(one.parts)) for one in patterns]


def _numbers(work):
    sizes = work.sizes
    return sizes.all_heads, sizes.queries, sizes.keys, sizes.head_size, work.is_backward, work.mask


def test_forward_is_found_with_its_copies_if_shapes_were_recorded(load):
    session = load(run([LINEAR, *FORWARD, LINEAR], times=1))
    assert found_in(session) == [(96, 128, 128, 64, False, None, 8)]
    builder = trace()
    for place, (name, _, device_us) in enumerate(FORWARD):
        builder.operator(name, 10 * place, 8).launch(10 * place + 4).kernel(name, 10 * place + 6, device_us)
    assert found_in(load(builder)) == []


@pytest.mark.parametrize(("type_name", "is_estimated"), [("float", False), (HALF, True)])
def test_heads_that_share_keys_have_no_kernel_in_float32(advise_on, type_name, is_estimated):
    builder = run([LINEAR, *FORWARD], type_name)
    builder.operator("aten::expand", 1, 2, **{"Input Dims": [[8, 1, 1, 128, 64], [], []]})
    finding = only(advise_on(builder, hosts=[host(1_000_000, 100_000)]), "eager_attention")
    assert (finding.estimated_gain_ns_per_step is not None) is is_estimated
    assert ("heads share keys and values" in (finding.gain_basis or "")) is not is_estimated


@cases("mask", "kind")
def test_masks_and_dropout_belong_to_it(load, mask, kind):
    for name, value in (("aten::add", []), ("aten::masked_fill", [1])):  # what is filled in is no mask
        masking = (name, [[8, 12, 128, 128], mask, value], 3)
        operators = [LINEAR, SCORES, SCALE, masking, SOFTMAX, DROPOUT, VALUES, LINEAR]
        assert found_in(load(run(operators, times=1))) == [(96, 128, 128, 64, False, AttentionMask[kind], 6)]


def test_backward_is_found_by_two_products_on_each_side(load):
    grad = ("aten::_softmax_backward_data", [[8, 12, 128, 128], [8, 12, 128, 128], [], []], 5)
    to_keys = ("aten::bmm", [[96, 64, 128], [96, 128, 128]], 9)
    operators = [LINEAR, COPY_OUT, VALUES, SCORES, DROPOUT, grad, SCALE, to_keys, VALUES, COPY_OUT, LINEAR]
    assert found_in(load(run(operators, times=1))) == [(96, 128, 128, 64, True, None, 9)]
    # The mask is seen forward alone, and holds for the gradient.
    forward = [LINEAR, SCORES, SCALE, MASK, SOFTMAX, VALUES, LINEAR]
    kinds = [one[5] for one in found_in(load(run([*forward, *operators], times=1)))]
    assert kinds == [AttentionMask.KEYS] * 2


@pytest.mark.parametrize(
    "operators",
    [
        [LINEAR, SOFTMAX, LINEAR],
        [SCORES, SOFTMAX],
        [SOFTMAX, VALUES],
        [SCORES, SCALE, LINEAR, SOFTMAX, VALUES],
        [SCORES, SCALE, ("aten::sum", [[7, 7]], 3), SOFTMAX, VALUES],
        [("aten::mm", [[1024, 768], [768, 1000]], 9), ("aten::_softmax", [[1024, 1000], [], []], 4)],
    ],
    ids=["no products", "none after", "none before", "another product", "another size", "classifier"],
)
def test_other_softmaxes_are_no_attention(load, operators):
    assert found_in(load(run(operators, times=1))) == []


def test_math_path_of_sdpa_is_named_as_such(advise_on):
    builder = trace().step(1, 0, 200)
    at = 10.0
    builder.operator("aten::_scaled_dot_product_attention_math", at, 100)
    for name, shapes, device_us in [SCORES, SCALE, SOFTMAX, VALUES]:
        types = [HALF if shape else "Scalar" for shape in shapes]
        builder.operator(name, at + 1, 8, **{"Input Dims": shapes, "Input type": types})
        builder.launch(at + 4).kernel(name, at + 6, device_us)
        at += 10
    found = advise_on(builder, hosts=[host(26_000, 10_000)])
    assert codes(found) == ["attention_backend"]
    assert found[0].message.startswith("The math path of attention runs")


def efficient(type_name, mask=None, size=64):
    shapes = [[8, 512, 12, size]] * 3 + [mask or [], *[[]] * 10]
    types = [type_name] * 3 + [type_name if mask else "", *[""] * 4, *["Scalar"] * 3, *[""] * 3]
    facts = {"shapes": shapes, "types": types, "calls": 10, "tensor_cores": TensorCoreUse.USED}
    one = call("aten::_efficient_attention_forward", 2_000_000, **facts)
    return {"calls": [one], "hosts": [host(3_000_000, 500_000)]}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (efficient("float"), "type"),
        (efficient(HALF, mask=[8, 12, 512, 512]), "mask"),
        (efficient(HALF, size=60), "head_size"),
        (efficient(HALF), "choice"),
        (efficient(HALF, size=512), None),
    ],
    ids=["float32", "mask", "head size", "choice", "heads beyond flash"],
)
def test_what_keeps_attention_from_flash_is_read_from_its_arguments(advise_on, arguments, reason):
    builder = trace().step(1, 0, 3100).operator("aten::_efficient_attention_forward", 10, 20)
    builder.launch(15).kernel("fmha_cutlassF_f32_aligned_64x64_rf_sm80", 50, 3000)
    found = advise_on(builder, **arguments)
    if reason is None:
        assert codes(found) == []
        return
    assert only(found, "attention_backend").evidence["reason"] == reason
    assert (only(found, "attention_backend").estimated_gain_ns_per_step or 0) > 1_000_000


@cases("sizes", "is_backward", "data_type", "measured_ns")
def test_attention_kernels_of_an_h200_are_met_within_a_quarter(sizes, is_backward, data_type, measured_ns):
    work = AttentionWork(AttentionSizes(*sizes), is_backward=is_backward)
    found_ns = attention_ns(work, DataType[data_type], Rates(limits(), 132))
    assert found_ns == pytest.approx(measured_ns, rel=0.25)


def test_a_mask_makes_attention_slower():
    rates = Rates(limits(), 132)
    plain, masked = (
        attention_ns(
            AttentionWork(AttentionSizes(128, 1, 2048, 2048, 64, 64), mask=mask), DataType.BF16, rates
        )
        for mask in (None, AttentionMask.BIAS)
    )
    assert masked > 1.5 * plain
    assert attention_ns(AttentionWork(AttentionSizes(1, 1, 1, 1, 1, 1)), DataType.BF16, Rates()) is None
    assert attention_type("long int") is None
