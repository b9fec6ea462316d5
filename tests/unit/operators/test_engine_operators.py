"""Costs of serving engines' own operators."""

import pytest

from fakes import TraceBuilder
from opscope.operators.session_costs import fill_costs

HALF = "c10::BFloat16"


def cost(load, operator, dims, types, *, kernel="kernel", step=""):
    trace = TraceBuilder()
    if step:
        trace.event("user_annotation", step, 0, 40, 1, {})
    trace.operator(operator, 1, 20, **{"Input Dims": dims, "Input type": types})
    session = load(trace.launch(5).kernel(kernel, 25, 2))
    fill_costs(session)
    return session.query("SELECT evidence, flop_count, read_bytes, reason FROM call_costs")[0]


def test_a_norm_reads_its_rows_and_weight(load):
    evidence, flops, read, _ = cost(
        load, "_C::rms_norm", [[32, 64], [32, 64], [64], []], [HALF, HALF, HALF, "Scalar"]
    )
    assert (evidence, flops, read) == ("shape_rules", 4 * 32 * 64, 2 * (32 * 64 + 64))


ATTENTION = ("vllm::unified_attention_with_output", [[8, 512], [8, 128], [8, 128], [8, 512]], [HALF] * 4)
EXPERTS = ("vllm::moe_forward", [[32, 64], [32, 8], []], [HALF, HALF, "Scalar"])


@pytest.mark.parametrize(
    ("call", "where", "unknown"),
    [
        (ATTENTION, {"step": "execute_context_0(0)_generation_8(8)"}, "how many keys"),
        (ATTENTION, {"kernel": "kernel_unified_attention_3d"}, "window"),
        (EXPERTS, {"kernel": "unknown_kernel"}, "experts"),
    ],
)
def test_what_neither_arguments_nor_the_step_say_has_no_cost(load, call, where, unknown):
    evidence, _, _, reason = cost(load, *call, **where)
    assert evidence is None
    assert unknown in reason
