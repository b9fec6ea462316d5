"""All checks together: complete, documented, and never raising whatever the machine is."""

import json
import re
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import given as for_any
from hypothesis import strategies as st

from case_tables import cases
from opscope.report.machine import doctor_document, doctor_json
from opscope.report.markdown import render_markdown
from opscope.toolchain.doctor import checks
from opscope.toolchain.doctor.checks import (
    CHECKS,
    CheckResult,
    CheckVerdict,
    Diagnosis,
    DoctorOutcome,
    EnvironmentCheck,
    diagnose,
)
from opscope.toolchain.doctor.machine import Counters, Driver, ExaminedMachine, Gpu, MachineFacts, Torch
from opscope.toolchain.programs import ProgramExit

from .conftest import given

DOCS = Path(__file__).resolve().parents[4] / "docs" / "doctor.md"
GOOD = (CheckVerdict.OK, CheckVerdict.NOT_APPLICABLE)


def test_healthy_machines_have_no_findings_and_on_a_gpu_everything_is_judged(gpu_machine, cpu_machine):
    for answers in (gpu_machine, cpu_machine):
        diagnosis = diagnose(given(answers))
        assert [one for one in diagnosis.results if one.outcome.verdict not in GOOD] == []
        assert (diagnosis.verdict, diagnosis.can_profile) == (CheckVerdict.OK, True)
    results = diagnose(given(gpu_machine)).results
    assert {one.outcome.verdict for one in results} == {CheckVerdict.OK}


def test_codes_are_unique_and_the_documentation_lists_every_check():
    assert len({one.code for one in CHECKS}) == len(CHECKS)
    assert len({one.answer for one in CHECKS}) == len(CHECKS)
    _, _, text = DOCS.read_text(encoding="utf-8").partition("## Checks")
    rows = re.findall(r"^\| `([a-z_.]+)`(\*?) \| ([^|]+) \|", text, re.MULTILINE)
    assert [(code, mark == "*", question.strip()) for code, mark, question in rows] == [
        (one.code, one.is_required, one.question) for one in CHECKS
    ]


def _check(answer, *, is_required=False):
    return EnvironmentCheck("a.b", "something", answer, is_required)


@cases("verdict", "is_required", "expected")
def test_only_a_required_problem_stops_profiling(verdict, is_required, expected):
    outcome = DoctorOutcome(CheckVerdict(verdict), "reason")
    check = _check(lambda machine: outcome, is_required=is_required)
    diagnosis = Diagnosis({}, (CheckResult(check, outcome),))
    assert diagnosis.verdict == expected
    assert diagnosis.can_profile == (expected != CheckVerdict.PROBLEM)


def test_a_defect_of_a_check_hides_no_other(cpu_machine, monkeypatch):
    def defect(machine):
        raise KeyError("x")

    monkeypatch.setattr(checks, "CHECKS", [_check(defect), *checks.CHECKS])
    first, *others = diagnose(given(cpu_machine)).results
    assert first.outcome.verdict is CheckVerdict.UNKNOWN
    assert "KeyError" in first.outcome.reason
    assert {one.outcome.verdict for one in others} <= set(GOOD)


def test_what_several_checks_ask_is_found_out_once(machine, tmp_path):
    programs = {"nsys": f"echo x >> {tmp_path}/log; echo version 1.2"}
    here = machine(python="/nonexistent/python", programs=programs)
    diagnosis = diagnose(here)
    assert (diagnosis.facts["nsys"].version, here.nsys.version) == ("1.2", "1.2")
    assert (tmp_path / "log").read_text(encoding="utf-8") == "x\n"


def test_gpus_are_looked_at_first_and_counted_last(machine, gpu_machine, monkeypatch):
    order = []
    said = {"driver": {"devices": []}, "torch": {"has_calculated": True, "stage": "end"}}

    def ask(self, task, timeout_s):
        order.append(task)
        return dict(said[task]), None, ""

    monkeypatch.setattr(ExaminedMachine, "ask_child", ask)
    here = machine(ncu=gpu_machine["ncu"], programs={"nvidia-smi": "exit 1"})
    end = ProgramExit(1, "", "")
    monkeypatch.setattr(here, "run", lambda *command, timeout_s: order.append(Path(command[0]).name) or end)
    monkeypatch.setattr(
        "opscope.toolchain.doctor.machine.read_counters", lambda end: Counters(is_readable=True)
    )
    assert here.counters.is_readable
    assert order == ["nvidia-smi", "nvidia-smi", "torch", "ncu"]


def test_counters_are_not_tried_where_no_kernel_runs(gpu_machine):
    del gpu_machine["counters"]
    bare = given({**gpu_machine, "torch": Torch("2.11.0", calculation_error="a calculation fails")})
    assert bare.counters == Counters(failure="no kernel runs on the GPU")


VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_INJECTION64_PATH", "CUDA_LAUNCH_BLOCKING")
ANY_ANSWERS = st.fixed_dictionaries(
    {
        "machine": st.builds(MachineFacts, variables=st.dictionaries(st.sampled_from(VARIABLES), st.text())),
        "packages": st.dictionaries(st.sampled_from(("torch", "triton", "vllm")), st.none() | st.text()),
        "driver": st.from_type(Driver),
        "devices": st.from_type(tuple[Gpu, ...]),
        "torch": st.from_type(Torch | None),
        "counters": st.from_type(Counters),
    }
)


@settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
)
@for_any(answers=ANY_ANSWERS)
def test_whatever_is_missing_every_check_answers_and_is_shown(answers, cpu_machine):
    diagnosis = diagnose(given({**cpu_machine, **answers}))
    for one in diagnosis.results:
        assert one.outcome.reason
        assert not one.outcome.reason.startswith("the check itself")
        assert one.outcome.remedy != ""
    document = doctor_json(diagnosis)
    assert len(json.loads(json.dumps(document))["checks"]) == len(diagnosis.results)
    assert render_markdown(doctor_document(diagnosis))


def test_a_machine_with_nothing(machine):
    diagnosis = diagnose(machine(files={"/dev/null": ""}, torch=None))
    assert not diagnosis.can_profile
    problems = [one.check.code for one in diagnosis.results if one.outcome.verdict is CheckVerdict.PROBLEM]
    assert problems == ["torch.import"]
