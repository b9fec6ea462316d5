from __future__ import annotations

import pytest

from opscope.model.evidence import Grade
from opscope.provenance.releases import Recognition, UnitAnswer, kernel_units

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
