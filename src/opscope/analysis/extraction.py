"""The calls of a recording that can be run alone: as the program made them, with what they launched below.

A call is an operator of PyTorch that no other of them called, so `aten::linear`, not the product below it.
Calls with the same arguments are one.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from opscope.analysis.roofline import Efficiency
from opscope.analysis.step_model import Gain, GraphChange
from opscope.analysis.summary import Summary
from opscope.errors import InputError, OpscopeError
from opscope.model.benchmark import Interval
from opscope.model.session import Session
from opscope.model.sidecar import kernels_folder
from opscope.operators.arguments import (
    CallArguments,
    TensorArgument,
    parse_arguments,
    read_gradients,
    with_kernel_types,
    with_list_members,
)
from opscope.operators.call_file import CallFile, Fed, call_file, kernel_file
from opscope.operators.operator_table import cost_by_rules
from opscope.operators.starts import StartKind, is_elementwise, results_of
from opscope.provenance.generated_code import read_generated

_SHOWN = 3  # shapes
_LONGEST_NAME = 60


class AloneCall(NamedTuple):
    call: CallArguments
    operator_ids: tuple[int, ...]  # of its calls
    device_ns: int  # of all of them
    avoidable_ns: float | None  # of that, beyond the device's limits; None where these are not known
    kernels: tuple[str, ...]  # most time first
    source_file: str | None = None  # of a Triton kernel that torch.compile wrote, where it was recorded
    then: tuple[Fed, ...] = ()  # elementwise calls that work on its result, one after the other

    @property
    def times(self) -> int:
        """How often it was made; several in a row count once."""
        return len(self.operator_ids) // (1 + len(self.then))

    @property
    def name(self) -> str:
        """`aten::add`; `aten::add → relu` of several in a row."""
        return " → ".join([self.call.name, *(call.stem or "" for call, _ in self.then)])

    @property
    def shapes(self) -> str:
        """Of its tensors: `16×256×768, 768×768`."""
        shapes = ["×".join(map(str, one.shape)) for one in self.call.tensors if one.shape]
        return ", ".join([*shapes[:_SHOWN], "…"] if len(shapes) > _SHOWN else shapes)


def alone_calls(session: Session, efficiency: Efficiency) -> tuple[AloneCall, ...]:
    """All distinct calls that launched kernels, most avoidable time first; an InputError if there is none."""
    gaps = {
        one.call_id: one.gap_ns / one.roofline.device_ns
        for one in efficiency.calls
        if one.gap_ns is not None and one.roofline.device_ns
    }
    gradients = read_gradients(session)
    launched: dict[tuple[str | None, ...], list[tuple[int, int, str, int, list[int]]]] = defaultdict(list)
    for *key, call_id, kernel, blocks, operators, device_ns in session.query(_LAUNCHED_SQL):
        launched[tuple(key)].append((device_ns, call_id, kernel, blocks, operators))
    if not launched:
        raise InputError(
            "no operator of PyTorch and no kernel of torch.compile was launched with its shapes recorded",
            hint="Record with shapes: opscope run, or record_shapes=True; "
            "kernels of your own count where a function under torch.compile calls them",
        )
    found = []
    for (name, overload, shapes, types, strides, concrete, source_file), parts in launched.items():
        parts.sort(reverse=True)
        _, _, kernel, blocks, _ = parts[0]
        call = parse_arguments(
            name or "", overload=overload, shapes=shapes, types=types, strides=strides, concrete=concrete
        )
        call = with_kernel_types(call, kernel)
        if call.has_unrecorded_list:
            call = with_list_members(call, kernel, blocks, gradients) or call
        known = [device_ns * gaps[call_id] for device_ns, call_id, *_ in parts if call_id in gaps]
        found.append(
            AloneCall(
                call,
                tuple(sorted({one for *_, operators in parts for one in operators})),
                sum(device_ns for device_ns, *_ in parts),
                sum(known) if known else None,
                tuple(dict.fromkeys(one for _, _, one, *_ in parts)),
                source_file,
            )
        )
    found += _chains(session, found)
    return tuple(sorted(found, key=lambda one: (-(one.avoidable_ns or 0.0), -one.device_ns, one.name)))


def _chains(session: Session, calls: Sequence[AloneCall]) -> list[AloneCall]:
    """Elementwise calls in a row, each of one kernel, of which each works on what the one before it gave.

    Which results go where is not recorded: a call is taken to work on the result before it where an argument
    of it has that shape and type.
    """
    of_operator = {operator_id: one for one in calls for operator_id in one.operator_ids}
    found: dict[tuple[tuple[int, str | None], ...], list[int]] = defaultdict(list)
    run: list[tuple[AloneCall, str | None, int]] = []
    links: dict[tuple[int, int], str | None] = {}
    last: tuple[int, int] | None = None

    def close() -> None:
        if len(run) > 1:
            found[tuple((id(one), fed) for one, fed, _ in run)] += [operator for *_, operator in run]
        run.clear()

    for trace_id, thread_id, operator_id in session.query(_ORDER_SQL, [list(of_operator)]):
        one, fed = of_operator[operator_id], None
        if run and last == (trace_id, thread_id):
            pair = id(run[-1][0]), id(one)
            if pair not in links:
                links[pair] = _fed(run[-1][0].call, one.call)
            fed = links[pair]
        if fed is None:
            close()
        if len(one.kernels) == 1 and is_elementwise(one.call):
            run.append((one, fed, operator_id))
        last = trace_id, thread_id
    close()
    members = {id(one): one for one in calls}
    return [
        _chain([(members[key], fed) for key, fed in chain], tuple(operators))
        for chain, operators in found.items()
    ]


def _fed(before: CallArguments, call: CallArguments) -> str | None:
    """The argument of a call that the result of another may be; None if there is none."""
    results = results_of(before)
    if len(results) != 1 or not is_elementwise(call):
        return None
    made = results[0].shape, results[0].type_name
    given = zip(call.names, call.arguments, strict=False)
    tensors = ((name, one) for name, one in given if isinstance(one, TensorArgument))
    return next((name for name, one in tensors if (one.shape, one.type_name) == made), None)


def _chain(members: Sequence[tuple[AloneCall, str | None]], operators: tuple[int, ...]) -> AloneCall:
    """Calls in a row as one: what fusing leaves is to read what they read, but for each other's results."""
    times, costs = len(operators) // len(members), [cost_by_rules(one.call) for one, _ in members]
    first, *rest = members
    device_ns, known_ns = (
        sum(ns * times / len(one.operator_ids) for one, ns in parts)
        for parts in (
            [(one, one.device_ns) for one, _ in members],
            [(one, one.avoidable_ns) for one, _ in members if one.avoidable_ns is not None],
        )
    )
    moved = sum(cost.min_bytes or 0 for cost in costs if cost is not None)
    between = sum(cost.written_bytes or 0 for cost in costs[:-1] if cost is not None)
    avoidable_ns = device_ns - (device_ns - known_ns) * (1 - 2 * between / moved) if moved else None
    kernels = tuple(dict.fromkeys(kernel for one, _ in members for kernel in one.kernels))
    then = tuple((one.call, fed or "") for one, fed in rest)
    return AloneCall(first[0].call, operators, round(device_ns), avoidable_ns, kernels, None, then)


def chosen_call(calls: Sequence[AloneCall], wanted: str, session: Session) -> AloneCall:
    """The call of a rank from 1, or the first whose operator, shapes or kernels hold all words of a text.

    Raises:
        InputError: There is none.
    """
    if wanted.isdigit():
        if not 1 <= int(wanted) <= len(calls):
            raise InputError(
                f"there is no call {wanted}", hint=f"There are {len(calls)}: opscope extract TRACE"
            )
        return calls[int(wanted) - 1]

    def spelled(text: str) -> str:
        return text.lower().replace("x", "×")

    for one in sorted(calls, key=lambda one: bool(one.then)):
        text = spelled("\n".join([one.name, one.shapes, *one.kernels]))
        if all(word in text for word in spelled(wanted).split()):
            return one
    of_name = "SELECT 1 FROM kernel_names WHERE kind = 'kernel' AND contains(name, $1) LIMIT 1"
    if session.query(of_name, [wanted]):
        raise InputError(
            f"nothing is recorded of what the kernel '{wanted}' was launched with",
            hint="Call it from a function under torch.compile, and record with shapes: opscope run",
        )
    raise InputError(
        f"no call has '{wanted}' in its operator, its shapes or its kernels",
        hint="List them: opscope extract TRACE",
    )


def calls_of_file(
    calls: Sequence[AloneCall], file: Path, traces: Sequence[str] = ()
) -> tuple[AloneCall, ...]:
    """The recorded calls that a file was written of: those whose own files make and call the same.

    Raises:
        InputError: There is none.
    """
    wanted = _what_it_calls(file.read_text(encoding="utf-8"), file)
    found = []
    for one in calls:
        own = extracted(0, one, start=StartKind.ATEN, traces=traces).file
        if isinstance(own, CallFile) and _what_it_calls(own.text, file) == wanted:
            found.append(one)
    if not found:
        raise InputError(
            "the recording has no call that its make_inputs and reference stand for",
            source=file,
            hint="Extract it from this recording, and change only `mine`: opscope extract TRACE",
        )
    return tuple(found)


def _what_it_calls(text: str, file: Path) -> list[str]:
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise InputError(f"it is no Python ({error.msg})", source=f"{file}:{error.lineno}") from error
    return [
        ast.dump(one)
        for one in body
        if isinstance(one, ast.FunctionDef) and one.name in {"make_inputs", "reference"}
    ]


class Extracted(NamedTuple):
    """A call of the list, and its file or why it has none."""

    rank: int  # from 1
    call: AloneCall
    file: CallFile | OpscopeError
    name: str  # of its file


def extracted(
    rank: int,
    one: AloneCall,
    *,
    what: str = "",
    name: str | None = None,
    start: StartKind | None = None,
    traces: Sequence[str] = (),
) -> Extracted:
    """`traces` are those beside which copies of generated sources may lie."""
    stems = [one.call.stem or one.call.name, *(call.stem or "" for call, _ in one.then)]
    name = name or f"{rank:02}_{'_'.join(stems)[:_LONGEST_NAME]}.py"
    try:
        if one.source_file is not None and start not in {None, StartKind.ATEN}:
            raise InputError(
                f"{one.name}: a kernel of torch.compile starts as it is",
                hint="Leave --start out, or extract the operators that it fuses from a run without compiling",
            )
        if one.source_file is None:
            file = call_file(one.call, what=what, name=name, start=start, then=one.then)
        else:
            file = kernel_file(one.call, _generated_source(one, traces), what=what, name=name)
        return Extracted(rank, one, file, name)
    except OpscopeError as error:
        return Extracted(rank, one, error, name)


def _generated_source(one: AloneCall, traces: Sequence[str]) -> str:
    path = Path(one.source_file or "")
    for place in (*(kernels_folder(trace) / path.name for trace in traces), path):
        text = read_generated(place, path.stem)
        if text is not None:
            return text
    raise InputError(
        f"{one.call.name}: its source, {path.name}, is not at hand",
        hint="Record with opscope run, which keeps it in TRACE.kernels, and keep that beside the trace",
    )


class StepGain(msgspec.Struct, frozen=True):
    """What a step would gain if calls took another time."""

    file: str
    operator: str
    calls: float  # in a step
    ratio: float  # of their time, then and now
    gain: Gain
    step_ns: float  # without the profiler, as simulated


def step_gain(
    summary: Summary, calls: Sequence[AloneCall], file: str, ratio: float, interval: Interval | None
) -> StepGain | None:
    """By simulation of the recorded steps: their kernels so much shorter, the host's calls as they were.

    None where the recording's steps cannot be simulated.
    """
    job = summary.job
    if job is None:
        return None
    # Of several in a row the first does the work of all, and the others are no longer called.
    first = [one for call in calls for one in call.operator_ids[:: 1 + len(call.then)]]
    rest = {one for call in calls for one in call.operator_ids} - {*first}
    below, dropped = (_below(summary.session, one) for one in (first, rest))

    def effect(change: GraphChange) -> None:
        duration_ns, launched = change.model.graph.duration_ns, change.model.is_launched_by
        mine, others = launched(below), launched(dropped)
        whole_ns, own_ns = duration_ns[mine | others].sum(), duration_ns[mine].sum()
        change.scale(mine, ratio * whole_ns / own_ns if own_ns else 1.0)
        change.drop(others).drop_host_of(list(rest))

    change = job.changed(effect)
    if job.missing_for(change) is not None:
        return None
    low, high = interval or (ratio, ratio)
    error = max(high - ratio, ratio - low) / abs(1.0 - ratio) if ratio != 1.0 else 0.0
    count = sum(one.times for one in calls) / max(1, len(summary.steps))
    return StepGain(file, calls[0].name, count, ratio, job.gain(change, error), job.step_ns)


def _below(session: Session, operator_ids: Iterable[int]) -> list[int]:
    """Operators, and all that they called."""
    return [one for (one,) in session.query(_BELOW_SQL, [list(operator_ids)])]


_BELOW_SQL = """
SELECT o.operator_id
FROM operators above JOIN (SELECT unnest($1::BIGINT[]) AS operator_id) USING (operator_id)
JOIN operators o ON o.operator_id BETWEEN above.operator_id AND above.last_descendant_id"""


_ORDER_SQL = """
SELECT trace_id, thread_id, operator_id
FROM operators JOIN (SELECT unnest($1::BIGINT[]) AS operator_id) USING (operator_id)
ORDER BY ALL"""


# An operator that calls itself has only cast its arguments, as autocast does.
_LAUNCHED_SQL = """
WITH named AS (
        SELECT *, coalesce(lead(operator_id) OVER of_name <= last_descendant_id, false) AS calls_itself
        FROM operators WHERE starts_with(name, 'aten::') AND input_shapes IS NOT NULL
        WINDOW of_name AS (PARTITION BY trace_id, thread_id, name ORDER BY operator_id)),
    ours AS (
        SELECT *, coalesce(max(last_descendant_id) OVER (PARTITION BY trace_id, thread_id ORDER BY operator_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) < operator_id AS is_outermost_of_torch
        FROM named WHERE NOT calls_itself),
    outermost AS (
        SELECT * EXCLUDE (calls_itself, is_outermost_of_torch), NULL AS kernel_file
        FROM ours WHERE is_outermost_of_torch
        UNION ALL
        SELECT DISTINCT o.*, t.kernel_file FROM operators o JOIN triton_launches t USING (operator_id)
        WHERE o.name = t.kernel_name AND o.input_shapes IS NOT NULL)
SELECT o.name, o.overload, o.input_shapes::VARCHAR, o.input_types::VARCHAR, o.input_strides::VARCHAR,
    o.concrete_inputs::VARCHAR, o.kernel_file, call_id, k.name, max(grid_x)::BIGINT,
    list(DISTINCT o.operator_id), sum(a.duration_ns)::BIGINT
FROM outermost o
JOIN device_activities a
    ON a.trace_id = o.trace_id AND a.kind = 'kernel'
        AND a.operator_id BETWEEN o.operator_id AND o.last_descendant_id
JOIN kernel_names k USING (name_id)
JOIN activity_costs c USING (activity_id)
GROUP BY ALL"""
