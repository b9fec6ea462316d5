"""GPUs for people: the table of all known ones, everything known of some; and the diagnosis of a machine."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from opscope import units
from opscope.hardware.architectures import Architecture, SpecEvidence
from opscope.hardware.devices import DataType, DeviceSpec, Peak, is_partition
from opscope.hardware.limits import MeasuredLimits, MeasuredRate, measured_type, published_rate
from opscope.model.files import finite
from opscope.report import document as doc
from opscope.report.json_encoding import Keys, encode, versions
from opscope.toolchain.doctor.checks import CheckResult, CheckVerdict, Diagnosis
from opscope.toolchain.doctor.machine import Driver, Gpu, MachineFacts, ProgramFacts, Torch

_TYPE_TITLES = {
    DataType.FP64: "fp64",
    DataType.FP64_TENSOR: "fp64, tensor cores",
    DataType.FP32: "fp32",
    DataType.TF32: "tf32",
    DataType.FP16: "fp16, sums in fp32",
    DataType.FP16_FP16_ACCUMULATE: "fp16, sums in fp16",
    DataType.BF16: "bf16, sums in fp32",
    DataType.FP8: "fp8, sums in fp32",
    DataType.FP8_FP16_ACCUMULATE: "fp8, sums in fp16",
    DataType.INT8: "int8, sums in int32",
    DataType.FP4: "fp4, sums in fp32",
}
_TITLES = {
    "copy": "Copy, read + written",
    "read": "Read",
    "write": "Write",
    "l2_read": "Read from L2",
    "launch": "Launch of an empty kernel, host",
    "operator_call": "Call of a small operator, host",
    "kernel_interval": "Empty kernel after another, device",
    "read_by_kernel": "Read by a Triton kernel",
}
_EXPLANATION = (
    "Medians of calls after a warm-up, on random data, with half the width of their 95 % interval. A share "
    "is of the published bandwidth or dense peak. Clocks are those while the same call ran, with reasons "
    "that lowered them."
)


def measured_document(measured: MeasuredLimits, spec: DeviceSpec | None) -> doc.Document:
    """All of one measurement, with how each figure was taken; `spec` is what is published of the device."""
    said = [(one.name, one.how) for one in measured.rates] + [(one.name, one.how) for one in measured.times]
    how = doc.FactList(tuple((_title(name, measured), text) for name, text in said))
    shown = (*_measured_blocks(measured, spec), doc.Paragraph(_EXPLANATION))
    return doc.Document("", sections=(doc.Section(measured.device, shown), doc.Section("How", (how,))))


def _measured_of(device: DeviceSpec, measured: Mapping[str, MeasuredLimits]) -> list[MeasuredLimits]:
    own, parts = device.name, f"{device.name} MIG "
    return [one for name, one in measured.items() if name == own or name.startswith(parts)]


def _published(rate: MeasuredRate, spec: DeviceSpec | None) -> tuple[float | None, float | None]:
    """The published rate, and the share of it that was measured; None where none is published."""
    per_s = None if spec is None else published_rate(spec, rate.name)
    return per_s, None if per_s is None else rate.per_s / per_s


def _measured_blocks(measured: MeasuredLimits, spec: DeviceSpec | None) -> tuple[doc.Block, ...]:
    """Rates and durations as tables, what is missing and why, and what it was measured with."""

    def clock(rate: MeasuredRate) -> str:
        if rate.state is None or rate.state.sm_clock_mhz is None:
            return units.UNKNOWN
        return ", ".join((f"{rate.state.sm_clock_mhz} MHz", *rate.state.throttle_reasons))

    missing = [(_title(name, measured), reason) for name, reason in measured.missing.items()]
    driver = "" if measured.driver is None else f", driver {measured.driver}"
    return doc.blocks(
        doc.table(
            measured.rates,
            doc.words("Rate", lambda rate: _title(rate.name, measured)),
            doc.number("Measured", lambda rate: _measured_rate(rate, rate.per_s)),
            doc.number("95 %", lambda rate: _half_width(rate.low_per_s, rate.per_s, rate.high_per_s)),
            doc.number("Published", lambda rate: _measured_rate(rate, _published(rate, spec)[0])),
            doc.number("Share", lambda rate: units.format_fraction(_published(rate, spec)[1])),
            doc.number("SM clock", clock),
        ),
        doc.table(
            measured.times,
            doc.words("Time", lambda time: _title(time.name, measured)),
            doc.number("Measured", "median_ns"),
            doc.number("95 %", lambda time: _half_width(time.low_ns, time.median_ns, time.high_ns)),
        ),
        doc.FactList(tuple((f"No {title[0].lower()}{title[1:]}", why) for title, why in missing)),
        doc.Paragraph(
            f"Measured {measured.created[:16].replace('T', ' ')} UTC, torch {measured.torch}{driver}, in "
            f"{units.format_duration(measured.duration_ns)}."
        ),
    )


def _measured_rate(rate: MeasuredRate, per_s: float | None) -> str:
    if rate.unit == "bytes":
        return units.format_byte_rate(per_s)
    # Integer operations are no FLOP.
    text = units.format_flop_rate(per_s)
    return text.replace("FLOP", "OP") if rate.name == "matrix_int8" else text


def _title(name: str, measured: MeasuredLimits) -> str:
    data_type = measured_type(name, measured.compute_capability)
    if data_type is not None:
        return f"Product of {_TYPE_TITLES[data_type]}"
    return _TITLES.get(name, name)


def _rate(peak: Peak | None) -> str:
    if peak is None:
        return units.UNKNOWN
    operation = "OP" if peak.data_type is DataType.INT8 else "FLOP"
    factor, unit = (1e15, "P") if peak.flop_per_s >= 0.9995e15 else (1e12, "T")
    return f"{peak.flop_per_s / factor:.3g} {unit}{operation}/s"


def _half_width(low: float, value: float, high: float) -> str:
    return f"± {units.format_fraction((high - low) / 2 / value)}"


def _clock(clock_hz: float | None) -> str:
    return units.UNKNOWN if clock_hz is None else f"{clock_hz / 1e6:.0f} MHz"


_DENSE = (
    "CC is the compute capability. Peaks are dense (no structured sparsity), at the boost clock; bf16 is "
    "that of tensor cores that accumulate in fp32. A dash: not known for certain. Memory is as labelled."
)


def device_list_document(
    devices: Sequence[DeviceSpec], architectures: Sequence[Architecture] = ()
) -> doc.Document:
    """One row per device, oldest first, then the capabilities that no device of the table has."""
    known = doc.table(
        devices,
        doc.words("Architecture", _of_architecture("name"), spare=1),
        doc.words("GPU", "name"),
        doc.number("CC", "compute_capability", lambda capability: capability or units.UNKNOWN),
        doc.number("-arch", _of_architecture("target"), doc.Code),
        doc.number("CUDA", "architecture", _toolkits),
        doc.number("SMs", "sm_count"),
        doc.number("Memory", "memory_bytes", _gib),
        doc.number("Bandwidth", "memory_bandwidth_bytes_per_s"),
        doc.number("bf16 peak", lambda device: _rate(device.peak(DataType.BF16))),
        doc.number("fp32 peak", lambda device: _rate(device.peak(DataType.FP32)), spare=2),
    )

    of_devices = {one.compute_capability for one in devices}
    shown = doc.blocks(
        known,
        doc.Paragraph(_DENSE),
        doc.facts(
            *(
                (
                    one.products or one.name,
                    (
                        f"{one.name}, {one.compute_capability}, ",
                        doc.Code(one.arch_flag),
                        f", CUDA {_toolkits(one)}",
                    ),
                )
                for one in architectures
                if one.compute_capability not in of_devices
            )
        ),
        doc.Paragraph(("Everything about one, with sources: ", doc.Code("opscope devices NAME"), ".")),
    )
    return doc.Document("GPUs", sections=(doc.Section("", shown),))


def _of_architecture(attribute: str) -> Callable[[DeviceSpec], Any]:
    return lambda device: device.architecture and getattr(device.architecture, attribute)


def device_details_document(
    devices: Sequence[DeviceSpec],
    architectures: Sequence[Architecture],
    measured: Mapping[str, MeasuredLimits] | None = None,
) -> doc.Document:
    def origin(peak: Peak, *, device: DeviceSpec) -> str:
        is_own = peak.evidence is SpecEvidence.DERIVED or peak.source == device.source
        return str(peak.evidence if is_own else peak.source)

    shown = []
    for device in devices:
        peaks = doc.table(
            device.peaks,
            doc.words("Dense peak", lambda peak: _TYPE_TITLES[peak.data_type]),
            doc.number("Rate", _rate),
            doc.words("Known from", partial(origin, device=device)),
        )
        derived = (str(one.source) for one in device.peaks if one.evidence is SpecEvidence.DERIVED)
        sources = ", ".join(dict.fromkeys(derived))
        meaning = f"Derived: {SpecEvidence.DERIVED.meaning}; the rates are those of {sources}."
        told = doc.blocks(
            _device_facts(device),
            peaks,
            doc.Paragraph(meaning if sources else ""),
            doc.Paragraph(device.note or ""),
        )
        shown.append(doc.Section(device.name, told))
        for its in _measured_of(device, measured or {}):
            # Nothing published holds for a slice.
            title, spec = (its.device, None) if is_partition(its.device) else (device.name, device)
            shown.append(doc.Section(f"Measured: {title}", _measured_blocks(its, spec)))
    return doc.Document("", sections=(*shown, *map(_architecture_section, architectures)))


def _device_facts(device: DeviceSpec) -> doc.FactList:
    found, known, left_out = device.architecture, list[tuple[str, str]](), list[str]()
    family = None if found is None else f"{found.name}, compute capability {found.compute_capability}"
    bandwidth = units.format_byte_rate(device.memory_bandwidth_bytes_per_s)
    values = (
        ("Multiprocessors", "sm_count", units.format_count(device.sm_count)),
        ("Boost clock", "boost_clock_hz", _clock(device.boost_clock_hz)),
        ("Tensor core clock", "tensor_clock_hz", _clock(device.tensor_clock_hz)),
        ("Memory", "memory_bytes", f"{_gib(device.memory_bytes)} {device.memory_kind or ''}".rstrip()),
        ("Memory bus", "memory_bus_bits", f"{device.memory_bus_bits} bits"),
        ("Memory bandwidth", "memory_bandwidth_bytes_per_s", bandwidth),
        ("L2 cache", "l2_bytes", units.format_binary(device.l2_bytes)),
        ("NVLink, each way", "nvlink_bytes_per_s", units.format_byte_rate(device.nvlink_bytes_per_s)),
        ("PCIe, each way", "pcie_bytes_per_s", units.format_byte_rate(device.pcie_bytes_per_s)),
        ("Power", "tdp_watts", f"{device.tdp_watts} W"),
    )
    for label, key, text in values:
        source = device.source_of(key)
        if source is not None:
            known.append((label, text if source == device.source else f"{text} ({source})"))
        elif key not in ("tensor_clock_hz", "memory_bus_bits", "nvlink_bytes_per_s", "pcie_bytes_per_s"):
            left_out.append(label if label.startswith("L2") else label.lower())
    return doc.facts(
        ("Architecture", family),
        ("nvcc", None if found is None else (doc.Code(found.arch_flag), f", CUDA {_toolkits(found)}")),
        *known,
        ("Not known for certain", ", ".join(left_out)),
        ("Source", str(device.source)),
    )


def _architecture_section(one: Architecture) -> doc.Section:
    specific = (
        () if one.specific_target is None else ("; with its own features ", doc.Code(one.specific_target))
    )
    shared = (
        f"{units.format_binary(one.shared_bytes_per_sm)} per multiprocessor; a block has "
        f"{units.format_binary(one.static_shared_bytes_per_block)}, on request "
        f"{units.format_binary(one.max_shared_bytes_per_block)}"
    )
    if reserved := one.reserved_shared_bytes_per_block:
        shared += f"; {units.format_binary(reserved)} of each block is the system's"
    known = doc.facts(
        ("Found in", one.products),
        ("nvcc", (doc.Code(one.arch_flag), *specific)),
        ("CUDA", _toolkits(one)),
        (
            "Per multiprocessor",
            f"{one.max_threads_per_sm:,} threads ({one.max_warps_per_sm} warps), "
            f"{one.max_blocks_per_sm} blocks, {one.registers_per_sm:,} registers",
        ),
        ("Shared memory", shared),
        ("Per block", f"{one.max_threads_per_block:,} threads, {one.max_registers_per_block:,} registers"),
        ("Per thread", f"{one.max_registers_per_thread} registers"),
        ("fp32 cores", f"{one.fp32_cores_per_sm} per multiprocessor"),
        ("Sources", f"{one.source}; CUDA versions: {one.toolkit_source}"),
    )
    told = doc.blocks(known, doc.Paragraph(one.note or ""))
    return doc.Section(f"Compute capability {one.compute_capability} ({one.name})", told)


def _toolkits(one: Architecture) -> str:
    """The CUDA toolkits that build for a capability: `11.8+`, or `9.0–12.9` where the newest no longer do."""
    last = one.last_cuda_version
    return f"{one.least_cuda_version}–{last}" if last else f"{one.least_cuda_version}+"


_gib = partial(units.format_binary, unit="GiB")


_NUMBERS = (
    "sm_count", "boost_clock_hz", "tensor_clock_hz", "memory_bytes", "memory_bus_bits",
    "memory_pin_bits_per_s", "memory_bandwidth_bytes_per_s", "l2_bytes", "nvlink_bytes_per_s",
    "pcie_bytes_per_s", "tdp_watts",
)  # fmt: skip


def devices_json(
    devices: Sequence[DeviceSpec],
    architectures: Sequence[Architecture],
    measured: Mapping[str, MeasuredLimits] | None = None,
) -> dict[str, Any]:
    """Devices and compute capabilities; a device's architecture is found by its compute capability."""
    keys: dict[type, Keys] = {
        Architecture: Keys("... max_warps_per_sm target arch_flag"),
        DeviceSpec: Keys(
            "... -number_sources architecture arch_flag least_cuda_version peaks measured source sources",
            architecture=_of_architecture("name"),
            arch_flag=_of_architecture("arch_flag"),
            least_cuda_version=_of_architecture("least_cuda_version"),
            measured=lambda device: [
                measured_json(one, None if is_partition(one.device) else device)
                for one in _measured_of(device, measured or {})
            ],
            sources=lambda device: {
                name: source for name in _NUMBERS if (source := device.source_of(name)) is not None
            },
        ),
        Peak: Keys(
            "type=data_type accumulates_in=data_type.accumulates_in "
            "uses_tensor_cores=data_type.uses_tensor_cores flop_per_s evidence source"
        ),
    }
    return {"schema_version": 1, **encode({"devices": devices, "architectures": architectures}, keys)}


def measured_json(measured: MeasuredLimits, spec: DeviceSpec | None) -> dict[str, Any]:
    """One measurement, each rate with the share it is of the published one; None where none is published."""
    document: dict[str, Any] = finite(encode(measured))
    for rate, record in zip(measured.rates, document["rates"], strict=True):
        record["published_per_s"], record["published_fraction"] = _published(rate, spec)
    return document


_SHOWN_DEVICES = 8
_TOOLS = ("nvcc", "nsys", "ncu", "cuobjdump")
_MOST_SEVERE_FIRST = (CheckVerdict.PROBLEM, CheckVerdict.WARNING, CheckVerdict.UNKNOWN)


def doctor_document(diagnosis: Diagnosis) -> doc.Document:
    """The facts in a panel, then the checks that need attention, then the names of the others."""
    title = "Programs cannot be profiled on this machine"
    if diagnosis.can_profile:
        count = len(diagnosis.facts.get("devices") or ())
        where = units.counted(count, "GPU") if count else "the CPU"
        title = f"Ready: programs can be profiled on {where}"
    by_verdict = {
        verdict: [one for one in diagnosis.results if one.outcome.verdict is verdict]
        for verdict in CheckVerdict
    }
    bullets: list[doc.Text] = []
    for one in chain.from_iterable(by_verdict[verdict] for verdict in _MOST_SEVERE_FIRST):
        outcome, said = one.outcome, f" {one.check.code}: {one.outcome.reason.removesuffix('.')}"
        remedy = () if outcome.remedy is None else (". → ", doc.Code(outcome.remedy, is_whole=True))
        bullets.append((doc.Strong(str(outcome.verdict)), said, *remedy))
    named = (
        doc.Paragraph(
            f"{str(verdict).replace('_', ' ')} ({len(found)}): {', '.join(one.check.code for one in found)}"
        )
        for verdict in (CheckVerdict.OK, CheckVerdict.NOT_APPLICABLE)
        if (found := by_verdict[verdict])
    )
    return doc.Document(
        title,
        (_facts(diagnosis.facts),),
        (
            *doc.sections(doc.Section("Findings", (doc.BulletList(tuple(bullets)),))),
            doc.Section("Checks", tuple(named)),
        ),
    )


def _facts(facts: dict[str, Any]) -> doc.FactList:
    """What was not found out in time is left out, or said to be unknown."""
    host, driver = facts.get("machine") or MachineFacts(""), facts.get("driver") or Driver()
    packages, torch = facts.get("packages") or {}, facts.get("torch") or Torch()
    gpus = facts.get("devices") or ()
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "the CPU"
    git = f"git {torch.git_version[:10]}" if torch.git_version else None
    installed = f"{packages['torch']}, does not come up" if packages.get("torch") else "not installed"
    served = f" (serves CUDA {driver.cuda_version})" if driver.cuda_version else ""
    is_there = driver.version is not None or driver.cuda_version is not None
    triton = next((name for name, version in packages.items() if "triton" in name and version), "triton")
    shown = (("Triton", triton), ("transformers", "transformers"), ("vLLM", "vllm"))
    return doc.facts(
        (
            "Machine",
            units.listed(
                host.system,
                host.processor,
                f"{host.cpu_count} CPUs" if host.cpu_count else None,
                f"{_gib(host.memory_bytes)} of memory" if host.memory_bytes else None,
                f"in a container ({host.container})" if host.container else None,
            ),
        ),
        ("Python", f"{platform.python_version()}, {sys.executable}"),
        (
            "torch",
            installed
            if torch.version is None
            else units.listed(torch.version, f"built for {built}", git, " ".join(torch.architectures)),
        ),
        (
            "CUDA",
            units.listed(
                f"driver {driver.version or units.UNKNOWN}{served}" if is_there else "no driver",
                f"runtime {torch.cuda}" if torch.cuda else None,
                f"cuDNN {torch.cudnn}" if torch.cudnn else None,
            ),
        ),
        ("Packages", ", ".join(f"{title} {packages.get(name) or units.UNKNOWN}" for title, name in shown)),
        (
            "Tools",
            ", ".join(
                f"{one.name} {one.version or ('found' if one.path else units.UNKNOWN)}"
                for one in (facts.get(name) or ProgramFacts(name) for name in _TOOLS)
            ),
        ),
        ("Profiler", _profiler(torch, facts)),
        *((f"GPU {one.device.index}", _gpu(one)) for one in gpus[:_SHOWN_DEVICES]),
        ("", f"and {len(gpus) - _SHOWN_DEVICES} more" if len(gpus) > _SHOWN_DEVICES else None),
    )


def _profiler(torch: Torch, facts: dict[str, Any]) -> str:
    capture, counters = torch.capture, facts.get("counters")
    recorded = "records nothing"
    if capture is not None and capture.error is None:
        recorded = f"{capture.operator_count} CPU operators recorded"
        if capture.kernels_launched:
            recorded = f"{capture.kernels_recorded} of {capture.kernels_launched} kernels recorded"
    if not facts.get("devices"):
        return recorded
    words = {
        None: "hardware counters not tried",
        True: "hardware counters readable",
        False: "hardware counters not readable",
    }
    return f"{recorded}, {words[None if counters is None else counters.is_readable]}"


def _gpu(gpu: Gpu) -> str:
    device = gpu.device
    used = f" ({_gib(gpu.memory_used_bytes)} in use)" if gpu.memory_used_bytes is not None else ""
    return units.listed(
        device.name,
        f"compute capability {device.compute_capability}",
        f"{device.sm_count} SMs" if device.sm_count else None,
        f"{_gib(device.memory_bytes)}{used}" if device.memory_bytes else None,
        f"busy {units.format_fraction(gpu.utilization_fraction)}" if gpu.utilization_fraction else None,
        None if gpu.processes is None else units.counted(len(gpu.processes), "other process"),
    )


DOCTOR_SCHEMA_VERSION = 7
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
