"""Reads a report of Nsight Compute with NVIDIA's ncu-report, in a process of its own.

Units are converted exactly: the file keeps base units (ns, byte, %), and one this module does not know makes
its metric unread, never misread. Everything that can be wrong with a file is one InputError: of a file
that is damaged NVIDIA's reader finds no results.

Source: Nsight Compute, Customization Guide, "Report File Format".
"""

from __future__ import annotations

import gzip
import re
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from opscope.errors import DependencyError, InputError
from opscope.model.confined import confined
from opscope.model.files import check_ratio, scratch_prefix
from opscope.toolchain.ncu_report import (
    OCCUPANCY_LIMITS,
    QUANTITIES,
    SECTOR_BYTES,
    STALL_PREFIX,
    STALL_SUFFIX,
    Dimension,
    Extent,
    KernelCounters,
    NcuAdvice,
    NcuDevice,
    NcuReport,
    Occupancy,
    Quantity,
)

MAGIC = b"NVR\0"
SUFFIXES = (".ncu-rep", ".ncu-rep.gz", ".ncu-repz")
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 20
# Units as ncu writes them, older versions in full; each is a whole multiple of the base unit.
_UNITS: Mapping[Dimension, Mapping[str, int]] = {
    Dimension.TIME_NS: {
        **{"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9},
        **{"nsecond": 1, "usecond": 10**3, "msecond": 10**6, "second": 10**9},
    },
    Dimension.BYTES: {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9, "Tbyte": 10**12},
    Dimension.SECTORS: {"sector": SECTOR_BYTES, "": SECTOR_BYTES},
}
_UPGRADE = "It is damaged, or of another version: pip install --upgrade ncu-report"
_NO_RESULTS = (
    "ncu profiled no kernel (--kernel-name and --launch-skip may have matched none), or the file is cut off, "
    "damaged, or of another version: pip install --upgrade ncu-report"
)
_DRAM_RATE = "dram__bytes.sum.per_second"


def is_report(path: str | Path) -> bool:
    """Whether a path means a report: by its suffix, or by the first bytes of the file."""
    return Path(path).name.endswith(SUFFIXES) or _begins_as_report(Path(path))


def _begins_as_report(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def check_reader() -> None:
    """Raise a DependencyError if ncu-report is not installed."""
    _reader()


def read_report(path: str | Path) -> NcuReport:
    """The report in a file; one packed with gzip is unpacked to a temporary file."""
    file = Path(path)
    check_reader()
    with _unpacked(file) as report:
        # Ncu's own packed form only the reader opens.
        if not file.name.endswith(".ncu-repz") and not _begins_as_report(report):
            raise InputError("not a report of Nsight Compute", source=file, hint="ncu -o FILE writes them")
        try:
            found = confined(_results, report, reader="NVIDIA's reader")
        except InputError as error:  # of the file as the user knows it, not as it was unpacked
            raise InputError(error.message, source=file, hint=error.hint) from error
        if not found:
            raise InputError("ncu-report finds no results", source=file, hint=_NO_RESULTS)
        return NcuReport(
            source=file,
            kernels=tuple(one for one in found if isinstance(one, KernelCounters)),
            other_results=tuple(one for one in found if isinstance(one, str)),
            reader_version=_reader_version(),
        )


def _reader() -> Any:
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of what SWIG generates, which is no business of a user's.
            warnings.simplefilter("ignore", DeprecationWarning)
            import ncu_report  # noqa: PLC0415 - the extra `ncu`
    except ImportError as error:
        raise DependencyError(
            f"reports of Nsight Compute need NVIDIA's ncu-report ({error})", hint="pip install 'opscope[ncu]'"
        ) from error
    return ncu_report


def _reader_version() -> str | None:
    try:
        return version("ncu-report")
    except PackageNotFoundError:  # from the `extras/python` folder of an installation
        return None


@contextmanager
def _unpacked(file: Path) -> Iterator[Path]:
    """The file itself, or its content in a temporary one if it is packed."""
    try:
        with file.open("rb") as stream:
            is_packed = stream.read(2) == _GZIP_MAGIC
    except OSError as error:
        reason = (
            "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        )
        raise InputError(reason, source=file, hint="ncu -o FILE writes FILE.ncu-rep") from error
    if not is_packed:
        yield file
        return
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
        report = Path(folder) / "report.ncu-rep"
        try:
            with file.open("rb") as raw, gzip.open(raw) as packed, report.open("wb") as target:
                while chunk := packed.read(_CHUNK_BYTES):
                    target.write(chunk)
                    check_ratio(raw, target, file)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                f"the packed report cannot be unpacked ({error})", source=file, hint="Copy it again"
            ) from error
        yield report


def _results(report: Path) -> list[KernelCounters | str]:
    try:
        # They live as long as the list does, and what it was read from with them.
        actions = [action for group in _reader().load_report(str(report)) for action in group]
        return [
            _kernel(index, action)
            if action.workload_type() == action.WorkloadType_KERNEL
            else action.name(action.NameBase_DEMANGLED)
            for index, action in enumerate(actions)
        ]
    except (OSError, RuntimeError, ValueError, TypeError, SystemError) as error:
        raise InputError(f"ncu-report cannot read it ({error})", hint=_UPGRADE) from error


def _kernel(index: int, action: Any) -> KernelCounters:
    metrics = _Metrics(action)
    values = _values(metrics)
    static, dynamic = (
        metrics.integer(f"launch__shared_mem_per_block_{kind}") for kind in ("static", "dynamic")
    )
    stalls = {
        name[len(STALL_PREFIX) : -len(STALL_SUFFIX)]: cycles
        for name in metrics.names
        if name.startswith(STALL_PREFIX) and name.endswith(STALL_SUFFIX)
        if (cycles := metrics.number(name)) is not None
    }
    limits = {resource: metrics.integer(name) for resource, name in OCCUPANCY_LIMITS.items()}
    major, minor = (
        metrics.integer(f"device__attribute_compute_capability_{part}") for part in ("major", "minor")
    )
    function = action.name(action.NameBase_FUNCTION)
    if function is None:
        raise ValueError(f"result {index} has no name")
    return KernelCounters(
        index=index,
        function=function,
        name=action.name(action.NameBase_DEMANGLED),
        mangled_name=action.name(action.NameBase_MANGLED),
        device=NcuDevice(
            ordinal=metrics.integer("launch__device_id"),
            name=metrics.text("device__attribute_display_name"),
            compute_capability=None if major is None or minor is None else f"{major}.{minor}",
            sm_count=metrics.integer("device__attribute_multiprocessor_count"),
            memory_bytes=metrics.integer("device__attribute_total_memory"),
            l2_bytes=metrics.integer("device__attribute_l2_cache_size"),
        ),
        grid=metrics.extent("launch__grid_dim_"),
        block=metrics.extent("launch__block_dim_"),
        registers_per_thread=metrics.integer("launch__registers_per_thread"),
        shared_memory_bytes=None if static is None or dynamic is None else static + dynamic,
        values=values,
        stalls=dict(sorted(stalls.items(), key=lambda item: (-item[1], item[0]))),
        occupancy=Occupancy(
            values.get(Quantity.THEORETICAL_OCCUPANCY),
            values.get(Quantity.OCCUPANCY),
            values.get(Quantity.WAVES),
            {resource: blocks for resource, blocks in limits.items() if blocks is not None},
        ),
        # Those that ncu makes of `--metrics` are left out; readers before 2026.3 do not tell.
        sections=tuple(
            name
            for name in (section.identifier() for section in action.sections())
            if not re.fullmatch(r"section\d+", name)
        )
        if hasattr(action, "sections")
        else None,
        replay_passes=metrics.integer("profiler__replayer_passes"),
        advice=tuple(_advice(action)),
    )


_OPTIMIZATION, _GLOBAL = 2, 2  # of ncu_report's MsgType and SpeedupType
# `@section:Occupancy:Occupancy@`, `@url:fused:https://…@`: what viewers make links of.
_SECTION_LINK, _URL_LINK = re.compile(r"@section:[^:@]*:([^@]*)@"), re.compile(r"@\w+:([^:@]*):[^@]*@")


def _advice(action: Any) -> Iterator[NcuAdvice]:
    for found in action.rule_results_as_dicts() if hasattr(action, "rule_results_as_dicts") else ():
        said, speedup = found.get("rule_message") or {}, found.get("speedup_estimation") or {}
        if said.get("type") == _OPTIMIZATION:
            text = _URL_LINK.sub(r"\1", _SECTION_LINK.sub(r"\1", said["message"]))
            share = speedup["speedup"] / 100 if speedup.get("type") == _GLOBAL else None
            yield NcuAdvice(found["rule_identifier"], said["title"] or found["name"], text, share)


class _Metrics:
    """Metrics of one result; None for what it does not hold or hold a value of."""

    def __init__(self, action: Any) -> None:
        self._action = action
        self.names: tuple[str, ...] = tuple(action.metric_names())

    def read(self, name: str) -> tuple[int | float | str, str] | None:
        metric = self._action.metric_by_name(name)
        if metric is None or not metric.has_value():
            return None
        value = metric.value()
        return None if value is None else (value, metric.unit())

    def number(self, name: str) -> float | None:
        """The value of a metric that has no unit to convert."""
        found = self.read(name)
        return float(found[0]) if found is not None and not isinstance(found[0], str) else None

    def integer(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else round(value)

    def text(self, name: str) -> str | None:
        found = self.read(name)
        return found[0] if found is not None and isinstance(found[0], str) and found[0] else None

    def extent(self, prefix: str) -> Extent | None:
        x, y, z = (self.integer(prefix + axis) for axis in "xyz")
        return None if x is None or y is None or z is None else (x, y, z)


def _values(metrics: _Metrics) -> dict[Quantity, int | float]:
    values: dict[Quantity, int | float] = {}
    for quantity, metric in QUANTITIES.items():
        found = (_converted(metrics.read(name), metric.dimension) for name in metric.names)
        value = next((one for one in found if one is not None), None)
        if value is not None:
            values[quantity] = value
    if Quantity.DRAM_BYTES not in values:
        derived = _dram_bytes(metrics, values)
        if derived is not None:
            values[Quantity.DRAM_BYTES] = derived
    return values


def _dram_bytes(metrics: _Metrics, values: Mapping[Quantity, int | float]) -> int | None:
    """Reads and writes, or the rate ncu gives times the time it divided by."""
    parts = [values.get(Quantity.DRAM_READ_BYTES), values.get(Quantity.DRAM_WRITTEN_BYTES)]
    if parts[0] is not None and parts[1] is not None:
        return int(parts[0]) + int(parts[1])
    rate, unit = metrics.read(_DRAM_RATE) or (None, "")
    duration_ns = values.get(Quantity.DURATION)
    if rate is None or duration_ns is None or unit != "byte/s" or isinstance(rate, str):
        return None
    return round(rate * duration_ns / 1e9)


def _converted(found: tuple[int | float | str, str] | None, dimension: Dimension) -> int | float | None:
    """A value in the base unit of its dimension; None if its unit is not known."""
    value, unit = found or (None, "")
    if value is None or isinstance(value, str):
        return None
    if dimension in _UNITS:
        factor = _UNITS[dimension].get(unit)
        return None if factor is None else round(value * factor)
    if dimension is Dimension.FRACTION:
        return value / 100 if unit == "%" else None
    return round(value) if dimension is Dimension.EVENTS else float(value)
