"""Advice on recordings of real programs, some of which were also timed without a profiler."""

import json
from functools import cache

import pytest

from case_tables import cases
from opscope.advice import advise
from opscope.analysis.summary import Summary

from .conftest import codes, only, quick_summary

MS = 1_000_000
# Wall time per call on the same H200 without a profiler: BERT-base, batch 8, length 128; GPT-2 generating.
BERT_NS = 6.61 * MS
BERT_TF32_NS = 3.12 * MS


@pytest.fixture(scope="module")
def advised(shared, shared_session):
    """The step of one shared recording, and the advice on it."""

    @cache
    def run(name):
        session = shared_session(shared / "traces" / name)
        step = Summary(session).step_model
        summary = advise(session, quick_summary(session), step)
        return step, summary.advice or ()

    return run


def test_bert_in_float32_is_told_of_tf32_first(advised):
    step, found = advised("h200/bert_bs8_seq128_infer.json.gz")
    assert codes(found)[0] == "tf32_off"
    gain_ns = found[0].estimated_gain_ns_per_step
    assert gain_ns == pytest.approx(BERT_NS - BERT_TF32_NS, rel=0.3)
    assert step.device_ns == pytest.approx(BERT_NS, rel=0.02)
    assert set(codes(found)) <= {"tf32_off", "reduced_precision", "host_sync"}


@pytest.mark.exhaustive(few=False)
@cases("name")
def test_no_gain_exceeds_what_a_step_takes(advised, name):
    step, found = advised(name)
    for finding in found:
        json.dumps([finding.evidence, finding.trace_id])
        gain_ns = finding.estimated_gain_ns_per_step
        if gain_ns is not None:
            assert 0 <= gain_ns < step.step_ns
            assert finding.gain_basis
        for key, value in finding.evidence.items():
            if key.endswith("_ns_per_step") and step is not None:
                assert 0 <= value <= step.step_ns + (step.recorder_ns or 0.0), key


@pytest.mark.exhaustive
def test_of_a_few_ranks_of_many_none_is_blamed(advised):
    _, found = advised("public/HTA/tests/data/trace_filter")
    assert "straggler_rank" not in codes(found)
    assert only(found, "exposed_communication").estimated_gain_ns_per_step is None


def test_types_of_a_program_with_kernels_of_its_own_are_no_bet(advised):
    found = only(advised("h200/own_kernels.json.gz")[1], "reduced_precision")
    assert not found.is_to_try
