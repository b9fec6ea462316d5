"""Checks of room and permission to write, and of the probes themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from opscope.toolchain.doctor.diagnosis import diagnose
from opscope.toolchain.doctor.facts import Facts
from opscope.toolchain.doctor.outcome import Outcome, Verdict

Answer = Callable[[Facts, str], Outcome]
MIB = 1024**2


def _with(facts: Facts, purpose: str, **changes: Any) -> Facts:
    folders = tuple(replace(one, **changes) if one.purpose == purpose else one for one in facts.folders)
    assert folders != facts.folders
    return replace(facts, folders=folders)


@pytest.mark.parametrize(
    ("purpose", "code", "remedy"),
    [
        ("output", "folders.output", "--output"),
        ("temporary", "folders.temporary", "export TMPDIR"),
        ("opscope cache", "folders.caches", "export XDG_CACHE_HOME=FOLDER"),
    ],
)
def test_folders_that_cannot_be_written(
    gpu_machine: Facts, answer: Answer, purpose: str, code: str, remedy: str
) -> None:
    facts = _with(gpu_machine, purpose, is_writable=False, failure="/x: Read-only file system")
    outcome = answer(facts, code)
    assert outcome.verdict is (Verdict.WARNING if code == "folders.caches" else Verdict.PROBLEM)
    assert "/x: Read-only file system" in outcome.reason
    assert remedy in (outcome.remedy or "")
    assert diagnose(facts).can_profile == (purpose != "temporary")


@pytest.mark.parametrize(
    ("purpose", "free_bytes", "verdict"),
    [
        ("output", 3000 * MIB, Verdict.OK),
        ("output", 500 * MIB, Verdict.WARNING),
        ("output", 50 * MIB, Verdict.PROBLEM),
        ("opscope cache", 50 * MIB, Verdict.WARNING),
        ("shared memory", 0, Verdict.OK),
    ],
)
def test_little_room(
    gpu_machine: Facts, answer: Answer, purpose: str, free_bytes: int, verdict: Verdict
) -> None:
    outcome = answer(_with(gpu_machine, purpose, free_bytes=free_bytes), "folders.space")
    assert outcome.verdict is verdict
    assert (outcome.remedy is None) == (verdict is Verdict.OK)


def test_folders_of_one_disk_are_told_once(gpu_machine: Facts, answer: Answer) -> None:
    folders = tuple(replace(one, free_bytes=500 * MIB, file_system=7) for one in gpu_machine.folders)
    outcome = answer(replace(gpu_machine, folders=folders), "folders.space")
    assert outcome.reason == "little room: 500 MiB for output (/0)"


def test_little_shared_memory(gpu_machine: Facts, answer: Answer) -> None:
    outcome = answer(_with(gpu_machine, "shared memory", total_bytes=64 * MIB), "folders.shared_memory")
    assert outcome.verdict is Verdict.WARNING
    assert "64 MiB" in outcome.reason
    assert "--shm-size" in (outcome.remedy or "")


def test_folders_nobody_looked_at_are_unknown(gpu_machine: Facts, answer: Answer) -> None:
    facts = replace(gpu_machine, folders=())
    for code in ("folders.output", "folders.temporary", "folders.caches", "folders.space"):
        assert answer(facts, code).verdict is Verdict.UNKNOWN
    assert answer(facts, "folders.shared_memory").verdict is Verdict.NOT_APPLICABLE


def test_probes_that_failed_are_named(gpu_machine: Facts, answer: Answer) -> None:
    facts = replace(gpu_machine, failed_probes={"folders": "gave no answer within 10 s"})
    outcome = answer(facts, "doctor.probes")
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.reason == "not found out: folders: gave no answer within 10 s"
