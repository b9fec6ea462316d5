"""Kernel tables of releases: units of a kernel, the release of a trace, their files."""

from importlib.machinery import ModuleSpec

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from case_tables import cases
from opscope.errors import InputError
from opscope.model.origin import Grade
from opscope.provenance import packaged, torch_releases
from opscope.provenance.torch_releases import (
    UNITS_FORMAT,
    HashMap,
    Recognition,
    Unit,
    git_version,
    installed_torch,
    kernel_units,
    loose_keys,
    package_folders,
    packed_map,
    parse_version,
    recognize,
    release,
    release_versions,
    text_hash,
)
from torch_tables.libraries import build_table, unit_at

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


@cases("kernels", "answers")
def test_units_of_a_kernel(make_table, kernels, answers):
    table = make_table(kernels)
    assert {name: list(table.units_of(name)) for name in answers} == answers


@cases("kernels", "answers")
def test_the_unit_of_a_kernel_of_another_release(make_table, kernels, answers):
    table = make_table(kernels)
    assert {name: list(table.loose_units_of(name)) for name in answers} == answers


@pytest.mark.parametrize("of", ["text_hash", "loose_hash"])
def test_names_that_share_a_hash_are_found_when_the_table_is_made(monkeypatch, of):
    monkeypatch.setattr(torch_releases, of, lambda *_: 7)
    with pytest.raises(InputError, match="share a hash"):
        build_table({"at::f()": [Unit("F.cu")], "at::g()": [Unit("F.cu")]}, "2.11.0")


@cases("path", "label")
def test_what_a_builds_own_path_says(path, label):
    assert unit_at("U.cu", path).label == label


@cases("name", "owner", "launch")
def test_who_owns_the_code_and_what_is_launched(name, owner, launch):
    keys = loose_keys(name)
    assert (keys.get("owner"), keys.get("launch")) == (owner, launch)


@cases("name", "same_as")
def test_what_changes_between_releases_is_left_out(name, same_as):
    keys = loose_keys(name)
    assert keys == loose_keys(same_as)
    assert "at::F" in keys["launch"]


def test_a_template_librarys_kernel_without_a_functor_is_anybodys():
    assert "launch" not in loose_keys(
        "void cub::DeviceScanKernel<cub::Policy<float>, std::plus<float> >(int)"
    )
    assert "launch" in loose_keys("void cub::DeviceScanKernel<cub::Policy<float>, mine::Op>(int)")


@pytest.mark.parametrize("piece", ["<", "a<b,", "{lambda(", "a::", "(", "f()::{lambda()#1}::"])
def test_a_long_unbalanced_name_launches_nothing(piece):
    assert "launch" not in loose_keys("void at::k<" + piece * (8192 // len(piece)))


def test_versions_are_in_order_of_age(packaged):
    for version in ("2.11.0", "2.6.0", "2.9.1"):
        packaged(version, {})
    assert release_versions() == ("2.6.0", "2.9.1", "2.11.0")


@pytest.mark.parametrize("label", ["2.9.1", "nightly"])
def test_a_version_without_a_table_is_an_error_that_lists_what_there_is(packaged, label):
    packaged("2.11.0", {})
    with pytest.raises(InputError, match=rf"no kernel table of PyTorch {label}; there are: 2\.11\.0"):
        release(label)
    assert git_version(label) is None


ENTRIES = st.dictionaries(st.integers(0, 2**48 - 1), st.integers(0, 2**16 - 1), max_size=30)


@given(ENTRIES, st.lists(st.integers(0, 2**48 - 1), max_size=5))
def test_contains_says_of_many_what_get_says_of_one(entries, others):
    wanted = [*entries, *others]
    built = HashMap(packed_map(entries))
    found = built.contains(np.array(wanted, dtype=np.uint64))
    assert found.tolist() == [built.get(key) is not None for key in wanted]


def test_hashes_are_those_of_every_machine():
    assert text_hash("kernel") == 0xE2550544DEE2
    assert text_hash("\ud800") != text_hash("kernel")


STORED = {"void at::f<int>()": ["aten/F.cu"], "void at::g<int>()": ["aten/F.cu", "G.cu"]}


def test_what_is_encoded_is_decoded_and_always_the_same(make_table):
    table = make_table(STORED, git_version="a" * 40, cuda="13.0")
    assert UNITS_FORMAT.decode(UNITS_FORMAT.encode(table), "here") == table
    assert UNITS_FORMAT.encode(
        make_table(dict(reversed(STORED.items())), git_version="a" * 40, cuda="13.0")
    ) == UNITS_FORMAT.encode(table)


@pytest.mark.parametrize(
    "damage", [b"", b"nothing of the sort", lambda content: content[:-9], lambda c: c[:40] + c]
)
def test_a_damaged_file_is_named(make_table, damage):
    content = damage(UNITS_FORMAT.encode(make_table(STORED))) if callable(damage) else damage
    with pytest.raises(InputError, match=r"damaged|not a kernel table") as raised:
        UNITS_FORMAT.decode(content, "releases/2.11.0/units.msgpack.zst")
    assert raised.value.source == "releases/2.11.0/units.msgpack.zst"
    assert "Delete the file" in str(raised.value)


def test_other_formats_and_files_larger_than_any_table_are_refused(make_table, monkeypatch, tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        UNITS_FORMAT.read(tmp_path / "none")
    content = zstandard.compress(msgspec.msgpack.encode({"format_version": 2, "units": "unheard of"}))
    with pytest.raises(InputError, match="format 2; this opscope reads format 1"):
        UNITS_FORMAT.decode(content, "here")
    content = UNITS_FORMAT.encode(make_table(STORED))
    monkeypatch.setattr(packaged, "_LARGEST_BYTES", 100)
    with pytest.raises(InputError):
        UNITS_FORMAT.decode(content, "here")


@cases("text", "version")
def test_a_build_is_what_its_version_file_says(tmp_path, monkeypatch, text, version):
    monkeypatch.setattr(torch_releases, "package_folders", lambda name: (tmp_path,))
    assert installed_torch() is None
    (tmp_path / "version.py").write_text(text)
    assert installed_torch() == version


def test_without_torch_no_build_is_known(monkeypatch):
    monkeypatch.setattr(torch_releases, "package_folders", lambda name: ())
    assert installed_torch() is None


def test_a_package_that_is_not_installed_or_broken_has_no_folder(tmp_path, monkeypatch):
    assert package_folders("no_such_package_anywhere") == ()

    def fail(name):
        raise ValueError(name)

    monkeypatch.setattr(torch_releases, "find_spec", fail)
    assert package_folders("torch") == ()
    spec = ModuleSpec("torch", None)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(torch_releases, "find_spec", lambda name: spec)
    assert package_folders("torch") == (tmp_path,)


@cases("label", "name", "is_official")
def test_labels_that_are_versions(label, name, is_official):
    version = parse_version(label)
    assert (version.name, version.is_official) == (name, is_official)


@pytest.mark.parametrize("label", ["", "main", "2", "2.11.0.1.2", "nightly-2.11", "2.11.0+", "2.11.0 cu130"])
def test_labels_that_are_none(label):
    assert parse_version(label) is None
