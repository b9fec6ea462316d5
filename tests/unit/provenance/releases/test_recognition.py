from __future__ import annotations

import pytest

from case_tables import cases
from opscope.model.evidence import Grade
from opscope.provenance.torch_releases import Recognition, kernel_units, recognize

SHARED = [f"void at::native::shared_{number}<float>(int)" for number in range(20)]
OLD = [f"void at::native::old_{number}<float>(int)" for number in range(10)]
NEW = [f"void at::native::new_{number}<float>(int)" for number in range(10)]
FOREIGN = ["nvjet_tst_64x64_bias_TNT", "triton_poi_fused_add_0", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"]


@pytest.fixture
def two_releases(packaged):
    packaged("2.6.0", {name: ["aten/F.cu"] for name in SHARED + OLD})
    packaged("2.11.0", {name: ["aten/F.cu"] for name in SHARED + NEW})


def others(count):
    return [f"void at::native::other_{number}<float>(int)" for number in range(count)]


RELEASE, NEIGHBOR = Grade.RELEASE_INDEX, Grade.NEIGHBOR_VERSION
NEAREST = "the nearest release that is known"
MISLABELED = "labeled 2.11.0, but its kernels are not those of that release"


@pytest.mark.parametrize(
    ("names", "label", "answer"),
    [
        # A label of a release is believed, unless enough kernels contradict it.
        *(
            (FOREIGN, label, ("2.11.0", RELEASE, (), f"labeled {label.strip()}"))
            for label in ("2.11.0", "2.11.0+cu126", "2.11.0+cpu", "2.11", "  2.11.0+cu130\n")
        ),
        ([*others(9), SHARED[0]], "2.11.0", ("2.11.0", NEIGHBOR, (), MISLABELED)),
        (others(2), "2.11.0", ("2.11.0", RELEASE, (), "labeled 2.11.0")),
        # Another build of that number is a neighbor, as is the nearest release of one without a table.
        *(
            (SHARED + NEW, label, ("2.11.0", NEIGHBOR, (), "from the release 2.11.0"))
            for label in ("2.11.0a0+git70d99e9", "2.11.0.dev20250901+cu130", "2.11.0+rocm6.4", "2.11.0rc3")
        ),
        (SHARED, "2.9.1+cu128", ("2.11.0", NEIGHBOR, ("2.6.0",), f"from 2.11.0, {NEAREST}")),
        (SHARED, "2.7.0", ("2.6.0", NEIGHBOR, ("2.11.0",), f"from 2.6.0, {NEAREST}")),
        (SHARED, "2.15.0", ("2.11.0", NEIGHBOR, (), f"from 2.11.0, {NEAREST}")),
        (SHARED, "2.3.1", ("2.6.0", NEIGHBOR, (), f"from 2.6.0, {NEAREST}")),
        (SHARED, "2.6.1", ("2.6.0", NEIGHBOR, ("2.11.0",), f"from 2.6.0, {NEAREST}")),
        # A label that leads nowhere leaves it to the kernels.
        (OLD, "1.13.1", ("2.6.0", NEIGHBOR, (), "from 2.6.0, by its kernels; no near release is known")),
        (OLD, "3.0.0", ("2.6.0", NEIGHBOR, (), "from 2.6.0, by its kernels; no near release is known")),
        (OLD, "unknown", ("2.6.0", RELEASE, (), "2.6.0 alone knows 10 of 10 kernel names")),
        *(
            (FOREIGN, label, (None, NEIGHBOR, (), "no kernel names that could be PyTorch's own"))
            for label in ("1.13.1", "unknown", "")
        ),
        # The table that alone knows all kernels is the release; a few, or most, make a neighbor only.
        (
            [*SHARED[:10], NEW[0], *FOREIGN],
            "",
            ("2.11.0", RELEASE, (), "2.11.0 alone knows 11 of 11 kernel names"),
        ),
        (NEW[:3], "", ("2.11.0", NEIGHBOR, (), "2.11.0 knows 3 of 3 kernel names, more than any other")),
        *(
            (
                NEW + others(count),
                "",
                (
                    "2.11.0",
                    NEIGHBOR,
                    (),
                    f"2.11.0 knows 10 of {10 + count} kernel names, more than any other",
                ),
            )
            for count in (6, 7)
        ),
        # A tie is said and makes the oldest a neighbor.
        (
            SHARED,
            "",
            (
                "2.6.0",
                NEIGHBOR,
                ("2.11.0",),
                "2.6.0 and 2.11.0 know the same 20 of 20 kernel names; the oldest is taken",
            ),
        ),
        (others(3), "", (None, NEIGHBOR, (), "no table knows one of 3 kernel names")),
    ],
)
def test_the_release_of_a_trace(two_releases, names, label, answer):
    found = recognize(names, torch_version=label)
    assert (found.version, found.grade, found.compared, found.reason) == answer


def test_what_the_user_has_is_said(two_releases):
    for label in ("2.11.0a0+git70d99e9", "2.9.1"):
        assert recognize(SHARED, torch_version=label).release == label
    assert recognize(SHARED, torch_version="2.9.1+cu128").release == "2.9.1"


def test_hit_rates_are_computed_for_a_labeled_trace_too(two_releases):
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
    assert answer == (("aten/F.cu", "aten/G.cu"), Grade.RELEASE_INDEX)


@pytest.mark.parametrize("grade", [Grade.RELEASE_INDEX, Grade.NEIGHBOR_VERSION])
def test_what_only_a_loose_key_says_is_graded_as_of_a_neighbor(packaged, grade):
    packaged("2.11.0", {F: ["aten/F.cu"]})
    answer = kernel_units(F_OF_ANOTHER_RELEASE, recognition("2.11.0", grade))
    assert answer == (("aten/F.cu",), Grade.NEIGHBOR_VERSION)


def test_without_a_version_or_support_there_is_no_answer(packaged):
    packaged("2.11.0", {F: ["aten/F.cu"]})
    assert kernel_units(F, recognition(None))[0] == ()
    assert kernel_units("void mine::kernel<float>()", recognition("2.11.0"))[0] == ()


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({F: ["aten/F.cu"]}, ("aten/F.cu",)),
        ({}, ("aten/F.cu",)),
        ({F: ["F.cu"]}, ("F.cu",)),
        ({F: ["aten/moved/F.cu"]}, ("F.cu",)),
        ({F: ["aten/G.cu"]}, ()),
        ({F_OF_ANOTHER_RELEASE: ["aten/G.cu"]}, ()),
    ],
    ids=["agrees", "does not know", "knows the name", "moved", "another file", "another file, loosely"],
)
def test_a_release_that_fits_as_well_may_contradict(packaged, others, expected):
    packaged("2.6.0", others)
    packaged("2.11.0", {F: ["aten/F.cu"]})
    units, _ = kernel_units(F, recognition("2.11.0", compared=("2.6.0",)))
    assert units == expected
