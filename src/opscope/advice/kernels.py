"""Advice on kernels: chains and loops that one could replace, and those that fill little of a device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from opscope.advice.profiled_run import (
    Advice,
    ProfiledRun,
    calls_taking,
    finds,
    listed,
    operators_of,
    time_of,
)
from opscope.advice.rules import Rule
from opscope.analysis.step_model import GraphChange, as_extents
from opscope.hardware.architectures import WARP_SIZE
from opscope.model.finding import OPEN
from opscope.model.queries import grouped
from opscope.operators.arguments import parse_arguments
from opscope.units import counted


class _Chain(msgspec.Struct, frozen=True):
    """Pointwise operators on tensors of one size, one after the other.

    `passes` counts the tensors of that size that its operators read and write. `host_ns` runs on the host
    from the start of the first to that of the last, as recorded: what all but one of them take.
    `operator_ids` are those of each of its operators, in one order; `first_ns` is the device time of the
    first.
    """

    names: tuple[str, ...]
    elements: int
    calls: int
    device_ns: int
    passes: int
    host_ns: int
    operator_ids: tuple[Sequence[int], ...]
    first_ns: int

    def fused_ns(self, floor_ns: float) -> float:
        """Device time with results between operators kept on the chip, in proportion to the passes left."""
        fused_ns = self.device_ns * max(2, self.passes - 2 * (len(self.names) - 1)) / self.passes
        return min(float(self.device_ns), max(fused_ns, self.calls * floor_ns))


@finds
def unfused_pointwise(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    # Chains of at least so many operators and of more than one name, most device time first.
    shortest = int(rule.threshold("shortest_chain"))
    runs = grouped((row["run"], row) for row in run.records("pointwise_runs"))
    found = [chain for rows in runs.values() for chain in _split(rows) if len(chain.names) >= shortest]
    # Operators of one name in a row are more often independent than a chain.
    chains = [chain for chain in found if len(set(chain.names)) > 1]
    chains = sorted(chains, key=lambda chain: (-chain.device_ns, chain.names))
    total_ns, host_ns = (sum(getattr(one, name) for one in chains) for name in ("device_ns", "host_ns"))
    # Norms of batches, which are compiled to kernels near the memory's rate.
    norms = [one for one in run.calls if _BATCH_NORM.fullmatch(one.operator) and one.gap_ns]
    gap_ns = {one.call_id: one.gap_ns or 0.0 for one in norms}
    # Or launching takes much of a step for which the host is the slower side.
    step, least = run.step, rule.threshold("least_fraction")
    if run.is_minor(total_ns + sum(gap_ns.values()), rule) and not (
        step is not None and step.is_host_bound and run.per_step(host_ns) >= least * step.recorded_host_ns
    ):
        return
    floor_ns = run.book.number("kernel_floor_ns")
    after_ns = sum(chain.fused_ns(floor_ns) for chain in chains)
    launches = sum(chain.calls * (len(chain.names) - 1) for chain in chains)
    count = sum(chain.calls for chain in chains)
    place = "outside of what torch.compile compiled " if run.is_compiled else ""
    told = []
    if chains:
        longest = max(chains, key=lambda chain: (chain.device_ns, chain.names))
        told.append(
            f"{counted(run.per_step(count), 'chain')} of pointwise kernels {run.period} {place}take "
            f"{run.device_time(total_ns)}; the longest in time is "
            f"{listed(longest.names, 8)} on {longest.elements:,} elements."
        )
    if norms:
        told.append(
            f"Batch norms ({listed(operators_of(norms))}) take {run.device_time(time_of(norms))}, "
            f"{run.time(sum(gap_ns.values()))} more than the memory needs for it."
        )

    def effect(change: GraphChange) -> GraphChange:
        if norms:
            half_ns = {one.call_id: one.roofline.device_ns - gap_ns[one.call_id] / 2 for one in norms}
            calls_taking(norms, half_ns)(change)
        # The first operator of a chain takes the time of the fused kernel; the others go, on the host too.
        for chain in chains:
            model, (first, *others) = change.model, chain.operator_ids
            change.scale(model.is_launched_by(first), chain.fused_ns(floor_ns) / max(1, chain.first_ns))
            change.drop(model.is_launched_by([one for ids in others for one in ids]))
            change.drop_host(model.between(chain.operator_ids[0], chain.operator_ids[-1], until="start"))
        return change

    basis = [
        f"fused, the chains would take {run.time(after_ns)} on the device, in proportion to "
        f"the tensors read and written; {run.times(launches, 'launch')} and "
        f"{run.time(host_ns * run.unrecorded_share)} of host time go away"
    ]
    if norms:
        basis.append("batch norms come half as far to the memory's limit")
    yield Advice(
        " ".join(told),
        run.evidence(total_ns, calls=count, chains=[" → ".join(chain.names) for chain in chains[:5]]),
        effect,
        "; ".join(basis),
    )


_FOREACH_CALLS = "{}\n# of lists of tensors, in place of the loop"
_FLAT = """\
values = torch.cat([one.flatten() for one in tensors])   # the loop's operations once, on all of them
# a penalty on the squares of all weights needs no loop either: weight_decay of the optimizer"""


@finds
def per_tensor_loop(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    least, shapes, most = map(rule.threshold, ("least_launches", "least_shapes", "most_names"))
    loops = run.records("tensor_loops") if run.has_steps else []
    rows = [one for one in loops if one["launches"] >= least and one["shapes"] >= shapes]
    rows = [one for one in rows if len(one["names"]) <= most]
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row["names"]))
    launches, device_ns = (sum(row[column] for row in rows) for column in ("launches", "device_ns"))
    host_ns, ids = sum(row["end_ns"] - row["start_ns"] for row in rows), [row["operator_ids"] for row in rows]
    # One launch takes some dozens of tensors.
    gone = 1 - rule.threshold("launches_left")
    stems = (name.removeprefix("aten::").removeprefix("linalg_vector_") for name in names)

    def effect(change: GraphChange) -> object:
        spans = as_extents([(row["thread_id"], row["start_ns"], row["end_ns"]) for row in rows])
        return change.merge_operators([one for some in ids for one in some], 1.0).drop_host(spans, gone)

    yield Advice(
        f"{listed(names)} run {run.times(launches, 'time')} in loops over tensors of "
        f"{counted(max(row['shapes'] for row in rows), 'shape')}: "
        f"{run.device_time(device_ns)}, and {run.time(host_ns)} on the host as recorded.",
        run.evidence(device_ns, launches=launches, operators=names, host_ns=host_ns),
        effect,
        change=_FLAT
        if "aten::sum" in names
        else _FOREACH_CALLS.format(", ".join(f"torch._foreach_{stem}" for stem in stems)),
        # What Python does between the operators goes too, and the lists have to be made.
        is_sure=False,
    )


@finds
def small_launch(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    leading = run.summary.leading_kernel
    key = leading and (leading.operator, leading.name)
    # The configuration of it that takes most of its time.
    launch = next((one for one in run.summary.quality if (one.operator, one.kernel.name) == key), None)
    if launch is None or run.is_minor(launch.geometry.total_ns, rule) or "_pgi_" in launch.kernel.name:
        return  # that one is of a compiler's library
    if launch.geometry.total_ns < rule.threshold("least_window_fraction") * run.window_ns:
        return
    threads, blocks, multiprocessors = launch.thread_count, launch.block_count, launch.sm_count
    idle = []
    if threads and threads < WARP_SIZE:
        idle.append(f"{WARP_SIZE - threads} of the {WARP_SIZE} lanes of each warp")
    if blocks == 1 and multiprocessors:  # more may be one thread for each element of little data
        idle.append(f"{multiprocessors - 1} of {multiprocessors} multiprocessors")
    if idle and threads and blocks:
        yield Advice(
            f"{launch.kernel.function or launch.kernel.name} runs {counted(blocks, 'block')} of "
            f"{counted(threads, 'thread')}, {run.device_time(launch.geometry.total_ns)}: {listed(idle)} have "
            "nothing to do.",
            run.evidence(launch.geometry.total_ns, blocks=blocks, threads_per_block=threads),
            like=msgspec.structs.replace(rule, engines={"cuda": rule.engines["directives"]})
            if _OF_DIRECTIVES.fullmatch(launch.kernel.name)
            else None,
            applicability=OPEN,
        )


# Kernels that nvc and nvfortran make of loops, of OpenMP's and of OpenACC's.
_OF_DIRECTIVES = re.compile(r"nvkernel_\w+_F\d+L\d+_\d+|\w+_\d+_gpu")
_BATCH_NORM = re.compile(r"aten::(cudnn|native|miopen)_batch_norm(_backward)?")


def _split(rows: Iterable[Mapping[str, Any]]) -> Iterator[_Chain]:
    """A run cut where the size changes."""
    sized = [
        ([one.element_count for one in call.tensors], row)
        for row in rows
        for call in [parse_arguments(row["name"], shapes=row["shapes"], types=row["types"])]
    ]
    for elements, members in groupby(sized, key=lambda item: max(item[0], default=0)):
        if not elements:
            continue
        chain = list(members)
        first, last = chain[0][1], chain[-1][1]
        # The first tensor of a copy is only written.
        read = (sizes.count(elements) - (row["name"] == "aten::copy_") for sizes, row in chain)
        yield _Chain(
            names=tuple(row["name"] for _, row in chain),
            elements=elements,
            calls=first["calls"],
            device_ns=sum(row["device_ns"] for _, row in chain),
            passes=sum(1 + max(1, count) for count in read),
            host_ns=last["begins_ns"] - first["begins_ns"],
            operator_ids=tuple(row["operator_ids"] for _, row in chain),
            first_ns=first["device_ns"],
        )
