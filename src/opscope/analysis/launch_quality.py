"""How the launches of a Session run: how each is parallel, and how well it fills the device.

Facts of the recorded geometry and of the device alone, per launch configuration; no guess at what a kernel
does with its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from opscope.analysis.session_limits import common_device
from opscope.analysis.totals import KernelTotal, OperatorTotal
from opscope.hardware.architectures import WARP_SIZE
from opscope.hardware.occupancy import Limiter
from opscope.launches.facts import LaunchFacts, LaunchGeometry, parse_compile_arguments
from opscope.launches.launch_explanation import LaunchExplanation, explain
from opscope.model.location import is_program_file, parse_frame
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.operators.arguments import parse_arguments
from opscope.provenance.kernel_names.decoder import decode

_GEOMETRIES = 2  # configurations of one kernel that are explained, the longest first


@dataclass(frozen=True)
class LaunchQuality(LaunchFacts):
    """One launch configuration of a kernel under one operator; None is unknown, no operator too."""

    operator: str | None = None

    @property
    def occupancy(self) -> float | None:
        """Resident warps of a full multiprocessor over the most there can be, 0–1."""
        return None if self.active is None else self.active.occupancy

    @property
    def limiters(self) -> tuple[Limiter, ...]:
        return () if self.active is None else self.active.limiters

    @property
    def idle_sm_count(self) -> int | None:
        if self.block_count is None or self.sm_count is None:
            return None
        return max(0, self.sm_count - self.block_count)

    @property
    def is_underfilled(self) -> bool | None:
        """Fewer blocks than one wave: certain below one block per multiprocessor, whatever one holds."""
        if self.idle_sm_count:
            return True
        return None if self.waves is None else self.waves.count < 1

    @property
    def partial_warp_loss(self) -> float | None:
        """Share of a block's thread slots that its last warp leaves empty, 0–1."""
        if self.thread_count is None:
            return None
        unused = -self.thread_count % WARP_SIZE
        return unused / (self.thread_count + unused)


class ExplainedLaunch(msgspec.Struct, frozen=True):
    """One launch configuration and its explanation; `shapes` are the arguments of its call, as JSON."""

    kernel: str
    geometry: LaunchGeometry
    explanation: LaunchExplanation
    shapes: str | None


def launch_quality(
    session: Session, launches: list[dict[str, Any]] | None = None
) -> tuple[LaunchQuality, ...]:
    """Every launch configuration of every kernel, by operator, most device time first."""
    rows = session.records(sql(__package__, "launches")) if launches is None else launches
    device = common_device(session)
    found = [
        LaunchQuality(
            decode(row["name"]), msgspec.convert(row, LaunchGeometry), device=device, operator=row["operator"]
        )
        for row in rows
        if row["kind"] == "kernel"
    ]
    return tuple(sorted(found, key=lambda one: (-one.geometry.total_ns, one.kernel.name, one.operator or "")))


class LeadingKernel(msgspec.Struct, frozen=True):
    """A kernel of no operator; `call` and `line` (`file:line function`) are those of its longest launch."""

    name: str
    total_ns: int
    call: str | None
    line: str | None


def leading_kernel(
    session: Session, kernels: Iterable[KernelTotal], operators: Iterable[OperatorTotal]
) -> LeadingKernel | None:
    """The longest of kernels that no operator launched; None if a library's, or if an operator leads."""
    longest = max(
        (one for one in kernels if one.kind == "kernel"), key=lambda one: one.total_ns, default=None
    )
    library = longest and longest.facts and longest.facts.library
    most_ns = max((one.self_device_ns for one in operators), default=0)
    if longest is None or library not in (None, "triton") or longest.total_ns <= most_ns:
        return None
    calls = session.query(_LAUNCH_SQL, [longest.name])
    frames = session.query(_FRAMES_SQL, calls[0][1:]) if calls else []
    stack = (frame for (name,) in frames if (frame := parse_frame(name)) is not None)
    line = next((f"{one.file}:{one.line} {one.function}" for one in stack if is_program_file(one.file)), None)
    return LeadingKernel(longest.name, longest.total_ns, calls[0][0] if calls else None, line)


_LAUNCH_SQL = """
SELECT c.name, c.thread_id, c.start_ns FROM device_activities a JOIN kernel_names n USING (name_id)
JOIN runtime_calls c USING (runtime_call_id) WHERE n.name = ? AND a.operator_id IS NULL
ORDER BY a.duration_ns DESC, a.activity_id LIMIT 1"""
_FRAMES_SQL = """
SELECT name FROM frames
WHERE thread_id = $1 AND $2 BETWEEN start_ns AND start_ns + duration_ns AND name IS NOT NULL
ORDER BY start_ns DESC, frame_id DESC"""


def launch_explanations(
    session: Session,
    operators: Iterable[OperatorTotal],
    kernels: Iterable[KernelTotal] = (),
    *,
    torch_version: str | None = None,
) -> dict[tuple[str | None, str], tuple[ExplainedLaunch, ...]]:
    """Explanations by (operator name, kernel name); the operator is None for `kernels` of whichever one."""
    wanted = [
        (owner, kernel, geometry)
        for owner, of in [*((one.name, one.kernels) for one in operators), (None, tuple(kernels))]
        for kernel in of
        for geometry in (
            kernel.geometries
            or (LaunchGeometry(None, None, None, None, None, kernel.calls, kernel.total_ns),)
        )[:_GEOMETRIES]
    ]
    ids = sorted({one.example_operator_id for _, _, one in wanted if one.example_operator_id is not None})
    calls = {row["operator_id"]: row for row in session.records(sql(__package__, "example_calls"), [ids])}
    device = common_device(session)
    found: dict[tuple[str | None, str], tuple[ExplainedLaunch, ...]] = {}
    for owner, kernel, geometry in wanted:
        row = calls.get(geometry.example_operator_id) or {}
        arguments = {column: row.get(column) for column in ("shapes", "types", "strides", "concrete")}
        told = explain(
            LaunchFacts(
                kernel=decode(kernel.name),
                geometry=geometry,
                call=parse_arguments(row["name"], **arguments) if row else None,
                device=device,
                compile_arguments=parse_compile_arguments(row.get("kernel_kwargs")),
                torch_version=torch_version,
                size_bytes=None if kernel.size_bytes is None else kernel.size_bytes // kernel.calls,
            )
        )
        if told is not None:
            one = ExplainedLaunch(kernel.name, geometry, told, arguments["shapes"])
            found[owner, kernel.name] = (*found.get((owner, kernel.name), ()), one)
    return found
