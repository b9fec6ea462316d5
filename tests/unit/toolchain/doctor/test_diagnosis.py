"""The table of checks: complete, documented, and never raising whatever the facts are."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opscope.report.doctor import doctor_document, doctor_json
from opscope.report.markdown import render_markdown
from opscope.toolchain.doctor.diagnosis import CHECKS, CheckResult, Diagnosis, diagnose
from opscope.toolchain.doctor.facts import (
    BuildFacts,
    CounterFacts,
    DriverFacts,
    Facts,
    FolderFacts,
    GpuFacts,
    MachineFacts,
    PackageFacts,
    TorchFacts,
)
from opscope.toolchain.doctor.outcome import CheckVerdict, DoctorOutcome, EnvironmentCheck

DOCS = Path(__file__).resolve().parents[4] / "docs" / "doctor.md"
GOOD = (CheckVerdict.OK, CheckVerdict.NOT_APPLICABLE)


def test_a_healthy_machine_has_no_findings(gpu_machine: Facts, cpu_machine: Facts) -> None:
    for facts in (gpu_machine, cpu_machine):
        diagnosis = diagnose(facts)
        assert [one for one in diagnosis.results if one.verdict not in GOOD] == []
        assert (diagnosis.verdict, diagnosis.can_profile) == (CheckVerdict.OK, True)


def test_on_a_gpu_nearly_everything_is_judged(gpu_machine: Facts) -> None:
    skipped = [
        one.check.code for one in diagnose(gpu_machine).results if one.verdict is CheckVerdict.NOT_APPLICABLE
    ]
    assert skipped == []


def test_codes_and_functions_are_unique() -> None:
    assert len({one.code for one in CHECKS}) == len(CHECKS)
    assert len({one.answer for one in CHECKS}) == len(CHECKS)


def test_the_documentation_lists_every_check() -> None:
    _, _, text = DOCS.read_text(encoding="utf-8").partition("## All checks")
    rows = re.findall(r"^\| `([a-z_.]+)`(\*?) \| ([^|]+) \|", text.partition("## JSON")[0], re.MULTILINE)
    assert [(code, mark == "*", question.strip()) for code, mark, question in rows] == [
        (one.code, one.is_required, one.question) for one in CHECKS
    ]


def _result(verdict: CheckVerdict, *, is_required: bool) -> CheckResult:
    check = EnvironmentCheck("a.b", "something", lambda facts: DoctorOutcome(verdict, ""), is_required)
    return CheckResult(check, DoctorOutcome(verdict, "reason"))


@pytest.mark.parametrize(
    ("verdict", "is_required", "expected"),
    [
        (CheckVerdict.PROBLEM, True, CheckVerdict.PROBLEM),
        (CheckVerdict.PROBLEM, False, CheckVerdict.WARNING),
        (CheckVerdict.WARNING, True, CheckVerdict.WARNING),
        (CheckVerdict.UNKNOWN, True, CheckVerdict.OK),
        (CheckVerdict.NOT_APPLICABLE, True, CheckVerdict.OK),
    ],
)
def test_only_a_required_problem_stops_profiling(
    cpu_machine: Facts, verdict: CheckVerdict, is_required: bool, expected: CheckVerdict
) -> None:
    good = _result(CheckVerdict.OK, is_required=True)
    diagnosis = Diagnosis(cpu_machine, (good, _result(verdict, is_required=is_required)))
    assert diagnosis.verdict is expected
    assert diagnosis.can_profile == (expected is not CheckVerdict.PROBLEM)


def test_a_defect_of_a_check_hides_no_other(cpu_machine: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(facts: Facts) -> DoctorOutcome:
        raise KeyError("x")

    table = (EnvironmentCheck("a.b", "something", defect), *CHECKS)
    monkeypatch.setattr("opscope.toolchain.doctor.diagnosis.CHECKS", table)
    first, *others = diagnose(cpu_machine).results
    assert first.verdict is CheckVerdict.UNKNOWN
    assert "KeyError" in first.outcome.reason
    assert len(others) == len(CHECKS)


VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_INJECTION64_PATH", "CUDA_LAUNCH_BLOCKING")
PACKAGES = ("torch", "triton", "vllm")
ANY_FACTS = st.builds(
    Facts,
    machine=st.builds(MachineFacts, variables=st.dictionaries(st.sampled_from(VARIABLES), st.text())),
    packages=st.builds(
        PackageFacts, versions=st.dictionaries(st.sampled_from(PACKAGES), st.none() | st.text())
    ),
    driver=st.from_type(DriverFacts),
    build=st.from_type(BuildFacts),
    devices=st.from_type(tuple[GpuFacts, ...]),
    torch=st.from_type(TorchFacts | None),
    counters=st.from_type(CounterFacts),
    folders=st.from_type(tuple[FolderFacts, ...]),
    failed_probes=st.dictionaries(st.text(), st.text()),
)


@settings(max_examples=settings.default.max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
@given(ANY_FACTS)
def test_whatever_is_missing_every_check_answers_and_is_shown(facts: Facts) -> None:
    for check in CHECKS:
        outcome = check.answer(facts)
        assert outcome.reason
        assert outcome.remedy != ""
    diagnosis = diagnose(facts)
    document = doctor_json(diagnosis)
    assert len(json.loads(json.dumps(document))["checks"]) == len(CHECKS)
    assert render_markdown(doctor_document(diagnosis))


def test_facts_of_nothing_at_all(cpu_machine: Facts) -> None:
    bare = Facts(replace(cpu_machine.machine, pci_gpu_count=None), replace(cpu_machine.python, headers=None))
    diagnosis = diagnose(bare)
    assert not diagnosis.can_profile
    problems = [one.check.code for one in diagnosis.results if one.verdict is CheckVerdict.PROBLEM]
    assert problems == ["torch.installed"]
