"""Whatever a trace claims that an operator was given, a rule answers: a cost, a reason, or nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.operators.arguments import CallArguments, ScalarArgument, TensorArgument, TensorListArgument
from opscope.operators.operator_table import OPERATORS, cost_by_rules

SIZES = st.one_of(st.integers(0, 5), st.sampled_from([0, 1, 2**20, 2**40]))
TYPES = st.sampled_from(
    ["float", "c10::Half", "c10::BFloat16", "long int", "bool", "c10::complex<float>", None]
)


@st.composite
def tensors(draw):
    shape = tuple(draw(st.lists(SIZES, max_size=5)))
    strides = st.one_of(st.none(), st.tuples(*[st.integers(0, 9) for _ in shape]))
    return TensorArgument(shape, draw(TYPES), draw(strides))


NUMBERS = st.one_of(
    st.integers(-3, 5).map(str),
    st.booleans().map(str),
    st.lists(st.integers(-3, 5), max_size=5).map(str),
    st.lists(st.booleans(), max_size=5).map(str),
    st.sampled_from(["0.5", "inf", "nan", "[", "2000000000000", "[2000000000000, 2000000000000]"]),
    st.none(),
)
ARGUMENTS = st.one_of(
    tensors(),
    tensors(),
    NUMBERS.map(ScalarArgument),
    st.one_of(st.none(), st.lists(tensors(), max_size=3).map(tuple)).map(TensorListArgument),
    st.none(),
)


@settings(max_examples=settings.default.max_examples * 8)
@given(
    operator=st.sampled_from(sorted(OPERATORS)),
    arguments=st.lists(ARGUMENTS, max_size=16),
    values=st.booleans(),
)
def test_rules_answer_any_arguments(operator, arguments, values):
    cost = cost_by_rules(
        CallArguments(f"aten::{operator}", arguments=tuple(arguments), values_recorded=values)
    )
    if cost is not None:
        assert_consistent(cost)


def assert_consistent(cost):
    for number in (cost.flop_count, cost.read_bytes, cost.written_bytes):
        assert number is None or number >= 0
    assert (cost.flop_count is None) == (cost.flop_source is None)
    assert (cost.min_bytes is None) == (cost.evidence is None)
    is_known = cost.flop_count is not None and cost.min_bytes is not None
    assert is_known == (cost.reason is None)
