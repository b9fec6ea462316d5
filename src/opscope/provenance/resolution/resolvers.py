"""Names → what they are: a kernel's unit, template and functor, and the native function of a call.

`annotate` fills the provenance tables of a Session with that. A Session that was annotated keeps its facts,
so a saved one means the same everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.model.files import UNREADABLE_JSON
from opscope.model.origin import Grade, SourceLocation, weakest
from opscope.model.queries import grouped
from opscope.model.session import Session
from opscope.provenance.categories import category_of, kernel_category
from opscope.provenance.kernel_names.decoder import decode
from opscope.provenance.native_functions import (
    NativeFunction,
    Registered,
    Resolved,
    Served,
    holds_stacks,
    resolve,
)
from opscope.provenance.packaged import lazy_pattern
from opscope.provenance.resolution.evidence import (
    Evidence,
    KernelProvenance,
    NativeFunctionFacts,
    gather_evidence,
)
from opscope.provenance.sources import Definition, SourceIndex, is_unit, named_arguments, permalink

# In PyTorch's repository.
_NATIVE_FUNCTIONS_FILE = "aten/src/ATen/native/native_functions.yaml"
_DERIVATIVES_FILE = "tools/autograd/derivatives.yaml"
_TORCH_BINARIES = ("libtorch_cuda", "libtorch_hip")


def resolve_kernel(name: str, evidence: Evidence) -> KernelProvenance:
    units, unit_grade, binary = evidence.units(name)
    decoded = decode(name)
    # The library by membership outweighs what the name suggests. Of PyTorch's own binaries the name tells
    # more: they hold CUTLASS, CUB and others.
    library = None
    if decoded.name in evidence.triton_kernels:
        library = "triton"
    elif binary is not None and not binary.startswith(_TORCH_BINARIES):
        from opscope.provenance.binaries.library import vendor_of_file  # noqa: PLC0415 - seldom known

        library = vendor_of_file(binary) or binary.partition(".so")[0]
    if library is not None:
        grades = {**decoded.grades, "library": Grade.EXACT}
        decoded = dataclasses.replace(decoded, library=library, grades=grades)

    def first(
        ask: Callable[[SourceIndex], Definition | None],
    ) -> tuple[Definition | None, SourceLocation | None]:
        """What the first index that has it says; the unit's own file is known as well as the unit."""
        for source in evidence.sources if units else ():
            if (found := ask(source.index)) is not None:
                return found, source.locate(found, unit_grade if found.file in units else None)
        return None, None

    function, arguments, functor = decoded.function, decoded.template_arguments, decoded.functor
    definition, template = (
        first(lambda index: index.kernel(function, units, template_arguments=arguments or None))
        if function is not None
        else (None, None)
    )
    # The functor, or the function owning the lambda, of a generic launcher.
    applied = None if functor is None else first(lambda index: index.functor(functor, units))[1]
    parameters = () if definition is None else definition.template_parameters
    named = named_arguments(parameters, arguments) if parameters else None
    unit = None
    if len(units) == 1 and unit_grade is not None:
        unit = SourceLocation(
            units[0], unit_grade, url=evidence.file_url(units[0]) if "/" in units[0] else None
        )
    return KernelProvenance(
        decoded=decoded,
        category=kernel_category(decoded),
        template_arguments=tuple(
            [(None, argument) for argument in arguments] if named is None else named.items()
        ),
        units=units,
        unit_grade=unit_grade,
        binary=binary,
        location=evidence.user_sources.get(name) or applied or template or unit,
        template=template,
    )


_KINDS = {
    "native": "native",
    "ufunc": "native",
    "generated": "generated",
    "composite_explicit": "composite",
    "composite_implicit": "composite",
}
_BACKWARD_NODE = lazy_pattern(r"(?:Backward\d*|AccumulateGrad|CopySlices|CopyBackwards)$")
# Registered first, such a function loads libtorch_cuda_linalg, which registers the real one.
_LAZY_PREFIX = "lazy_"
_NAMESPACED = lazy_pattern(r"[A-Za-z_]\w*::\w+$")


class RecordedCall(msgspec.Struct, frozen=True):
    """One kind of recorded call: what distinguishes overloads, and the kernels such calls launched."""

    name: str
    overload: str | None = None
    input_types: tuple[str, ...] | None = None
    kernels: tuple[KernelProvenance, ...] = ()  # of their own launches, longest first


def resolve_operator(call: RecordedCall, evidence: Evidence) -> NativeFunctionFacts:
    if _BACKWARD_NODE.search(call.name):
        return _backward(call, evidence)
    found = resolve(evidence.operators, call.name, call.overload, call.input_types)
    if found.entry is not None:
        return _native(call, found.entry, found.grade, evidence)
    if found.candidates:
        return _ambiguous(call, found, evidence)
    return _outside(call, evidence)


def _native(
    call: RecordedCall, entry: NativeFunction, grade: Grade | None, evidence: Evidence
) -> NativeFunctionFacts:
    served = entry.served.get(evidence.backend)
    details: dict[str, Any] = {
        "yaml_url": _yaml_url(_NATIVE_FUNCTIONS_FILE, entry.yaml_line, evidence),
        "autogen": list(entry.autogen),
        "structured": entry.structured,
        "is_derived_entry": entry.generated,
    }
    if served is not None:
        details["dispatch_kind"] = served.kind
        details["served_by_overload"] = served.overload
        details["scalar_function_header"] = served.header
    if (registration := evidence.registration(entry.name, entry.overload)) is not None:
        details["registration"] = registration
    facts = NativeFunctionFacts(
        name=call.name,
        overload=entry.overload,
        kind="native" if served is None else _KINDS[served.kind],
        category=category_of(call.name, entry.tags),
        schema=entry.schema,
        overload_grade=grade,
        structured_delegate=entry.structured_delegate,
        tags=entry.tags,
        yaml_line=entry.yaml_line,
        details=details,
    )
    return facts if served is None else _implemented(facts, served, call.kernels, evidence)


def _yaml_url(file: str, line: int, evidence: Evidence) -> str | None:
    commit = evidence.operators.git_version
    return None if commit is None or not line else permalink(commit, file, line, line)


def _implemented(
    facts: NativeFunctionFacts, served: Served, kernels: Sequence[KernelProvenance], evidence: Evidence
) -> NativeFunctionFacts:
    facts = replace(
        facts,
        dispatch_key=served.key,
        cuda_function=served.function,
        location=evidence.location(served.place),
    )
    units = tuple(dict.fromkeys(unit for kernel in kernels for unit in kernel.units))
    functors = {kernel.decoded.functor for kernel in kernels if kernel.decoded.functor}
    # The dispatch stub through which the function reaches its device code: the one its kernels name.
    reached = [
        (stub, found)
        for stub, registered in served.stubs.items()
        if (found := _registered(registered, units)) is not None
    ]
    named = [one for one in reached if any(_is_same(functor, one[1].name) for functor in functors)]
    if len(named or reached) == 1:
        stub, found = (named or reached)[0]
        return replace(facts, stub=stub, stub_location=evidence.location(found.place))
    return _launched(facts, served, bool(kernels), units, functors=functors, evidence=evidence)


def _registered(every: Sequence[Registered], units: Sequence[str]) -> Registered | None:
    """The function registered for a stub: in a unit of the kernels, else in C++ code."""
    for entries in ([one for one in every if is_unit(one.file, units)], every) if units else (every,):
        # Those of named functions, and not those that only load the library of another one.
        with_name = [one for one in entries if one.function] or entries
        kept = [one for one in with_name if not one.function.startswith(_LAZY_PREFIX)] or with_name
        if len({(one.file, one.function) for one in kept}) == 1 and (
            entries is not every or not units or (kept[0].place and kept[0].place.file.endswith(".cpp"))
        ):
            return kept[0]
    return None


def _launched(
    facts: NativeFunctionFacts,
    served: Served,
    is_recorded: bool,
    units: Sequence[str],
    *,
    functors: Collection[str],
    evidence: Evidence,
) -> NativeFunctionFacts:
    """With the functions of `.cu` files that C++ code calls, and the place of the one it goes through."""
    if not served.launchers:
        return facts
    facts = replace(facts, details={**facts.details, "launchers": [one.name for one in served.launchers]})
    named = [one for one in served.launchers if any(_is_same(functor, one.name) for functor in functors)]
    candidates = named or (() if served.stubs else served.launchers)
    if len(candidates) != 1 or not candidates[0].file:
        return facts
    # Recorded kernels are of that file; without any, no library may serve the call.
    is_of = is_unit(candidates[0].file, units) if is_recorded else facts.category != "matrix"
    return replace(facts, stub_location=evidence.location(candidates[0].place)) if named or is_of else facts


def _is_same(qualified: str, name: str) -> bool:
    return qualified.rpartition("::")[2] == name.rpartition("::")[2]


def _ambiguous(call: RecordedCall, found: Resolved, evidence: Evidence) -> NativeFunctionFacts:
    """What all possible overloads have in common; the overload itself stays unknown."""
    possible = [_native(call, entry, found.grade, evidence) for entry in found.candidates]
    first = possible[0]
    shared: dict[str, Any] = {
        name: getattr(first, name)
        for name in ("kind", "dispatch_key", "cuda_function", "stub", "location", "stub_location", "tags")
        if all(getattr(one, name) == getattr(first, name) for one in possible)
    }
    known = [one.location for one in possible if one.location is not None]
    files = {location.file for location in known}
    if "location" not in shared and len(known) == len(possible) and len(files) == 1:  # then without a line
        grade, url = weakest(location.file_grade for location in known), known[0].url
        shared["location"] = SourceLocation(
            known[0].file, grade or known[0].file_grade, url=url and url.partition("#")[0]
        )
    return NativeFunctionFacts(
        call.name,
        None,
        category=category_of(call.name, shared.get("tags", ())),
        overload_grade=found.grade,
        details={"candidates": [entry.overload for entry in found.candidates]},
        **{"kind": first.kind, **shared},
    )


def _backward(call: RecordedCall, evidence: Evidence) -> NativeFunctionFacts:
    facts = NativeFunctionFacts(call.name, None, "backward", category_of(call.name))
    derivative = evidence.operators.derivative(call.name)
    if derivative is None:
        return facts
    return replace(
        facts,
        overload_grade=evidence.operators.grade,
        details={
            "forward": list(derivative.forward),
            "formulas": dict(derivative.formulas),
            "calls": list(derivative.functions),
            "description": derivative.description,
            "derivatives_line": derivative.yaml_line or None,
            "yaml_url": _yaml_url(_DERIVATIVES_FILE, derivative.yaml_line, evidence),
        },
    )


def _outside(call: RecordedCall, evidence: Evidence) -> NativeFunctionFacts:
    """An operator that no yaml entry describes: a custom one, a Triton launch, or a recorded range."""
    kind = "range"
    if call.name in evidence.user_sources or call.name.startswith("triton_"):
        kind = "triton"
    elif call.name.startswith("aten::"):
        kind = "native"  # of a release whose table is not at hand
    elif _NAMESPACED.match(call.name):
        kind = "custom"
    facts = NativeFunctionFacts(
        call.name, call.overload, kind, category_of(call.name), location=evidence.user_sources.get(call.name)
    )
    registration = evidence.registration(call.name, call.overload)
    if registration is None:
        return facts
    place = None
    if registration.python_file is not None:
        place = SourceLocation(
            registration.python_file,
            Grade.EXACT,
            registration.python_line,
            registration.end_line,
            None if registration.python_line is None else Grade.EXACT,
        )
    return replace(
        facts,
        schema=registration.schema,
        overload_grade=Grade.EXACT,
        location=place,
        details={"registration": registration},
    )


_FunctionKey = tuple[str, str | None, str]  # name, overload, candidates
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
    if session.scalar("SELECT EXISTS (FROM recognition)"):
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


def _annotate_operators(
    session: Session, kernels: Mapping[str, KernelProvenance], evidence: Evidence
) -> None:
    launched = grouped((operator, kernels[name]) for operator, name in session.query(_LAUNCHED_SQL))
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
    if holds_stacks(evidence.operators, ((call.name, call.input_types) for call in calls)):
        calls = [replace(call, input_types=None) for call in calls]
    functions: dict[_FunctionKey, NativeFunctionFacts] = {}
    keys: list[_FunctionKey] = []
    for call in calls:
        facts = resolve_operator(call, evidence)
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
    stated = {name: value for name, value in vars(decoded).items() if name not in _NOT_FIELDS}
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
    row = {"native_function_id": native_function_id, **msgspec.structs.asdict(facts)}
    location, stub_location = row.pop("location"), row.pop("stub_location")
    return {**row, **_location_columns("", location), **_location_columns("stub_", stub_location)}


def _location_columns(prefix: str, location: SourceLocation | None) -> dict[str, Any]:
    fields = {} if location is None else msgspec.structs.asdict(location)
    return {f"{prefix}{name}": value for name, value in fields.items()}


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
    same = {"trace_id": 0, "self_device_ns": 0, "total_device_ns": 0}
    rows = [
        {"operator_id": index, "name": name, "overload": overload, **same}
        for index, (name, overload) in enumerate(operators)
    ]
    session.replace_rows("operators", rows)
    rows = [{"name_id": index, "name": name, "kind": "kernel"} for index, name in enumerate(kernels)]
    session.replace_rows("kernel_names", rows)
    return session
