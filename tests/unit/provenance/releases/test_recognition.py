import pytest

from case_tables import cases
from opscope.model.origin import Grade
from opscope.provenance.torch_releases import Recognition, kernel_units, recognize

SHARED = [f"void at::native::shared_{number}<float>(int)" for number in range(20)]
OLD = [f"void at::native::old_{number}<float>(int)" for number in range(10)]
NEW = [f"void at::native::new_{number}<float>(int)" for number in range(10)]
OTHER = [f"void at::native::other_{number}<float>(int)" for number in range(10)]
FOREIGN = ["nvjet_tst_64x64_bias_TNT", "triton_poi_fused_add_0", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"]
KERNELS = {"shared": SHARED, "old": OLD, "new": NEW, "other": OTHER, "foreign": FOREIGN}


@pytest.fixture
def two_releases(packaged):
    packaged("2.6.0", {name: ["aten/F.cu"] for name in SHARED + OLD})
    packaged("2.11.0", {name: ["aten/F.cu"] for name in SHARED + NEW})


@cases("kernels", "labels", "version", "grade", "compared", "reason")
def test_the_release_of_a_trace(two_releases, kernels, labels, version, grade, compared, reason):  # noqa: PLR0917
    names = [name for kind, count in kernels.items() for name in KERNELS[kind][:count]]
    for label in labels:
        found = recognize(names, torch_version=label)
        assert (found.version, found.grade, list(found.compared)) == (version, grade, compared)
        assert found.reason == reason.replace("LABEL", label.strip())


def test_what_the_user_has_is_said_with_hit_rates_for_a_labeled_trace_too(two_releases):
    for label in ("2.11.0a0+git70d99e9", "2.9.1"):
        assert recognize(SHARED, torch_version=label).release == label
    assert recognize(SHARED, torch_version="2.9.1+cu128").release == "2.9.1"
    recognition = recognize([*SHARED[:10], *NEW, *NEW, *FOREIGN], torch_version="2.11.0")
    assert recognition.hit_rates == {"2.6.0": 0.5, "2.11.0": 1.0}
    assert recognition.candidate_count == 20
    assert recognize(FOREIGN, torch_version="2.11.0").hit_rates == {}


def test_at_equal_distance_the_later_release_answers(packaged):
    packaged("2.6.0", {name: ["F.cu"] for name in SHARED + OLD})
    packaged("2.8.0", {name: ["F.cu"] for name in SHARED + NEW})
    assert recognize(SHARED + OLD, torch_version="2.7.0").version == "2.8.0"


@cases("name", "is_candidate")
def test_which_kernels_could_be_of_pytorchs_own_libraries(two_releases, name, is_candidate):
    assert recognize([name]).candidate_count == is_candidate


def test_a_kernel_that_a_table_knows_is_a_candidate_and_has_its_units(packaged):
    packaged("2.6.0", {"zswap_kernel(int)": ["zswap.cu"]})
    assert recognize(["zswap_kernel(int)"]).candidate_count == 1
    packaged("2.11.0", {F: ["aten/F.cu", "aten/G.cu"]})
    answer = kernel_units(F, recognition("2.11.0", Grade.RELEASE_INDEX))
    assert answer == (("aten/F.cu", "aten/G.cu"), Grade.RELEASE_INDEX)


F = "void at::f<at::Op<float> >(int)"
F_OF_ANOTHER_RELEASE = "void at::f<at::Op<float>, 4>(int)"


def recognition(version, grade=Grade.NEIGHBOR_VERSION, compared=()):
    return Recognition(version, grade, {}, 0, compared=compared)


@pytest.mark.parametrize("grade", [Grade.RELEASE_INDEX, Grade.NEIGHBOR_VERSION])
def test_what_only_a_loose_key_says_is_graded_as_of_a_neighbor(packaged, grade):
    packaged("2.11.0", {F: ["aten/F.cu"]})
    answer = kernel_units(F_OF_ANOTHER_RELEASE, recognition("2.11.0", grade))
    assert answer == (("aten/F.cu",), Grade.NEIGHBOR_VERSION)


def test_without_a_version_or_support_there_is_no_answer(packaged):
    packaged("2.11.0", {F: ["aten/F.cu"]})
    assert kernel_units(F, recognition(None))[0] == ()
    assert kernel_units("void mine::kernel<float>()", recognition("2.11.0"))[0] == ()


@cases("others", "expected")
def test_a_release_that_fits_as_well_may_contradict(packaged, others, expected):
    packaged("2.6.0", {{"F": F, "F of another": F_OF_ANOTHER_RELEASE}[name]: others[name] for name in others})
    packaged("2.11.0", {F: ["aten/F.cu"]})
    units, _ = kernel_units(F, recognition("2.11.0", compared=("2.6.0",)))
    assert list(units) == expected
