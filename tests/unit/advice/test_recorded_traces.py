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
GPT2_NS = 84 * MS


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
def test_eager_attention_is_told_besides(advised):
    step, found = advised("h200/bert_eager_attn.json.gz")
    assert codes(found)[0] == "tf32_off"
    finding = only(found, "eager_attention")
    fused, _ = advised("h200/bert_bs8_seq128_infer.json.gz")
    brought_ns = step.device_ns - fused.device_ns
    assert finding.estimated_gain_ns_per_step == pytest.approx(brought_ns, rel=0.3)
    assert finding.evidence["calls"] == 36


@pytest.mark.exhaustive(few=False)
def test_generating_tokens_is_launch_bound_and_no_graph_holds_it(advised):
    """Each token is asked for whether it is the last, and keys grow by one."""
    step, found = advised("h200/gpt2_generate_fp16.json.gz")
    launching = only(found, "launch_bound")
    assert launching.estimated_gain_ns_per_step is launching.change is None
    # What stands in the way of a graph, and what of compiling once; another finding compiles the model.
    blocked_by = [one.operator for one in launching.applicability.blocked_by]
    assert blocked_by == ["aten::is_nonzero", "aten::cat"]
    assert step.host_ns == pytest.approx(GPT2_NS, rel=0.15)
    assert "attention_backend" not in codes(found)


@pytest.mark.exhaustive(few=False)
def test_training_recorded_with_stacks_is_host_bound_by_the_recording_alone(advised):
    _, found = advised("h200/bert_train_bf16.json.gz")
    assert "launch_bound" not in codes(found)
    assert "eager_attention" in codes(found)
    assert not {"tf32_off", "reduced_precision"} & set(codes(found))


@pytest.mark.exhaustive
def test_workers_for_the_data_loader_end_its_finding(advised):
    _, before = advised("public/kineto/worker0.1623143089861.pt.trace.json.gz")
    _, after = advised("public/kineto/worker0.1623212756351.pt.trace.json.gz")
    assert codes(before)[0] == "data_loading"
    assert "data_loading" not in codes(after)


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


@pytest.mark.exhaustive(few=False)
def test_preprocessing_in_a_step_and_a_blocking_copy_are_told_with_their_lines(advised):
    step, found = advised("field/h100_timesformer.json.gz")
    work, wait = only(found, "host_work"), only(found, "host_sync")
    assert "preprocess at" in work.message
    assert "model.py:40 run_on_input" in wait.message
    # Preparing the next input while the device works leaves its 160 ms; what not waiting does is not known.
    assert work.estimated_gain_ns_per_step == pytest.approx(step.step_ns - 180 * MS, rel=0.25)
    assert not wait.is_to_try


@pytest.mark.exhaustive
def test_of_a_few_ranks_of_many_none_is_blamed(advised):
    _, found = advised("public/HTA/tests/data/trace_filter")
    assert "straggler_rank" not in codes(found)
    assert only(found, "exposed_communication").estimated_gain_ns_per_step is None


def test_types_of_a_program_with_kernels_of_its_own_are_no_bet(advised):
    found = only(advised("h200/own_kernels.json.gz")[1], "reduced_precision")
    assert (found.is_to_try, found.is_gain_known) == (True, False)
