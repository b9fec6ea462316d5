"""Every implementation of every suite that runs on a CPU, called and compared with the suite's own answer."""

import pytest

from case_tables import cases

torch = pytest.importorskip("torch")

from opscope.benchmarking.check import check_output  # noqa: E402
from opscope.benchmarking.suites import SUITES, suite  # noqa: E402
from opscope.errors import OpscopeError  # noqa: E402
from opscope.model.benchmark import Engine, Status  # noqa: E402

SHAPES = {
    "gelu": (7, 33),
    "square": (7, 33),
    "add": (7, 33),
    "softmax": (5, 37),
    "layer_norm": (5, 37),
    "matmul": (19, 23, 31),
    "cdist": (13, 29, 5),
}


def problem(name, *, device="cpu", implementations=(), **values):
    values = {"shape": SHAPES[name], **values}
    return suite(name).problem(values, device=device, implementations=implementations)


CASES = [
    (name, dtype, implementation.name)
    for name in SUITES
    for dtype in suite(name).dtypes
    for implementation in problem(name, dtype=dtype).implementations
    if implementation.engine is not Engine.COMPILE  # takes seconds; see test_implementations
]


def outcome_of(some_problem, implementation):
    """What checking says, or None where this machine cannot run it."""
    try:
        function = implementation.build()
    except OpscopeError:
        return None
    return check_output(
        function,
        some_problem,
        reference=None,
        tolerance=implementation.tolerance,
        small=implementation.is_interpreted,
    )


@pytest.mark.parametrize(("name", "dtype", "implementation"), CASES)
def test_what_runs_on_a_cpu_is_right(name, dtype, implementation):
    made = problem(name, dtype=dtype, implementations=(implementation,))
    (tested,) = made.implementations
    outcome = outcome_of(made, tested)
    if outcome is None:
        needs_gpu = ("cuda", "tf32")
        interpreter_lacks = (name, tested.engine, dtype) == ("matmul", Engine.TRITON, "bfloat16")
        assert interpreter_lacks or any(word in implementation for word in needs_gpu)
        return
    assert (outcome.status, outcome.reason) == (Status.OK, None)
    assert "float64" in outcome.check.reference


def test_every_value_of_a_parameter_is_its_own_problem():
    answers = []
    for value in ("tanh", "none"):
        made = problem("gelu", approximate=value, implementations=("naive", "torch"))
        for implementation in made.implementations:
            assert outcome_of(made, implementation).status is Status.OK
        inputs = [tensor.double() for tensor in made.make_inputs(0)]
        answers.append(made.expected(*inputs))
    assert not torch.allclose(*answers)


@cases("name", "options", "min_bytes", "flop_count")
def test_bytes_and_operations_are_those_of_the_problem(name, options, min_bytes, flop_count):
    made = problem(name, **options)
    assert (made.min_bytes, made.flop_count) == (min_bytes, flop_count)
