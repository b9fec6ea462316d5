"""The tables shipped with opscope, against what the published binaries register and what real traces show."""

import json
import lzma
import random
from functools import cache
from importlib import resources
from pathlib import Path

import pytest

from case_tables import cases
from opscope.provenance.torch_releases import kernel_units, recognize, release, release_versions

VERSIONS = ("2.6.0", "2.11.0", "2.13.0", "2.14.1")  # whose registrations are at hand
COMMIT_OF_2_11 = "70d99e998b4955e0049d13a98d77ae1b14db1f45"
EACH = [VERSIONS[-1], *(pytest.param(one, marks=pytest.mark.exhaustive) for one in VERSIONS[:-1])]
SAMPLE_SIZE = 500
# Kernels of libraries other than PyTorch's own, as they appear in the recorded traces.
OTHERS = ("triton_", "nvjet_", "nccl", "sm80_", "sm90_", "ampere_", "cutlass_", "void cutlass", "void cublas")


@pytest.fixture
def registered(shared):
    """By version, the .cu files whose units register each kernel."""

    @cache
    def read(version):
        with lzma.open(shared / "provenance" / f"kernel_units_{version}.json.xz") as stream:
            return json.load(stream)

    return read


def test_which_releases_are_packaged():
    assert release_versions() == (
        "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0",
    )  # fmt: skip
    assert release("2.11.0").git_version == COMMIT_OF_2_11
    assert release("2.11.0+cu130").cuda == "13.0"


@pytest.mark.parametrize("version", EACH)
def test_every_kernel_of_the_release_has_the_units_that_register_it(registered, version):
    table = release(version)
    wrong = {
        name: units
        for name, units in registered(version).items()
        if file_names(table.units_of(name)) != units
    }
    assert wrong == {}
    assert table.exact.count == len(registered(version))


@pytest.mark.parametrize("version", EACH)
def test_a_loose_answer_is_one_of_the_kernels_own_units(registered, version):
    # The keys are made anew here: tables built with other rules would fail.
    table = release(version)
    names = random.Random(0).sample(sorted(registered(version)), SAMPLE_SIZE)
    answers = {name: units for name in names if (units := table.loose_units_of(name))}
    assert len(answers) > 0.7 * SAMPLE_SIZE
    assert all(units[0] in table.units_of(name) and len(units) == 1 for name, units in answers.items())


@cases("origin", "asked", "fewest_answers")
def test_a_neighbor_is_right_where_it_answers(registered, origin, asked, fewest_answers):
    names = random.Random(0).sample(sorted(registered(origin)), SAMPLE_SIZE)
    table = release(asked)
    answers = {name: units for name in names if (units := table.units_of(name) or table.loose_units_of(name))}
    assert len(answers) >= fewest_answers * SAMPLE_SIZE
    wrong = {
        name: units
        for name, units in answers.items()
        if not {*file_names(units)} & {*registered(origin)[name]}
    }
    assert wrong == {}


@cases("kernel", "path")
@pytest.mark.parametrize("version", EACH)
def test_files_of_one_name_are_told_apart(registered, version, kernel, path):
    table = release(version)
    found = {
        table.units_of(name) for name in registered(version) if f"::{kernel}" in name.partition("(int")[0]
    }
    assert found <= {(path,)}
    assert found or kernel == "embedding_bag_4bit_rowwise"


@cases("trace", "grade")
def test_recorded_traces_are_recognized_and_every_kernel_of_pytorch_is_found(shared, load, trace, grade):
    kernels = load(shared / "traces" / "h200" / trace).query(
        "SELECT DISTINCT names.name FROM device_activities activities JOIN kernel_names names "
        "USING (name_id) WHERE activities.kind = 'kernel'"
    )
    names = [name for (name,) in kernels]
    recognition = recognize(names, cuda_major=13)
    assert (recognition.version, recognition.grade) == ("2.11.0", grade)
    assert recognition.hit_rates["2.11.0"] == 1.0
    table = release("2.11.0")
    assert [name for name in names if "at::native" in name and not table.units_of(name)] == []
    answers = [kernel_units(name, recognition) for name in names if "at::native" in name]
    assert all(units for units, _ in answers)
    assert {found for _, found in answers} == {grade}
    assert not any(kernel_units(name, recognition)[0] for name in names if name.startswith(OTHERS))


def test_a_table_is_small():
    data = Path(str(resources.files("opscope.provenance.releases"))) / "data"
    assert all(file.stat().st_size < 160_000 for file in data.glob("*/units.msgpack.zst"))


def file_names(units):
    return sorted(unit.rpartition("/")[2] for unit in units)
