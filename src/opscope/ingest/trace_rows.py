"""One row of table `traces`, whatever kind of file it came from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opscope.hardware.architectures import SpecEvidence
from opscope.hardware.devices import match_device
from opscope.ingest.nesting import union_length
from opscope.ingest.wording import finding
from opscope.model import schema

if TYPE_CHECKING:
    from opscope.model.session import Session


def write_trace(session: Session, **values: Any) -> None:
    """Insert a row into `traces`; columns that are not given are NULL."""
    columns = schema.table("traces").column_names
    row = [values.pop(name, None) for name in columns]
    assert not values, f"no columns of traces: {sorted(values)}"
    session.connection.execute(f"INSERT INTO traces VALUES ({', '.join('?' * len(row))})", row)


def is_of_torch(session: Session) -> bool:
    """Whether a program with PyTorch was recorded; an export's operators may be ranges of any program."""
    return bool(session.scalar(_OF_TORCH))


_OF_TORCH = r"""
SELECT EXISTS (FROM operators JOIN traces USING (trace_id) WHERE format <> 'nsys'
        OR regexp_matches(name, '^(aten|autograd|torch|c10d)::|^triton_|^Torch-Compiled'))
    OR EXISTS (FROM kernel_names WHERE contains(name, 'at::native::'))"""


def integer(value: Any, *, bits: int = 32) -> int | None:
    """A value as a signed integer of that width; None if it is none."""
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << (bits - 1) else None


def valid_text(text: str) -> str:
    """The text without lone surrogates: half characters of JSON escapes, foreign bytes of file names."""
    return text.encode("utf-8", "replace").decode("utf-8")


_TORCH_KEY = re.compile(r"(?:py)?torch(?:[_ -]?version)?", re.IGNORECASE)
_TORCH_PACKAGE = re.compile(r"torch(?:==| )(\d+\.\d+\.\d+[\w.+]*)")
_RELEASE = re.compile(r"v?(\d+\.\d+\.\d+[\w.+]*)")
_MOST_VALUES = 20_000


def recorded_release(properties: Mapping[str, Any]) -> str | None:
    """The torch release that a trace's own metadata names, by a key of that name or a list of packages.

    None if it names none, or several.
    """
    found: set[str] = set()
    pending: list[tuple[str, Any]] = list(properties.items())
    for _ in range(_MOST_VALUES):
        if not pending:
            break
        key, value = pending.pop()
        if isinstance(value, dict):
            pending += [(str(name), one) for name, one in value.items()]
        elif isinstance(value, list):
            pending += [(key, one) for one in value]
        elif isinstance(value, str):
            named = _RELEASE.fullmatch(value.strip()) if _TORCH_KEY.fullmatch(key) else None
            named = named or _TORCH_PACKAGE.fullmatch(value.strip())
            if named is not None:
                found.add(named[1])
    releases = {one.partition("+")[0] for one in found}
    return valid_text(max(found, key=len)) if len(releases) == 1 else None


# Keys of deviceProperties (libkineto/src/DeviceProperties.cpp), in the order of the columns.
_KEYS = (
    "name", "computeMajor", "computeMinor", "numSms", "totalGlobalMem", "warpSize", "maxThreadsPerBlock",
    "maxThreadsPerMultiprocessor", "regsPerBlock", "regsPerMultiprocessor", "sharedMemPerBlock",
    "sharedMemPerBlockOptin", "sharedMemPerMultiprocessor",
)  # fmt: skip
_MAY_BE_NONE = {"name", "computeMajor", "computeMinor"}
_DEVICE_ID = re.compile(r"[0-9]{1,9}")
_AMD_SHARED_PER_SM = "maxSharedMemoryPerMultiProcessor"


# What a trace says may be of any type; what does not fit its column is unknown.
_INSERT = "INSERT INTO devices SELECT " + ", ".join(
    f"TRY_CAST(? AS {column.type})" for column in schema.table("devices").columns
)


def write_devices(session: Session, trace_id: int, properties: Any, agents: Any = None) -> None:
    """Fill table `devices` for one trace, whose activities are there.

    `deviceProperties` are as the trace has them, which may be anything; `agents`, as ROCm's profiler
    describes them, tell what the properties do not.
    """
    described = _of_agents(agents)
    for entry in properties if isinstance(properties, list) else []:
        if isinstance(entry, dict) and _DEVICE_ID.fullmatch(str(entry.get("id"))):
            told = {key: value for key, value in entry.items() if value not in ("", None)}
            described[int(entry["id"])] = described.get(int(entry["id"]), {}) | told
    used = _use(session, trace_id)
    # A host's GPUs are of one kind where all that are described are: so is one that is not.
    kinds = {json.dumps({**entry, "id": None}, sort_keys=True) for entry in described.values()}
    common = json.loads(kinds.pop()) if len(kinds) == 1 else {}
    for device in sorted(described.keys() | used.keys()):
        entry = described.get(device, common)
        facts = [entry.get(key) for key in _KEYS]
        for at, key in enumerate(_KEYS):
            # No device has no multiprocessors, also where that is written as text.
            count = None if key in _MAY_BE_NONE else integer(facts[at], bits=64)
            facts[at] = None if count is not None and count <= 0 else facts[at]
        if device in used and not str(facts[0] or "").strip():
            facts[0] = _name_of(entry)
            if facts[0] is not None:
                named = {"device": device, "name": facts[0]}
                session.add_findings([finding("device.recognized", trace_id, named)])
        facts[-1] = facts[-1] if facts[-1] is not None else entry.get(_AMD_SHARED_PER_SM)
        row = [
            valid_text(str(one)) if isinstance(one, str | int | float) and not isinstance(one, bool) else None
            for one in facts
        ]
        unused = (0, None, None, None, None, None)
        session.connection.execute(_INSERT, [trace_id, device, *row, *used.get(device, unused)])


_GPU_AGENTS = (2, "2", "GPU", "ROCPROFILER_AGENT_TYPE_GPU")


def _of_agents(agents: Any) -> dict[int, dict[str, Any]]:
    """What agents tell of GPUs, under the keys of deviceProperties.

    Source: ROCm/rocprofiler-sdk, rocprofiler-sdk/agent.h (`rocprofiler_agent_v0_t`), whose number among the
    agents of its type is the device of a kernel (pytorch/kineto, libkineto/src/RocprofLogger.cpp).
    """
    gpus = [
        one
        for one in (agents if isinstance(agents, list) else [])
        if isinstance(one, dict) and one.get("type") in _GPU_AGENTS
    ]
    found = {}
    for position, one in enumerate(gpus):
        target, threads = (integer(one.get(key)) for key in ("gfx_target_version", "wave_front_size"))
        waves, local_kib = (integer(one.get(key)) for key in ("max_waves_per_cu", "lds_size_in_kb"))
        number = integer(one.get("logical_node_type_id"))
        found[position if number is None or number < 0 else number] = {
            "name": one.get("product_name") or one.get("name"),
            "computeMajor": target and target // 10_000 % 100,
            "computeMinor": target and target // 100 % 100,
            "numSms": one.get("cu_count"),
            "totalGlobalMem": one.get("local_mem_size"),
            "warpSize": threads,
            "maxThreadsPerBlock": one.get("workgroup_max_size"),
            "maxThreadsPerMultiprocessor": threads and waves and threads * waves,
            "sharedMemPerBlock": local_kib and local_kib * 1024,
        }
    return found


def _name_of(entry: Mapping[str, Any]) -> str | None:
    """The name of the one GPU that has what is reported of a nameless one; None if there is no such one."""
    major, minor = (integer(entry.get(key)) for key in ("computeMajor", "computeMinor"))
    found = match_device(
        "",
        compute_capability=None if major is None else f"{major}.{minor or 0}",
        memory_bytes=integer(entry.get("totalGlobalMem"), bits=64),
        sm_count=integer(entry.get("numSms")),
    ).spec
    return None if found is None or found.evidence is SpecEvidence.DEVICE_PROPERTIES else found.names[0]


def _use(session: Session, trace_id: int) -> dict[int, tuple[int, ...]]:
    """activity_count, first_start, last_end, span, busy and idle of each device that was used."""
    columns = session.connection.execute(
        "SELECT device, start_ns, start_ns + duration_ns AS end_ns FROM device_activities "
        "WHERE trace_id = ? AND device IS NOT NULL ORDER BY device",
        [trace_id],
    ).fetchnumpy()
    devices, starts, ends = columns["device"], columns["start_ns"], columns["end_ns"]
    use: dict[int, tuple[int, ...]] = {}
    for device in sorted(set(devices.tolist())):
        mine = devices == device
        first, last = int(starts[mine].min()), int(ends[mine].max())
        busy = union_length(starts[mine], ends[mine])
        use[device] = (int(mine.sum()), first, last, last - first, busy, last - first - busy)
    return use
