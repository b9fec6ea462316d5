"""Filling the provenance tables of a Session: read what it recorded, resolve, write rows.

Idempotent: a Session that was annotated keeps its facts, so a saved one means the same everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.model.evidence import weakest
from opscope.model.files import UNREADABLE_JSON
from opscope.model.location import SourceLocation
from opscope.model.session import Session
from opscope.provenance.operators.overloads import input_record
from opscope.provenance.resolution.evidence import (
    Evidence,
    KernelProvenance,
    NativeFunctionFacts,
    gather_evidence,
)
from opscope.provenance.resolution.resolvers import RecordedCall, resolve_kernel, resolve_operator

_FunctionKey = tuple[str, str | None, str]  # name, overload, candidates
_DONE = "provenance"
_NOT_FIELDS = frozenset(("name", "function", "template_arguments", "grades"))

_CALLS_SQL = """
SELECT coalesce(name, '') AS name, overload, input_types::VARCHAR AS input_types, count(*) AS calls,
    sum(self_device_ns)::BIGINT AS self_device_ns
FROM operators GROUP BY ALL ORDER BY self_device_ns DESC, name, overload, input_types"""

_LAUNCHED_SQL = """
SELECT coalesce(o.name, '') AS operator, n.name AS kernel
FROM device_activities a JOIN operators o USING (operator_id) JOIN kernel_names n USING (name_id)
WHERE a.kind = 'kernel' GROUP BY ALL ORDER BY sum(a.duration_ns) DESC, n.name"""


def annotate(session: Session) -> None:
    """Fill the provenance tables, unless they are filled already."""
    if session.scalar("SELECT count(*) FROM metadata WHERE key = ?", [_DONE]):
        return
    if session.scalar("SELECT count(*) FROM recognition"):
        return
    names = session.query("SELECT name_id, name FROM kernel_names ORDER BY name_id")
    evidence = gather_evidence(session, [name for _, name in names])
    kernels = {name: resolve_kernel(name, evidence) for _, name in names}
    session.replace_rows(
        "kernel_provenance", [_kernel_row(name_id, kernels[name]) for name_id, name in names]
    )
    _annotate_operators(session, kernels, evidence)
    recognition = evidence.recognition
    row = {
        "torch_version": recognition.release,
        "grade": recognition.grade if recognition.version else None,
        "hit_rates": recognition.hit_rates,
        "reason": recognition.reason,
        "candidate_kernels": recognition.candidate_count,
        "operator_table": evidence.operators.version,
        "operator_grade": evidence.operators.grade,
        "source_indexes": [source.index.version for source in evidence.sources],
    }
    session.replace_rows("recognition", [row])
    if not session.is_read_only:
        session.set_metadata(_DONE, "1")


def _annotate_operators(
    session: Session, kernels: Mapping[str, KernelProvenance], evidence: Evidence
) -> None:
    launched: dict[str, list[KernelProvenance]] = defaultdict(list)
    for operator, kernel in session.query(_LAUNCHED_SQL):
        launched[operator].append(kernels[kernel])
    rows = session.records(_CALLS_SQL)
    # A recorder that writes overloads leaves out only the default one.
    default = "" if any(row["overload"] for row in rows) else None
    calls = [
        RecordedCall(
            row["name"],
            default if row["overload"] is None else row["overload"],
            _types(row["input_types"]),
            tuple(launched[row["name"]]),
        )
        for row in rows
    ]
    record = input_record(evidence.operators, ((call.name, call.input_types) for call in calls))
    functions: dict[_FunctionKey, NativeFunctionFacts] = {}
    keys: list[_FunctionKey] = []
    for call in calls:
        facts = resolve_operator(call, evidence, record)
        keys.append((facts.name, facts.overload, str(facts.details.get("candidates"))))
        known = functions.setdefault(keys[-1], facts)
        # Another call may tell its overload less surely.
        grade = weakest((known.overload_grade, facts.overload_grade))
        functions[keys[-1]] = replace(known, overload_grade=grade)
    ids = {key: number for number, key in enumerate(functions)}
    session.replace_rows("native_functions", [_function_row(ids[key], functions[key]) for key in functions])
    session.replace_rows(
        "operator_functions",
        [{**row, "native_function_id": ids[key]} for row, key in zip(rows, keys, strict=True)],
    )


def _types(recorded: str | None) -> tuple[str, ...] | None:
    """The recorded input types; None for what is no list of names."""
    try:
        return None if recorded is None else msgspec.json.decode(recorded, type=tuple[str, ...])
    except UNREADABLE_JSON:
        return None


def _kernel_row(name_id: int, kernel: KernelProvenance) -> dict[str, Any]:
    decoded = kernel.decoded
    stated = {one.name: getattr(decoded, one.name) for one in fields(decoded) if one.name not in _NOT_FIELDS}
    return {
        "name_id": name_id,
        "category": kernel.category,
        "function": decoded.function,
        "library": decoded.library,
        "family": decoded.family,
        "architecture": decoded.architecture,
        "tensor_core": decoded.tensor_core,
        "fields": {
            **{name: value for name, value in stated.items() if value is not None and value != ()},
            "template_arguments": [list(pair) for pair in kernel.template_arguments],
        },
        "grades": {name: str(grade) for name, grade in decoded.grades.items()},
        "units": list(kernel.units),
        "unit_grade": kernel.unit_grade,
        "registered_by": kernel.binary,
        **_location_columns("", kernel.location),
        **_location_columns("template_", kernel.template),
    }


def _function_row(native_function_id: int, facts: NativeFunctionFacts) -> dict[str, Any]:
    row = {
        name: getattr(facts, name)
        for name in (
            "name", "overload", "kind", "category", "schema", "overload_grade", "structured_delegate",
            "dispatch_key", "cuda_function", "stub", "tags", "yaml_line", "details",
        )
    }  # fmt: skip
    return {
        "native_function_id": native_function_id,
        **row,
        **_location_columns("", facts.location),
        **_location_columns("stub_", facts.stub_location),
    }


def _location_columns(prefix: str, location: SourceLocation | None) -> dict[str, Any]:
    if location is None:
        return {}
    names: Iterable[str] = ("file", "line", "end_line", "url", "file_grade", "line_grade")
    return {f"{prefix}{name}": getattr(location, name) for name in names}


def session_of_names(
    operators: Sequence[tuple[str, str | None]],
    kernels: Iterable[str] = (),
    *,
    torch_version: str | None = None,
) -> Session:
    """A Session with one operator per (name, overload) and one name per kernel, as of a torch release.

    Its operators have a device time of zero; its device is CUDA.
    """
    session = Session()
    session.replace_rows(
        "traces", [{"trace_id": 0, "source": "names", "format": "names", "torch_version": torch_version}]
    )
    session.replace_rows(
        "operators",
        [
            {
                "operator_id": index,
                "trace_id": 0,
                "name": name,
                "overload": overload,
                "self_device_ns": 0,
                "total_device_ns": 0,
            }
            for index, (name, overload) in enumerate(operators)
        ],
    )
    session.replace_rows(
        "kernel_names",
        [{"name_id": index, "name": name, "kind": "kernel"} for index, name in enumerate(kernels)],
    )
    return session
