"""Reads a report of Nsight Compute with NVIDIA's ncu-report, and checks that all of the file was read.

Units are converted exactly: the file keeps base units (ns, byte, %), and one this module does not know makes
its metric unread, never misread. Everything that can be wrong with a file is one InputError.

NVIDIA's reader answers a file that is cut off, or no report at all, with an empty or shorter list, so the
blocks of the file are walked here too and their results counted. A report file is the magic, a header and
blocks; each of them is a length of 4 bytes and a protobuf message, a block's followed by its payload. The few
fields needed are read by hand: the protobuf library would need the descriptors written out, which is no less.

Source: Nsight Compute, Customization Guide, "Report File Format", and extras/FileFormat/ProfilerReport.proto.
"""

from __future__ import annotations

import gzip
import re
import struct
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import replace

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
    NcuDevice,
    NcuReport,
    Occupancy,
    Process,
    Quantity,
)

MAGIC = b"NVR\0"
# The file header's version, the same since 2019.
_KNOWN_VERSION = 7
# Fields of ProfilerReport.proto: of the file header, of a block header, of its session details and process.
_VERSION = 1
_RESULTS, _SESSION, _PAYLOAD_SIZE, _PROCESS = 2, 3, 5, 6
_SOFTWARE, _COMMAND = 8, 11
_SOFTWARE_NAME, _SOFTWARE_VERSION = 1, 2
_PROCESS_ID, _EXECUTABLE = 1, 3
_WRITER = "Nsight Compute Target"
_CUDA = "CUDA Version"
# Headers seen have up to 10 kB; a length beyond this is no length.
_LONGEST_HEADER = 1 << 26
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT_BITS = 63

Fields = dict[int, list[int | bytes]]

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
_DRAM_RATE = "dram__bytes.sum.per_second"


def is_report(path: str | Path) -> bool:
    """Whether a path means a report: by its suffix, or by the first bytes of the file."""
    file = Path(path)
    if file.name.endswith(SUFFIXES):
        return True
    try:
        with file.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def check_reader() -> None:
    """Return if reports can be read here.

    Raises:
        DependencyError: ncu-report is not installed.
    """
    _reader()


def read_report(path: str | Path) -> NcuReport:
    """The report in a file; one packed with gzip is unpacked to a temporary file.

    Raises:
        DependencyError: ncu-report is not installed.
        InputError: No such file, not a report, cut off, damaged, or of a version ncu-report cannot read.
    """
    file = Path(path)
    check_reader()
    with _unpacked(file) as report, _named(file):
        # Of ncu's own packed form, which only the reader opens, nothing is known.
        is_packed = file.name.endswith(".ncu-repz")
        container = Container(None) if is_packed else read_container(report)
        found = confined(_results, report, reader="NVIDIA's reader")
        processes = container.processes
        _check(len(found), container, file)
        return NcuReport(
            source=file,
            kernels=tuple(
                replace(one, process=processes[one.index] if processes else Process())
                for one in found
                if isinstance(one, KernelCounters)
            ),
            other_results=tuple(one for one in found if isinstance(one, str)),
            ncu_version=container.ncu_version,
            cuda_version=container.cuda_version,
            command=container.command,
            reader_version=_reader_version(),
        )


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Errors name the file as the user knows it, not as it was unpacked."""
    try:
        yield
    except InputError as error:
        raise InputError(
            error.message, source=file, byte_offset=error.byte_offset, hint=error.hint
        ) from error


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


def _check(results: int, container: Container, file: Path) -> None:
    processes = container.processes
    if processes is not None and not processes:
        raise InputError(
            "the report holds no results: ncu profiled no kernel",
            source=file,
            hint="Its filters (--kernel-name, --launch-skip) may have matched none",
        )
    if results == 0 or (processes is not None and results != len(processes)):
        what = f"{results} of its {len(processes)} results" if processes else "no results"
        raise InputError(f"ncu-report finds {what}{_origin(container)}", source=file, hint=_UPGRADE)


def _origin(container: Container) -> str:
    if container.format_version is None:
        return ""
    writer = f", written by ncu {container.ncu_version}" if container.ncu_version else ""
    return f" in a file of format {container.format_version}{writer}"


def _results(report: Path) -> list[KernelCounters | str]:
    """Every result, in order; of what is no kernel the name."""
    try:
        # They live as long as the list does, and what it was read from with them.
        actions = [action for group in _reader().load_report(str(report)) for action in group]
    except (OSError, RuntimeError, ValueError, TypeError, SystemError) as error:
        raise InputError(f"ncu-report cannot read it ({error})", hint=_UPGRADE) from error
    return [
        _kernel(index, action)
        if action.workload_type() == action.WorkloadType_KERNEL
        else action.name(action.NameBase_DEMANGLED)
        for index, action in enumerate(actions)
    ]


def _kernel(index: int, action: Any) -> KernelCounters:
    metrics = _Metrics(action)
    values = _values(metrics)
    return KernelCounters(
        index=index,
        function=action.name(action.NameBase_FUNCTION),
        name=action.name(action.NameBase_DEMANGLED),
        mangled_name=action.name(action.NameBase_MANGLED),
        process=Process(),
        device=_device(metrics),
        grid=metrics.extent("launch__grid_dim_"),
        block=metrics.extent("launch__block_dim_"),
        registers_per_thread=metrics.integer("launch__registers_per_thread"),
        shared_memory_bytes=_shared_memory(metrics),
        values=values,
        stalls=_stalls(metrics),
        occupancy=Occupancy(
            _float(values, Quantity.THEORETICAL_OCCUPANCY),
            _float(values, Quantity.OCCUPANCY),
            _float(values, Quantity.WAVES),
            _block_limits(metrics),
        ),
        sections=_sections(action),
        replay_passes=metrics.integer("profiler__replayer_passes"),
    )


def _sections(action: Any) -> tuple[str, ...] | None:
    """Sections by name, without those that ncu makes of `--metrics`; readers before 2026.3 do not tell."""
    if not hasattr(action, "sections"):
        return None
    names = (section.identifier() for section in action.sections())
    return tuple(name for name in names if not re.fullmatch(r"section\d+", name))


class _Metrics:
    """Metrics of one result; None for what it does not hold or hold a value of."""

    def __init__(self, action: Any) -> None:
        self._action = action
        self.names: tuple[str, ...] = tuple(action.metric_names())

    def read(self, name: str) -> tuple[int | float | str, str] | None:
        """Value and unit."""
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
        """The same, whole."""
        value = self.number(name)
        return None if value is None else round(value)

    def text(self, name: str) -> str | None:
        """The value of a metric of words."""
        found = self.read(name)
        return found[0] if found is not None and isinstance(found[0], str) and found[0] else None

    def extent(self, prefix: str) -> Extent | None:
        """Three sizes."""
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


def _float(values: Mapping[Quantity, int | float], quantity: Quantity) -> float | None:
    value = values.get(quantity)
    return None if value is None else float(value)


def _device(metrics: _Metrics) -> NcuDevice:
    major = metrics.integer("device__attribute_compute_capability_major")
    minor = metrics.integer("device__attribute_compute_capability_minor")
    return NcuDevice(
        ordinal=metrics.integer("launch__device_id"),
        name=metrics.text("device__attribute_display_name"),
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        sm_count=metrics.integer("device__attribute_multiprocessor_count"),
        memory_bytes=metrics.integer("device__attribute_total_memory"),
        l2_bytes=metrics.integer("device__attribute_l2_cache_size"),
    )


def _shared_memory(metrics: _Metrics) -> int | None:
    static = metrics.integer("launch__shared_mem_per_block_static")
    dynamic = metrics.integer("launch__shared_mem_per_block_dynamic")
    return None if static is None or dynamic is None else static + dynamic


def _stalls(metrics: _Metrics) -> dict[str, float]:
    found = {
        name[len(STALL_PREFIX) : -len(STALL_SUFFIX)]: metrics.number(name)
        for name in metrics.names
        if name.startswith(STALL_PREFIX) and name.endswith(STALL_SUFFIX)
    }
    known = {reason: cycles for reason, cycles in found.items() if cycles is not None}
    return dict(sorted(known.items(), key=lambda item: (-item[1], item[0])))


def _block_limits(metrics: _Metrics) -> dict[str, int]:
    found = {resource: metrics.integer(name) for resource, name in OCCUPANCY_LIMITS.items()}
    return {resource: blocks for resource, blocks in found.items() if blocks is not None}


@dataclass(frozen=True)
class Container:
    """What the blocks say.

    Attributes:
        format_version: Of the file.
        processes: Of every result, in the order of the results; None if the format is not known here.
        ncu_version: `2025.3.1.0`; None if the file does not say.
        cuda_version: Newest CUDA the driver served, `13.0`.
        command: The command line of ncu.
    """

    format_version: int | None
    processes: tuple[Process, ...] | None = None
    ncu_version: str | None = None
    cuda_version: str | None = None
    command: str | None = None


def read_container(path: Path) -> Container:
    """The blocks of a report; of one in a format unknown here only its version.

    Raises:
        InputError: Not a report, cut off, or damaged.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise InputError("not a report of Nsight Compute", source=path, hint="ncu -o FILE writes them")
        size = path.stat().st_size
        version = _integer(_message(file, path, size), _VERSION)
        if version != _KNOWN_VERSION:
            return Container(version)
        return _container(_blocks(file, path, size))


def _blocks(file: BinaryIO, path: Path, size: int) -> Iterator[Fields]:
    while file.tell() < size:
        header = _message(file, path, size)
        payload_bytes = _integer(header, _PAYLOAD_SIZE) or 0
        end = file.tell() + payload_bytes
        if end > size:
            raise _cut_off(path, size, end)
        if (_integer(header, _RESULTS) or 0) > payload_bytes:  # what a count claims is made room for
            raise _damaged(path, end)
        file.seek(end)
        yield header


def _container(blocks: Iterator[Fields]) -> Container:
    processes: list[Process] = []
    software: dict[str, str] = {}
    command: str | None = None
    for block in blocks:
        processes += [_process(block)] * (_integer(block, _RESULTS) or 0)
        for session in _messages(block, _SESSION):
            command = command or _text(session, _COMMAND)
            for one in _messages(session, _SOFTWARE):
                software[_text(one, _SOFTWARE_NAME) or ""] = _text(one, _SOFTWARE_VERSION) or ""
    writer = software.get(_WRITER, "").split(" ", maxsplit=1)[0]
    return Container(
        _KNOWN_VERSION, tuple(processes), writer or None, software.get(_CUDA), command and command.strip()
    )


def _process(block: Fields) -> Process:
    for found in _messages(block, _PROCESS):
        return Process(_integer(found, _PROCESS_ID), _text(found, _EXECUTABLE))
    return Process()


def _message(file: BinaryIO, path: Path, size: int) -> Fields:
    """The message that starts here, its length before it."""
    start = file.tell()
    prefix = file.read(4)
    if len(prefix) < 4:
        raise _cut_off(path, size, start + 4)
    (length,) = struct.unpack("<I", prefix)
    if length > _LONGEST_HEADER:
        raise _damaged(path, start)
    content = file.read(length)
    if len(content) < length:
        raise _cut_off(path, size, start + 4 + length)
    try:
        return _fields(content)
    except (IndexError, ValueError) as error:
        raise _damaged(path, start) from error


def _cut_off(path: Path, size: int, needed: int) -> InputError:
    return InputError(
        f"the report is cut off: it needs at least {needed:,} bytes and has {size:,}",
        source=path,
        byte_offset=size,
        hint="Copy it again, or let ncu end before reading it",
    )


def _damaged(path: Path, offset: int) -> InputError:
    return InputError(
        "the report is damaged: what should be the header of a block is none",
        source=path,
        byte_offset=offset,
        hint="Copy it again, or record it anew",
    )


def _fields(content: bytes) -> Fields:
    """Values of a protobuf message by field number.

    Raises:
        IndexError: The content ends within a value.
        ValueError: A wire type that does not exist, or a number of more than 64 bits.
    """
    fields: Fields = {}
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        value: int | bytes
        if key & 7 == _VARINT:
            value, position = _varint(content, position)
        else:
            length, position = _length(content, position, key & 7)
            if position + length > len(content):
                raise IndexError
            value, position = content[position : position + length], position + length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _length(content: bytes, position: int, wire_type: int) -> tuple[int, int]:
    if wire_type == _BYTES:
        return _varint(content, position)
    if wire_type in (_FIXED64, _FIXED32):
        return (8 if wire_type == _FIXED64 else 4), position
    raise ValueError(wire_type)


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _LONGEST_VARINT_BITS:
            raise ValueError(shift)


def _integer(fields: Fields, number: int) -> int | None:
    value = fields.get(number, [None])[-1]
    return value if isinstance(value, int) else None


def _text(fields: Fields, number: int) -> str | None:
    value = fields.get(number, [None])[-1]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None


def _messages(fields: Fields, number: int) -> Iterator[Fields]:
    """Messages within a message; what is none is left out: only what can be done without is read so."""
    for value in fields.get(number, []):
        if isinstance(value, bytes):
            try:
                yield _fields(value)
            except (IndexError, ValueError):
                continue
