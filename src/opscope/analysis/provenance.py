"""What the provenance tables say, as frozen values by kernel name and by operator name.

Reads `kernel_provenance`, `native_functions`, `operator_functions`, `recognition`; fills them first if
needed.

Accuracy is how much of the device time each statement about it covers, and how well; every fraction is of
device time in integer nanoseconds. `docs/accuracy.md` gives the method in words.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.model.origin import Grade, SourceLocation, weakest
from opscope.model.queries import grouped, sql, summed
from opscope.model.session import Session
from opscope.provenance.kernel_names.decoded_kernel import title_of
from opscope.provenance.resolution.evidence import NativeFunctionFacts
from opscope.provenance.resolution.resolvers import annotate


class GeneratedCode(msgspec.Struct, frozen=True):
    """What one compiled graph's code for a kernel stands for, as its recording noted it."""

    kind: str
    graph: str | None  # e.g. `0_forward`; None for a kernel of no graph.
    original_aten: tuple[str, ...]  # operators it computes
    source_nodes: tuple[str, ...]  # nodes of the program's graph
    modules: tuple[str, ...]  # modules of the program's model whose code they are of
    post_grad_nodes: tuple[str, ...]  # nodes of the lowered graph
    # Lines of the user's program, `FILE:LINE` and the code in it where known
    program_lines: tuple[tuple[str, str | None], ...]
    copy: str | None  # the copied source, relative to the trace's folder


class KernelFacts(msgspec.Struct, frozen=True):
    """What is known of one kernel name; `fields` are those read from the name, each with a grade.

    `triton` is what the launches of a Triton kernel agree on: file, line, hash, kernel_flop,
    kernel_num_gb and the distinct `configurations` (kernel_kwargs, num_warps, num_stages, grid, calls,
    total_ns).
    """

    name: str
    category: str
    function: str | None = None
    library: str | None = None
    family: str | None = None
    fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    grades: Mapping[str, str] = msgspec.field(default_factory=dict)
    units: tuple[str, ...] = ()
    unit_grade: Grade | None = None
    binary: str | None = None
    location: SourceLocation | None = None
    template: SourceLocation | None = None
    generated: tuple[GeneratedCode, ...] = ()
    triton: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def template_arguments(self) -> tuple[tuple[str | None, str], ...]:
        """(parameter name in the source or None, argument), in order."""
        return tuple((name, value) for name, value in self.fields.get("template_arguments", ()))

    @property
    def title(self) -> str:
        arguments = [value for _, value in self.template_arguments]
        return title_of(self.name, self.function, arguments, self.fields.get("functor"))


class NativeFunctionUse(NativeFunctionFacts, frozen=True, kw_only=True):
    """One native function that calls of an operator reached, with their number and their own device time."""

    calls: int
    self_device_ns: int


class Provenance(msgspec.Struct, frozen=True):
    """All of it for one Session. `functions` are by operator name, most device time first.

    `tables_version` is the release whose tables answer: a neighbor where those of `torch_version` are not
    known.
    """

    kernels: Mapping[str, KernelFacts]
    functions: Mapping[str, tuple[NativeFunctionUse, ...]]
    torch_version: str | None
    tables_version: str | None
    torch_version_grade: Grade | None
    torch_version_reason: str | None
    hit_rates: Mapping[str, float]


def read_provenance(session: Session) -> Provenance:
    annotate(session)
    functions = grouped(
        (
            row["operator"],
            msgspec.convert(row | {"details": json.loads(row["details"] or "{}")}, NativeFunctionUse),
        )
        for row in session.records(sql(__package__, "provenance:functions"))
    )
    generated: dict[str, list[GeneratedCode]] = defaultdict(list)
    for kernel, stacks, copy, kind, graph, *lists in session.query(sql(__package__, "provenance:generated")):
        frames = [frame for stack in json.loads(stacks or "[]") for frame in stack[-1:]]
        lines = {f"{frame['file']}:{frame['line']}": frame.get("code") for frame in frames}
        aten, nodes, modules, lowered = (tuple(names or ()) for names in lists)
        generated[kernel].append(
            GeneratedCode(kind, graph, aten, nodes, modules, lowered, tuple(lines.items()), copy)
        )
    has_triton = session.holds("triton_launches") or session.holds("kernel_sources")
    rows = session.records(sql(__package__, "triton_kernels")) if has_triton else ()
    triton: dict[str, dict[str, Any]] = {}
    for row in rows:
        told = ("file", "line", "hash", "kernel_flop", "kernel_num_gb")
        stated = {name: row[name] for name in told if row[name] is not None}
        configurations = json.loads(row["configurations"] or "[]")
        if stated or configurations:
            triton[row["name"]] = {**stated, "configurations": configurations}
    kernels = {}
    for row in session.records(sql(__package__, "provenance:kernels")):
        name, read = row["name"], {column: json.loads(row[column] or "{}") for column in ("fields", "grades")}
        facts = msgspec.convert(row | read, KernelFacts)
        kernels[name] = replace(facts, generated=tuple(generated[name]), triton=triton.get(name, {}))
    recognition = session.records("SELECT * FROM recognition")[0]
    return Provenance(
        kernels=kernels,
        functions={name: tuple(uses) for name, uses in functions.items()},
        torch_version=recognition["torch_version"],
        tables_version=recognition["operator_table"],
        torch_version_grade=recognition["grade"] and Grade(recognition["grade"]),
        torch_version_reason=recognition["reason"],
        hit_rates=json.loads(recognition["hit_rates"] or "{}"),
    )


def limited(provenance: Provenance, grade: Grade) -> Provenance:
    """The same, nothing in it known better than by that grade: the release is itself only so well known."""

    def weaker(known: Any) -> Any:
        if isinstance(known, Grade):
            return weakest((known, grade))
        if isinstance(known, msgspec.Struct):
            return replace(known, **{name: weaker(getattr(known, name)) for name in known.__struct_fields__})
        if isinstance(known, tuple):
            return tuple(map(weaker, known))
        return {name: weaker(one) for name, one in known.items()} if isinstance(known, dict) else known

    return replace(provenance, kernels=weaker(provenance.kernels), functions=weaker(provenance.functions))


UNKNOWN = "unknown"  # stands beside the grades where nothing is claimed


class Accuracy(msgspec.Struct, frozen=True):
    """Fractions of device time, 0–1; None where there is no such time."""

    attributed_fraction: float | None  # time that belongs to an operator
    operator_entry_fraction: float | None  # time of operators that reach an entry of native_functions.yaml
    aten_operator_entry_fraction: float | None  # the same, of the time of `aten::` operators alone
    aten_operator_file_fraction: float | None  # time of `aten::` operators whose function or stub has a file
    aten_operator_line_fraction: float | None  # and a line in it
    aten_kernel_unit_fraction: float | None  # time of torch's own kernels whose translation unit is known
    aten_kernel_single_unit_fraction: float | None  # and is exactly one
    family_fraction: float | None  # time of device activities whose family is known
    # For each kind of fact its shares by grade, `unknown` included. They sum to 1; there are none where there
    # is no such time.
    by_grade: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    # Self device time of `aten::` operators; the `aten_operator_…` are fractions of it
    aten_operator_ns: int = 0
    torch_kernel_ns: int = 0  # time of torch's own kernels, of which the `aten_kernel_…` are


_Rows = list[dict[str, Any]]


def measure_accuracy(session: Session, *, device_time_ns: int, attributed_ns: int) -> Accuracy:
    kernels, operators = (
        session.records(sql(__package__, "provenance:kernel_times")),
        session.records(sql(__package__, "provenance:operator_times")),
    )
    own_kernels = [row for row in kernels if row["is_own"]]
    aten = [row for row in operators if row["is_aten"]]

    def time_ns(rows: _Rows, where: str = "ns") -> int:
        return sum(row["ns"] for row in rows if row[where])

    def share(rows: _Rows, where: str, whole_ns: int | None = None) -> float | None:
        whole_ns = time_ns(rows) if whole_ns is None else whole_ns
        return time_ns(rows, where) / whole_ns if whole_ns else None

    def by_grade(rows: _Rows, column: str) -> dict[str, float]:
        graded = summed((row[column] or UNKNOWN, row["ns"]) for row in rows)
        whole_ns = sum(graded.values())
        return {grade: ns / whole_ns for grade, ns in sorted(graded.items())} if whole_ns else {}

    return Accuracy(
        attributed_fraction=attributed_ns / device_time_ns if device_time_ns else None,
        operator_entry_fraction=share(operators, "has_entry", device_time_ns),
        aten_operator_entry_fraction=share(aten, "has_entry"),
        aten_operator_file_fraction=share(aten, "file_grade"),
        aten_operator_line_fraction=share(aten, "line_grade"),
        aten_kernel_unit_fraction=share(own_kernels, "has_unit"),
        aten_kernel_single_unit_fraction=share(own_kernels, "has_single_unit"),
        family_fraction=share(kernels, "has_family"),
        by_grade={
            "kernel_unit": by_grade(own_kernels, "unit_grade"),
            "kernel_line": by_grade(own_kernels, "line_grade"),
            "kernel_family": by_grade(kernels, "family_grade"),
            "operator_entry": by_grade(operators, "overload_grade"),
            "operator_file": by_grade(operators, "file_grade"),
            "operator_line": by_grade(operators, "line_grade"),
        },
        aten_operator_ns=time_ns(aten),
        torch_kernel_ns=time_ns(own_kernels),
    )
