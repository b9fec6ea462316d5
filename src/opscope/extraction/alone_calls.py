"""The calls of a recording that can be run alone: as the program made them, with what they launched below.

A call is an operator of PyTorch that no other of them called, so `aten::linear`, not the product below it.
Calls with the same arguments are one.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from opscope.analysis.program.places import work_places
from opscope.analysis.roofline import Efficiency
from opscope.analysis.step_model import Gain, GraphChange
from opscope.analysis.summary import Summary
from opscope.errors import InputError, OpscopeError
from opscope.extraction.call_file import CallFile, Fed, call_file, collective_file, kernel_file, launch_file
from opscope.extraction.inputs import MADE_SMALLER, scaled
from opscope.extraction.starts import StartKind, is_elementwise, results_of
from opscope.model.benchmark import Interval
from opscope.model.queries import grouped, statements
from opscope.model.session import Session
from opscope.model.sidecar import kernels_folder
from opscope.operators.arguments import (
    CallArguments,
    TensorArgument,
    distinct_bytes,
    is_number,
    parse_arguments,
    read_gradients,
    type_of,
    with_kernel_types,
    with_list_members,
)
from opscope.operators.distinct_calls import Collective
from opscope.operators.given_arguments import SeenCall, as_seen, seen_calls, stem
from opscope.operators.operator_table import cost_by_rules
from opscope.provenance.generated_code import read_generated
from opscope.provenance.kernel_names.decoder import decode
from opscope.units import format_bytes

_SQL = statements(__package__, "alone_calls")
_SHOWN = 3  # shapes
_OTHERS = "Launches in this grid were given other arguments too: this is most of them."
_LONGEST_NAME = 60
_NUMBER = re.compile(r"-?\b\d+(\.\d*)?(e[+-]?\d+)?\b")


class AloneCall(NamedTuple):
    call: CallArguments
    operator_ids: tuple[int, ...]  # of its calls
    device_ns: int  # of all of them
    avoidable_ns: float | None  # of that, beyond the device's limits; None where these are not known
    kernels: tuple[str, ...]  # most time first
    sources: tuple[Path, ...] = ()  # where that of a Triton kernel of torch.compile may lie
    collective: Collective | None = None  # which it is, if it is one
    autocast: str | None = None  # its type of 16 bits, if it changed what the call gave others
    then: tuple[Fed, ...] = ()  # elementwise calls that work on its result, one after the other
    notes: tuple[str, ...] = ()
    activity_ids: tuple[int, ...] = ()  # launches of a Triton kernel that the program launched itself

    @property
    def times(self) -> int:
        """How often it was made; several in a row count once."""
        return len(self.activity_ids or self.operator_ids) // (1 + len(self.then))

    @property
    def name(self) -> str:
        """`aten::add`; `aten::add → relu` of several in a row."""
        return " → ".join([self.call.name, *(one.call.stem or "" for one in self.then)])

    @property
    def worth_ns(self) -> float:
        """What it may save: all of its time where no limit is known, but of waiting for others nothing."""
        return (0 if self.collective else self.device_ns) if self.avoidable_ns is None else self.avoidable_ns

    @property
    def has_unrecorded_numbers(self) -> bool:
        """Whether its file has stand-ins for Python numbers, which are the user's to write."""
        calls = () if self.sources else (self.call, *(one.call for one in self.then))
        given = (one for call in calls for one in call.arguments)
        lists = (call.has("scalars") and call.at("scalars") is None for call in calls)
        return any(isinstance(one, TensorArgument) and is_number(one) for one in given) or any(lists)

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
    gradients, traces = read_gradients(session), session.query("SELECT source FROM traces")
    seen = seen_calls(session)
    launched = grouped(
        (tuple(key), (device_ns, call_id, kernel, blocks, operators))
        for *key, call_id, kernel, blocks, operators, device_ns in session.query(_SQL["launched"])
    )
    found = []
    for (name, overload, shapes, types, strides, values, file, autocast, *shared), parts in launched.items():
        parts.sort(reverse=True)
        _, _, kernel, blocks, _ = parts[0]
        collective = Collective(*shared) if shared[0] else None
        of = f"c10d::{collective.name}" if collective else name or ""
        call = parse_arguments(
            of, overload=overload, shapes=shapes, types=types, strides=strides, concrete=values
        )
        call = with_kernel_types(call, kernel)
        notes: list[str] = []
        operator_ids = sorted({one for *_, operators in parts for one in operators})
        if seen and not (file or collective):
            names = session.query(_SQL["below"], [operator_ids[:1]])
            below = [one for _, name, _ in names if name != call.name for one in seen.get(stem(name), ())]
            call, notes = as_seen(call, seen.get(stem(call.name), ()), below)
        if call.has_unrecorded_list:
            call = with_list_members(call, kernel, blocks, gradients) or call
        sources = (
            (*(kernels_folder(trace) / Path(file).name for (trace,) in traces), Path(file)) if file else ()
        )
        known = [device_ns * gaps[call_id] for device_ns, call_id, *_ in parts if call_id in gaps]
        found.append(
            AloneCall(
                call,
                tuple(operator_ids),
                sum(device_ns for device_ns, *_ in parts),
                sum(known) if known and collective is None else None,
                tuple(dict.fromkeys(one for _, _, one, *_ in parts)),
                sources,
                collective,
                autocast,
                notes=tuple(notes),
            )
        )
    found += [*_chains(session, found), *_own_launches(session, found, seen)]
    if not found:
        raise InputError(
            "no operator of PyTorch and no kernel of Triton was launched with its arguments recorded",
            hint="Record with opscope run, or record_shapes=True: of your own kernels, the first alone",
        )
    return tuple(sorted(found, key=lambda one: (-one.worth_ns, -one.device_ns, one.name)))


def _chains(session: Session, calls: Sequence[AloneCall]) -> Iterator[AloneCall]:
    """Elementwise calls in a row, each of one kernel, of which each works on what the one before it gave.

    Which results go where is not recorded: a call is taken to work on the result before it where an argument
    of it has that shape and type.
    """
    of_operator = {operator_id: place for place, one in enumerate(calls) for operator_id in one.operator_ids}

    @cache
    def fed(before: int, after: int) -> str | None:
        results, call = results_of(calls[before].call), calls[after].call
        made = [(one.shape, type_of(one)) for one in results]
        given = zip(call.names, call.arguments, strict=False)
        tensors = ((name, one) for name, one in given if isinstance(one, TensorArgument))
        return next((name for name, one in tensors if [(one.shape, type_of(one))] == made), None)

    runs: list[list[tuple[int, str | None, int]]] = [[]]
    last = None
    for *thread, operator_id in session.query(_SQL["in_order"], [list(of_operator)]):
        place, run = of_operator[operator_id], runs[-1]
        joins = len(calls[place].kernels) == 1 and is_elementwise(calls[place].call)
        argument = fed(run[-1][0], place) if run and joins and last == thread else None
        if argument is None:
            runs.append(run := [])
        if joins:
            run.append((place, argument, operator_id))
        last = thread
    found: dict[tuple[tuple[int, str | None], ...], list[int]] = defaultdict(list)
    for run in runs:
        if len(run) > 1:
            found[tuple((place, argument) for place, argument, _ in run)] += [one for *_, one in run]
    for chain, operators in found.items():
        # What fusing leaves is to read what they read, but for each other's results.
        members = [calls[place] for place, _ in chain]
        times = len(operators) // len(members)
        shares = [(one, times / len(one.operator_ids)) for one in members]
        device_ns = sum(one.device_ns * share for one, share in shares)
        known_ns = sum((one.avoidable_ns or 0.0) * share for one, share in shares)
        costs = [cost for one in members if (cost := cost_by_rules(one.call)) is not None]
        moved = sum(cost.min_bytes or 0 for cost in costs)
        between = sum(cost.written_bytes or 0 for cost in costs[:-1])
        yield AloneCall(
            members[0].call,
            tuple(operators),
            round(device_ns),
            device_ns - (device_ns - known_ns) * (1 - 2 * between / moved) if moved else None,
            tuple(dict.fromkeys(kernel for one in members for kernel in one.kernels)),
            then=tuple(Fed(calls[place].call, argument) for place, argument in chain[1:]),
        )


def _own_launches(
    session: Session, calls: Sequence[AloneCall], seen: Mapping[str, Sequence[SeenCall]]
) -> Iterator[AloneCall]:
    """Triton kernels that the program launched itself, as a watched step saw it: one for each grid."""
    of_kernels = {(name, one.grid): one for name, ones in seen.items() for one in reversed(ones) if one.grid}
    if not of_kernels:
        return
    every = [operator for one in calls for operator in one.operator_ids]
    counted = {operator for operator, *_ in session.query(_SQL["below"], [every])}
    launches = session.query(_SQL["launches"], [list({name for name, _ in of_kernels})])
    for (name, *grid), rows in grouped(
        (tuple(key), rest)
        for *key, rest in ((*row[:4], row[4:]) for row in launches if row[4] not in counted)
    ).items():
        if (one := of_kernels.get((name, tuple(grid)))) is not None:
            others = [other for other in seen[name] if other.grid == one.grid and other != one]
            yield AloneCall(
                one,
                tuple(sorted({operator for operator, *_ in rows if operator is not None})),
                sum(device_ns for *_, device_ns in rows),
                None,
                (name,),
                notes=(_OTHERS,) if others else (),
                activity_ids=tuple(activity for _, activity, _ in rows),
            )


def chosen_call(calls: Sequence[AloneCall], wanted: str, session: Session) -> AloneCall:
    """The call of a rank from 1, or the first of which all words of a text name something.

    Words are parts of its operator, shapes and kernels; else of its modules and lines, where they were
    recorded, and of operators below it too, such as `aten::addmm` of `aten::linear`.
    """
    if wanted.isdigit():
        if not 1 <= int(wanted) <= len(calls):
            raise InputError(
                f"there is no call {wanted}", hint=f"There are {len(calls)}: opscope extract TRACE"
            )
        return calls[int(wanted) - 1]
    words = re.split(r"[\s<>…]+", wanted.lower().replace("x", "×"))
    every = [operator for one in calls for operator in one.operator_ids]
    # Where in the program, and what is called below, is asked last, for it takes the longest.
    for is_last in (False, True):
        known = work_places(session) if is_last else {}
        for _, name, operator in session.query(_SQL["below"], [every]) if is_last else ():
            known.setdefault(operator, set()).add(name)
        for one in sorted(calls, key=lambda one: bool(one.then)):
            at = {place for operator in one.operator_ids for place in known.get(operator, ())}
            text = "\n".join([one.name, one.shapes, *one.kernels, *at]).lower().replace("x", "×")
            if all(word in text for word in words):
                return one
    if session.query("SELECT 1 FROM kernel_names WHERE kind = 'kernel' AND contains(name, $1)", [wanted]):
        raise InputError(
            f"nothing is recorded of what the kernel '{wanted}' was launched with",
            hint="Record with opscope run, which notes the launches of Triton's kernels in a step before",
        )
    raise InputError(
        f"no call has '{wanted}' in its operator, its shapes, its kernels, its modules or its lines",
        hint="List them: opscope extract TRACE",
    )


def calls_of_file(calls: Sequence[AloneCall], file: Path) -> tuple[AloneCall, ...]:
    """The recorded calls that a file was written of: those whose own files make and call the same."""

    def what_it_calls(text: str, *, is_open: bool) -> list[str]:
        functions = (one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef))
        written = [ast.unparse(one) for one in functions if one.name in {"make_inputs", "reference"}]
        return [*written[:1], *(_NUMBER.sub("0", one) if is_open else one for one in written[1:])]

    text = file.read_text(encoding="utf-8")
    if MADE_SMALLER in text:
        raise InputError(
            "its tensors are smaller than the recorded ones, so what a step would gain by it is not known",
            source=file,
            hint="Leave --in out, or extract the call without --scale",
        )
    try:
        wanted = {is_open: what_it_calls(text, is_open=is_open) for is_open in (False, True)}
    except SyntaxError as error:
        raise InputError(f"it is no Python ({error.msg})", source=f"{file}:{error.lineno}") from error
    own = ((one, extracted(0, one, start=StartKind.ATEN, module="torch").file) for one in calls)
    found = [
        one
        for one, written in own
        for is_open in [one.has_unrecorded_numbers]
        if isinstance(written, CallFile) and what_it_calls(written.text, is_open=is_open) == wanted[is_open]
    ]
    if not found:
        raise InputError(
            "the recording has no call that its make_inputs and reference stand for",
            source=file,
            hint="Extract it from this recording, and change only `mine`: opscope extract TRACE",
        )
    return tuple(found)


class Extracted(NamedTuple):
    rank: int  # in the list, from 1
    call: AloneCall
    file: CallFile | OpscopeError  # why it has none
    name: str  # of its file


def extracted(
    rank: int,
    one: AloneCall,
    *,
    what: str = "",
    name: str | None = None,
    start: StartKind | None = None,
    module: str | None = None,
    scale: float | None = None,
    memory_bytes: int | None = None,
) -> Extracted:
    """Its file; `module` registers operators that are not PyTorch's, `scale` makes its tensors smaller.

    They must fit into a device with so much memory, where it is given.
    """
    stems = [(of.stem or of.name).rpartition("::")[2] for of in (one.call, *(fed.call for fed in one.then))]
    name = name or f"{rank:02}_{'_'.join(stems)[:_LONGEST_NAME]}.py"
    try:
        if scale is not None and (one.collective or one.sources or one.activity_ids or one.then):
            raise InputError(
                f"{one.name}: only calls of one operator can be made smaller", hint="Leave --scale out"
            )
        if one.collective is not None:
            file = collective_file(one.call, one.collective, what=what, name=name)
        elif one.sources and start not in {None, StartKind.ATEN}:
            raise InputError(
                f"{one.name}: a kernel of torch.compile starts as it is",
                hint="Leave --start out, or extract the operators that it fuses from a run without compiling",
            )
        elif one.sources:
            texts = (read_generated(place, place.stem) for place in one.sources)
            if (source := next((text for text in texts if text is not None), None)) is None:
                raise InputError(
                    f"{one.name}: its source, {one.sources[-1].name}, is not at hand",
                    hint="Record with opscope run, which keeps it in TRACE.kernels, "
                    "and keep that beside the trace",
                )
            file = kernel_file(one.call, source, what=what, name=name)
        elif isinstance(one.call, SeenCall):
            file = launch_file(one.call, what=what, name=name, notes=one.notes)
        else:
            call, notes = (one.call, one.notes) if scale is None else scaled(one.call, scale)
            needed_bytes = sum(distinct_bytes(tensor) or 0 for tensor in call.tensors)
            if memory_bytes is not None and needed_bytes > memory_bytes:
                raise InputError(
                    f"{one.name}: its inputs take {format_bytes(needed_bytes)}, and this GPU has "
                    f"{format_bytes(memory_bytes)}",
                    hint=f"Make them smaller: --scale {memory_bytes / needed_bytes / 2:.1g}",
                )
            file = call_file(
                call,
                what=what,
                name=name,
                start=start,
                then=one.then,
                module=module,
                notes=notes,
                autocast=one.autocast,
                is_tf32=any(of.tensor_core and of.operand_type == "f32" for of in map(decode, one.kernels)),
            )
        return Extracted(rank, one, file, name)
    except OpscopeError as error:
        return Extracted(rank, one, error, name)


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
    if (step := summary.step_model) is None:
        return None
    # Of several in a row the first does the work of all, and the others are no longer called.
    first = [one for call in calls for one in call.operator_ids[:: 1 + len(call.then)]]
    rest = {one for call in calls for one in call.operator_ids} - {*first}
    below, dropped = (
        [one for one, *_ in summary.session.query(_SQL["below"], [list(above)])] for above in (first, rest)
    )

    def effect(change: GraphChange) -> None:
        duration_ns, launched = change.model.graph.duration_ns, change.model.is_launched_by
        mine, others = launched(below), launched(dropped)
        whole_ns, own_ns = duration_ns[mine | others].sum(), duration_ns[mine].sum()
        change.scale(mine, ratio * whole_ns / own_ns if own_ns else 1.0)
        change.drop(others).drop_host_of(list(rest))

    change = step.change(effect)
    if step.missing_for(change) is not None:
        return None
    low, high = interval or (ratio, ratio)
    error = max(high - ratio, ratio - low) / abs(1.0 - ratio) if ratio != 1.0 else 0.0
    count = sum(one.times for one in calls) / max(1, len(summary.steps))
    return StepGain(file, calls[0].name, count, ratio, step.gain(change, error), step.step_ns)
