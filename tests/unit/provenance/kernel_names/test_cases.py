"""Real names, by grammar, and what each of them says. `absent` fields must stay unknown."""

from pathlib import Path

import pytest
import tomli

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
