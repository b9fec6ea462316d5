"""Annotations of serving engines: phase, requests, tokens, and what attention sees."""

from __future__ import annotations

import pytest

from case_tables import cases
from opscope.provenance.serving import ServingPhase, engine_of, serving_step


@pytest.mark.parametrize(
    ("name", "engine", "phase", "requests", "tokens", "pairs", "keys"),
    [
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            "vllm", "decode", 32, 32, 55086, 55086,
        ),
        ("execute_context_1(888_788544)_generation_0(0)", "vllm", "prefill", 1, 888, 888 * 889 // 2, 888),
        ("execute_context_2(6144)_generation_3(3)", "vllm", "mixed", 5, 6147, None, None),
        ("execute_new_0_cached_7", "vllm", "decode", 7, 7, None, None),
        ("step[EXTEND bs=2 toks=14721]", "sglang", "prefill", 2, 14721, None, None),
        ("step[DECODE bs=64]", "sglang", "decode", 64, 64, None, None),
        (
            "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]",
            "sglang", "decode", 64, 128, 262144, 131072,
        ),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
            "sglang", "mixed", 2, 6, 40 - 10 + 12, 20,
        ),
        (
            "[Executor] _forward_step 5: 0 ctx reqs, 64 gen reqs",
            "tensorrt_llm", "decode", 64, None, None, None,
        ),
        ("decode[bs=117/128 tok=117 d=117]", "atom", "decode", 117, 117, None, None),
    ],
)  # fmt: skip
def test_what_a_step_does(name, engine, phase, requests, tokens, pairs, keys) -> None:  # noqa: PLR0917 - a row
    step = serving_step(name)
    assert (step.engine, step.phase) == (engine, ServingPhase(phase))
    assert (step.requests, step.tokens) == (requests, tokens)
    assert (step.attended_pairs, step.keys) == (pairs, keys)


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#3",
        "execute_model",
        "execute_context_1(",
        "step[WARMUP bs=2]",
        "step[DECODE bs=" + "9" * 30 + "]",
    ],
)
def test_other_annotations_are_no_steps(name: str) -> None:
    assert serving_step(name) is None


@cases("annotations", "operators", "engine")
def test_the_engine_is_told_by_annotations_then_by_operators(annotations, operators, engine) -> None:
    assert engine_of(annotations, operators) == engine
