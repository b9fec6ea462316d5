"""What a wrong implementation looks like, and what must not be taken for one."""

from __future__ import annotations

import copy
import math
import warnings

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking import check  # noqa: E402
from opscope.benchmarking.check import (  # noqa: E402
    POISON_NAN,
    POISON_ZERO,
    check_output,
    default_tolerance,
    difference,
    poisoned_memory,
)
from opscope.benchmarking.problem import Implementation, Problem  # noqa: E402
from opscope.errors import InputError  # noqa: E402
from opscope.model.benchmark import Status  # noqa: E402

SIZES = (1, 7, 300_000)


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


class TestRight:
    def test_the_reference_itself(self):
        outcome = check_output(torch.exp, problem(), reference=torch.exp, seed=5)
        assert outcome.status is Status.OK
        assert outcome.reason is None
        assert 0 < outcome.check.max_relative_error < 1e-6
        assert 0 < outcome.check.relative_error <= outcome.check.max_relative_error
        assert outcome.check.element_count == 1000
        assert outcome.check.seed == 5
        assert outcome.check.reference == "ours in float64"
        assert outcome.check.tolerance == default_tolerance("float32")
        assert outcome.outputs.shape == (1000,)

    def test_an_expected_function_is_preferred_and_given_float64(self):
        seen = []

        def expected(x):
            seen.append(x.dtype)
            return x.exp()

        outcome = check_output(torch.exp, problem(expected=expected), reference=None)
        assert outcome.status is Status.OK
        assert seen == [torch.float64]
        assert outcome.check.reference == "the expected result in float64"

    def test_a_reference_that_rejects_float64_is_used_in_its_own_dtype_and_named_so(self):
        def only_float32(x):
            if x.dtype != torch.float32:
                raise RuntimeError("expected scalar type Float\nbut found Double")
            return x.exp()

        outcome = check_output(only_float32, problem(), reference=only_float32)
        assert outcome.status is Status.OK
        assert outcome.check.max_relative_error == 0.0
        assert outcome.check.reference == (
            "ours in float32; ours in float64 failed: expected scalar type Float"
        )

    def test_an_expected_function_that_fails_gives_way_to_the_reference(self):
        def expected(x):
            raise ValueError("no")

        outcome = check_output(torch.exp, problem(expected=expected), reference=torch.exp)
        assert outcome.check.reference == ("ours in float64; the expected result in float64 failed: no")

    def test_without_any_reference_it_is_ok_but_says_that_nothing_was_compared(self):
        def broken(x):
            raise RuntimeError("broken")

        outcome = check_output(torch.exp, problem(), reference=broken)
        assert outcome.status is Status.OK
        assert outcome.check is None
        assert outcome.reason.startswith("not checked: ours in float64 failed: broken")
        assert check_output(torch.exp, problem(), reference=None).reason == (
            "not checked: there is no reference"
        )

    def test_a_reference_without_tensors_is_no_reference(self):
        outcome = check_output(torch.exp, problem(), reference=lambda x: 1.0)
        assert outcome.check is None
        assert "returned no tensor" in outcome.reason

    def test_a_reference_that_changes_its_inputs_does_not_change_ours(self):
        make = lambda seed: (torch.randn(100), torch.arange(100))  # noqa: E731

        def reference(x, index):
            index.zero_()
            return x.mul_(2)

        outcome = check_output(lambda x, index: x * 2, problem(make), reference=reference)
        assert outcome.status is Status.OK

    def test_lower_precision_within_a_given_tolerance(self):
        def half(x):
            return x.half().exp().float()

        assert check_output(half, problem(), reference=torch.exp).status is Status.WRONG
        assert check_output(half, problem(), reference=torch.exp, tolerance=1e-2).status is Status.OK
        assert check_output(half, problem(tolerance=1e-2), reference=torch.exp).status is Status.OK

    def test_another_floating_point_dtype_is_judged_by_the_tolerance(self):
        wide = problem(dtype="bfloat16")
        assert check_output(lambda x: x.float().exp(), wide, reference=torch.exp).status is Status.OK
        narrow = check_output(lambda x: x.exp().bfloat16(), problem(), reference=torch.exp)
        assert narrow.status is Status.WRONG

    def test_the_undeclared_dtype_is_that_of_the_inputs(self):
        def make(seed):
            return (torch.randn(100).half(), torch.arange(100))

        undeclared = problem(make, dtype="float32")
        undeclared = Problem(
            "test", "cpu", make, undeclared.implementations, "ours", expected=lambda x, index: x * 2
        )
        outcome = check_output(lambda x, index: x * 2, undeclared, reference=None)
        assert outcome.check.tolerance == default_tolerance("float16")


class TestShapesOfValues:
    def test_no_elements(self):
        outcome = check_output(torch.exp, problem(size=0), reference=torch.exp)
        assert outcome.status is Status.OK
        assert outcome.check.element_count == 0
        assert outcome.check.max_relative_error == 0.0

    def test_inputs_and_outputs_that_are_not_contiguous(self):
        outcome = check_output(
            lambda x: x.exp().t(), on(torch.randn(30, 20).t()[::2]), reference=lambda x: x.exp().t()
        )
        assert outcome.status is Status.OK
        assert outcome.check.element_count == 300

    def test_nested_inputs_and_outputs(self):
        def fn(state, scale, mode, nothing):
            weight, bias = state["weights"]
            return {"a": weight * scale, "b": [bias * scale]}

        def other_order(state, scale, mode, nothing):
            weight, bias = state["weights"]
            return {"b": (bias * scale,), "a": weight * scale}

        outcome = check_output(
            other_order, on({"weights": [torch.randn(3, 4), torch.randn(4)]}, 2.5, "mean", None), reference=fn
        )
        assert outcome.status is Status.OK
        assert outcome.check.element_count == 16

    def test_one_tensor_of_several_is_wrong(self):
        def reference(x):
            return x.exp(), x.sin()

        outcome = check_output(lambda x: (x.exp(), x.cos()), problem(), reference=reference)
        assert outcome.status is Status.WRONG
        assert outcome.reason.startswith("output[1] differs by ")

    def test_complex_numbers(self):
        reference = torch.exp
        same = on(torch.randn(50, dtype=torch.complex64), dtype="complex64")
        assert check_output(torch.exp, same, reference=reference).status is Status.OK
        assert check_output(lambda x: x.exp().conj(), same, reference=reference).status is Status.WRONG

    def test_sparse_results(self):
        outcome = check_output(lambda x: x.to_sparse(), problem(), reference=lambda x: x)
        assert outcome.status is Status.OK

    def test_small_inputs_are_used_where_they_are_asked_for(self):
        def make_small(seed):
            return (torch.randn(10),)

        both = problem(small_inputs=make_small)
        assert check_output(torch.exp, both, reference=torch.exp, small=True).check.element_count == 10
        assert check_output(torch.exp, both, reference=torch.exp).check.element_count == 1000
        assert check_output(torch.exp, problem(), reference=torch.exp, small=True).check.element_count == 1000

    def test_tensors_that_need_gradients(self):
        def gradient(x):
            return torch.autograd.grad(x.exp().sum(), x)[0]

        inputs = on(torch.randn(10, requires_grad=True))
        assert check_output(gradient, inputs, reference=gradient).status is Status.OK


class TestNotFinite:
    def test_infinity_and_nan_where_the_reference_has_them(self):
        outcome = check_output(
            torch.log, on(torch.tensor([-1.0, 0.0, 1.0, math.inf, math.nan])), reference=torch.log
        )
        assert outcome.status is Status.OK
        assert outcome.check.max_relative_error is not None

    @pytest.mark.parametrize("value", [0.0, math.inf])
    def test_something_else_where_the_reference_is_nan(self, value):
        outcome = check_output(
            lambda x: x.log().nan_to_num(value), on(torch.tensor([-1.0, 1.0, 2.0])), reference=torch.log
        )
        assert outcome.status is Status.WRONG
        assert outcome.reason == "output: 1 of 3 elements differ where the reference is not finite"
        assert outcome.check.max_relative_error is None

    def test_errors_are_absolute_where_the_reference_is_zero_everywhere(self):
        zeros = lambda x: x - x  # noqa: E731
        assert check_output(lambda x: x * 0 + 1e-9, problem(), reference=zeros).status is Status.OK
        assert check_output(lambda x: x * 0 + 1e-3, problem(), reference=zeros).status is Status.WRONG


class TestNeverWritten:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
    def test_a_result_nobody_wrote(self, size, dtype):
        correct = problem(size=size, dtype=dtype)
        for _ in range(3):  # the right answer lies about in freed memory
            assert check_output(torch.exp, correct, reference=torch.exp).status is Status.OK
        outcome = check_output(torch.empty_like, correct, reference=torch.exp)
        assert outcome.status is Status.WRONG
        assert outcome.reason.startswith(f"output: {size} of {size} elements are not finite")
        assert "perhaps never written" in outcome.reason
        assert outcome.check.max_relative_error is None

    @pytest.mark.parametrize("size", SIZES)
    def test_a_last_element_nobody_wrote(self, size):
        def all_but_one(x):
            out = torch.empty_like(x)
            out[:-1] = x[:-1].exp()
            return out

        correct = problem(size=size)
        for _ in range(3):
            check_output(torch.exp, correct, reference=torch.exp)
        outcome = check_output(all_but_one, correct, reference=torch.exp)
        assert outcome.status is Status.WRONG
        assert f"output: 1 of {size} elements are not finite" in outcome.reason

    @pytest.mark.parametrize("value", [-1, 0])
    def test_integers_that_look_like_the_poison(self, value):
        """All bits set, or none: one of the two poisons shows what nobody wrote."""
        outcome = check_output(
            torch.empty_like, problem(integers), reference=lambda x: torch.full_like(x, value)
        )
        assert outcome.status is Status.WRONG

    @pytest.mark.parametrize("value", [True, False])
    def test_booleans_nobody_wrote(self, value):
        outcome = check_output(
            lambda x: torch.empty_like(x, dtype=torch.bool),
            problem(),
            reference=lambda x: torch.full_like(x, value, dtype=torch.bool),
        )
        assert outcome.status is Status.WRONG


class TestWrong:
    def test_a_value(self):
        outcome = check_output(lambda x: x.exp() + 1e-3, problem(), reference=torch.exp)
        assert outcome.status is Status.WRONG
        assert "more than the tolerance of 6.1e-05" in outcome.reason
        assert outcome.check.max_relative_error > outcome.check.tolerance

    def test_integers_must_be_equal(self):
        same = problem(integers, dtype="float32")
        assert check_output(lambda x: x + 1, same, reference=lambda x: x + 1).status is Status.OK
        wrong = check_output(lambda x: x + (x == x[0]), same, reference=lambda x: x + 0)
        assert wrong.status is Status.WRONG
        assert "the reference, which is exact" in wrong.reason

    def test_integers_too_large_for_float64(self):
        outcome = check_output(lambda x: x + 1, on(torch.tensor([2**60, 2**61])), reference=lambda x: x + 0)
        assert outcome.status is Status.WRONG

    def test_integers_of_another_width_are_the_same_kind(self):
        outcome = check_output(lambda x: x.argmax().int(), problem(), reference=lambda x: x.argmax())
        assert outcome.status is Status.OK

    @pytest.mark.parametrize(
        ("fn", "reason"),
        [
            (lambda x: x.exp()[:-1], "output has shape (999,), the reference (1000,)"),
            (lambda x: (x.exp(), x), "returned 2 tensors, the reference 1"),
            (lambda x: x > 0, "output is boolean, the reference is floating-point"),
            (lambda x: x.exp().long(), "output is integer, the reference is floating-point"),
            (lambda x: x.to("meta"), "output is on meta, not on cpu"),
        ],
    )
    def test_another_kind_of_result(self, fn, reason):
        outcome = check_output(fn, problem(), reference=torch.exp)
        assert outcome.status is Status.WRONG
        assert outcome.reason == reason
        assert outcome.check is None

    @pytest.mark.parametrize(
        ("result", "reason"),
        [
            (None, "returned None"),
            (1.5, "returned a value of type float without tensors"),
            ((), "returned a value of type tuple without tensors"),
        ],
    )
    def test_no_result(self, result, reason):
        outcome = check_output(lambda x: result, problem(), reference=torch.exp)
        assert outcome.status is Status.NO_RESULT
        assert outcome.reason == reason


class TestMutates:
    def test_a_changed_input(self):
        outcome = check_output(lambda x: x.exp_(), problem(), reference=torch.exp)
        assert outcome.status is Status.MUTATES_INPUTS
        assert outcome.reason.startswith("changed its input tensor 0 ")

    def test_a_sign_of_zero(self):
        assert check_output(lambda x: x.neg_(), on(torch.zeros(3)), reference=torch.neg).status is (
            Status.MUTATES_INPUTS
        )

    def test_a_nested_integer_input(self):
        def counting(x, state):
            state["count"][0] += 1
            return x.exp()

        outcome = check_output(
            counting,
            on(torch.randn(3), {"count": [torch.zeros(1, dtype=torch.int64)]}),
            reference=lambda x, state: x.exp(),
        )
        assert outcome.status is Status.MUTATES_INPUTS
        assert outcome.reason.startswith("changed its input tensor 1 ")

    def test_an_input_of_another_shape(self):
        outcome = check_output(lambda x: x.t_().exp(), on(torch.randn(3, 4)), reference=lambda x: x.t().exp())
        assert outcome.status is Status.MUTATES_INPUTS

    def test_nan_in_an_input_is_no_change(self):
        inputs = on(torch.tensor([math.nan, 1.0]))
        assert check_output(torch.exp, inputs, reference=torch.exp).status is Status.OK

    def test_a_result_that_is_an_input_or_a_view_of_it(self):
        assert check_output(lambda x: x, problem(), reference=lambda x: x).status is Status.OK
        assert check_output(lambda x: x[::2], problem(), reference=lambda x: x[::2]).status is Status.OK


class TestRaises:
    def test_an_error_is_its_status(self):
        def raises(x):
            raise ValueError("not today\nmore")

        outcome = check_output(raises, problem(), reference=torch.exp)
        assert outcome.status is Status.FAILED
        assert outcome.reason == "ValueError in its check: not today"
        assert outcome.outputs is None

    def test_inputs_that_do_not_fit(self):
        def make(seed):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        assert check_output(torch.exp, problem(make), reference=torch.exp).status is Status.OUT_OF_MEMORY

    def test_inputs_that_cannot_be_made_are_not_the_implementations_fault(self):
        def make(seed):
            raise InputError("no such file")

        with pytest.raises(InputError):
            check_output(torch.exp, problem(make), reference=torch.exp)


class TestDefaultTolerance:
    def test_every_floating_dtype_fails_the_next_finer_one(self):
        for fine, coarse in (("float64", "float32"), ("float32", "float16"), ("float32", "bfloat16")):
            roundoff = torch.finfo(getattr(torch, coarse)).eps / 2
            assert default_tolerance(fine) < roundoff / 4

    def test_integers_are_exact(self):
        assert default_tolerance("int64") == default_tolerance("bool") == 0.0

    def test_an_unknown_dtype(self):
        with pytest.raises(InputError, match="qint8"):
            default_tolerance("qint8")


def of(output, reference, tolerance=1e-3):
    return difference(torch.as_tensor(output), torch.as_tensor(reference, dtype=torch.float64), tolerance)


def test_large_elements_have_a_relative_error_and_small_ones_one_of_the_rms():
    rms = math.sqrt((100**2 + 1e-6**2) / 2)
    assert of([101.0, 1e-6], [100.0, 1e-6]).max_relative_error == pytest.approx(0.01)
    assert of([100.0, 1e-6 + 0.5], [100.0, 1e-6]).max_relative_error == pytest.approx(0.5 / rms)


def test_squares_add_up():
    one = of([3.0, 4.0], [1.0, 1.0])
    assert (one.squared_error, one.squared_reference, one.element_count) == (13.0, 2.0, 2)


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
    assert parts.squared_error == pytest.approx(whole.squared_error, rel=1e-12)


@pytest.mark.parametrize(
    ("output", "reference", "missing", "unexpected"),
    [
        (math.nan, math.nan, 0, 0),
        (math.inf, math.inf, 0, 0),
        (math.inf, -math.inf, 0, 1),
        (math.nan, math.inf, 0, 1),
        (1.0, math.nan, 0, 1),
        (math.nan, 1.0, 1, 0),
        (math.inf, 1.0, 1, 0),
    ],
)
def test_elements_that_are_not_finite(output, reference, missing, unexpected):
    one = of([output, 1.0], [reference, 1.0])
    assert (one.missing_count, one.unexpected_count) == (missing, unexpected)
    assert one.max_relative_error == 0.0


@pytest.mark.parametrize(
    ("output", "reference", "missing"),
    [
        (math.inf, 70_000.0, 0),
        (-math.inf, -1e30, 0),
        (math.inf, 65_500.0, 0),  # within the tolerance of the largest number, 65504
        (math.inf, 65_000.0, 1),
        (math.inf, -70_000.0, 1),
    ],
)
def test_infinity_is_right_beyond_the_range_of_the_dtype(output, reference, missing):
    assert of(torch.tensor([output]).half(), [reference]).missing_count == missing


def test_references_that_are_nan_everywhere():
    one = of([math.nan, 2.0], [math.nan, math.nan])
    assert (one.missing_count, one.unexpected_count, one.max_relative_error) == (0, 1, 0.0)


@pytest.mark.parametrize("byte", [POISON_NAN, POISON_ZERO, 0x55])
def test_what_is_allocated_holds_the_poison(byte):
    like = torch.ones(300, dtype=torch.uint8)
    with poisoned_memory("cpu", byte):
        fresh = [
            *(torch.empty(count, dtype=torch.uint8) for count in (1, 1000)),
            *(torch.empty_like(like), torch.empty_strided((30, 10), (10, 1), dtype=torch.uint8)),
            *(
                like.new_empty(7),
                like.new_empty_strided((2, 3), (1, 2)),
                torch.empty_permuted((2, 3), (1, 0), dtype=torch.uint8),
            ),
        ]
        written = torch.full((100,), 7, dtype=torch.uint8)
    assert all(set(one.untyped_storage()) == {byte} for one in fresh)
    assert (written == 7).all()
    assert torch.empty(3, device="meta").is_meta


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


@pytest.mark.filterwarnings("ignore:.*quantize:DeprecationWarning", "ignore:.*quantize:UserWarning")
def test_operators_of_other_tensors_run_as_they_do():
    @torch.library.custom_op("opscope_test::made_from_nothing", mutates_args=())
    def made_from_nothing(count: int) -> torch.Tensor:
        return torch.ones(count)

    quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)
    with poisoned_memory("cpu"):
        doubled = torch.ops.quantized.add(quantized, quantized, 0.1, 0)
        made = made_from_nothing(3)
    assert doubled.dequantize().tolist() == pytest.approx([2.0] * 4)
    assert made.tolist() == [1.0] * 3


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
