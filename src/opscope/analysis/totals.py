"""Totals by operator, kernel, category and annotation: the rows of every report, as frozen values.

Times are integer nanoseconds; fractions are 0–1 of all device time (of CPU time where there is none). Ranges
are the steps of a serving engine by phase, or any that an expression names. An activity belongs to the range
in which it was launched, on the thread that launched it; of several to the innermost, so that groups share
the time out and never count it twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from opscope.analysis.provenance import KernelFacts, NativeFunctionUse, Provenance
from opscope.errors import InputError
from opscope.launches.facts import LaunchGeometry
from opscope.model.origin import SourceLocation
from opscope.model.queries import grouped, sql, summed
from opscope.model.schema import ReplayEvidence, ReplaySource
from opscope.model.session import Session, registered
from opscope.provenance.categories import OTHER, category_of
from opscope.provenance.kernel_names.decoder import decode
from opscope.provenance.serving import ServingPhase, engine_of, serving_step
from opscope.provenance.sources import permalink
from opscope.provenance.torch_releases import git_version


class KernelTotal(msgspec.Struct, frozen=True):
    """All activities of one name (of one operator, when inside an OperatorTotal).

    `geometries` come longest first; `facts` is None for copies and memory sets of a name nothing is known of.
    """

    name: str
    kind: str
    calls: int
    total_ns: int
    min_ns: int
    max_ns: int
    fraction: float
    size_bytes: int | None
    geometries: tuple[LaunchGeometry, ...] = ()
    facts: KernelFacts | None = None

    @property
    def configurations(self) -> tuple[LaunchGeometry, ...]:
        """The geometries; where there are none, of a copy for one, a single one without figures."""
        whole = LaunchGeometry(None, None, None, None, None, self.calls, self.total_ns)
        return self.geometries or (whole,)


class OperatorTotal(msgspec.Struct, frozen=True):
    """All calls of one operator name. `total_*` counts a call nested in another of the same name once.

    `native_functions` are those its calls reached, most device time first; `called_operators` the operators a
    composite one called, with their calls and total device time; `source` the file its device code comes
    from.
    """

    name: str
    overload: str | None
    category: str
    calls: int
    self_device_ns: int
    total_device_ns: int
    self_cpu_ns: int
    total_cpu_ns: int
    kernel_launches: int
    self_device_fraction: float
    total_device_fraction: float
    input_shapes: tuple[tuple[str, int], ...] = ()  # most frequent first: (shapes as JSON text, calls)
    kernels: tuple[KernelTotal, ...] = ()  # of its own launches, longest first
    native_functions: tuple[NativeFunctionUse, ...] = ()
    called_operators: tuple[tuple[str, int, int], ...] = ()
    source: SourceLocation | None = None


class CategoryTotal(msgspec.Struct, frozen=True):
    """Self times of all operators of one category, or launches of no operator by their kernels' category.

    What a range no table knows launched (a compiled region) counts by its kernels' categories too. All rows
    together are all device time.
    """

    category: str
    device_ns: int
    cpu_ns: int
    fraction: float
    calls: int
    without_operator: bool = False


def operator_totals(
    session: Session,
    launches: list[dict[str, Any]],
    provenance: Provenance,
    device_time_ns: int,
    *,
    has_device: bool,
) -> tuple[OperatorTotal, ...]:
    """All operators by name, ranked by self device time (by self CPU time without a device)."""
    shapes, called = (
        grouped((name, tuple(rest)) for name, *rest in session.query(sql(__package__, query)))
        for query in ("input_shapes", "called_operators")
    )
    by_operator = grouped((row["operator"], row) for row in launches if row["operator"] is not None)
    operators = []
    for row in session.records(sql(__package__, "operators")):
        name = row["name"]
        functions = provenance.functions.get(name, ())
        kernels = kernel_totals(by_operator[name], provenance, device_time_ns)
        # That of its native function; of an operator no table knows, that of its longest kernels.
        category, time_ns = _own_category(name, functions), _device_ns_by_category(kernels)
        if category == OTHER and kernels:
            category = max(time_ns, key=lambda category: (time_ns[category], category))
        operators.append(
            OperatorTotal(
                **row,
                category=category,
                kernel_launches=sum(kernel.calls for kernel in kernels if kernel.kind == "kernel"),
                self_device_fraction=_fraction(row["self_device_ns"], device_time_ns),
                total_device_fraction=_fraction(row["total_device_ns"], device_time_ns),
                input_shapes=tuple(shapes[name]),
                kernels=kernels,
                native_functions=functions,
                called_operators=tuple(called[name]),
                source=_device_source(functions, kernels, provenance.tables_version),
            )
        )
    side = "device" if has_device else "cpu"
    operators.sort(key=lambda o: (-getattr(o, f"self_{side}_ns"), -getattr(o, f"total_{side}_ns"), o.name))
    return tuple(operators)


def _own_category(name: str, functions: tuple[NativeFunctionUse, ...]) -> str:
    return functions[0].category if functions else category_of(name)


def _device_ns_by_category(kernels: tuple[KernelTotal, ...]) -> dict[str, int]:
    return summed(((kernel.facts and kernel.facts.category) or OTHER, kernel.total_ns) for kernel in kernels)


def _device_source(
    functions: tuple[NativeFunctionUse, ...], kernels: tuple[KernelTotal, ...], version: str | None
) -> SourceLocation | None:
    """The file an operator's device code comes from, with the best line known in it.

    The translation unit of its longest kernel, where that is certain; else the implementation of its stub,
    else its own function.
    """
    longest = kernels[0].facts if kernels else None
    places = [longest.location] if longest is not None else []
    places += [place for function in functions for place in (function.stub_location, function.location)]
    known = [place for place in places if place is not None]
    if longest is not None and len(longest.units) == 1 and longest.unit_grade is not None:
        unit = longest.units[0]
        in_unit = (place for place in known if place.file == unit)
        url = permalink(git_version(version), unit) if version is not None else None
        return next(in_unit, SourceLocation(unit, longest.unit_grade, url=url))
    return known[0] if known else None


def kernel_totals(
    launches: Iterable[dict[str, Any]], provenance: Provenance, device_time_ns: int
) -> tuple[KernelTotal, ...]:
    groups = grouped(((row["name"], row["kind"]), row) for row in launches)
    kernels = [
        KernelTotal(
            name=name,
            kind=kind,
            calls=sum(row["calls"] for row in rows),
            total_ns=(total_ns := sum(row["total_ns"] for row in rows)),
            min_ns=min(row["min_ns"] for row in rows),
            max_ns=max(row["max_ns"] for row in rows),
            fraction=_fraction(total_ns, device_time_ns),
            size_bytes=None if kind == "kernel" else sum(row["size_bytes"] or 0 for row in rows),
            geometries=_geometries(rows) if kind == "kernel" else (),
            facts=provenance.kernels.get(name),
        )
        for (name, kind), rows in groups.items()
    ]
    return tuple(sorted(kernels, key=lambda kernel: (-kernel.total_ns, kernel.name, kernel.kind)))


def _geometries(rows: list[dict[str, Any]]) -> tuple[LaunchGeometry, ...]:
    """The launch configurations of rows that may have some in common, longest first."""
    apart = {"calls": 0, "total_ns": 0, "example_operator_id": None}
    merged = grouped((msgspec.convert(row | apart, LaunchGeometry), row) for row in rows)
    found = []
    for geometry, alike in merged.items():
        example = max(alike, key=lambda row: row["max_ns"])["example_operator_id"]
        calls, total_ns = (sum(row[name] for row in alike) for name in ("calls", "total_ns"))
        found.append(
            msgspec.structs.replace(geometry, calls=calls, total_ns=total_ns, example_operator_id=example)
        )
    return tuple(sorted(found, key=lambda geometry: -geometry.total_ns))


def category_totals(
    operators: tuple[OperatorTotal, ...],
    device_time_ns: int,
    cpu_time_ns: int,
    without_operator: tuple[KernelTotal, ...] = (),
) -> tuple[CategoryTotal, ...]:
    device_ns, cpu_ns, calls = Counter[str](), Counter[str](), Counter[str]()
    for operator in operators:
        # That of a range no table knows is split by its kernels' categories.
        own = _own_category(operator.name, operator.native_functions)
        split = {operator.category: operator.self_device_ns}
        device_ns.update(_device_ns_by_category(operator.kernels) if own == OTHER else split)
        cpu_ns[operator.category] += operator.self_cpu_ns
        calls[operator.category] += operator.calls
    part, whole = (device_ns, device_time_ns) if device_time_ns else (cpu_ns, cpu_time_ns)
    totals = [
        CategoryTotal(name, device_ns[name], cpu_ns[name], _fraction(part[name], whole), calls[name])
        for name in {**calls, **device_ns}
    ]
    launches = summed(
        ((kernel.facts and kernel.facts.category) or OTHER, kernel.calls) for kernel in without_operator
    )
    totals += [
        CategoryTotal(name, ns, 0, _fraction(ns, device_time_ns), launches[name], without_operator=True)
        for name, ns in _device_ns_by_category(without_operator).items()
    ]
    return tuple(sorted(totals, key=lambda total: (-total.fraction, -total.cpu_ns, total.category)))


def _fraction(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


_BY_RANGE = "range:"
# One launch of these for each layer; others prepare or finish what they do.
_ATTENTION = frozenset(
    (
        "attention", "attention_flash", "attention_mem_efficient", "attention_cudnn", "attention_paged",
        "attention_sage", "attention_linear",
    )
)  # fmt: skip


class RangeTotal(msgspec.Struct, frozen=True):
    """All ranges of one group."""

    name: str  # phase of an engine's steps, or what the expression found in the names
    calls: int  # ranges
    device_ns: int  # of what was launched in them
    host_ns: int  # of the ranges; what nests counts twice
    device_fraction: float  # of all device time
    kernels: int
    engine: str | None = None  # of an engine's steps; else None, like what follows
    phase: ServingPhase | None = None
    requests: int | None = None  # of all steps together
    tokens: int | None = None  # read and generated; None where the annotations do not count them
    layers: int | None = None  # attention launches in each range; None where their number differs or is zero

    @property
    def device_ns_per_token(self) -> float | None:
        return self.device_ns / self.tokens if self.tokens else None

    @property
    def device_ns_per_call(self) -> float:
        return self.device_ns / self.calls

    @property
    def device_ns_per_layer(self) -> float | None:
        return None if not self.layers else self.device_ns / self.calls / self.layers


def serving_engine(session: Session) -> str | None:
    named = "SELECT DISTINCT name FROM {} WHERE name IS NOT NULL ORDER BY name"
    return engine_of(
        *([row[0] for row in session.known(named.format(table))] for table in ("annotations", "operators"))
    )


def range_totals(session: Session, by: str | None, device_time_ns: int) -> tuple[RangeTotal, ...]:
    """Groups of ranges, most device time first; empty where no annotation is of an engine or fits.

    `range:REGEX` is searched for in the names of annotations: they are grouped by what it finds, by its first
    group if it has one. None stands for the steps of a serving engine, by phase.
    """
    pattern, hint = None, "Write --by range:REGEX"
    if by is not None and not by.startswith(_BY_RANGE):
        raise InputError(f"'{by}' names no grouping", hint=hint)
    if by is not None:
        text = by.removeprefix(_BY_RANGE)
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise InputError(f"'{text}' is not a regular expression ({error})", hint=hint) from error
    rows = session.query(
        "SELECT annotation_id, name FROM annotations WHERE side = 'host' AND duration_ns >= 0 "
        "ORDER BY annotation_id"
    )
    groups: dict[str, int] = {}
    names: dict[int, str] = {}
    wanted = []
    for annotation_id, name in rows:
        if pattern is None:
            step = serving_step(name)
            group = None if step is None else step.phase.value
        else:
            match = pattern.search(name)
            found = () if match is None else (*match.groups(), match.group())
            group = next((one for one in found if one is not None), None)
        if group is not None:
            names[annotation_id] = name
            wanted.append((annotation_id, groups.setdefault(group, len(groups))))
    if not wanted:
        return ()
    kernels = session.query("SELECT name_id, name FROM kernel_names WHERE kind = 'kernel'")
    attention = [name_id for name_id, name in kernels if decode(name).family in _ATTENTION]
    ids = np.array(wanted, dtype=np.int64)
    with registered(session, wanted_ranges={"annotation_id": ids[:, 0], "group_id": ids[:, 1]}):
        in_ranges = session.records(sql(__package__, "ranges"), [attention])
    members = grouped((row["group_id"], row) for row in in_ranges)
    totals = [
        _total(name, members[number], names, device_time_ns, is_engine=by is None)
        for name, number in groups.items()
    ]
    return tuple(sorted(totals, key=lambda one: (-one.device_ns, one.name)))


def _total(
    name: str, rows: list[dict[str, Any]], names: dict[int, str], device_time_ns: int, *, is_engine: bool
) -> RangeTotal:
    device_ns = sum(row["device_ns"] for row in rows)
    steps = [step for row in rows if (step := serving_step(names[row["annotation_id"]])) is not None]
    is_whole = len(steps) == len(rows)  # an expression may name other ranges too
    tokens = [step.tokens for step in steps]
    layers = {row["attention_launches"] for row in rows if row["kernels"]}
    return RangeTotal(
        name,
        len(rows),
        device_ns,
        sum(row["host_ns"] for row in rows),
        device_ns / device_time_ns if device_time_ns else 0.0,
        sum(row["kernels"] for row in rows),
        steps[0].engine if is_whole else None,
        steps[0].phase if is_whole and is_engine else None,
        sum(step.requests for step in steps) if is_whole else None,
        sum(one or 0 for one in tokens) if is_whole and None not in tokens else None,
        layers.pop() or None if len(layers) == 1 else None,
    )


class GraphTotal(msgspec.Struct, frozen=True):
    """All recorded replays of one CUDA graph that are known alike."""

    graph: int  # its number, from 1 in the order of first replays
    replays: int  # launches of the graph
    activities: int  # kernels, copies and sets of each
    device_ns: int  # of all replays
    source: ReplaySource | None  # what its operators are known from; None if they are not
    evidence: ReplayEvidence | None  # how replays were matched; None if they were not
    file: str | None  # trace that tells them
    reason: str | None  # why its operators are unknown, or what of them is
