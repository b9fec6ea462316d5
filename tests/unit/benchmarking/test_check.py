"""What a wrong implementation looks like, and what must not be taken for one."""

import copy
import math
import warnings

import pytest

from case_tables import cases

torch = pytest.importorskip("torch")

from opscope.benchmarking import check  # noqa: E402
from opscope.benchmarking.check import (  # noqa: E402
    check_output,
    default_tolerance,
    difference,
    poisoned_memory,
)
from opscope.benchmarking.problem import Implementation, Problem  # noqa: E402
from opscope.errors import InputError  # noqa: E402
from opscope.model.benchmark import Status  # noqa: E402

SIZES = (1, 7, 300_000)
OK, WRONG, MUTATES = Status.OK, Status.WRONG, Status.MUTATES_INPUTS


def problem(make_inputs=None, *, dtype="float32", size=1000, **options):
    if make_inputs is None:

        def make_inputs(seed):
            return (
                torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype)),
            )

    return Problem(
        name="test",
        device="cpu",
        make_inputs=make_inputs,
        implementations=(Implementation("ours", lambda: torch.square),),
        reference="ours",
        dtype=dtype,
        **options,
    )


def on(*inputs, **options):
    """Of these inputs, made anew each time."""
    return problem(lambda seed: copy.deepcopy(inputs), **options)


def integers(seed):
    return (torch.randint(-100, 100, (1000,), generator=torch.Generator().manual_seed(seed)),)


def fails(error):
    def raising(*_):
        raise error

    return raising


def half(x):
    return x.half().exp().float()


def zeros_of(x, index):
    index.zero_()
    return x.mul_(2)


def gradient(x):
    return torch.autograd.grad(x.exp().sum(), x)[0]


def weighted(state, scale, mode, nothing):
    weight, bias = state["weights"]
    return {"a": weight * scale, "b": [bias * scale]}


def weighted_in_another_order(*arguments):
    found = weighted(*arguments)
    return {"b": tuple(found["b"]), "a": found["a"]}


def counting(x, state):
    state["count"][0] += 1
    return x.exp()


def only_float32(x):
    if x.dtype != torch.float32:
        raise RuntimeError("expected scalar type Float\nbut found Double")
    return x.exp()


@pytest.mark.parametrize(
    ("expected", "reference", "compared_with", "reason"),
    [
        (torch.exp, None, "the expected result in float64", None),
        (None, only_float32, "ours in float32; ours in float64 failed: expected scalar type Float", None),
        (fails(ValueError("no")), torch.exp, "ours in float64; the expected result in float64 failed: no",
         None),
        (None, fails(RuntimeError("broken")), None, "not checked: ours in float64 failed: broken; ours in "),
        (None, None, None, "not checked: there is no reference"),
        (None, lambda x: 1.0, None, "not checked: ours in float64 returned no tensor"),
    ],
)  # fmt: skip
def test_the_reference_is_the_surest_way_that_works(expected, reference, compared_with, reason):
    """Without any, it is right, and that nothing was compared is said."""
    outcome = check_output(torch.exp, problem(expected=expected), reference=reference)
    assert outcome.status is OK
    assert (None if outcome.check is None else outcome.check.reference) == compared_with
    assert (outcome.reason is None) if reason is None else outcome.reason.startswith(reason)


def test_an_expected_function_is_given_float64_and_judged_as_the_inputs():
    seen = []
    expects = problem(expected=lambda x: seen.append(x.dtype) or x.exp())
    assert check_output(torch.exp, expects, reference=None).status is OK
    assert seen == [torch.float64]
    undeclared = on(torch.randn(100).half(), torch.arange(100), expected=lambda x, _: x * 2, dtype=None)
    outcome = check_output(lambda x, _: x * 2, undeclared, reference=None)
    assert outcome.check.tolerance == default_tolerance("float16")


# What is called, the problem, the reference, options, and what is found; a reason by how it begins.
JUDGED = {
    "a reference changes its inputs": (lambda x, index: x * 2,
     problem(lambda seed: (torch.randn(100), torch.arange(100))), zeros_of, {}, OK),
    "half precision": (half, problem(), torch.exp, {}, WRONG),
    "half precision that is tolerated": (half, problem(), torch.exp, {"tolerance": 1e-2}, OK),
    "half precision that the problem tolerates": (half, problem(tolerance=1e-2), torch.exp, {}, OK),
    "a wider dtype": (lambda x: x.float().exp(), problem(dtype="bfloat16"), torch.exp, {}, OK),
    "a narrower dtype": (lambda x: x.exp().bfloat16(), problem(), torch.exp, {}, WRONG),
    "sparse": (lambda x: x.to_sparse(), problem(), lambda x: x, {}, OK),
    "needs gradients": (gradient, on(torch.randn(10, requires_grad=True)), gradient, {}, OK),
    "complex": (torch.exp, on(torch.randn(50, dtype=torch.complex64), dtype="complex64"), torch.exp, {}, OK),
    "complex, of another sign": (lambda x: x.exp().conj(),
     on(torch.randn(50, dtype=torch.complex64), dtype="complex64"), torch.exp, {}, WRONG),
    "a value": (lambda x: x.exp() + 1e-3, problem(), torch.exp, {}, WRONG, "output differs by ",
     "more than the tolerance of 6.1e-05"),
    "one tensor of several": (lambda x: (x.exp(), x.cos()), problem(), lambda x: (x.exp(), x.sin()), {},
     WRONG, "output[1] differs by "),
    "integers": (lambda x: x + 1, problem(integers), lambda x: x + 1, {}, OK),
    "an integer": (lambda x: x + (x == x[0]), problem(integers), lambda x: x + 0, {}, WRONG, "",
     "the reference, which is exact"),
    "integers too large for float64": (lambda x: x + 1, on(torch.tensor([2**60, 2**61])), lambda x: x + 0,
     {}, WRONG),
    "integers of another width": (lambda x: x.argmax().int(), problem(), lambda x: x.argmax(), {}, OK),
    "errors are absolute where the reference is zero everywhere": (lambda x: x * 0 + 1e-9, problem(),
     lambda x: x - x, {}, OK),
    "too large an absolute one": (lambda x: x * 0 + 1e-3, problem(), lambda x: x - x, {}, WRONG),
    "infinity and nan where the reference has them": (torch.log,
     on(torch.tensor([-1.0, 0.0, 1.0, math.inf, math.nan])), torch.log, {}, OK),
    "in place as the reference": (lambda x: x.exp_(), problem(), lambda x: x.exp_(), {}, OK),
    "in place, and wrong": (lambda x: x.exp_().add_(1), problem(), lambda x: x.exp_(), {}, WRONG),
    "in place, and another input": (lambda x, y: (y.add_(1), x.exp_())[1],
     on(torch.randn(3), torch.randn(3)), lambda x, y: x.exp_(), {}, MUTATES, "changed its input tensor 1 "),
    "a changed input": (lambda x: x.exp_(), problem(), torch.exp, {}, MUTATES, "changed its input tensor 0 "),
    "a changed sign of zero": (lambda x: x.neg_(), on(torch.zeros(3)), torch.neg, {}, MUTATES),
    "a changed nested integer": (counting,
     on(torch.randn(3), {"count": [torch.zeros(1, dtype=torch.int64)]}), lambda x, state: x.exp(), {},
     MUTATES, "changed its input tensor 1 "),
    "an input of another shape": (lambda x: x.t_().exp(), on(torch.randn(3, 4)), lambda x: x.t().exp(), {},
     MUTATES),
    "nan in an input": (torch.exp, on(torch.tensor([math.nan, 1.0])), torch.exp, {}, OK),
    "an input returned": (lambda x: x, problem(), lambda x: x, {}, OK),
    "a view of an input returned": (lambda x: x[::2], problem(), lambda x: x[::2], {}, OK),
    "an error": (fails(ValueError("not today\nmore")), problem(), torch.exp, {}, Status.FAILED,
     "ValueError in its check: not today"),
    "inputs that do not fit": (torch.exp, problem(fails(torch.cuda.OutOfMemoryError("CUDA out of memory"))),
     torch.exp, {}, Status.OUT_OF_MEMORY),
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGED)
def test_what_is_right_and_what_is_wrong(name):
    fn, of, reference, options, status, *words = JUDGED[name]
    outcome = check_output(fn, of, reference=reference, **options)
    assert outcome.status is status
    assert (outcome.reason or "").startswith(words[0] if words else "")
    assert all(one in outcome.reason for one in words)
    if name == "an error":
        assert outcome.outputs is None
    if status in {OK, WRONG}:
        assert (outcome.check.max_relative_error <= outcome.check.tolerance) or status is WRONG


def test_inputs_that_cannot_be_made_are_not_the_implementations_fault():
    with pytest.raises(InputError):
        check_output(torch.exp, problem(fails(InputError("no such file"))), reference=torch.exp)


@pytest.mark.parametrize(
    ("fn", "of", "reference", "small", "count"),
    [
        (torch.exp, problem(size=0), torch.exp, False, 0),
        (lambda x: x.exp().t(), on(torch.randn(30, 20).t()[::2]), lambda x: x.exp().t(), False, 300),
        (weighted_in_another_order, on({"weights": [torch.randn(3, 4), torch.randn(4)]}, 2.5, "mean", None),
         weighted, False, 16),
        (torch.exp, problem(small_inputs=lambda _: (torch.randn(10),)), torch.exp, True, 10),
        (torch.exp, problem(small_inputs=lambda _: (torch.randn(10),)), torch.exp, False, 1000),
        (torch.exp, problem(), torch.exp, True, 1000),
    ],
    ids=["none", "not contiguous", "nested", "small", "not small", "no small ones"],
)  # fmt: skip
def test_every_element_is_compared(fn, of, reference, small, count):
    outcome = check_output(fn, of, reference=reference, small=small)
    assert (outcome.status, outcome.check.element_count) == (OK, count)


def all_but_one(x):
    out = torch.empty_like(x)
    out[:-1] = x[:-1].exp()
    return out


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("fn", "dtype"),
    [*((torch.empty_like, one) for one in ("float32", "float16", "bfloat16", "float64")),
     (all_but_one, "float32")],
)  # fmt: skip
def test_what_nobody_wrote_shows(fn, dtype, size):
    correct = problem(size=size, dtype=dtype)
    for _ in range(3):  # the right answer lies about in freed memory
        assert check_output(torch.exp, correct, reference=torch.exp).status is OK
    outcome = check_output(fn, correct, reference=torch.exp)
    assert outcome.status is WRONG
    missing = 1 if fn is all_but_one else size
    assert outcome.reason.startswith(f"output: {missing} of {size} elements are not finite")
    assert "perhaps never written" in outcome.reason
    assert outcome.check.max_relative_error is None


@pytest.mark.parametrize(
    ("fn", "status", "reason"),
    [
        (lambda x: x.exp()[:-1], WRONG, "output has shape (999,), the reference (1000,)"),
        (lambda x: (x.exp(), x), WRONG, "returned 2 tensors, the reference 1"),
        (lambda x: x > 0, WRONG, "output is boolean, the reference is floating-point"),
        (lambda x: x.exp().long(), WRONG, "output is integer, the reference is floating-point"),
        (lambda x: x.to("meta"), WRONG, "output is on meta, not on cpu"),
        (lambda x: None, Status.NO_RESULT, "returned None"),
        (lambda x: 1.5, Status.NO_RESULT, "returned a value of type float without tensors"),
        (lambda x: (), Status.NO_RESULT, "returned a value of type tuple without tensors"),
    ],
)
def test_another_kind_of_result_is_not_compared(fn, status, reason):
    outcome = check_output(fn, problem(), reference=torch.exp)
    assert (outcome.status, outcome.reason, outcome.check) == (status, reason, None)


def test_every_floating_dtype_fails_the_next_finer_one_and_integers_are_exact():
    for fine, coarse in (("float64", "float32"), ("float32", "float16"), ("float32", "bfloat16")):
        roundoff = torch.finfo(getattr(torch, coarse)).eps / 2
        assert default_tolerance(fine) < roundoff / 4
    assert default_tolerance("int64") == default_tolerance("bool") == 0.0
    with pytest.raises(InputError, match="qint8"):
        default_tolerance("qint8")


def of(output, reference, tolerance=1e-3):
    return difference(torch.as_tensor(output), torch.as_tensor(reference, dtype=torch.float64), tolerance)


def test_errors_are_relative_or_of_the_rms_where_they_are_numbers():
    rms = math.sqrt((100**2 + 1e-6**2) / 2)
    assert of([101.0, 1e-6], [100.0, 1e-6]).max_relative_error == pytest.approx(0.01)
    assert of([100.0, 1e-6 + 0.5], [100.0, 1e-6]).max_relative_error == pytest.approx(0.5 / rms)
    one = of([math.nan, 2.0], [math.nan, math.nan])
    assert (one.missing_count, one.unexpected_count, one.max_relative_error) == (0, 1, 0.0)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_scale_does_not_matter(scale):
    reference = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) * scale
    assert difference(reference * 1.5, reference, 0.1).max_relative_error == pytest.approx(0.5)


def test_chunks_do_not_matter(monkeypatch):
    reference = torch.randn(1000, dtype=torch.float64)
    output = reference + torch.randn(1000).double() * 1e-3
    output[3], reference[5] = math.nan, math.inf
    whole = difference(output, reference, 1e-3)
    monkeypatch.setattr(check, "_CHUNK_ELEMENTS", 7)
    parts = difference(output, reference, 1e-3)
    assert (parts.missing_count, parts.unexpected_count) == (1, 1)
    assert parts.max_relative_error == pytest.approx(whole.max_relative_error, rel=1e-12)


@cases("output", "reference", "missing", "unexpected")
def test_elements_that_are_not_finite(output, reference, missing, unexpected):
    one = of([output, 1.0], [reference, 1.0])
    assert (one.missing_count, one.unexpected_count) == (missing, unexpected)
    assert one.max_relative_error == 0.0


@cases("output", "reference", "missing")
def test_infinity_is_right_beyond_the_range_of_the_dtype(output, reference, missing):
    assert of(torch.tensor([output]).half(), [reference]).missing_count == missing


def test_it_ends_with_the_block_also_if_that_raises():
    with pytest.raises(ValueError, match="stop"), poisoned_memory("cpu", 0x55):
        raise ValueError("stop")
    assert not (torch.empty(100_000, dtype=torch.uint8) == 0x55).all()


def test_operators_that_others_register_allocate_it_too_forward_and_backward():
    @torch.library.custom_op("opscope_test::half_written", mutates_args=())
    def half_written(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        out[::2] = x[::2]
        return out

    half_written.register_autograd(lambda context, gradient: torch.empty_like(gradient))
    with poisoned_memory("cpu"):
        x = torch.ones(4, requires_grad=True)
        made = half_written(x)
        (gradient,) = torch.autograd.grad(made.sum(), x)
    assert made.isnan().tolist() == [False, True, False, True]
    assert gradient.isnan().all()


@pytest.mark.exhaustive(few=False)
def test_a_compiled_function_stays_compiled_and_higher_order_operators_run():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda x: torch.relu(x) + torch.empty_like(x) * 0, backend=backend, dynamic=False
    )
    with poisoned_memory("cpu"):
        assert compiled(torch.ones(3)).isnan().all()
        assert compiled(torch.ones(4)).isnan().all()
    compiled(torch.ones(5))
    assert len(graphs) == 3
    from torch.nn.attention.flex_attention import flex_attention

    query = torch.randn(1, 1, 128, 16)
    with poisoned_memory("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert flex_attention(query, query, query).isfinite().all()
