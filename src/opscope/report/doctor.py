"""The diagnosis of a machine on one screen: what is there, what stands badly and what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from opscope.report.document import (
    Block,
    BulletList,
    Code,
    Document,
    FactList,
    Paragraph,
    Section,
    Strong,
    Text,
    sections,
)
from opscope.report.json_encoding import Keys, versions
from opscope.toolchain.doctor.diagnosis import CheckResult, Diagnosis
from opscope.toolchain.doctor.facts import Facts, GpuFacts, ProgramFacts
from opscope.toolchain.doctor.outcome import CheckVerdict, device_count
from opscope.units import UNKNOWN, format_binary, format_fraction

_gib = partial(format_binary, unit="GiB")
_SHOWN_GIT = 10
_SHOWN_DEVICES = 8
_MOST_SEVERE_FIRST = (CheckVerdict.PROBLEM, CheckVerdict.WARNING, CheckVerdict.UNKNOWN)
_COUNTED = (CheckVerdict.OK, CheckVerdict.NOT_APPLICABLE)


def doctor_document(diagnosis: Diagnosis) -> Document:
    """The facts in a panel, then the checks that need attention, then the names of the others."""
    bullets = (_bullet(one) for verdict in _MOST_SEVERE_FIRST for one in _of(diagnosis, verdict))
    checks = Section("Checks", tuple(_named(diagnosis)))
    return Document(
        _title(diagnosis),
        (FactList(tuple(_facts(diagnosis.facts))),),
        (*sections(Section("Findings", (BulletList(tuple(bullets)),))), checks),
    )


def _title(diagnosis: Diagnosis) -> str:
    if not diagnosis.can_profile:
        return "Programs cannot be profiled on this machine"
    count = device_count(diagnosis.facts)
    where = "the CPU" if count == 0 else "1 GPU" if count == 1 else f"{count} GPUs"
    return f"Ready: programs can be profiled on {where}"


def _of(diagnosis: Diagnosis, verdict: CheckVerdict) -> list[CheckResult]:
    return [one for one in diagnosis.results if one.verdict is verdict]


def _bullet(result: CheckResult) -> Text:
    outcome = result.outcome
    verdict, said = Strong(str(result.verdict)), f" {result.check.code}: {outcome.reason.removesuffix('.')}"
    if outcome.remedy is None:
        return (verdict, said)
    return (verdict, f"{said}. → ", Code(outcome.remedy, is_whole=True))


def _named(diagnosis: Diagnosis) -> Iterator[Block]:
    for verdict in _COUNTED:
        found = _of(diagnosis, verdict)
        if found:
            word = str(verdict).replace("_", " ")
            yield Paragraph(f"{word} ({len(found)}): {', '.join(one.check.code for one in found)}")


def _facts(facts: Facts) -> Iterator[tuple[str, Text]]:
    yield "Machine", _joined(_machine(facts))
    yield "Python", _joined((facts.python.version, facts.python.executable))
    yield "torch", _torch(facts)
    yield "CUDA", _joined(_cuda(facts))
    yield "Packages", ", ".join(_packages(facts))
    yield "Building", ", ".join(_building(facts))
    yield "Tools", ", ".join(_version(one) for one in (facts.nsys, facts.ncu, facts.cuobjdump))
    yield "Profiler", _joined(_profiler(facts))
    yield from _device_lines(facts.devices)
    yield "Disk", _joined(_disk(facts))


def _machine(facts: Facts) -> Iterator[str | None]:
    machine = facts.machine
    yield machine.system
    yield machine.processor
    yield f"{machine.cpu_count} CPUs" if machine.cpu_count else None
    yield f"{_gib(machine.memory_bytes)} of memory" if machine.memory_bytes else None
    yield f"in a container ({machine.container})" if machine.container else None


def _torch(facts: Facts) -> str:
    torch = facts.torch
    if torch is None or torch.version is None:
        installed = facts.packages.versions.get("torch")
        return f"{installed}, does not come up" if installed else "not installed"
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "the CPU"
    parts = [
        torch.version,
        f"built for {built}",
        f"git {torch.git_version[:_SHOWN_GIT]}" if torch.git_version else None,
        "debug build" if torch.is_debug_build else None,
        " ".join(torch.architectures),
    ]
    return _joined(parts)


def _cuda(facts: Facts) -> Iterator[str | None]:
    driver, torch = facts.driver, facts.torch
    if driver.version is None and driver.cuda_version is None:
        yield "no driver"
    else:
        served = f" (serves CUDA {driver.cuda_version})" if driver.cuda_version else ""
        yield f"driver {driver.version or UNKNOWN}{served}"
    yield f"runtime {torch.cuda}" if torch is not None and torch.cuda else None
    yield f"cuDNN {torch.cudnn}" if torch is not None and torch.cudnn else None


def _packages(facts: Facts) -> Iterator[str]:
    versions = facts.packages.versions
    triton = next(iter(facts.packages.triton_packages), "triton")
    for title, name in (("Triton", triton), ("transformers", "transformers"), ("vLLM", "vllm")):
        yield f"{title} {versions.get(name) or UNKNOWN}"


def _building(facts: Facts) -> Iterator[str]:
    build = facts.build
    yield _version(build.nvcc)
    yield f"{build.compiler_kind or build.compiler.name} {build.compiler.version or UNKNOWN}"
    yield _version(build.ninja)


def _version(program: ProgramFacts) -> str:
    return f"{program.name} {program.version or ('found' if program.path else UNKNOWN)}"


def _profiler(facts: Facts) -> Iterator[str | None]:
    capture = facts.torch.capture if facts.torch is not None else None
    if capture is None or capture.error is not None:
        yield "records nothing"
    elif capture.kernels_launched:
        yield f"{capture.kernels_recorded} of {capture.kernels_launched} kernels recorded"
    else:
        yield f"{capture.operator_count} CPU operators recorded"
    if facts.devices:
        words = {True: "hardware counters readable", False: "hardware counters not readable"}
        readable = facts.counters.is_readable
        yield "hardware counters not tried" if readable is None else words[readable]


def _device_lines(devices: Sequence[GpuFacts]) -> Iterator[tuple[str, Text]]:
    for one in devices[:_SHOWN_DEVICES]:
        yield f"GPU {one.index}", _joined((one.name, *_size_of(one), *_state_of(one)))
    if len(devices) > _SHOWN_DEVICES:
        yield "", f"and {len(devices) - _SHOWN_DEVICES} more"


def _size_of(device: GpuFacts) -> Iterator[str | None]:
    capability = device.compute_capability
    yield f"compute capability {capability}" if capability else None
    yield f"{device.sm_count} SMs" if device.sm_count else None
    used = device.memory_used_bytes
    in_use = f" ({_gib(used)} in use)" if used is not None else ""
    yield f"{_gib(device.memory_bytes)}{in_use}" if device.memory_bytes else None


def _state_of(device: GpuFacts) -> Iterator[str | None]:
    clock, highest = device.sm_clock_mhz, device.max_sm_clock_mhz
    yield f"{clock} of {highest} MHz" if clock is not None and highest is not None else None
    yield f"{device.temperature_c} °C" if device.temperature_c is not None else None
    yield f"{device.power_w:.0f} W" if device.power_w is not None else None
    busy = device.utilization_fraction
    yield f"busy {format_fraction(busy)}" if busy else None
    if device.mig_mode is not None:
        yield f"MIG with {device.mig_instance_count} instances" if device.mig_mode else "no MIG"
    if device.processes is not None:
        yield f"{len(device.processes) or 'no'} other process{'' if len(device.processes) == 1 else 'es'}"
    yield "hidden from programs" if device.is_visible is False else None


def _disk(facts: Facts) -> Iterator[str | None]:
    """Free space of each file system, by the first folder on it."""
    seen: set[int | None] = {None}
    for one in facts.folders:
        if one.file_system not in seen:
            yield f"{_gib(one.free_bytes)} free for {one.purpose} ({one.path})"
        seen.add(one.file_system)


def _joined(parts: Iterable[str | None]) -> str:
    return ", ".join(one for one in parts if one) or UNKNOWN


DOCTOR_SCHEMA_VERSION = 1


def doctor_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as JSON values; checks in the order of the table in docs/doctor.md."""
    keys: dict[type, Keys] = {
        CheckResult: Keys(
            "code=check.code question=check.question is_required=check.is_required verdict "
            "reason=outcome.reason remedy=outcome.remedy"
        )
    }
    document = Keys("verdict can_profile facts checks=results").record(diagnosis, keys)
    return {**versions(DOCTOR_SCHEMA_VERSION), **document}
