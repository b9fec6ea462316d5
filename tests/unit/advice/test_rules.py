"""Every rule is complete: a function, a reason for every number, words, a change that is code."""

import re
from pathlib import Path

import pytest

import opscope.advice
from opscope.advice.profiled_run import FINDERS
from opscope.advice.rules import rule_book

RULES = tuple(rule_book().rules.values())
CODE = "\n".join(
    file.read_text(encoding="utf-8") for file in sorted(Path(opscope.advice.__file__).parent.glob("*.py"))
)


def test_every_rule_has_a_function_and_every_function_a_rule():
    assert {rule.code for rule in RULES} == set(FINDERS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_says_what_it_must(rule):
    assert re.fullmatch(r"advice\.[a-z][a-z0-9_]+", rule.code)
    for words in (rule.title, rule.meaning, rule.gain, rule.unknown, rule.suggestion, rule.change or "-"):
        assert words
        assert words == words.strip()
    assert not rule.title.endswith(".")
    assert rule.suggestion.endswith(".")
    for name, number in rule.thresholds.items():
        assert len(number.reason) > 10, name
        stem = re.sub("_(for|back)ward$", "", name)  # of layers, read by one expression in both directions
        assert f'"{name}' in CODE or f'"{stem}"' in CODE or name.startswith("pinned_bytes_per_s"), name


def test_every_shared_number_has_a_reason_and_is_read():
    for name, number in rule_book().numbers.items():
        assert len(number.reason) > 20, name
        kind, _, suffix = name.rpartition("ward_")  # "for" and "back": the kinds of attention
        stem = re.sub("_(for|back)ward$", "", name)
        assert f'"{stem}"' in CODE or (kind and f"_{suffix}" in CODE), name


def test_code_to_try_is_python_or_a_command():
    for rule in RULES:
        if rule.change is None or "__global__" in rule.change:
            continue
        if re.search(r"^(\w+=\S+ )?(python|opscope|TORCH_LOGS)", rule.change, re.MULTILINE):
            continue
        source = re.sub(r"^(with .*:)\s*(#.*)?$", r"\1", rule.change, flags=re.MULTILINE)
        compile(source, rule.code, "exec")
