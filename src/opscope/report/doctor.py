"""The diagnosis of a machine on one screen: what is there, what stands badly and what mends it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from opscope.report import document as doc
from opscope.report.json_encoding import Keys, encode, versions
from opscope.toolchain.doctor.checks import CheckResult, CheckVerdict, Diagnosis
from opscope.toolchain.doctor.machine import Driver, Gpu, MachineFacts, ProgramFacts, Torch
from opscope.units import UNKNOWN, counted, format_binary, format_fraction

_gib = partial(format_binary, unit="GiB")
_SHOWN_DEVICES = 8
_MOST_SEVERE_FIRST = (CheckVerdict.PROBLEM, CheckVerdict.WARNING, CheckVerdict.UNKNOWN)


def doctor_document(diagnosis: Diagnosis) -> doc.Document:
    """The facts in a panel, then the checks that need attention, then the names of the others."""
    title = "Programs cannot be profiled on this machine"
    if diagnosis.can_profile:
        torch, driver = diagnosis.facts.get("torch"), diagnosis.facts.get("driver") or Driver()
        count = max(len(driver.devices or ()), len(torch.devices) if torch is not None else 0)
        where = counted(count, "GPU") if count else "the CPU"
        title = f"Ready: programs can be profiled on {where}"
    bullets: list[doc.Text] = []
    for one in (one for verdict in _MOST_SEVERE_FIRST for one in _of(diagnosis, verdict)):
        outcome, said = one.outcome, f" {one.check.code}: {one.outcome.reason.removesuffix('.')}"
        remedy = () if outcome.remedy is None else (". → ", doc.Code(outcome.remedy, is_whole=True))
        bullets.append((doc.Strong(str(outcome.verdict)), said, *remedy))
    named: list[doc.Block] = []
    for verdict in (CheckVerdict.OK, CheckVerdict.NOT_APPLICABLE):
        if found := _of(diagnosis, verdict):
            word = str(verdict).replace("_", " ")
            named.append(
                doc.Paragraph(f"{word} ({len(found)}): {', '.join(one.check.code for one in found)}")
            )
    return doc.Document(
        title,
        (doc.FactList(tuple(_facts(diagnosis.facts))),),
        (
            *doc.sections(doc.Section("Findings", (doc.BulletList(tuple(bullets)),))),
            doc.Section("Checks", tuple(named)),
        ),
    )


def _of(diagnosis: Diagnosis, verdict: CheckVerdict) -> list[CheckResult]:
    return [one for one in diagnosis.results if one.outcome.verdict is verdict]


def _facts(facts: dict[str, Any]) -> Iterator[tuple[str, doc.Text]]:
    """What was not found out in time is left out, or said to be unknown."""
    host, driver = facts.get("machine") or MachineFacts(""), facts.get("driver") or Driver()
    packages, torch = facts.get("packages") or {}, facts.get("torch") or Torch()
    gpus = facts.get("devices") or ()
    yield (
        "Machine",
        _joined(
            host.system,
            host.processor,
            f"{host.cpu_count} CPUs" if host.cpu_count else None,
            f"{_gib(host.memory_bytes)} of memory" if host.memory_bytes else None,
            f"in a container ({host.container})" if host.container else None,
        ),
    )
    yield "Python", f"{platform.python_version()}, {sys.executable}"
    installed = packages.get("torch")
    if torch.version is None:
        yield "torch", f"{installed}, does not come up" if installed else "not installed"
    else:
        built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "the CPU"
        git = f"git {torch.git_version[:10]}" if torch.git_version else None
        yield "torch", _joined(torch.version, f"built for {built}", git, " ".join(torch.architectures))
    served = f" (serves CUDA {driver.cuda_version})" if driver.cuda_version else ""
    is_there = driver.version is not None or driver.cuda_version is not None
    yield (
        "CUDA",
        _joined(
            f"driver {driver.version or UNKNOWN}{served}" if is_there else "no driver",
            f"runtime {torch.cuda}" if torch.cuda else None,
            f"cuDNN {torch.cudnn}" if torch.cudnn else None,
        ),
    )
    triton = next((name for name, version in packages.items() if "triton" in name and version), "triton")
    shown = (("Triton", triton), ("transformers", "transformers"), ("vLLM", "vllm"))
    yield "Packages", ", ".join(f"{title} {packages.get(name) or UNKNOWN}" for title, name in shown)
    yield "Building", _versions(facts, "nvcc", "compiler", "ninja")
    yield "Tools", _versions(facts, "nsys", "ncu", "cuobjdump")
    yield "Profiler", _joined(*_profiler(torch, facts))
    for one in gpus[:_SHOWN_DEVICES]:
        yield f"GPU {one.index}", _joined(*_gpu(one))
    if len(gpus) > _SHOWN_DEVICES:
        yield "", f"and {len(gpus) - _SHOWN_DEVICES} more"


def _versions(facts: dict[str, Any], *names: str) -> str:
    programs = [facts.get(name) or ProgramFacts(name) for name in names]
    return ", ".join(f"{one.name} {one.version or ('found' if one.path else UNKNOWN)}" for one in programs)


def _profiler(torch: Torch, facts: dict[str, Any]) -> Iterator[str]:
    capture, counters = torch.capture, facts.get("counters")
    if capture is None or capture.error is not None:
        yield "records nothing"
    elif capture.kernels_launched:
        yield f"{capture.kernels_recorded} of {capture.kernels_launched} kernels recorded"
    else:
        yield f"{capture.operator_count} CPU operators recorded"
    if facts.get("devices"):
        words = {True: "hardware counters readable", False: "hardware counters not readable"}
        is_readable = None if counters is None else counters.is_readable
        yield "hardware counters not tried" if is_readable is None else words[is_readable]


def _gpu(gpu: Gpu) -> Iterator[str | None]:
    yield gpu.name
    yield f"compute capability {gpu.compute_capability}" if gpu.compute_capability else None
    yield f"{gpu.sm_count} SMs" if gpu.sm_count else None
    used = f" ({_gib(gpu.memory_used_bytes)} in use)" if gpu.memory_used_bytes is not None else ""
    yield f"{_gib(gpu.memory_bytes)}{used}" if gpu.memory_bytes else None
    clock, highest = gpu.sm_clock_mhz, gpu.max_sm_clock_mhz
    yield f"{clock} of {highest} MHz" if clock is not None and highest is not None else None
    yield f"{gpu.temperature_c} °C" if gpu.temperature_c is not None else None
    yield f"{gpu.power_w:.0f} W" if gpu.power_w is not None else None
    yield f"busy {format_fraction(gpu.utilization_fraction)}" if gpu.utilization_fraction else None
    if gpu.mig_mode is not None:
        yield f"MIG with {gpu.mig_instance_count} instances" if gpu.mig_mode else "no MIG"
    if gpu.processes is not None:
        yield f"{len(gpu.processes) or 'no'} other process{'' if len(gpu.processes) == 1 else 'es'}"
    yield "hidden from programs" if gpu.is_visible is False else None


def _joined(*parts: str | None) -> str:
    return ", ".join(one for one in parts if one) or UNKNOWN


DOCTOR_SCHEMA_VERSION = 4
_CHECK_KEYS = Keys(
    "code=check.code question=check.question is_required=check.is_required verdict=outcome.verdict "
    "reason=outcome.reason remedy=outcome.remedy"
)


def doctor_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as JSON values; checks in the order of the table in docs/doctor.md."""
    facts = {name: value for name, value in diagnosis.facts.items() if not name.startswith("_")}
    python = {"version": platform.python_version(), "executable": sys.executable}
    return {
        **versions(DOCTOR_SCHEMA_VERSION),
        "verdict": str(diagnosis.verdict),
        "can_profile": diagnosis.can_profile,
        "facts": {"python": python, **dict(sorted(msgspec.to_builtins(facts).items()))},
        "checks": encode(diagnosis.results, {CheckResult: _CHECK_KEYS}),
    }
