"""From options to a problem: what is filled in, what is refused and with which words."""

import pytest

from case_tables import cases

torch = pytest.importorskip("torch")

from opscope.benchmarking.problem import failure_of  # noqa: E402
from opscope.benchmarking.suites import SUITES, suite  # noqa: E402
from opscope.errors import InputError, MeasurementError  # noqa: E402
from opscope.model.benchmark import Engine, Status  # noqa: E402


def problem(name, *, device="cpu", implementations=(), reference=None, **values):
    return suite(name).problem(values, device=device, implementations=implementations, reference=reference)


def names(some_problem):
    return [each.name for each in some_problem.implementations]


@pytest.mark.parametrize("name", SUITES)
def test_the_registry_and_the_suite_say_the_same(name):
    found = suite(name)
    assert found.name == name
    assert len(found.cuda_shape) == len(found.cpu_shape) == len(found.shape_names)
    listed = {each for dtype in found.dtypes for each in names(problem(name, dtype=dtype))}
    assert listed == set(found.implementations)


@pytest.mark.parametrize("name", SUITES)
def test_inputs_follow_from_the_seed_and_are_never_constant(name):
    made = problem(name)
    for make in filter(None, (made.make_inputs, made.small_inputs)):
        once, again, other = make(1), make(1), make(2)
        assert all(first.equal(second) for first, second in zip(once, again, strict=True))
        assert not any(first.equal(second) for first, second in zip(once, other, strict=True))
        assert all(0.8 < float(tensor.float().std()) < 1.2 for tensor in once)
        assert not any(first.equal(second) for first, second in zip(once[1:], once, strict=False))


def test_the_reference_is_the_usual_one_the_first_named_or_the_one_asked_for():
    made = problem("square", implementations=("power", "multiply"))
    assert (names(made), made.reference) == (["power", "multiply"], "power")
    made = problem("square", implementations=("power",), reference="multiply")
    assert (names(made), made.reference) == (["multiply", "power"], "multiply")


def test_the_interpreter_gets_only_triton_and_small_inputs_of_the_shape_asked_for():
    made = problem("gelu", device="interpreter")
    assert {each.engine for each in made.implementations} == {Engine.TRITON}
    assert all(each.is_interpreted for each in made.implementations)
    assert made.reference == "triton"
    assert made.small_inputs(0)[0].numel() < made.make_inputs(0)[0].numel()
    made = problem("gelu", device="interpreter", shape=(3, 5))
    assert made.small_inputs(0)[0].shape == (3, 5)


@cases("name", "options", "message")
def test_options_that_do_not_fit_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        problem(name, **options)


# Importing torch's compiler calls what torch itself has deprecated.
imports_compiler = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


def implementation(name, which, **options):
    return problem(name, implementations=(which,), **options).implementations[0]


@cases("suite", "which", "options", "reason")
def test_what_this_machine_does_not_offer_says_why(suite, which, options, reason):
    with pytest.raises(MeasurementError, match=reason):
        implementation(suite, which, **options).build()


@imports_compiler
def test_compile_needs_a_cpp_compiler(monkeypatch, tmp_path):
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # nothing is compiled yet
    function = implementation("gelu", "compile").build()
    with config.patch({"cpp.cxx": ("no-such-compiler",)}), pytest.raises(RuntimeError) as caught:
        function(torch.ones(4, 4))
    status, reason = failure_of(caught.value, "at its first call")
    assert (status, "Install g++" in reason) == (Status.UNAVAILABLE, True)


@pytest.mark.exhaustive(few=False)  # a compiler
@imports_compiler
@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_the_compiled_composition_is_right(name):
    made = problem(name, shape=(5, 37), implementations=("compile", "torch"))
    by_compile, by_torch = (each.build() for each in made.implementations)
    inputs = made.make_inputs(0)
    assert torch.allclose(by_compile(*inputs), by_torch(*inputs), atol=1e-5)
