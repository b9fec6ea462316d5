"""A kernel's unit, template and functor: what is found where, and what a unit rules out."""

from pathlib import Path

import pytest

from case_tables import cases, tables
from opscope.model.origin import Grade, OperatorRegistration, RegistrationKind, SourceLocation
from opscope.provenance.kernel_names.decoder import decode
from opscope.provenance.native_functions import NativeFunction, OperatorTable, Place, Served
from opscope.provenance.resolution.evidence import IndexedSource, KernelProvenance
from opscope.provenance.resolution.resolvers import RecordedCall, resolve_kernel, resolve_operator
from opscope.provenance.sources import source_index

from .conftest import recorded_units

FOLDER = "aten/src/ATen/native/cuda"
KERNEL = "void at::native::scale_kernel<float, 4>(float*, int)"
LAUNCHER = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::ScaleImpl(at::TensorIteratorBase&)"
    "::{lambda(float)#1}, std::array<char*, 2ul> >"
    "(int, at::native::ScaleImpl(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul>)"
)


def recorded(*units, kernel=KERNEL):
    names = tuple(unit.rpartition("/")[2] for unit in units)
    return {kernel: recorded_units("libtorch_cuda.so", names, units)}


def shown(location):
    """A place with its grades, without its folder."""
    if location is None:
        return None
    return f"{location} {location.file_grade} {location.line_grade}".removeprefix(f"{FOLDER}/")


KERNELS = {"a template": KERNEL, "a functor": LAUNCHER}
TEXTS = tables(Path(__file__).with_suffix(".toml"))["texts"]
TEMPLATE = TEXTS["the kernel"]


@cases("files", "units", "kernel", "index", "location", "template")
def test_where_a_kernel_is_defined(evidence_of, files, units, kernel, index, location, template):  # noqa: PLR0917
    kernel = KERNELS[kernel]
    paths = tuple(f"{FOLDER}/{unit}.cu" for unit in units)
    evidence = evidence_of(
        {f"{FOLDER}/{name}": TEXTS[text] for name, text in files.items()},
        recorded=recorded(*paths, kernel=kernel) if paths else {},
        index_grade=Grade(index),
    )
    found = resolve_kernel(kernel, evidence)
    assert shown(found.location) == location
    assert shown(found.template) == (location if template == "the same" else template)
    assert (found.units, found.unit_grade) == (paths, Grade.EXACT if paths else None)
    assert found.binary == ("libtorch_cuda.so" if paths else None)
    if kernel == KERNEL:
        names = ("scalar_t", "vec_size") if found.template else (None, None)
        assert found.template_arguments == tuple(zip(names, ("float", "4"), strict=True))


def test_a_users_own_source_comes_first_and_then_the_first_index(evidence_of):
    place = SourceLocation("/home/me/ops.cu", Grade.EXACT, 7, 9, Grade.EXACT)
    evidence = evidence_of(
        {f"{FOLDER}/A.cu": TEMPLATE}, recorded=recorded(f"{FOLDER}/A.cu"), user_sources={KERNEL: place}
    )
    assert resolve_kernel(KERNEL, evidence).location == place
    header = f"{FOLDER}/S.cuh"
    own = evidence_of({header: TEMPLATE}, index_grade=Grade.EXACT).sources
    neighbors = evidence_of({header: f"// older\n{TEMPLATE}"}, index_grade=Grade.NEIGHBOR_VERSION).sources
    evidence = evidence_of(sources=(*own, *neighbors), recorded=recorded(f"{FOLDER}/A.cu"))
    assert shown(resolve_kernel(KERNEL, evidence).location) == "S.cuh:3 exact exact"


@pytest.mark.parametrize(
    ("binary", "library"), [("libcublasLt.so.12", "cublasLt"), ("libmine.so", "libmine"), (None, None)]
)
def test_the_library_that_registered_it_outweighs_its_name(evidence_of, binary, library):
    evidence = evidence_of(recorded={KERNEL: recorded_units(binary, (), ())} if binary else {})
    decoded = resolve_kernel(KERNEL, evidence).decoded
    assert decoded.library == library
    assert decoded.grades.get("library") is (Grade.EXACT if binary else None)


def test_a_kernel_that_triton_compiled_is_tritons(evidence_of):
    decoded = resolve_kernel("my_kernel", evidence_of(triton_kernels=frozenset(("my_kernel",)))).decoded
    assert (decoded.library, decoded.grades["library"]) == ("triton", Grade.EXACT)


NATIVE = "aten/src/ATen/native"
LINK = "https://github.com/pytorch/pytorch/blob/2236df1770800ffea5697b11b0bb0d910b2e59e1"


@pytest.fixture
def resolved(evidence_of):
    """What a call of 2.6.0 reached, by the packaged tables of that release."""
    index = source_index("2.6.0")
    assert index is not None
    release_2_6 = evidence_of(sources=(IndexedSource(index, Grade.RELEASE_INDEX),))

    def resolve(name, overload=None, **fields):
        return resolve_operator(RecordedCall(name, overload, **fields), release_2_6)

    return resolve


def place(location):
    return None if location is None else str(location)


def facts_of(facts, wanted):
    """What is known by these names, of details by `details.…`; places as text, unknown is "none"."""
    known = {}
    for name in wanted:
        first, _, key = name.partition(".")
        found = facts.details.get(key) if key else getattr(facts, first)
        known[name] = "none" if found is None else str(found) if isinstance(found, SourceLocation) else found
    return known


@cases("name", "overload", "input_types", "known")
def test_what_is_known_of_a_call(resolved, name, overload, input_types, known):
    types = None if input_types is None else tuple(input_types)
    assert facts_of(resolved(name, overload, input_types=types), known) == known


class TestNative:
    @cases("name", "units", "functor", "stub", "at")
    def test_how_it_reaches_the_device(self, resolved, name, units, functor, stub, at):  # noqa: PLR0917
        text = f"at::native::{functor}(at::TensorIteratorBase&)::{{lambda(float)#1}}"
        kernel = f"void at::native::vectorized_elementwise_kernel<4, {text}, int>(int)" if functor else "k"
        paths = tuple(f"{NATIVE}/cuda/{unit}.cu" for unit in units or ())
        kernels = (KernelProvenance(decode(kernel), "elementwise", units=paths),) if units else ()
        base, _, overload = name.partition(".")
        facts = resolved(f"aten::{base}", overload, kernels=kernels)
        assert facts.stub == stub
        assert place(facts.stub_location) == (at and f"{NATIVE}/cuda/{at}")
        if base == "gelu":
            assert facts.details["launchers"] == ["GeluCUDAKernelImpl"]
            assert place(facts.location) == f"{NATIVE}/cuda/Activation.cpp:96"

    def test_the_device_decides_the_function(self, evidence_of):
        facts = resolve_operator(RecordedCall("aten::mm", ""), evidence_of(backend="CPU"))
        assert (facts.dispatch_key, facts.cuda_function) == ("CPU", "mm_out_cpu")


class TestKinds:
    @cases("name", "kind")
    def test_what_no_yaml_describes(self, resolved, name, kind):
        facts = resolved(name)
        assert facts.kind == kind
        assert (facts.schema, facts.overload_grade, facts.location, facts.details) == (None, None, None, {})


class TestAmbiguous:
    def test_a_file_that_candidates_share_has_no_line(self, resolved):
        assert resolved("aten::_fft_c2c").location == SourceLocation(
            f"{NATIVE}/cuda/SpectralOps.cpp", Grade.RELEASE_INDEX, url=f"{LINK}/{NATIVE}/cuda/SpectralOps.cpp"
        )

    def test_the_common_file_is_as_sure_as_the_least_sure_candidate(self, evidence_of):
        places = {"": Place("A.cu", "release", 3, 4, "release"), "out": Place("A.cu", "neighbor_version")}
        served = {one: Served("CUDA", f"f{one}", "native", one, None, place) for one, place in places.items()}
        functions = tuple(
            NativeFunction("aten::f", overload, "f(Tensor self) -> Tensor", {"CUDA": one})
            for overload, one in served.items()
        )
        evidence = evidence_of(operators=OperatorTable(2, "2.6.0", None, functions))
        location = resolve_operator(RecordedCall("aten::f"), evidence).location
        assert location == SourceLocation("A.cu", Grade.NEIGHBOR_VERSION)


class TestBackward:
    @pytest.mark.parametrize("prefix", ["", "autograd::engine::evaluate_function: "])
    def test_a_node_of_the_yaml(self, resolved, prefix):
        facts = resolved(f"{prefix}SoftmaxBackward0")
        assert (facts.kind, facts.category, facts.location) == ("backward", "activation", None)
        assert "_softmax_backward_data" in facts.details["formulas"]["self"]
        line = facts.details["derivatives_line"]
        assert facts.details["yaml_url"] == f"{LINK}/tools/autograd/derivatives.yaml#L{line}"
        assert facts.overload_grade is Grade.RELEASE_INDEX

    def test_nodes_of_users(self, resolved):
        facts = resolved("MyFunctionBackward")
        assert (facts.kind, facts.details, facts.overload_grade) == ("backward", {}, None)


class TestRegistered:
    PYTHON = OperatorRegistration(
        "my::scale", RegistrationKind.CUSTOM_OP, schema="my::scale(Tensor x) -> Tensor",
        python_file="/me/ops.py", python_line=3, end_line=6,
    )  # fmt: skip
    CXX = OperatorRegistration("my::cxx", RegistrationKind.CXX, kernels={"CUDA": "/me/ops.cpp:9"})
    REPLACED = OperatorRegistration(
        "aten::mul.Tensor", RegistrationKind.LIBRARY, overrides={"CUDA": "build/x.cpp:1"}
    )

    @pytest.fixture
    def evidence(self, evidence_of):
        known = (self.PYTHON, self.CXX, self.REPLACED)
        return evidence_of(registrations={one.name: one for one in known})

    @pytest.mark.parametrize("overload", ["", None])
    def test_a_python_operator_is_where_its_function_is(self, evidence, overload):
        facts = resolve_operator(RecordedCall("my::scale", overload), evidence)
        assert facts.location == SourceLocation("/me/ops.py", Grade.EXACT, 3, 6, Grade.EXACT)
        assert (facts.kind, facts.overload_grade) == ("custom", Grade.EXACT)
        assert facts.schema == "my::scale(Tensor x) -> Tensor"
        assert facts.details == {"registration": self.PYTHON}

    def test_what_a_registration_tells_of_other_operators(self, evidence):
        facts = resolve_operator(RecordedCall("my::scale", "out"), evidence)
        assert (facts.kind, facts.location, facts.details) == ("custom", None, {})
        facts = resolve_operator(RecordedCall("my::cxx", ""), evidence)
        assert (facts.location, facts.details) == (None, {"registration": self.CXX})
        replaced = resolve_operator(RecordedCall("aten::mul", "Tensor"), evidence)
        assert replaced.details["registration"] == self.REPLACED
        kept = resolve_operator(RecordedCall("aten::mul", "Scalar"), evidence)
        assert "registration" not in kept.details
