from __future__ import annotations

import pytest

from opscope.model.evidence import Grade
from opscope.provenance.releases.recognition import Recognition, UnitAnswer, kernel_units, recognize

SHARED = [f"void at::native::shared_{number}<float>(int)" for number in range(20)]
OLD = [f"void at::native::old_{number}<float>(int)" for number in range(10)]
NEW = [f"void at::native::new_{number}<float>(int)" for number in range(10)]
FOREIGN = ["nvjet_tst_64x64_bias_TNT", "triton_poi_fused_add_0", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"]


@pytest.fixture
def two_releases(packaged):
    packaged("2.6.0", {name: ["aten/F.cu"] for name in SHARED + OLD})
    packaged("2.11.0", {name: ["aten/F.cu"] for name in SHARED + NEW})


def verdict(recognition):
    return recognition.version, recognition.grade


@pytest.mark.parametrize("label", ["2.11.0", "2.11.0+cu126", "2.11.0+cpu", "2.11", "  2.11.0+cu130\n"])
def test_a_label_of_a_release_is_believed(two_releases, label):
    recognition = recognize(FOREIGN, torch_version=label)
    assert verdict(recognition) == ("2.11.0", Grade.RELEASE_INDEX)
    assert recognition.hit_rates == {}
    assert recognition.candidate_count == 0


def test_hit_rates_are_computed_for_a_labeled_trace_too(two_releases):
    recognition = recognize([*SHARED[:10], *NEW, *NEW, *FOREIGN], torch_version="2.11.0")
    assert recognition.hit_rates == {"2.6.0": 0.5, "2.11.0": 1.0}
    assert recognition.candidate_count == 20


def test_a_label_the_kernels_contradict_makes_a_neighbor(two_releases):
    unknown = [f"void at::native::rocm_{number}<float>(int)" for number in range(9)]
    recognition = recognize([*unknown, SHARED[0]], torch_version="2.11.0")
    assert verdict(recognition) == ("2.11.0", Grade.NEIGHBOR_VERSION)
    assert "not those of that release" in recognition.reason
    assert verdict(recognize(unknown[:2], torch_version="2.11.0")) == ("2.11.0", Grade.RELEASE_INDEX)


@pytest.mark.parametrize(
    "label", ["2.11.0a0+git70d99e9", "2.11.0.dev20250901+cu130", "2.11.0+rocm6.4", "2.11.0rc3"]
)
def test_another_build_of_that_number_is_a_neighbor(two_releases, label):
    recognition = recognize(SHARED + NEW, torch_version=label)
    assert verdict(recognition) == ("2.11.0", Grade.NEIGHBOR_VERSION)
    assert (recognition.release, recognition.reason) == (label, "from the release 2.11.0")


@pytest.mark.parametrize(
    ("label", "version", "compared"),
    [
        ("2.9.1+cu128", "2.11.0", ("2.6.0",)),
        ("2.7.0", "2.6.0", ("2.11.0",)),
        ("2.15.0", "2.11.0", ()),
        ("2.3.1", "2.6.0", ()),
        ("2.6.1", "2.6.0", ("2.11.0",)),
    ],
)
def test_a_release_without_a_table_has_the_nearest_as_neighbor(two_releases, label, version, compared):
    recognition = recognize(SHARED, torch_version=label)
    assert verdict(recognition) == (version, Grade.NEIGHBOR_VERSION)
    assert recognition.compared == compared
    assert recognition.release == label.partition("+")[0]  # what the user has
    assert recognition.reason == f"from {version}, the nearest release that is known"


def test_at_equal_distance_the_later_release_answers(packaged):
    packaged("2.6.0", {name: ["F.cu"] for name in SHARED + OLD})
    packaged("2.8.0", {name: ["F.cu"] for name in SHARED + NEW})
    assert recognize(SHARED + OLD, torch_version="2.7.0").version == "2.8.0"


@pytest.mark.parametrize(
    ("label", "grade"),
    [
        ("1.13.1", Grade.NEIGHBOR_VERSION),
        ("3.0.0", Grade.NEIGHBOR_VERSION),
        ("unknown", Grade.RELEASE_INDEX),
        ("", Grade.RELEASE_INDEX),
    ],
)
def test_a_label_that_leads_nowhere_leaves_it_to_the_kernels(two_releases, label, grade):
    assert verdict(recognize(OLD, torch_version=label)) == ("2.6.0", grade)
    assert recognize(FOREIGN, torch_version=label).version is None


def test_the_table_that_alone_knows_all_kernels_is_the_release(two_releases):
    recognition = recognize([*SHARED[:10], NEW[0], *FOREIGN])
    assert verdict(recognition) == ("2.11.0", Grade.RELEASE_INDEX)
    assert recognition.hit_rates == {"2.6.0": 10 / 11, "2.11.0": 1.0}
    assert recognition.reason == "2.11.0 alone knows 11 of 11 kernel names"


def test_a_few_kernels_make_a_neighbor_only(two_releases):
    assert verdict(recognize(NEW[:3])) == ("2.11.0", Grade.NEIGHBOR_VERSION)


def test_a_tie_is_said_and_makes_the_oldest_a_neighbor(two_releases):
    recognition = recognize(SHARED)
    assert verdict(recognition) == ("2.6.0", Grade.NEIGHBOR_VERSION)
    assert recognition.compared == ("2.11.0",)
    assert recognition.reason == "2.6.0 and 2.11.0 know the same 20 of 20 kernel names; the oldest is taken"


def test_a_release_most_of_whose_kernels_are_known_is_a_neighbor(two_releases):
    unknown = [f"void at::native::other_{number}<float>(int)" for number in range(6)]
    assert verdict(recognize([*NEW, *unknown])) == ("2.11.0", Grade.NEIGHBOR_VERSION)


def test_a_low_hit_rate_is_a_neighbor(two_releases):
    unknown = [f"void at::native::other_{number}<float>(int)" for number in range(7)]
    recognition = recognize([*NEW, *unknown])
    assert (recognition.version, recognition.grade) == ("2.11.0", Grade.NEIGHBOR_VERSION)
    assert recognition.hit_rates["2.11.0"] == 10 / 17


@pytest.mark.parametrize(
    ("name", "is_candidate"),
    [
        ("void at::native::k<float>()", True),
        ("at::native::k()", True),
        ("void at_cuda_detail::cub::DeviceScanKernel<int>(int)", True),
        ("void cub::CUB_1_NS::DeviceScanKernel<int>(int)", True),
        ("void thrust::cuda_cub::core::_kernel_agent<int>(int)", True),
        ("void pytorch_flash::flash_fwd_kernel<int>(int)", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(int)", True),
        ("_ZN2at6native6kernelEv", True),
        ("void (anonymous namespace)::softmax_warp_forward<float>(int)", False),
        ("void mine::kernel<at::Tensor>(int)", False),
        ("sm80_xmma_gemm_f32f32", False),
        ("Cijk_Ailk_Bljk", False),
        *((name, False) for name in FOREIGN),
    ],
)
def test_which_kernels_could_be_of_pytorchs_own_libraries(two_releases, name, is_candidate):
    assert recognize([name]).candidate_count == is_candidate


def test_a_kernel_that_a_table_knows_is_a_candidate_whatever_its_name(packaged):
    packaged("2.6.0", {"zswap_kernel(int)": ["zswap.cu"]})
    assert recognize(["zswap_kernel(int)"]).candidate_count == 1


F = "void at::f<at::Op<float> >(int)"
F_OF_ANOTHER_RELEASE = "void at::f<at::Op<float>, 4>(int)"


def recognition(version, grade=Grade.NEIGHBOR_VERSION, compared=()):
    return Recognition(version, grade, {}, 0, compared=compared)


def test_a_kernel_of_the_same_release(packaged):
    packaged("2.11.0", {F: ["aten/F.cu", "aten/G.cu"]})
    answer = kernel_units(F, recognition("2.11.0", Grade.RELEASE_INDEX))
    assert answer == UnitAnswer(("aten/F.cu", "aten/G.cu"), Grade.RELEASE_INDEX, "2.11.0")


@pytest.mark.parametrize("grade", [Grade.RELEASE_INDEX, Grade.NEIGHBOR_VERSION])
def test_what_only_a_loose_key_says_is_graded_as_of_a_neighbor(packaged, grade):
    packaged("2.11.0", {F: ["aten/F.cu"]})
    answer = kernel_units(F_OF_ANOTHER_RELEASE, recognition("2.11.0", grade))
    assert answer == UnitAnswer(("aten/F.cu",), Grade.NEIGHBOR_VERSION, "2.11.0")


def test_without_a_version_or_support_there_is_no_answer(packaged):
    packaged("2.11.0", {F: ["aten/F.cu"]})
    assert kernel_units(F, recognition(None)) is None
    assert kernel_units("void mine::kernel<float>()", recognition("2.11.0")) is None


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({F: ["aten/F.cu"]}, ("aten/F.cu",)),
        ({}, ("aten/F.cu",)),
        ({F: ["F.cu"]}, ("F.cu",)),
        ({F: ["aten/moved/F.cu"]}, ("F.cu",)),
        ({F: ["aten/G.cu"]}, None),
        ({F_OF_ANOTHER_RELEASE: ["aten/G.cu"]}, None),
    ],
    ids=["agrees", "does not know", "knows the name", "moved", "another file", "another file, loosely"],
)
def test_a_release_that_fits_as_well_may_contradict(packaged, others, expected):
    packaged("2.6.0", others)
    packaged("2.11.0", {F: ["aten/F.cu"]})
    answer = kernel_units(F, recognition("2.11.0", compared=("2.6.0",)))
    assert (answer and answer.units) == expected
