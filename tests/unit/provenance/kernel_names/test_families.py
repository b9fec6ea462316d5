"""The closed set of families, and that nothing gives another."""

import re
from pathlib import Path

import pytest
import tomli

import opscope.provenance.kernel_names as room
from case_tables import cases
from opscope.provenance.categories import categories, category_title
from opscope.provenance.kernel_names import vocabulary
from opscope.provenance.kernel_names.libraries import read_plain_words

FOLDER = Path(room.__file__).parent
RULES = tomli.loads((FOLDER / "family_rules.toml").read_text(encoding="utf-8"))
GRAMMARS = tomli.loads((FOLDER / "grammars.toml").read_text(encoding="utf-8"))
NAMES = vocabulary.CATEGORY_OF_FAMILY.keys()


def test_every_family_belongs_to_a_titled_category():
    known = {category.name for category in categories()} | {"control"}
    used = set(vocabulary.CATEGORY_OF_FAMILY.values())
    assert used <= known
    assert all(category_title(category) != "Other" for category in used)


@pytest.mark.parametrize("section", RULES)
def test_rules_give_declared_families_by_valid_patterns(section):
    for rule in RULES[section]:
        assert rule["family"] in NAMES
        assert all(re.compile(pattern) for pattern in rule.get("patterns", [rule.get("words")]))
    if section not in ("plain_words", "elementwise_pass"):
        assert vocabulary.family_by_rules(section, "\N{SNOWMAN}") is None


def test_families_written_in_code_and_grammars_are_declared():
    written = set()
    for module in FOLDER.glob("*.py"):
        text = module.read_text(encoding="utf-8")
        written |= set(re.findall(r'(?:"family"\]? ?[:=]|family=|family, \w+ =) ?"(\w+)"', text))
    written |= {one["family"] for one in vocabulary.LAUNCHERS.values()}
    for grammar in GRAMMARS.values():
        written |= {family for _, family in grammar.get("choices", {}).get("family", [])}
        written |= set(grammar.get("maps", {}).get("family", {}).values())
        written |= {grammar["set"]["family"]} if "family" in grammar.get("set", {}) else set()
    assert "attention_flash" in written
    assert written <= NAMES


@cases("word", "expected")
def test_plain_words(word, expected):
    reading = read_plain_words(word)
    assert (reading.inferred["family"] if reading is not None else None) == expected


@cases("text", "expected")
def test_direction_words(text, expected):
    assert vocabulary.direction_of(text) == expected
