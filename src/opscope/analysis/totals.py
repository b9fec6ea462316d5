"""Totals by operator, kernel and category: the rows of every report, as frozen values.

Times are integer nanoseconds; fractions are 0–1 of all device time (of CPU time where there is none).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.analysis.provenance import KernelFacts, NativeFunctionUse, Provenance
from opscope.launches.facts import LaunchGeometry
from opscope.model.location import SourceLocation
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.provenance.categories import OTHER, category_of
from opscope.provenance.releases.release_table import git_version
from opscope.provenance.sources.at_hand import permalink


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
    shapes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, text, calls in session.query(sql(__package__, "input_shapes")):
        shapes[name].append((text, calls))
    called: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for name, child, calls, total_ns in session.query(sql(__package__, "called_operators")):
        called[name].append((child, calls, total_ns))
    by_operator: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in launches:
        if row["operator"] is not None:
            by_operator[row["operator"]].append(row)
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
    time_ns: dict[str, int] = defaultdict(int)
    for kernel in kernels:
        time_ns[(kernel.facts and kernel.facts.category) or OTHER] += kernel.total_ns
    return time_ns


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
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in launches:
        groups[row["name"], row["kind"]].append(row)
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
    kernels.sort(key=lambda kernel: (-kernel.total_ns, kernel.name, kernel.kind))
    return tuple(kernels)


def _geometries(rows: list[dict[str, Any]]) -> tuple[LaunchGeometry, ...]:
    """The launch configurations of rows that may have some in common, longest first."""
    merged: dict[LaunchGeometry, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        common = row | {"calls": 0, "total_ns": 0, "example_operator_id": None}
        merged[msgspec.convert(common, LaunchGeometry)].append(row)
    found = []
    for geometry, alike in merged.items():
        example = max(alike, key=lambda row: row["max_ns"])["example_operator_id"]
        calls, total_ns = (sum(row[name] for row in alike) for name in ("calls", "total_ns"))
        found.append(replace(geometry, calls=calls, total_ns=total_ns, example_operator_id=example))
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
    launches = Counter[str]()
    for kernel in without_operator:
        launches[(kernel.facts and kernel.facts.category) or OTHER] += kernel.calls
    for name, ns in _device_ns_by_category(without_operator).items():
        share = _fraction(ns, device_time_ns)
        totals.append(CategoryTotal(name, ns, 0, share, launches[name], without_operator=True))
    return tuple(sorted(totals, key=lambda total: (-total.fraction, -total.cpu_ns, total.category)))


def _fraction(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
