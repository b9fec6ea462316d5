"""The cost of one operator call: operations and least bytes, each with where it comes from.

Zero is a fact (a copy computes nothing); unknown is None and has a reason.
"""

from __future__ import annotations

import msgspec

from opscope.hardware.devices import DataType
from opscope.text_enum import MeaningEnum


class CostEvidence(MeaningEnum):
    """How the bytes of a call are known, strongest first. A closed set."""

    REPLAYED = "replayed", "the call ran again on tensors without data, which gives its exact results"
    SHAPE_RULES = "shape_rules", "by packaged rules from the recorded arguments"
    RECORDED = "recorded", "as the recorder or the compiler wrote it on the event"
    GRADIENTS = (
        "gradients",
        "its lists of tensors are not recorded, but the gradients of the step need just the blocks launched",
    )
    KERNEL_ARGUMENTS = (
        "kernel_arguments",
        "from the tensors given to a generated kernel, in the order in which its compiler passes them",
    )
    LAUNCH_TILES = (
        "launch_tiles",
        "from the tiles in its kernels' names and their grids, in whole tiles, experts chosen evenly",
    )
    ENGINE_STEP = "engine_step", "from its arguments and the counts in the serving engine's annotation"
    MATCHED = "matched", "that of the recorded call whose kernel, geometry and duration it has"


class FlopSource(MeaningEnum):
    """How the operations of a call are counted. A closed set."""

    REGISTRY = "registry", "of products, as torch counts them: a multiplication and an addition are 2"
    DEFINITION = "definition", "so many for each element, each elementary function counted as one"
    RECORDED = "recorded", "as the compiler wrote it"
    FUSED_NAMES = (
        "fused_names",
        "by definition of the operators that a generated kernel's name lists, once each",
    )
    NONE = "none", "no floating-point arithmetic: copies, fills, gathers, comparisons, integers"


class CallCost(msgspec.Struct, frozen=True):
    """What one call of an operator must do by itself, children left out."""

    flop_count: int | None = None  # floating-point operations; 0 where it computes none, None where unknown
    flop_source: FlopSource | None = None  # how they were counted; None where unknown
    # Distinct bytes of its inputs; what an in-place call overwrites unread does not count
    read_bytes: int | None = None
    written_bytes: int | None = None  # distinct bytes of its outputs; a view writes nothing
    # Type whose peak limits its operations: of the operands of a product, else the one it computes in, which
    # is fp32 for 16-bit inputs
    data_type: DataType | None = None
    evidence: CostEvidence | None = None  # how the bytes are known; None where unknown
    reason: str | None = None  # why something is unknown, in one phrase

    @property
    def min_bytes(self) -> int | None:
        """Least bytes moved between device memory and the chip: each byte once."""
        if self.read_bytes is None or self.written_bytes is None:
            return None
        return self.read_bytes + self.written_bytes
