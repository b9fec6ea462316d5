"""Every rule is complete: a function, a reason for every number, words, a place in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opscope.advice.profiled_run import FINDERS
from opscope.advice.rules import Rule, rule_book

PAGE = Path(__file__).resolve().parents[3] / "docs" / "advice.md"
RULES = tuple(rule_book().rules.values())


def test_every_rule_has_a_function_and_every_function_a_rule() -> None:
    assert {rule.code for rule in RULES} == set(FINDERS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_says_what_it_must(rule: Rule) -> None:
    assert re.fullmatch(r"advice\.[a-z][a-z0-9_]+", rule.code)
    for words in (rule.title, rule.meaning, rule.gain, rule.unknown, rule.suggestion):
        assert words
        assert words == words.strip()
    assert not rule.title.endswith(".")
    assert rule.suggestion.endswith(".")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_threshold_has_a_reason_and_is_read(rule: Rule) -> None:
    folder = Path(__file__).resolve().parents[3] / "src" / "opscope" / "advice"
    code = "\n".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    for name, number in rule.thresholds.items():
        assert len(number.reason) > 10, name
        assert f'"{name}' in code or name.startswith("pinned_bytes_per_s"), name


def test_every_shared_number_has_a_reason_and_is_read() -> None:
    folder = Path(__file__).resolve().parents[3] / "src" / "opscope" / "advice"
    code = "\n".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    for name, number in rule_book().numbers.items():
        assert len(number.reason) > 20, name
        kind, _, suffix = name.rpartition("ward_")  # "for" and "back": the kinds of attention
        assert f'"{name}"' in code or (kind and f"_{suffix}" in code), name


def test_code_to_try_is_python_or_a_command() -> None:
    for rule in RULES:
        if rule.change is None or "__global__" in rule.change:
            continue
        if re.search(r"^(\w+=\S+ )?(python|opscope|TORCH_LOGS)", rule.change, re.MULTILINE):
            continue
        source = re.sub(r"^(with .*:)\s*(#.*)?$", r"\1", rule.change, flags=re.MULTILINE)
        compile(source, rule.code, "exec")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_page_tells_all_of_a_rule(rule: Rule) -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"`{rule.code}`" in page
    for words in (rule.title, rule.meaning, rule.gain, rule.unknown):
        assert " ".join(words.split()) in page, words
    for name, number in rule.thresholds.items():
        assert f"`{name}` {number.value:g}" in page, name
        assert " ".join(number.reason.split()) in page, name


def test_the_page_tells_every_shared_number() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for name, number in rule_book().numbers.items():
        assert f"`{name}` | {number.value:g}" in page, name
        assert " ".join(number.reason.split()) in page, name
