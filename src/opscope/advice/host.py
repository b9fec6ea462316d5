"""Advice on the host: slow launches, the recorder, waits, work out of place, copies to and from devices."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from operator import methodcaller

import msgspec

from opscope.advice.profiled_run import Advice, ProfiledRun, capture_of, finds, in_the_way, listed
from opscope.advice.rules import Rule
from opscope.analysis.arrays import columns
from opscope.analysis.step_model import Gain, StepBound, StepModel
from opscope.analysis.timeline.records import CALL_NAMES_SQL
from opscope.analysis.timeline.values import IdleCause, IdleGap, WaitingCall
from opscope.analysis.totals import KernelTotal
from opscope.model.finding import OPEN, Applicability
from opscope.model.origin import is_program_file, parse_frame
from opscope.model.queries import grouped, sql
from opscope.provenance.native_functions import EVALUATE
from opscope.provenance.serving import ServingPhase
from opscope.units import counted, format_byte_rate, format_bytes, format_duration, format_fraction

# DistributedDataParallel times its own first ten iterations and every hundredth with events.
# Source: measureDifference in torch/csrc/distributed/c10d/reducer_cuda.cpp, PyTorch 2.11.
_OF_LIBRARIES = frozenset({("DistributedDataParallel.forward", "cudaEventSynchronize")})

_WITHOUT_GRAPH = (
    "Take out what stands in the way of a CUDA graph first, or use a larger batch, which costs the host "
    "nothing."
)
_COMPILED = "model = torch.compile(model)   # fewer launches, also around what no graph can hold"
_GRAPHS_OF_COMPILED = """\
model = torch.compile(model, mode="reduce-overhead")   # what it compiles launches the same in each step"""
_GRAPHS_OF_PART = """\
part = torch.compile(part, mode="reduce-overhead")   # what {} calls; clone what outlives its next call"""
_OF_PART = "Compile this part alone with CUDA graphs, or capture it; what stands in the way stays outside."
_MOST_OF_NUMBERS = 256  # bytes of a copy: sizes and counts, no results
# What asks the device for a number: without it not even the copy is made.
_QUESTIONS = ("aten::item", "aten::is_nonzero", "aten::_local_scalar_dense")
_ROWS_OF_MASK = """\
torch.where(mask, values, 0).sum() / mask.sum()   # instead of values[mask].mean()
values[rows]   # rows = mask.nonzero().squeeze(1), once, where the mask stays the same"""
_FEW_NUMBERS = (
    "The host needs a few numbers of the device to go on: keep what they decide on the device, or read "
    "many of them at once."
)
# By how the names of operators that wait for values begin: what to do, and as code.
_OF_VALUES = (
    (
        "aten::index",
        "The host waits for how many rows a mask selects: index with rows found once, or work on all rows "
        "(torch.where).",
        _ROWS_OF_MASK,
    ),
    (
        ("aten::nonzero", "aten::masked_select", "aten::where", "aten::unique", "aten::_unique"),
        "How large its result is depends on values, so the host waits for them: work on all rows with a mask "
        "(torch.where), or ask for the sizes of many at once.",
        "",
    ),
    ("aten::", "Look for what in it needs a value on the host (a check, a size, a scalar).", ""),
)


@finds
def launch_bound(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    step = run.step
    phase = next((one.phase for one in run.summary.engine_steps), None)
    # An engine that compiled does what there is to do for its prefill.
    is_done = phase is ServingPhase.PREFILL and run.is_compiled
    if step is None or step.launches < 1 or step.busy_ns <= 0 or is_done:
        return
    idle_fraction = run.idle_fraction(IdleCause.HOST_LAUNCH)
    loading_ns = run.per_step(run.summary.loader_ns)
    if (
        step.host_range_ns[1] < rule.threshold("host_over_device") * step.device_ns
        or idle_fraction < rule.threshold("least_idle_fraction")
        or step.host_ns - loading_ns > rule.threshold("most_launch_ns") * step.launches
    ):
        return
    graph_ns = run.book.number("graph_host_ns")
    found = capture_of(run)
    blocked = in_the_way(run, found)
    ranks = {device.trace_id: device.rank for device in run.summary.devices}
    rank = None if len(ranks) < 2 else ranks.get(step.trace.trace_id)
    told = (
        f"The host{'' if rank is None else f' of rank {rank}'} needs {format_duration(step.host_ns)} "
        f"to launch {'a step' if run.has_steps else 'what was recorded'}{_recorded(step)}, the device "
        f"{format_duration(step.device_ns)} to run it: "
        f"{counted(step.launches, 'launch')} of {format_duration(step.busy_ns / step.launches)} "
        "of work each."
    )
    if blocked:
        told += f" No CUDA graph can hold it as it is: {blocked}."
    advice = Advice(
        told,
        {
            "host_ns": step.host_ns,
            "recorded_host_ns": step.recorded_host_ns,
            "recorder_ns": step.recorder_ns,
            "device_busy_ns": step.busy_ns,
            "launches_per_step": step.launches,
            "idle_fraction": idle_fraction,
        },
        lambda change: change.replay(graph_ns),
        f"with one CUDA graph {'per step' if run.has_steps else 'of it all'} the "
        f"host needs {format_duration(graph_ns)}",
        suggestion=_WITHOUT_GRAPH if blocked else None,
        applicability=found,
        # Engines hold prefill in no graph as a whole.
        is_sure=phase is not ServingPhase.PREFILL,
    )
    is_open = blocked and run.summary.is_of_torch and run.summary.engine is None and run.has_steps
    if is_open and step.is_host_bound:
        most_ns, change = step.step_ns - step.device_ns, _COMPILED
        gain_ns = run.has_model * min(most_ns, rule.threshold("compiled_share") * step.step_ns)
        if run.is_compiled:
            # What stands in the way may lie outside of what is compiled, and graphs hold just that.
            share = run.session.scalar(sql(__package__, "capture:steady"), [run.left_out]) or 0.0
            is_steady = share >= rule.threshold("least_steady")
            gain_ns, change = share * most_ns * is_steady, _GRAPHS_OF_COMPILED
        elif (line := run.line_to_capture) and line.fraction >= rule.threshold("least_captured"):
            where = line.line.partition(" ")[0]
            gain_ns, change = line.fraction * most_ns, _GRAPHS_OF_PART.format(where)
            told += (
                f" But what {where} calls, {format_fraction(line.fraction)} of the host's time, waits for "
                "nothing and launches the same each time."
            )
            found_there = {**advice.evidence, "line": line.line}
            advice = msgspec.structs.replace(advice, message=told, evidence=found_there, suggestion=_OF_PART)
        if gain_ns:
            advice = msgspec.structs.replace(
                advice,
                effect=None,
                basis=None,
                gain=Gain(gain_ns, 0.0, most_ns),
                change=change,
                applicability=msgspec.structs.replace(OPEN, blocked_by=found.blocked_by),
                is_sure=False,
            )
    yield advice


def _recorded(step: StepModel) -> str:
    if not step.recorder_ns:
        return " as recorded"
    least_ns, most_ns = step.host_range_ns
    between = "" if least_ns == most_ns else f", {format_duration(least_ns)} to {format_duration(most_ns)}"
    return f" ({format_duration(step.recorded_host_ns)} as recorded{between} without the profiler)"


@finds
def anomaly_detection(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    if "aten::isnan" not in run.names:
        return
    checks = run.session.records(_GRADIENT_CHECKS_SQL, [EVALUATE])
    count = sum(row["name"] == "aten::isnan" for row in checks)
    nodes = sum(one.calls for one in run.summary.operators if one.name.startswith(EVALUATE))
    if not count or run.per_step(count) < rule.threshold("least_checked") * run.per_step(nodes):
        return
    host_ns, device_ns = (sum(row[key] for row in checks) for key in ("duration_ns", "total_device_ns"))
    ids = [one for row in checks for one in range(row["operator_id"], row["last_descendant_id"] + 1)]
    yield Advice(
        f"Gradients are checked {run.times(count, 'time')}, and the host waits for each: "
        f"{run.device_time(device_ns)}, and {run.time(host_ns)} on the host as recorded.",
        run.evidence(device_ns, checks=count, host_ns=host_ns),
        lambda change: change.drop_operators(ids),
        is_sure=False,  # tracebacks cost more: of 205 ms that went, the checks were 43
    )


# What the engine itself calls after each node of the graph.
_GRADIENT_CHECKS_SQL = """
SELECT o.operator_id, o.last_descendant_id, o.name, o.duration_ns, o.total_device_ns
FROM operators o JOIN operators p ON p.operator_id = o.parent_id
WHERE o.name IN ('aten::isnan', 'aten::_is_any_true', 'aten::any', 'aten::is_nonzero', 'aten::item')
AND starts_with(p.name, $1) AND o.step IS NOT NULL"""


@finds
def host_sync(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    # Of one place all calls go together: `.item()` is a copy and a wait for its stream.
    places = grouped(
        # Without an operator or a line, the name is all there is.
        ((wait.operator, wait.line, "" if wait.operator or wait.line else wait.name), wait)
        for wait in run.summary.timeline.waits
        if (wait.operator, wait.name) not in _OF_LIBRARIES
        and not _is_the_recorders(run, wait)
        # Nor of another runtime, of OpenACC or OpenMP, which calls the driver.
        and not (run.summary.is_whole_process and re.match("cu[A-Z]", wait.name))
    )
    # What comes behind a wait may be late beyond the recording, so the host's time counts as well; not of a
    # program without PyTorch, which was recorded whole. A host that the recorder holds up waits less than it
    # does without, so a wait counts of the step without.
    window_ns = min(run.window_ns, run.step.step_ns * run.step_count) if run.step else run.window_ns
    of_torch, typical = run.summary.is_of_torch, run.summary.typical_step
    # Where the device decides, the host waits for it somewhere anyway.
    counts_host = of_torch and (typical is None or typical.bound is not StepBound.DEVICE)
    cost_ns = {
        place: sum(max(one.idle_ns, one.host_ns * counts_host) for one in waits)
        for place, waits in places.items()
    }
    # A loop over groups waits for the size of each, and has its own advice.
    loops = [one for one in run.dataflow.recorded.rounds if one.is_selected]
    group_ids = {*run.dataflow.found([part for one in loops for part in one.rounds]).operator_ids}
    ranked = sorted(
        (
            place
            for place in places
            if cost_ns[place] >= rule.threshold("least_idle_fraction") * max(1, window_ns)
        ),
        key=lambda place: (-cost_ns[place], place[0] or "", place[1] or "", place[2]),
    )
    for place in ranked[: int(rule.threshold("places"))]:
        waits = sorted(places[place], key=lambda one: (-max(one.idle_ns, one.host_ns), one.name))
        longest, call_ids = waits[0], [call_id for one in waits for call_id in one.call_ids]
        callers = run.callers_of(call_ids) if run.watched.steps else []
        if longest.line is None:
            longest = msgspec.structs.replace(longest, line=run.watched.line_of(callers))
        idle_ns, host_ns = sum(one.idle_ns for one in waits), sum(one.host_ns for one in waits)
        # A small copy returns at once, and its operator waits for the stream.
        copy = longest.copy or run.session.scalar(_COPIES_SQL, [[*longest.call_ids]]) or ""
        # What is copied up once in a step gains nothing when pinned; many small tensors need no copy.
        is_upload = "(Pageable -> Device)" in copy or (longest.operator is None and "Memcpy" in longest.name)
        if is_upload and not (run.has_steps and longest.calls > _MOST_OF_A_BATCH * run.step_count):
            continue
        # Results, neither numbers nor sizes: they can be copied beside the next step.
        is_download = "DtoH" in copy and (longest.operator is None or longest.operator in PASSING)
        is_small = is_download and (longest.size_bytes or math.inf) <= _MOST_OF_NUMBERS * longest.calls
        better = run.book.rules["advice.host_copies"] if is_download and not is_small else rule
        operator, suggestion, change = longest.operator or "", better.suggestion, better.change
        is_question = operator in _QUESTIONS
        if is_upload:
            suggestion, change = _MADE_THERE, _ON_THE_DEVICE
        elif of_torch and (is_small or (is_question and longest.calls > _MOST_OF_LOSSES * run.step_count)):
            suggestion, change = _FEW_NUMBERS, _AT_ONCE if is_question else ""
        elif is_download and of_torch:
            change = _LATER
        # Only a number can be asked for later, and only a copy be made beside what follows.
        elif better is rule and not is_question:
            of_others = rule.engines["cuda"].suggestion, ""
            suggestion, change = next(
                (words for names, *words in _OF_VALUES if operator.startswith(names)), of_others
            )
        if 2 * sum(one in group_ids for one in callers) > len(call_ids):
            continue
        yield Advice(
            f"{_place(longest)} waits for the device {counted(longest.calls / run.step_count, 'time')} "
            f"{run.period}: the host spends {format_duration(host_ns / run.step_count)} in it, the "
            f"device is idle for {format_duration(idle_ns / run.step_count)} {run.period}.",
            {
                "calls": list(dict.fromkeys(one.name for one in waits)),
                "operator": longest.operator,
                "line": longest.line,
                "call_count": sum(one.calls for one in waits),
                "host_wait_ns": host_ns,
                "idle_ns": idle_ns,
            },
            methodcaller("drop_questions" if is_question else "free_waits", call_ids),
            "the step simulated with these calls returning at once",
            # What was asked for is then computed on the device, by as many calls.
            worst=methodcaller("free_waits", call_ids) if is_question else None,
            suggestion=suggestion,
            change=change,
            like=better,
            is_sure=is_question and of_torch,
            needs_number=not is_question or longest.calls < rule.threshold("most_questions") * run.step_count,
        )


_MOST_OF_A_BATCH = 8  # tensors
_MOST_OF_LOSSES = 16  # a step: more numbers are read element by element, or decide how a loop goes on
_AT_ONCE = "numbers = torch.stack(results).tolist()   # one wait, in place of .item() for each"
_MADE_THERE = (
    "Make these tensors on the device, once if they are the same each time; copy what must come from the "
    "host as one tensor."
)
_LATER = """\
results.copy_(output, non_blocking=True)   # into pinned memory: read a step later"""
_ON_THE_DEVICE = 'grid = torch.arange(size, device="cuda")   # once, instead of copying it where it is used'

_COPIES_SQL = """SELECT n.name FROM runtime_calls r JOIN device_activities a USING (operator_id)
JOIN kernel_names n USING (name_id)
WHERE a.kind = 'memcpy' AND list_contains(?::BIGINT[], r.runtime_call_id) LIMIT 1"""


def _is_the_recorders(run: ProfiledRun, wait: WaitingCall) -> bool:
    """Whether it may be the wait at the end of a recording, of which nothing that follows is late."""
    # Steps end where the optimizer's do.
    is_outside = wait.operator is None or wait.operator.startswith("Optimizer.step#")
    is_often = run.has_steps and wait.calls > len(run.summary.traces)
    if not is_outside or is_often or not wait.name.endswith("Synchronize"):
        return False
    is_rare = run.has_steps and wait.calls < run.step_count
    return is_rare or not run.session.scalar(_BETWEEN_LAUNCHES_SQL, [[*wait.call_ids]])


_BETWEEN_LAUNCHES_SQL = """WITH launched AS (
    SELECT trace_id, min(start_ns) AS first_ns, max(start_ns) AS last_ns
    FROM runtime_calls SEMI JOIN device_activities USING (trace_id, correlation_id) GROUP BY trace_id)
SELECT EXISTS (FROM runtime_calls JOIN launched USING (trace_id)
    WHERE list_contains($1::BIGINT[], runtime_call_id) AND start_ns BETWEEN first_ns AND last_ns)"""


def _place(wait: WaitingCall) -> str:
    calls = f"{wait.name}, {wait.copy}" if wait.copy else wait.name
    return (f"{wait.operator} ({calls})" if wait.operator else calls) + (
        f" at {wait.line}" if wait.line else ""
    )


@finds
def host_work(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    least_ns = rule.threshold("least_gap_fraction") * run.window_ns / run.step_count
    long_gaps = [
        (partition.trace_id, gap)
        for partition in run.summary.timeline.in_use
        for gap in partition.longest_gaps
        if gap.cause in (IdleCause.HOST_LAUNCH, IdleCause.NOTHING_SCHEDULED)
        and gap.duration_ns >= least_ns
        and "torch/profiler/" not in (gap.host or "")
    ]
    if not long_gaps:
        return
    # Operators that launch are slow to launch, which is another matter; so are calls of the driver.
    launching = {one.name for one in run.summary.operators if one.total_device_ns}
    launching.update(name for (name,) in run.session.known(CALL_NAMES_SQL))
    # An operator that launches elsewhere may compute on the host here: of tensors that are not on the device.
    computing = run.session.query(_COMPUTING_SQL, [least_ns, *_COMPUTING])
    # Code of a library within a module's call launches slowly, which is another matter.
    asked = "SELECT trace_id, start_ns, start_ns + duration_ns FROM frames WHERE name LIKE 'nn.Module: %'"
    module_of, began_ns, ended_ns = columns(run.session, asked).values()
    places: dict[tuple[str | None, str | None], list[tuple[int, IdleGap]]] = {}
    for trace_id, gap in long_gaps:
        end_ns, middle_ns = gap.start_ns + gap.duration_ns, gap.start_ns + gap.duration_ns // 2
        host, line = gap.host, gap.line
        computed_ns = dict.fromkeys(_COMPUTING, 0)
        for what, of, since_ns, until_ns in computing:
            if of == trace_id:
                computed_ns[what] += max(0, min(until_ns, end_ns) - max(since_ns, gap.start_ns))
        if 2 * sum(computed_ns.values()) > gap.duration_ns:
            host = max(computed_ns, key=computed_ns.__getitem__)
        # So are views, which the model's own code makes.
        elif (
            host in launching
            or ((host or "").startswith("aten::") and not _PREPARES.search(host or ""))
            or (not _is_own(host) and trace_id in module_of[(began_ns <= middle_ns) & (middle_ns < ended_ns)])
        ):
            continue
        elif host is None and (python := run.dataflow.python_until(gap.start_ns, end_ns)):
            line = python.line
        places.setdefault((host, line), []).append((trace_id, gap))
    for (host, line), found in sorted(
        places.items(), key=lambda item: -sum(gap.duration_ns for _, gap in item[1])
    ):
        idle_ns = sum(gap.duration_ns for _, gap in found)
        # Where no step tells what comes again, what came once or twice may be the start or the end.
        # And of a program in CUDA nothing but its calls is.
        is_unseen = host is None and run.summary.is_whole_process
        is_again = run.has_steps or host in _COMPUTING or (len(found) >= _OFTEN and not is_unseen)
        if not is_again or idle_ns < rule.threshold("least_idle_fraction") * run.window_ns:
            continue
        # A function around several steps is no place: it is their loop.
        if run.has_steps and run.session.scalar(_AROUND_SQL, [host, _LOOP * run.window_ns / run.step_count]):
            continue
        where = host or ("Python, before it calls PyTorch" if line else "code that was not recorded")
        where += f" at {line}" if line else ""
        is_input = _PREPARES.search(host or "") is not None
        # What happens once, as compiling does, is nothing to prepare; nor is what a library does for itself.
        steps = len({gap.step for _, gap in found})
        is_often = run.has_steps and len(found) > 1 and 2 * steps >= run.step_count
        is_ahead = is_often and (host or line) and _is_own(host) and not (host or "").endswith(": forward")
        otherwise = (None, None) if is_input else (_ELSEWHERE, _AHEAD if is_ahead else "")
        suggestion, change = _COMPUTING.get(host or "", otherwise)
        # The device is idle in a part of what makes inputs, and all of that could be done beforehand.
        gaps = {tuple(extent) for what, *extent in computing if what == host}
        if not gaps:
            gaps = {(of, gap.start_ns, gap.start_ns + gap.duration_ns) for of, gap in found}.union(
                run.session.query(_LONG_CALLS_SQL, [host, least_ns])
            )
        told = f"{format_duration(idle_ns / run.step_count)} {run.period}"
        if run.has_steps and steps == 1 and run.step_count >= _OFTEN:
            told = f"{format_duration(idle_ns)} in one of {run.step_count} steps"
        yield Advice(
            f"The device is idle for {told}, {format_fraction(idle_ns / run.window_ns)} of the time, while "
            f"the host is in {where}.",
            {"idle_ns": idle_ns, "host": host, "line": line, "gaps": len(found)},
            methodcaller("drop_host_between", gaps),
            # A thread beside takes turns with the one that launches.
            worst=methodcaller("drop_host_between", gaps, 0.5),
            suggestion=suggestion,
            change=change,
            like=rule,
            # What is not known to make inputs may need the step before.
            is_sure=is_input,
        )


_AROUND_SQL, _LOOP = "SELECT EXISTS (FROM frames WHERE name = ? AND duration_ns > ?)", 2  # mean steps
_OFTEN = 3  # gaps, or steps of which one tells nothing of the others
_AHEAD = """\
pool = concurrent.futures.ThreadPoolExecutor(1)
following = pool.submit(prepare)   # what the next step needs, while this one runs
batch = following.result()         # where the next one begins"""

_ELSEWHERE = (
    "See what the host does there: what does not need the step before can run ahead of it, or beside it in "
    "another thread."
)
# What the host computes, as a place; what to do about it.
_COMPUTING = {
    "operators that draw random numbers": ("Draw them on the device.", 'x = torch.randn(n, device="cuda")'),
    "operators on tensors of the host": (
        "Copy them to the device first and convert them there, or have workers of a DataLoader prepare them.",
        'batch = batch.to("cuda")   # first; then float(), normalizing and the like on the device',
    ),
}
# What computes or moves elements: others, such as views of one large tensor, are the framework's own work.
_ELEMENTS = (
    "^aten::(_?to(_copy)?|copy|clone|contiguous|add|sub|mul|div|pow|sqrt|exp|log|clamp|where|index|index_select|"
    "gather|stack|cat|flip|roll|normal|uniform|bernoulli|rand(n|int)?(_like)?|randperm|mean|sum|std|sort|"
    "constant_pad_nd|_?upsample_.*|grid_sampler.*|conv.*|mkldnn_.*|mm|bmm|addmm|matmul|linear|einsum|fft_.*|"
    "(max|avg)_pool.*|cumsum|topk|unique.*)_?$"
)
# Outermost calls of them on threads that launch, themselves without a launch: those that follow each other
# without a launch or a gap of $1 ns in between are one, most of it drawing ($2) or not ($3).
_COMPUTING_SQL = f"""WITH computing AS (
    SELECT o.*, o.start_ns + o.duration_ns AS end_ns, r.start_ns AS call_ns
    FROM operators o ASOF LEFT JOIN runtime_calls r
        ON r.trace_id = o.trace_id AND r.thread_id = o.thread_id AND r.start_ns <= o.start_ns + o.duration_ns
    WHERE o.parent_id IS NULL AND regexp_matches(o.name, '{_ELEMENTS}') AND coalesce(o.total_device_ns, 0) = 0
        AND (o.trace_id, o.thread_id) IN (SELECT (trace_id, thread_id) FROM runtime_calls)),
apart AS (
    SELECT *, start_ns - lag(end_ns) OVER between_calls > $1 AS is_apart
    FROM computing WHERE call_ns IS NULL OR call_ns < start_ns
    WINDOW between_calls AS (PARTITION BY trace_id, thread_id, call_ns ORDER BY start_ns)),
numbered AS (FROM apart SELECT *,
    count_if(is_apart) OVER (PARTITION BY trace_id, thread_id, call_ns ORDER BY start_ns) AS number)
SELECT if(2 * sum(duration_ns) FILTER (name SIMILAR TO 'aten::(normal|uniform|bernoulli|rand).*')
    > sum(duration_ns), $2, $3), trace_id, min(start_ns), max(end_ns) FROM numbered
GROUP BY trace_id, thread_id, call_ns, number HAVING max(end_ns) - min(start_ns) >= $1"""

_LONG_CALLS_SQL = """SELECT trace_id, start_ns, start_ns + duration_ns FROM operators
WHERE name = ? AND duration_ns >= ?"""

# Operators on elements, and functions whose names say that they make inputs.
_PREPARES = re.compile(rf"{_ELEMENTS}|^operators |(?i:preprocess|dataset|loader|tokeniz|collate|augment)")


def _is_own(host: str | None) -> bool:
    """Whether what the host is in may be the program's own code: it is where nothing else was recorded."""
    frame = parse_frame(host or "")
    return host is None or (frame is not None and is_program_file(frame.file))


@finds
def data_loading(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    fraction = run.idle_fraction(IdleCause.DATA_LOADING)
    if fraction < rule.threshold("least_idle_fraction"):
        return
    idle_ns = run.idle_ns(IdleCause.DATA_LOADING) / run.step_count
    hosts = dict.fromkeys(
        gap.host
        for partition in run.summary.timeline.partitions
        for gap in partition.longest_gaps
        if gap.cause is IdleCause.DATA_LOADING and gap.host
    )
    # More of them help where the machine has cores to spare.
    has_workers = any("_MultiProcessingDataLoaderIter" in host for host in hosts)
    yield Advice(
        f"The device waits {format_duration(idle_ns)} {run.period} for data, {format_fraction(fraction)} of "
        "the time.",
        {"idle_ns_per_step": idle_ns, "idle_fraction": fraction, "waits_in": list(hosts)},
        lambda change: change.drop_host(change.model.loading),
        # Workers hand over what they loaded, and may be slower than one process by itself.
        worst=lambda change: change.drop_host(change.model.loading, 0.5).add_host(
            rule.threshold("most_receiving_ns")
        ),
        suggestion=_MORE_WORKERS if has_workers else None,
        change=_OF_WORKERS if has_workers else None,
        # Where a pass over the data is short, workers begin anew again and again.
        is_sure=not has_workers
        and bool(run.session.scalar(_LONG_PASS_SQL, [rule.threshold("least_batches")])),
    )


# The call that ends a pass returns at once.
_LONG_PASS_SQL = """SELECT count(*) >= $1 AND min(duration_ns) > 0.1 * median(duration_ns)
FROM annotations WHERE side = 'host' AND name LIKE 'enumerate(DataLoader)#%'"""
_MORE_WORKERS = (
    "Workers load already and are too slow: use more of them if the machine has cores to spare, do less for "
    "each sample, or keep samples prepared."
)
_OF_WORKERS = """\
loader = DataLoader(dataset, ..., num_workers=os.cpu_count(), prefetch_factor=4, persistent_workers=True)"""


@finds
def cuda_malloc(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    rows = run.allocations
    calls = sum(row["calls"] for row in rows)
    steps = max((row["steps"] for row in rows), default=0)
    is_rare = steps < rule.threshold("least_steps") or calls < rule.threshold("least_calls") * run.step_count
    if not run.has_steps:
        # PyTorch's allocator gives memory back at its start, while kernels are chosen.
        is_rare = run.summary.is_of_torch or calls < rule.threshold("least_calls_in_all")
    if is_rare or run.idle_fraction(IdleCause.MEMORY_ALLOCATION) < rule.threshold("least_idle_fraction"):
        return
    names = [row["name"] for row in rows]
    host_ns = sum(row["duration_ns"] for row in rows) / run.step_count
    yield Advice(
        f"{listed(names)} run {counted(calls / run.step_count, 'time')} {run.period} and take "
        f"{format_duration(host_ns)} of host time: memory comes from the driver.",
        {"calls": calls, "steps_with_calls": steps, "functions": names, "host_ns_per_step": host_ns},
        lambda change: change.drop_calls([one for row in rows for one in row["call_ids"]]),
        applicability=Applicability() if run.has_steps else OPEN,
        # They may end by themselves, when the program has taken what it needs.
        is_sure=False,
    )


@finds
def start_up(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    by_trace = grouped((one.trace_id, one) for one in run.summary.timeline.start_ups)
    if not by_trace:
        return
    # Of several ranks the one that it takes longest.
    found = max(by_trace.values(), key=lambda steps: sum(one.once_ns for one in steps))
    duration_ns, once_ns = (sum(getattr(one, name) for one in found) for name in ("duration_ns", "once_ns"))
    usual_ns, is_one = found[-1].usual_ns, len(found) == 1
    # The host ran ahead of a device that has enough to do: its first step held nothing up.
    if usual_ns is not None and run.step is not None and run.step.execution.bound is StepBound.DEVICE:
        return
    least = rule.threshold("least_of_process" if run.summary.is_whole_process else "least_fraction")
    if usual_ns is None and once_ns < least * duration_ns:
        return
    numbers = [one.step for one in found if one.step is not None]
    names = list(dict.fromkeys(name for one in found for name in one.names))
    steps = f"Step{'' if is_one else 's'} {listed([str(number) for number in numbers])}"
    once = f"{format_duration(once_ns)} of it go into what a program does once, mostly {listed(names)}"
    if usual_ns is None:
        told = f"{steps if numbers else 'What was recorded'} takes {format_duration(duration_ns)}, {once}."
    else:
        takes, them = ("takes", "it") if is_one else ("take", "them")
        usual = f"later ones {format_duration(usual_ns)} each"
        told = (
            f"{steps} {takes} {format_duration(duration_ns)}, {usual}: {once}. "
            f"Averages and gains exclude {them}."
        )
    yield Advice(
        told,
        {
            "steps": numbers or None,
            "duration_ns": duration_ns,
            "usual_ns": usual_ns,
            "once_ns": once_ns,
            "names": names,
            "is_left_out": usual_ns is not None,
            "traces": len(by_trace),
        },
        trace_id=found[0].trace_id,
        # The rule's code is of torch's profiler.
        suggestion=rule.engines["cuda"].suggestion if run.summary.is_whole_process else None,
        change="" if run.summary.is_whole_process else None,
    )


# Operators that only pass a copy on; who asked for it stands above them.
PASSING = frozenset(("aten::clone", "aten::contiguous", "aten::_to_copy", "aten::to", "aten::copy_"))
_DIRECTIONS = {"host_to_device": "from host to device", "device_to_host": "from device to host"}


@finds
def pageable_copy(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    # Of programs of PyTorch one in 57 lost a tenth of its step by it.
    names = [kernel.name for kernel in run.summary.kernels if _field(kernel, "host_memory") == "pageable"]
    if run.summary.is_of_torch or not names:
        return
    values = [names, rule.threshold("least_copies")]
    ((calls, total_ns, size_bytes),) = run.session.query(sql(__package__, "repeated_copies"), values)
    if run.is_minor(total_ns, rule) or not calls:
        return
    yield Advice(
        f"{counted(calls, 'copy')} of {format_bytes(size_bytes)} in all to or from pageable host "
        f"memory take {run.device_time(total_ns)}.",
        run.evidence(total_ns, calls=calls, copied_bytes=size_bytes, kernels=names),
    )


@finds
def page_faults(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    for way in ("HtoD", "DtoH"):
        moved = [one for one in run.summary.kernels if one.name.startswith(f"Memcpy Unified {way}")]
        totals = [(one.calls, one.total_ns, one.size_bytes or 0) for one in moved]
        if moved and way == "HtoD":  # those that come while a kernel runs
            totals = run.session.query(sql(__package__, "page_faults"))
        calls, total_ns, size_bytes = map(sum, zip(*totals, strict=True)) if totals else (0, 0, 0)
        is_paged = (
            calls >= rule.threshold("least_copies") and size_bytes < rule.threshold("most_bytes") * calls
        )
        if is_paged and not run.is_minor(total_ns, rule):
            copies, size = counted(calls, "copy"), format_bytes(size_bytes / calls)
            told = f"{copies} of {size} bring pages of managed memory back as the host touches them"
            if way == "HtoD":
                told = f"{copies} of {size} bring pages of managed memory to the device as kernels touch them"
            yield Advice(
                f"{told}; they take {run.device_time(total_ns)}.",
                run.evidence(total_ns, calls=calls, copied_bytes=size_bytes),
                applicability=OPEN,
            )
            return


@finds
def host_copies(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    groups = grouped(
        ((direction, _field(kernel, "host_memory") or "unknown"), kernel)
        for kernel in run.summary.kernels
        if (direction := _field(kernel, "copy_direction")) in _DIRECTIONS
    )
    # A program without PyTorch has no step beside whose kernels they could run.
    if not run.summary.is_of_torch:
        return
    exposed_ns = sum(one.exposed_copy_ns for one in run.summary.timeline.in_use)
    path = () if run.step is None else run.step.path
    for (direction, memory), copies in groups.items():
        calls, total_ns = (sum(getattr(one, name) for one in copies) for name in ("calls", "total_ns"))
        names, size_bytes = [one.name for one in copies], sum(one.size_bytes or 0 for one in copies)
        on_path = sum(part.fraction for part in path if part.kind == "copy" and part.name in names)
        exposed = min(exposed_ns, total_ns) / run.window_ns if run.window_ns else 0.0
        if not total_ns or max(on_path, exposed) < rule.threshold("least_fraction"):
            continue
        rate = size_bytes / total_ns * 1e9 if size_bytes else None
        part = f"{format_fraction(on_path)} of the critical path"
        if on_path < exposed:
            part = f"{format_fraction(exposed)} of the time exposed"
        if rate is not None:
            part += f", {format_bytes(size_bytes / calls)} each at {format_byte_rate(rate)}"
        yield Advice(
            f"{run.times(calls, 'copy')} {_DIRECTIONS[direction]} ({memory} memory) take "
            f"{run.device_time(total_ns)}, {part}.",
            run.evidence(
                total_ns,
                calls=calls,
                direction=direction,
                host_memory=None if memory == "unknown" else memory,
                copied_bytes=size_bytes or None,
                reached_bytes_per_s=rate,
                critical_path_fraction=on_path,
                exposed_fraction=exposed,
                kernels=names,
            ),
            methodcaller("run_beside", names),
            is_sure=False,  # nothing shows whether the next step's input is there early enough
        )


def _field(kernel: KernelTotal, name: str) -> str | None:
    return None if kernel.facts is None else kernel.facts.fields.get(name)
