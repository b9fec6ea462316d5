"""What counts more: recordings, local libraries, release tables, source indexes."""

import pytest
from msgspec.structs import replace

from case_tables import cases
from opscope.model.origin import Grade, OperatorRegistration, RegistrationKind, SourceLocation
from opscope.provenance.native_functions import Place, packaged_table

from .conftest import recorded_units

SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, false, false>"
    "(float*, float const*, int, int, int, bool const*, int, bool)"
)
COMMIT_OF_2_6 = "2236df1770800ffea5697b11b0bb0d910b2e59e1"
FILE = "aten/src/ATen/native/cuda/A.cu"


UNKNOWN = "void at::native::unheard_of<float>(float*)"


@cases("name", "recorded", "fields", "found", "grade", "binary")
def test_units_of_a_kernel(evidence_of, name, recorded, fields, found, grade, binary):  # noqa: PLR0917
    name, fields = {"softmax": SOFTMAX, "unknown": UNKNOWN}.get(name, name), dict(fields or {})
    if "grade" in fields:
        fields["grade"] = Grade(fields["grade"])
    if fields.pop("has_no_version", False):
        fields["version"] = None
    if recorded is not None:
        names = tuple(recorded["units"])
        paths = (recorded.get("path"),) * len(names)
        fields["recorded"] = {name: recorded_units(recorded.get("library"), names, paths)}
    assert evidence_of(**fields).units(name) == (tuple(found), grade, binary)


LINK = "https://github.com/pytorch/pytorch/blob"
COMMIT_OF_2_11 = "70d99e998b4955e0049d13a98d77ae1b14db1f45"


OWN, NEAR = "release_index", "neighbor_version"


@pytest.mark.parametrize(
    ("place", "known", "a_neighbors"),
    [
        (Place("A.cu", "release", 3, 9, "release"), (OWN, 3, 9, OWN), (NEAR, 3, 9, NEAR)),
        (Place("A.cu", "compiled", 3, None, "compiled"), ("compiled", 3, None, "compiled"),
         (NEAR, 3, None, NEAR)),
        # Of a release that is not the user's a range says about where it is.
        (Place("A.cu", "release", 3, 9, "bracket", 7), (OWN, 3, 9, "bracket"), (NEAR, 7, None, NEAR)),
        (Place("A.cu", "release", 3, 9, NEAR, None, False), (OWN, 3, 9, NEAR), (NEAR, 3, 9, NEAR)),
        (Place("A.cu", "release"), (OWN, None, None, None), (NEAR, None, None, None)),
    ],
)  # fmt: skip
def test_a_place_is_as_sure_as_its_evidence_and_the_release(evidence_of, place, known, a_neighbors):
    place = replace(place, file=FILE)
    for grade, expected in ((Grade.RELEASE_INDEX, known), (Grade.NEIGHBOR_VERSION, a_neighbors)):
        found = evidence_of(operators=packaged_table("2.11.0"), version="2.11.0", grade=grade).location(place)
        assert (found.file_grade, found.line, found.end_line, found.line_grade) == expected
        commit = COMMIT_OF_2_11 if place.is_of_release else COMMIT_OF_2_6
        lines = "" if place.line is None else "#L3-L9" if place.last_line else "#L3"
        assert found.url == f"{LINK}/{commit}/{FILE}{lines}"
    assert evidence_of().location(None) is None


class TestRegistration:
    SCALE = OperatorRegistration("my::scale", RegistrationKind.CXX)
    SCALE_OUT = OperatorRegistration("my::scale.out", RegistrationKind.CXX)
    ADD_OUT = OperatorRegistration("my::add.out", RegistrationKind.CXX)

    @pytest.mark.parametrize(
        ("name", "overload", "found"),
        [("my::scale", "", SCALE), ("my::scale", "out", SCALE_OUT), ("my::scale", "Tensor", None),
         ("my::scale", None, None), ("my::add", None, ADD_OUT), ("my::add", "", None),
         ("my::mul", None, None)],
    )  # fmt: skip
    def test_it_is_of_the_recorded_overload_or_the_only_one(self, evidence_of, name, overload, found):
        known = {one.name: one for one in (self.SCALE, self.SCALE_OUT, self.ADD_OUT)}
        assert evidence_of(registrations=known).registration(name, overload) is found


def test_a_link_opens_the_release_in_which_the_line_is_right_and_no_other_project(evidence_of):
    evidence = evidence_of({FILE: "namespace at::native {\n__global__ void f() {\n}\n}\n"})
    (source,) = evidence.sources
    definition = source.index.kernel("at::native::f")
    assert definition is not None
    assert source.locate(definition, Grade.EXACT) == SourceLocation(
        FILE, Grade.EXACT, 2, 3, Grade.RELEASE_INDEX, None
    )
    assert evidence.file_url(FILE) == f"https://github.com/pytorch/pytorch/blob/{COMMIT_OF_2_6}/{FILE}"
    assert evidence_of().file_url("third_party/fbgemm/src/A.cu") is None
    assert evidence_of(version=None).file_url(FILE) is None
