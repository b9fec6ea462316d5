"""Checks of what recording needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from opscope.toolchain.doctor.diagnosis import diagnose
from opscope.toolchain.doctor.facts import CaptureFacts, CounterFacts, Facts, ProgramFacts
from opscope.toolchain.doctor.outcome import Outcome, Verdict

Answer = Callable[[Facts, str], Outcome]
Change = Callable[..., Facts]
Judge = Callable[..., Outcome]


def _capture(**changes: Any) -> CaptureFacts:
    return replace(CaptureFacts(("CPU", "CUDA"), 16, 8, 8), **changes)


@pytest.mark.parametrize(
    ("capture", "verdict", "words"),
    [
        (_capture(), Verdict.OK, "8 of 8 kernels"),
        (_capture(kernels_recorded=0, messages="CUPTI_ERROR_X"), Verdict.PROBLEM, "(CUPTI_ERROR_X)"),
        (_capture(kernels_recorded=5), Verdict.WARNING, "5 of 8 kernels"),
        (_capture(error="RuntimeError: Can't use Kineto"), Verdict.PROBLEM, "Can't use Kineto"),
        (None, Verdict.PROBLEM, "gave no answer"),
    ],
)
def test_a_recording_without_kernels_is_none(
    on_gpu: Change, answer: Answer, capture: CaptureFacts | None, verdict: Verdict, words: str
) -> None:
    facts = on_gpu(torch={"capture": capture})
    outcome = answer(facts, "profiler.records")
    assert outcome.verdict is verdict
    assert words in outcome.reason
    assert diagnose(facts).can_profile == (verdict is not Verdict.PROBLEM)


@pytest.mark.parametrize(
    ("capture", "variables", "remedy"),
    [
        (_capture(kernels_recorded=0), {"CUDA_INJECTION64_PATH": "/x.so"}, "unset CUDA_INJECTION64_PATH"),
        (_capture(kernels_recorded=0, messages="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"), {}, "NVreg_"),
        (_capture(kernels_recorded=0, activities=("CPU",)), {}, "pip install"),
        (_capture(kernels_recorded=0), {}, "end other profilers"),
    ],
)
def test_what_mends_a_profiler_depends_on_what_it_said(
    judge: Judge, capture: CaptureFacts, variables: dict[str, str], remedy: str
) -> None:
    outcome = judge("profiler.records", torch={"capture": capture}, machine={"variables": variables})
    assert remedy in (outcome.remedy or "")


def test_on_the_cpu_operators_are_enough(cpu_machine: Facts, answer: Answer, change: Change) -> None:
    assert answer(cpu_machine, "profiler.records").verdict is Verdict.OK
    facts = change(cpu_machine, "torch", capture=CaptureFacts(("CPU",), operator_count=0))
    assert answer(facts, "profiler.records").verdict is Verdict.PROBLEM


@pytest.mark.parametrize(
    ("variables", "tools", "words"),
    [
        ({"CUDA_INJECTION64_PATH": "/opt/tool.so"}, (), "CUDA_INJECTION64_PATH=/opt/tool.so"),
        ({"NSYS_PROFILING_SESSION_ID": "1"}, (), "NSYS_PROFILING_SESSION_ID"),
        ({}, ("dynolog",), "dynolog runs"),
    ],
)
def test_another_tool_holds_cupti(
    judge: Judge, variables: dict[str, str], tools: tuple[str, ...], words: str
) -> None:
    outcome = judge("profiler.taken", machine={"variables": variables, "tools_running": tools})
    assert outcome.verdict is Verdict.WARNING
    assert words in outcome.reason
    assert outcome.remedy is not None


@pytest.mark.parametrize(("value", "verdict"), [("1", Verdict.WARNING), ("0", Verdict.OK), ("", Verdict.OK)])
def test_settings_that_distort_times(
    gpu_machine: Facts, answer: Answer, change: Change, value: str, verdict: Verdict
) -> None:
    facts = change(gpu_machine, "machine", variables={"CUDA_LAUNCH_BLOCKING": value})
    outcome = answer(facts, "profiler.settings")
    assert outcome.verdict is verdict
    assert (outcome.remedy == "unset CUDA_LAUNCH_BLOCKING") == (verdict is Verdict.WARNING)


@pytest.mark.parametrize(
    ("counters", "words", "remedy"),
    [
        (CounterFacts(True, 5.0), "read a counter", None),
        (CounterFacts(False, failure="ERR_NVGPUCTRPERM", is_denied=True), "does not let", "NVreg_"),
        (CounterFacts(False, failure="resource", is_taken=True), "another tool", "dcgmi"),
        (CounterFacts(False, failure="LibraryNotLoaded"), "LibraryNotLoaded", "ncu"),
        (CounterFacts(None, failure="ncu is not installed"), "and this process is one", None),
    ],
)
def test_counters_are_tested(
    gpu_machine: Facts, answer: Answer, counters: CounterFacts, words: str, remedy: str | None
) -> None:
    facts = replace(gpu_machine, counters=counters)
    outcome = answer(facts, "counters.access")
    expected = {True: Verdict.OK, False: Verdict.PROBLEM, None: Verdict.UNKNOWN}
    assert outcome.verdict is expected[counters.is_readable]
    assert words in outcome.reason
    assert (remedy is None) == (outcome.remedy is None)
    assert (remedy or "") in (outcome.remedy or "")
    assert diagnose(facts).can_profile, "counters are ncu's; recording goes without"


@pytest.mark.parametrize(
    ("admin_only", "is_admin", "words"),
    [
        (None, True, "not shown"),
        (False, False, "everyone"),
        (True, False, "is none"),
        (True, None, "may be one"),
    ],
)
def test_where_counters_were_not_tried_the_setting_is_told(
    on_gpu: Change, answer: Answer, admin_only: bool | None, is_admin: bool | None, words: str
) -> None:
    facts = on_gpu(driver={"admin_only_counters": admin_only, "is_admin": is_admin})
    facts = replace(facts, counters=CounterFacts(failure="ncu is not installed"))
    assert words in answer(facts, "counters.access").reason


def test_a_monitor_matters_where_counters_could_not_be_read(
    gpu_machine: Facts, answer: Answer, change: Change
) -> None:
    facts = change(gpu_machine, "machine", tools_running=("nv-hostengine",))
    assert answer(facts, "counters.monitor").verdict is Verdict.OK
    facts = replace(facts, counters=CounterFacts(False, is_taken=True))
    assert answer(facts, "counters.monitor").verdict is Verdict.WARNING
    assert answer(facts, "counters.monitor").remedy == "dcgmi profread --pause"


@pytest.mark.parametrize("name", ["nsys", "ncu"])
def test_a_tool_is_missed_only_where_there_is_a_gpu(
    gpu_machine: Facts, cpu_machine: Facts, answer: Answer, change: Change, name: str
) -> None:
    outcome = answer(change(gpu_machine, name, path=None, version=None), f"tools.{name}")
    assert outcome.verdict is Verdict.WARNING
    assert "opscope" in outcome.reason, "what to use instead"
    assert outcome.remedy is not None
    assert answer(cpu_machine, f"tools.{name}").verdict is Verdict.NOT_APPLICABLE
    broken = change(gpu_machine, name, failure="exec format error")
    assert answer(broken, f"tools.{name}").verdict is Verdict.WARNING


def test_cuobjdump_reads_kernels_on_any_machine(cpu_machine: Facts, answer: Answer) -> None:
    facts = replace(cpu_machine, cuobjdump=ProgramFacts("cuobjdump"))
    assert answer(facts, "tools.cuobjdump").verdict is Verdict.WARNING
    assert answer(facts, "tools.cuobjdump").remedy == "pip install triton"
