"""A kernel's unit, template and functor: what is found where, and what a unit rules out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.provenance.resolution.evidence import Evidence, RecordedUnits
from opscope.provenance.resolution.resolvers import resolve_kernel

MakeEvidence = Callable[..., Evidence]

FOLDER = "aten/src/ATen/native/cuda"
KERNEL = "void at::native::scale_kernel<float, 4>(float*, int)"
LAUNCHER = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::ScaleImpl(at::TensorIteratorBase&)"
    "::{lambda(float)#1}, std::array<char*, 2ul> >"
    "(int, at::native::ScaleImpl(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul>)"
)
TEMPLATE = """
    namespace at::native {
    template <typename scalar_t, int vec_size>
    __global__ void scale_kernel(scalar_t* data, int n) {
      data[0] = n;
    }
    }
    """
APPLY = """
    namespace at::native {
    template <int vec_size, typename func_t, typename array_t>
    __global__ void vectorized_elementwise_kernel(int n, func_t f, array_t data) { f(n); }
    }
    """
IMPL = """
    namespace at::native {
    void ScaleImpl(TensorIteratorBase& iter) {
      launch(iter, [] (float a) { return a; });
    }
    }
    """


def recorded(*units: str, kernel: str = KERNEL) -> dict[str, RecordedUnits]:
    names = tuple(unit.rpartition("/")[2] for unit in units)
    return {kernel: RecordedUnits("libtorch_cuda.so", names, units)}


def test_a_template_in_the_units_own_file(evidence_of: MakeEvidence) -> None:
    evidence = evidence_of(
        {f"{FOLDER}/A.cu": TEMPLATE}, recorded=recorded(f"{FOLDER}/A.cu"), index_grade=Grade.NEIGHBOR_VERSION
    )
    kernel = resolve_kernel(KERNEL, evidence)
    # The unit says the file; the line is that of the neighbor.
    assert kernel.location == SourceLocation(
        f"{FOLDER}/A.cu", Grade.EXACT, 3, 5, Grade.NEIGHBOR_VERSION, None
    )
    assert kernel.template == kernel.location
    assert kernel.template_arguments == (("scalar_t", "float"), ("vec_size", "4"))
    assert (kernel.units, kernel.unit_grade, kernel.binary) == (
        (f"{FOLDER}/A.cu",),
        Grade.EXACT,
        "libtorch_cuda.so",
    )


def test_a_unit_vetoes_a_definition_in_another_cu_file(evidence_of: MakeEvidence) -> None:
    evidence = evidence_of({f"{FOLDER}/A.cu": TEMPLATE}, recorded=recorded(f"{FOLDER}/B.cu"))
    kernel = resolve_kernel(KERNEL, evidence)
    assert kernel.template is None
    assert kernel.location is not None
    assert (kernel.location.file, kernel.location.line) == (f"{FOLDER}/B.cu", None)
    assert kernel.template_arguments == ((None, "float"), (None, "4"))


def test_of_two_definitions_the_units_own_is_meant(evidence_of: MakeEvidence) -> None:
    files = {f"{FOLDER}/A.cu": TEMPLATE, f"{FOLDER}/B.cu": f"// B\n//\n{TEMPLATE}"}
    kernel = resolve_kernel(KERNEL, evidence_of(files, recorded=recorded(f"{FOLDER}/B.cu")))
    assert str(kernel.template) == f"{FOLDER}/B.cu:6"


def test_a_header_serves_all_its_units(evidence_of: MakeEvidence) -> None:
    units = (f"{FOLDER}/A.cu", f"{FOLDER}/B.cu")
    kernel = resolve_kernel(KERNEL, evidence_of({f"{FOLDER}/S.cuh": TEMPLATE}, recorded=recorded(*units)))
    assert kernel.units == units
    assert kernel.location == SourceLocation(
        f"{FOLDER}/S.cuh", Grade.RELEASE_INDEX, 3, 5, Grade.RELEASE_INDEX
    )


def test_several_units_without_a_definition_have_no_place(evidence_of: MakeEvidence) -> None:
    evidence = evidence_of(recorded=recorded(f"{FOLDER}/A.cu", f"{FOLDER}/B.cu"))
    assert resolve_kernel(KERNEL, evidence).location is None


def test_without_a_unit_a_name_proves_no_place(evidence_of: MakeEvidence) -> None:
    kernel = resolve_kernel(KERNEL, evidence_of({f"{FOLDER}/A.cu": TEMPLATE}))
    assert (kernel.location, kernel.template, kernel.units, kernel.unit_grade) == (None, None, (), None)


def test_the_functor_of_a_generic_launcher_is_its_own_code(evidence_of: MakeEvidence) -> None:
    evidence = evidence_of(
        {f"{FOLDER}/Loops.cuh": APPLY, f"{FOLDER}/Scale.cu": IMPL},
        recorded=recorded(f"{FOLDER}/Scale.cu", kernel=LAUNCHER),
        index_grade=Grade.NEIGHBOR_VERSION,
    )
    kernel = resolve_kernel(LAUNCHER, evidence)
    assert str(kernel.location) == f"{FOLDER}/Scale.cu:2"
    assert kernel.location is not None
    assert (kernel.location.file_grade, kernel.location.line_grade) == (Grade.EXACT, Grade.NEIGHBOR_VERSION)
    assert str(kernel.template) == f"{FOLDER}/Loops.cuh:3"
    assert kernel.template is not None
    assert kernel.template.grade is Grade.NEIGHBOR_VERSION


def test_a_functor_that_no_index_knows_leaves_its_launcher(evidence_of: MakeEvidence) -> None:
    evidence = evidence_of(
        {f"{FOLDER}/Loops.cuh": APPLY}, recorded=recorded(f"{FOLDER}/Scale.cu", kernel=LAUNCHER)
    )
    kernel = resolve_kernel(LAUNCHER, evidence)
    assert kernel.location == kernel.template
    assert str(kernel.template) == f"{FOLDER}/Loops.cuh:3"


def test_the_first_index_that_knows_a_definition_answers(evidence_of: MakeEvidence) -> None:
    header = f"{FOLDER}/S.cuh"
    own = evidence_of({header: TEMPLATE}, index_grade=Grade.EXACT).sources
    neighbors = evidence_of({header: f"// older\n{TEMPLATE}"}, index_grade=Grade.NEIGHBOR_VERSION).sources
    evidence = evidence_of(sources=(*own, *neighbors), recorded=recorded(f"{FOLDER}/A.cu"))
    assert resolve_kernel(KERNEL, evidence).location == SourceLocation(header, Grade.EXACT, 3, 5, Grade.EXACT)


def test_a_users_own_source_comes_first(evidence_of: MakeEvidence) -> None:
    place = SourceLocation("/home/me/ops.cu", Grade.EXACT, 7, 9, Grade.EXACT)
    evidence = evidence_of(
        {f"{FOLDER}/A.cu": TEMPLATE}, recorded=recorded(f"{FOLDER}/A.cu"), user_sources={KERNEL: place}
    )
    assert resolve_kernel(KERNEL, evidence).location == place


def test_a_link_is_given_only_with_a_path(evidence_of: MakeEvidence) -> None:
    with_path = resolve_kernel(KERNEL, evidence_of(recorded=recorded(f"{FOLDER}/A.cu"))).location
    bare = resolve_kernel(KERNEL, evidence_of(recorded=recorded("A.cu"))).location
    assert with_path is not None
    assert str(with_path.url).endswith(f"/blob/2236df1770800ffea5697b11b0bb0d910b2e59e1/{FOLDER}/A.cu")
    assert bare == SourceLocation("A.cu", Grade.EXACT)


@pytest.mark.parametrize(
    ("binary", "library"), [("libcublasLt.so.12", "cublasLt"), ("libmine.so", "libmine"), (None, None)]
)
def test_the_library_that_registered_it_outweighs_its_name(
    evidence_of: MakeEvidence, binary: str | None, library: str | None
) -> None:
    evidence = evidence_of(recorded={KERNEL: RecordedUnits(binary, (), ())} if binary else {})
    decoded = resolve_kernel(KERNEL, evidence).decoded
    assert decoded.library == library
    assert decoded.grades.get("library") is (Grade.EXACT if binary else None)


def test_a_kernel_that_triton_compiled_is_tritons(evidence_of: MakeEvidence) -> None:
    decoded = resolve_kernel("my_kernel", evidence_of(triton_kernels=frozenset(("my_kernel",)))).decoded
    assert (decoded.library, decoded.grades["library"]) == ("triton", Grade.EXACT)


@pytest.mark.parametrize(
    "name",
    ["", " ", "<" * 8192, ">" * 8192, "void at::native::f<" * 400, f"void at::native::{'x' * 8192}<int>()",
     "void at::native::vectorized_elementwise_kernel<4, (((", "_ZN2at6native" + "4abcd" * 1600,
     "a\0b<\U0001f600"],
)  # fmt: skip
def test_any_name_has_an_answer(evidence_of: MakeEvidence, name: str) -> None:
    evidence = evidence_of({f"{FOLDER}/A.cu": TEMPLATE}, recorded=recorded(f"{FOLDER}/A.cu", kernel=name))
    kernel = resolve_kernel(name, evidence)
    assert kernel.decoded.name == name
    assert kernel.units == (f"{FOLDER}/A.cu",)
