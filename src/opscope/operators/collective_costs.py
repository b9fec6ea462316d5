"""What a collective does at least on one rank: bytes of its own memory, additions, and the rates it reached.

Each rank reads what it sends and writes what it receives, once; links between devices are not counted here.
Sums are spread over the ranks: of n addends of each element a rank adds (n − 1)/n on the average, whichever
way the library goes. Sizes are the recorder's counts of elements.
"""

from __future__ import annotations

import msgspec

from opscope.model.session import Session
from opscope.operators.arguments import element_type_of_scalar
from opscope.operators.distinct_calls import Collective
from opscope.operators.effects import CallCost, CostEvidence, FlopSource

# Names of libraries and recorders, by the first of these that they hold without underscores.
_PATTERNS = (
    "allreduce", "reducescatter", "allgather", "alltoall", "broadcast", "scatter", "gather", "reduce", "send",
    "recv", "receive",
)  # fmt: skip
_REDUCING = ("allreduce", "reducescatter", "reduce")
# The sender of a broadcast reads, the others write; which one this rank is, is not recorded.
_ONE_SIDED = ("broadcast", "scatter", "gather")


class CollectiveRate(msgspec.Struct, frozen=True):
    """One kind of collective on one group size: the same message, all its kernels."""

    name: str  # as recorded, e.g. `allreduce`.
    size_bytes: int  # of the message: the larger of what a rank gives and gets
    group_size: int | None  # ranks; None if not recorded
    calls: int
    device_ns: int  # their device time, waiting for other ranks included

    @property
    def mean_bus_bytes_per_s(self) -> float | None:
        """Bytes per second on each rank's link, waiting for others included; None for unknown patterns."""
        factor = bus_factor(self.name, self.group_size or 0)
        if factor is None or not self.device_ns:
            return None
        return factor * self.size_bytes * self.calls / self.device_ns * 1e9


def cost_of_collective(collective: Collective) -> CallCost:
    """What one rank must do at least."""
    known, pattern = element_type_of_scalar(collective.data_type), _pattern(collective.name)
    given, got, ranks = collective.in_element_count, collective.out_element_count, collective.group_size
    if known is None or given is None or got is None or min(given, got) < 0:
        return CallCost(reason="the sizes of the collective were not recorded")
    flop_count: int | None = 0
    flop_source: FlopSource | None = FlopSource.NONE
    if pattern in _REDUCING and known.is_float:
        additions = given * (ranks - 1) // ranks if ranks else None
        flop_count, flop_source = additions, FlopSource.DEFINITION if ranks else None
    if pattern in _ONE_SIDED:
        return CallCost(flop_count, flop_source, reason="whether this rank sends or receives is not recorded")
    return CallCost(
        flop_count,
        flop_source,
        0 if pattern in ("recv", "receive") else given * known.size_bytes,
        0 if pattern == "send" else got * known.size_bytes,
        known.compute_type if flop_count else None,
        CostEvidence.RECORDED,
        "the number of ranks was not recorded" if flop_count is None else None,
    )


def bus_factor(name: str, ranks: int) -> float | None:
    """Of the bytes of a collective, how many pass each rank's link; None for unknown patterns.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if not ranks:
        return None
    others = (ranks - 1) / ranks
    factors = dict.fromkeys(("allgather", "reducescatter", "alltoall"), others)
    return {**factors, "allreduce": 2 * others, "broadcast": 1.0, "reduce": 1.0}.get(_pattern(name))


def message_bytes(data_type: str | None, element_count: int | None) -> int | None:
    known = element_type_of_scalar(data_type)
    return None if known is None or element_count is None else element_count * known.size_bytes


def collective_rates(session: Session) -> tuple[CollectiveRate, ...]:
    """Rates of all collectives whose kernels carry their sizes, most device time first."""
    return tuple(
        CollectiveRate(name, size_bytes, group_size, calls, device_ns)
        for name, type_name, elements, group_size, calls, device_ns in session.query(_RATES_SQL)
        if (size_bytes := message_bytes(type_name, elements)) is not None
    )


_RATES_SQL = """
SELECT c.name, c.data_type, greatest(c.in_element_count, c.out_element_count) AS elements, c.group_size,
    count(*) AS calls, sum(a.duration_ns)::BIGINT AS device_ns
FROM collectives c JOIN device_activities a USING (activity_id)
WHERE c.in_element_count IS NOT NULL AND c.out_element_count IS NOT NULL
GROUP BY ALL ORDER BY device_ns DESC, c.name, elements"""


def _pattern(name: str) -> str:
    """`all_gather`, `_allgather_base`, `allgather_into_tensor` are one."""
    text = name.lower().replace("_", "")
    return next((pattern for pattern in _PATTERNS if pattern in text), text)
