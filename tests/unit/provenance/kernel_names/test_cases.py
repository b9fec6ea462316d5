"""Real names, by grammar, and what each of them says. `absent` fields must stay unknown."""

from pathlib import Path

import pytest
import tomli

from case_tables import cases
from opscope.model.origin import Grade
from opscope.provenance.kernel_names.decoder import decode

CASES = [
    case
    for file in sorted((Path(__file__).parent / "cases").glob("*.toml"))
    for case in tomli.loads(file.read_text(encoding="utf-8"))["case"]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"][:80])
def test_what_a_name_says(case):
    kernel = decode(case["name"])
    expected = {
        key: tuple(value) if isinstance(value, list) else value for key, value in case["fields"].items()
    }
    assert {key: getattr(kernel, key) for key in expected} == expected
    assert [key for key in case.get("absent", []) if getattr(kernel, key) not in (None, ())] == []
    assert [key for key in case.get("inferred", []) if kernel.grades[key] is not Grade.INFERRED] == []
    # Every fact has a grade, and nothing else has.
    known = {key for key, value in vars(kernel).items() if value is not None and value != ()}
    assert set(kernel.grades) == known - {"name", "grades"}
    assert set(kernel.grades.values()) <= {Grade.NAME_PATTERN, Grade.INFERRED}


SERVING = Path(__file__).parent / "cases" / "serving.tsv"


def labelled():
    lines = SERVING.read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines if line and not line.startswith("#")]


def test_every_labelled_kernel_has_its_family_and_one_in_a_hundred_none():
    names = labelled()
    assert len(names) >= 300
    assert len({name for _, name in names}) == len(names)
    wrong = [
        (family, decode(name).family, name[:90]) for family, name in names if decode(name).family != family
    ]
    assert not wrong
    assert sum(decode(name).family is None for _, name in names) <= 0.01 * len(names)


@cases("name", "fields")
def test_names_tell_library_types_and_tile(name, fields):
    decoded = decode(name)
    assert {field: getattr(decoded, field) for field in fields} == fields
