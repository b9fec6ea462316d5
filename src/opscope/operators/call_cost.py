"""The cost of one operator call: operations and least bytes, each with where it comes from.

Zero is a fact (a copy computes nothing); unknown is None and has a reason.
"""

from __future__ import annotations

import msgspec

from opscope.hardware.devices import DataType
from opscope.text_enum import TextEnum

__all__ = ["UNKNOWN_COST", "CallCost", "CostEvidence", "FlopSource"]


class CostEvidence(TextEnum):
    """How the bytes of a call are known, strongest first. A closed set."""

    REPLAYED = "replayed"
    SHAPE_RULES = "shape_rules"
    RECORDED = "recorded"
    GRADIENTS = "gradients"
    KERNEL_ARGUMENTS = "kernel_arguments"
    LAUNCH_TILES = "launch_tiles"
    ENGINE_STEP = "engine_step"
    MATCHED = "matched"

    @property
    def meaning(self) -> str:
        """One phrase for people."""
        return _EVIDENCE_MEANINGS[self]


_EVIDENCE_MEANINGS = {
    CostEvidence.REPLAYED: "the call ran again on tensors without data, which gives its exact results",
    CostEvidence.SHAPE_RULES: "by packaged rules from the recorded arguments",
    CostEvidence.RECORDED: "as the recorder or the compiler wrote it on the event",
    CostEvidence.GRADIENTS: (
        "its lists of tensors are not recorded, but the gradients of the step need just the blocks launched"
    ),
    CostEvidence.KERNEL_ARGUMENTS: (
        "from the tensors given to a generated kernel, in the order in which its compiler passes them"
    ),
    CostEvidence.LAUNCH_TILES: (
        "from the tiles in its kernels' names and their grids, in whole tiles, experts chosen evenly"
    ),
    CostEvidence.ENGINE_STEP: "from its arguments and the counts in the serving engine's annotation",
    CostEvidence.MATCHED: "that of the only recorded call which launches this kernel in this geometry",
}


class FlopSource(TextEnum):
    """How the operations of a call are counted. A closed set."""

    REGISTRY = "registry"
    DEFINITION = "definition"
    RECORDED = "recorded"
    FUSED_NAMES = "fused_names"
    NONE = "none"

    @property
    def meaning(self) -> str:
        """One phrase for people."""
        return _FLOP_MEANINGS[self]


_FLOP_MEANINGS = {
    FlopSource.REGISTRY: "torch's own formula: a multiplication and an addition are 2",
    FlopSource.DEFINITION: "the defining formula, each elementary function counted as one operation",
    FlopSource.RECORDED: "as the compiler wrote it",
    FlopSource.FUSED_NAMES: "by definition of the operators that a generated kernel's name lists, once each",
    FlopSource.NONE: "no floating-point arithmetic: copies, fills, gathers, comparisons, integers",
}


class CallCost(msgspec.Struct, frozen=True):
    """What one call of an operator must do by itself, children left out.

    Attributes:
        flop_count: Floating-point operations; 0 where it computes none, None where unknown.
        flop_source: How they were counted; None where unknown.
        read_bytes: Distinct bytes of its inputs; what an in-place call overwrites unread does not count.
        written_bytes: Distinct bytes of its outputs; a view writes nothing.
        data_type: Type whose peak limits its operations: of the operands of a product, else the one it
            computes in, which is fp32 for 16-bit inputs.
        evidence: How the bytes are known; None where unknown.
        reason: Why something is unknown, in one phrase.
    """

    flop_count: int | None = None
    flop_source: FlopSource | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    data_type: DataType | None = None
    evidence: CostEvidence | None = None
    reason: str | None = None

    @property
    def min_bytes(self) -> int | None:
        """Least bytes moved between device memory and the chip: each byte once."""
        if self.read_bytes is None or self.written_bytes is None:
            return None
        return self.read_bytes + self.written_bytes


UNKNOWN_COST = CallCost()
