"""Rules against torch on whatever arguments: broadcasting, promotion, dimensions, windows, strides."""

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opscope.operators.arguments import ELEMENT_TYPES, ScalarArgument, TensorArgument, distinct_elements
from opscope.operators.effects import promote, promoted_type
from opscope.operators.operator_table import cost_by_rules, effects_by_rules

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),  # said once per process
]

TYPES = [
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128",
]  # fmt: skip
SIZES = st.sampled_from([0, 1, 1, 2, 3, 5])
SHAPES = st.lists(SIZES, max_size=4).map(tuple)
NUMBERS = st.sampled_from(["2", "2.5", "True", "-1", "0."])


def test_types_promote_as_in_torch(recorder):
    torch = recorder.torch

    def wanted(one, other):
        try:
            return str(torch.promote_types(getattr(torch, one.name), getattr(torch, other.name)))
        except RuntimeError:
            return None

    for one, other in product(ELEMENT_TYPES, repeat=2):
        got = promote(one, other)
        if got is None:
            # Releases differ in what they promote large unsigned integers to.
            assert wanted(one, other) is None or {one.kind, other.kind} == {"integer"}
        else:
            assert f"torch.{got.name}" == wanted(one, other)


def test_every_element_type_has_the_size_torch_gives_it(recorder):
    for element in ELEMENT_TYPES:
        assert getattr(recorder.torch, element.name).itemsize == element.size_bytes


@given(shape=SHAPES, name=st.sampled_from(TYPES), number=NUMBERS)
def test_numbers_widen_kinds_only(recorder, shape, name, number):
    torch = recorder.torch
    tensor = recorder.meta(*shape, dtype=name)
    got = promoted_type([TensorArgument(shape, name), ScalarArgument(number)])
    if shape or name not in ("float64", "int64", "complex128", "bool"):
        assert f"torch.{got.name}" == str(torch.result_type(tensor, ScalarArgument(number).value))


REDUCTIONS = st.tuples(
    st.sampled_from(["sum.dim_IntList", "mean.dim", "amax", "var.correction"]),
    st.one_of(st.none(), st.lists(st.integers(-4, 3), max_size=3, unique=True)),
)


@given(shape=SHAPES, reduction=REDUCTIONS, keeps=st.booleans())
def test_reductions_keep_what_torch_keeps(recorder, stated, shape, reduction, keeps):
    operator, dimensions = reduction
    data = recorder.meta(*shape)
    if operator == "amax":
        dimensions = dimensions or []
    named = {"keepdim": keeps}
    if operator == "var.correction":
        named["correction"] = 1
    call = recorder.record(operator, data, dimensions, **named)
    try:
        wanted = recorder.run(operator, data, dimensions, **named).stated_outputs
    except (RuntimeError, IndexError):
        return  # repeated dimensions, or none such
    assert stated(effects_by_rules(call).outputs) == wanted
    assert cost_by_rules(call) is not None


@given(data=st.data())
def test_convolutions_of_all_forms_agree(recorder, stated, data):
    """convolution has results on tensors without data; cuDNN's and others' forms have not, and must agree."""
    dimensions, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    draw = lambda low, high: [data.draw(st.integers(low, high)) for _ in range(dimensions)]  # noqa: E731
    kernel, stride, padding, dilation = draw(1, 3), draw(1, 3), draw(0, 2), draw(1, 2)
    sizes, transposes = draw(5, 9), data.draw(st.booleans())
    extra = (
        [min(one, step - 1) for one, step in zip(draw(0, 1), stride, strict=True)]
        if transposes
        else [0] * dimensions
    )
    x = recorder.meta(2, 2 * groups, *sizes)
    weight = recorder.meta(*((2 * groups, 3) if transposes else (3 * groups, 2)), *kernel)
    general = (x, weight, None, stride, padding, dilation, transposes, extra, groups)
    try:
        wanted = recorder.run("convolution", *general).stated_outputs
    except RuntimeError:
        return  # a kernel larger than the data
    calls = [recorder.record("convolution", *general)]
    name = "cudnn_convolution_transpose" if transposes else "cudnn_convolution"
    paddings = (padding, extra) if transposes else (padding,)
    calls.append(recorder.record(name, x, weight, *paddings, stride, dilation, groups, True, False, True))
    costs = [cost_by_rules(call) for call in calls]
    for call in calls:
        effects = effects_by_rules(call)
        assert stated(effects.outputs) == wanted
    assert len({(cost.flop_count, cost.min_bytes) for cost in costs if cost is not None}) == 1


WINDOWS = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.integers(1, 2))


@given(size=st.integers(1, 12), window=WINDOWS, rounds_up=st.booleans())
def test_windows_are_as_many_as_in_torch(recorder, stated, size, window, rounds_up):
    kernel, _, padding, _ = window
    assume(padding <= kernel // 2)
    arguments = (
        recorder.meta(1, 2, size, 9),
        *([first, second] for first, second in zip(window, (2, 1, 0, 1), strict=True)),
        rounds_up,
    )
    try:
        wanted = recorder.run("max_pool2d_with_indices", *arguments).stated_outputs
    except RuntimeError:
        return  # a window larger than the data
    effects = effects_by_rules(recorder.record("max_pool2d_with_indices", *arguments))
    assert stated(effects.outputs) == wanted


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), max_size=4))
def test_distinct_elements_are_those_of_all_addresses_or_what_lies_between(pairs):
    offsets = {0}
    for size, stride in pairs:
        offsets = {offset + index * stride for offset in offsets for index in range(size)}
    tensor = TensorArgument(tuple(size for size, _ in pairs), "float", tuple(stride for _, stride in pairs))
    got, reached = distinct_elements(tensor), max(offsets, default=-1) + 1
    assert len(offsets) <= got <= min(reached, tensor.element_count)
    if len(offsets) in (reached, tensor.element_count):
        assert got == len(offsets)
