"""The calls of a recording that can be run alone: as the program made them, with what they launched below.

A call is an operator of PyTorch that no other of them called, so `aten::linear`, not the product below it.
Calls with the same arguments are one.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from opscope.analysis.roofline import Efficiency
from opscope.analysis.step_model import Gain
from opscope.analysis.summary import Summary
from opscope.errors import InputError, OpscopeError
from opscope.model.benchmark import Interval
from opscope.model.session import Session
from opscope.model.sidecar import kernels_folder
from opscope.operators.arguments import (
    CallArguments,
    parse_arguments,
    read_gradients,
    with_kernel_types,
    with_list_members,
)
from opscope.operators.call_file import CallFile, call_file, kernel_file
from opscope.operators.starts import StartKind
from opscope.provenance.generated_code import read_generated

_SHOWN = 3  # shapes


class AloneCall(NamedTuple):
    call: CallArguments
    operator_ids: tuple[int, ...]  # of its calls
    device_ns: int  # of all of them
    avoidable_ns: float | None  # of that, beyond the device's limits; None where these are not known
    kernels: tuple[str, ...]  # most time first
    source_file: str | None = None  # of a Triton kernel that torch.compile wrote, where it was recorded

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
    return tuple(sorted(found, key=lambda one: (-(one.avoidable_ns or 0.0), -one.device_ns, one.call.name)))


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

    for one in calls:
        text = spelled("\n".join([one.call.name, one.shapes, *one.kernels]))
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
    name = name or f"{rank:02}_{one.call.stem or one.call.name}.py"
    try:
        if one.source_file is None:
            file = call_file(one.call, what=what, name=name, start=start)
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
    """By simulation of the recorded steps: their kernels so much shorter, the host as it was.

    None where the recording's steps cannot be simulated.
    """
    job = summary.job
    if job is None:
        return None
    outermost = [one for call in calls for one in call.operator_ids]
    operators = [one for (one,) in summary.session.query(_BELOW_SQL, [outermost])]
    change = job.changed(lambda one: one.scale(one.model.is_launched_by(operators), ratio))
    if job.missing_for(change) is not None:
        return None
    low, high = interval or (ratio, ratio)
    error = max(high - ratio, ratio - low) / abs(1.0 - ratio) if ratio != 1.0 else 0.0
    steps = max(1, len(summary.steps))
    gain = job.gain(change, error)
    return StepGain(file, calls[0].call.name, len(outermost) / steps, ratio, gain, job.step_ns)


_BELOW_SQL = """
SELECT o.operator_id FROM operators o
JOIN operators above ON o.operator_id BETWEEN above.operator_id AND above.last_descendant_id
WHERE list_contains($1, above.operator_id)"""


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
