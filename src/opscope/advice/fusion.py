"""Advice on pointwise operators that pass their results through memory, where one kernel would keep them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving
from opscope.advice.wording import counted, listed, of_device, per_step, period
from opscope.analysis.cost.arguments import parse_arguments

__all__ = ["RULES"]


@dataclass(frozen=True)
class _Chain:
    """Pointwise operators on tensors of one size, one after the other.

    `passes` counts the tensors of that size that its operators read and write, `fused_passes` those left when
    the results between them stay on the chip. `host_ns` runs on the host from the start of the first to that
    of the last, as recorded: what all but one of them take.
    """

    names: tuple[str, ...]
    elements: int
    calls: int
    device_ns: int
    passes: int
    host_ns: int

    @property
    def fused_passes(self) -> int:
        return max(2, self.passes - 2 * (len(self.names) - 1))


def unfused_pointwise(case: Case, rule: Rule) -> Iterator[Advice]:
    """Chains of pointwise kernels."""
    chains = _chains(case, int(rule.threshold("shortest_chain")))
    total_ns = sum(chain.device_ns for chain in chains)
    if case.share(total_ns) < rule.threshold("least_fraction"):
        return
    floor_ns = case.book.number("kernel_floor_ns")
    after_ns = sum(_fused_ns(chain, floor_ns) for chain in chains)
    launches = sum(chain.calls * (len(chain.names) - 1) for chain in chains)
    host_ns = sum(chain.host_ns for chain in chains) * case.unrecorded_share
    longest = max(chains, key=lambda chain: (chain.device_ns, chain.names))
    count = sum(chain.calls for chain in chains)
    place = "outside of what torch.compile compiled, " if case.is_compiled else ""
    yield Advice(
        f"{counted(case.per_step(count), 'chain')} of pointwise kernels {period(case)} {place}take "
        f"{of_device(case, total_ns)} ({per_step(case, total_ns)}); the longest in time is "
        f"{listed(longest.names, 8)} on {longest.elements:,} elements.",
        {
            "device_fraction": case.share(total_ns),
            "device_ns": total_ns,
            "calls": count,
            "chains": [" → ".join(chain.names) for chain in chains[:5]],
        },
        Saving(case.per_step(total_ns - after_ns), case.per_step(launches), case.per_step(host_ns)),
        f"fused, the chains would take {per_step(case, after_ns)} on the device, in proportion to the "
        f"tensors read and written; {counted(case.per_step(launches), 'launch', 'launches')}"
        f" {period(case)} go, "
        f"with {per_step(case, host_ns)} of the host",
    )


RULES: Mapping[str, RuleFunction] = {"advice.unfused_pointwise": unfused_pointwise}


def _chains(case: Case, shortest: int) -> list[_Chain]:
    """Chains of at least so many operators and of more than one name, most device time first."""
    runs: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in case.records("pointwise_runs"):
        runs[row["run"]].append(row)
    found = [chain for rows in runs.values() for chain in _split(rows) if len(chain.names) >= shortest]
    # Operators of one name in a row are more often independent than a chain.
    chains = [chain for chain in found if len(set(chain.names)) > 1]
    return sorted(chains, key=lambda chain: (-chain.device_ns, chain.names))


def _split(rows: Iterable[dict[str, Any]]) -> Iterator[_Chain]:
    """A run cut where the size changes."""
    sized = [(_sizes(row), row) for row in rows]
    for elements, members in groupby(sized, key=lambda item: max(item[0], default=0)):
        if not elements:
            continue
        chain = list(members)
        yield _Chain(
            names=tuple(row["name"] for _, row in chain),
            elements=elements,
            calls=chain[0][1]["calls"],
            device_ns=sum(row["device_ns"] for _, row in chain),
            passes=sum(1 + max(1, sizes.count(elements) - _writes_first(row)) for sizes, row in chain),
            host_ns=chain[-1][1]["begins_ns"] - chain[0][1]["begins_ns"],
        )


def _sizes(row: Mapping[str, Any]) -> list[int]:
    call = parse_arguments(row["name"], shapes=row["shapes"], types=row["types"])
    return [tensor.element_count for tensor in call.tensors]


def _writes_first(row: Mapping[str, Any]) -> int:
    """1 for a copy, whose first tensor is only written."""
    return int(row["name"] == "aten::copy_")


def _fused_ns(chain: _Chain, floor_ns: float) -> float:
    fused_ns = chain.device_ns * chain.fused_passes / chain.passes
    return min(float(chain.device_ns), max(fused_ns, chain.calls * floor_ns))
