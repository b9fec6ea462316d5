"""The cost of one call from its effects: operations, least bytes, and the type whose peak limits it.

The one place where a cost is put together, whichever way the effects are known.
"""

from __future__ import annotations

from opscope.analysis.cost.arguments import type_of
from opscope.analysis.cost.call_cost import CallCost, CostEvidence
from opscope.analysis.cost.definitions import count_flops, product_operand
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.traffic import least_traffic
from opscope.hardware.devices import DataType

__all__ = ["assemble_cost", "limiting_type"]


def assemble_cost(effects: CallEffects, evidence: CostEvidence) -> CallCost:
    """What is known of a call; `evidence` says how its effects are known."""
    flops, traffic = count_flops(effects), least_traffic(effects)
    return CallCost(
        flop_count=flops.count,
        flop_source=flops.source,
        read_bytes=traffic.read_bytes,
        written_bytes=traffic.written_bytes,
        data_type=limiting_type(effects),
        evidence=None if traffic.reason else evidence,
        reason=traffic.reason or flops.reason,
    )


def limiting_type(effects: CallEffects) -> DataType | None:
    """Of a product the type of its operands; of anything else the widest type it computes in.

    Elements of 16 and 8 bits are computed with in fp32. None where there are no floating-point numbers.
    """
    position = product_operand(effects.stem)
    if position is not None:
        operand = effects.call.tensor(position)
        known = None if operand is None else type_of(operand)
        return None if known is None else known.operand_type
    types = {
        known.compute_type
        for tensor in (*effects.device_inputs, *effects.outputs)
        if (known := type_of(tensor)) is not None
    }
    return next((one for one in (DataType.FP64, DataType.FP32) if one in types), None)
