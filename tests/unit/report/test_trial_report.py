"""What is said of a trial: the best set first, every change, why one is not recommended."""

from __future__ import annotations

import msgspec

from opscope.model import trial
from opscope.report.markdown import render_markdown
from opscope.report.trial import trial_document, trial_json

MS = 1_000_000.0
RESULT = trial.TrialResult(
    program="train.py --lr 1",
    baseline=trial.Baseline(10 * MS, (9.9 * MS, 10.1 * MS), 3, 90, 2_000_000),
    noise=trial.Noise(1.01, (0.99, 1.02)),
    variants=(
        trial.Variant(
            name="sdpa",
            finding="advice.eager_attention",
            step_ns=6 * MS,
            interval_ns=(5.9 * MS, 6.1 * MS),
            ratio=0.6,
            ratio_interval=(0.59, 0.61),
            verdict=trial.TrialVerdict.FASTER,
            correctness=trial.Correctness.WITHIN_ROUNDING,
            is_recommended=True,
            predicted_gain_ns=3.5 * MS,
            peak_bytes=1_500_000,
            warm_up_ns=9 * MS,
            pays_off_after_steps=3,
            patch='attn_implementation="sdpa"',
        ),
        trial.Variant(
            name="tf32",
            ratio=0.7,
            ratio_interval=(0.6, 0.8),
            verdict=trial.TrialVerdict.FASTER,
            correctness=trial.Correctness.WITHIN_ROUNDING,
        ),
        trial.Variant(
            name="mine",
            ratio=0.5,
            ratio_interval=(0.4, 0.6),
            verdict=trial.TrialVerdict.FASTER,
            correctness=trial.Correctness.CHANGED,
            reason="losses differ by 0.01",
        ),
        trial.Variant(name="scaled", verdict=trial.TrialVerdict.REFUSED, reason="losses differ"),
        trial.Variant(name="compile", verdict=trial.TrialVerdict.FAILED, error="RuntimeError: <no compiler>"),
        trial.Variant(
            name="cuda_graph",
            ratio=0.99,
            ratio_interval=(0.9, 1.1),
            verdict=trial.TrialVerdict.INCONCLUSIVE,
            reason="includes 1",
        ),
    ),
    not_tried=(trial.NotTried("channels_last", "its models hold no convolutions"),),
    best=trial.BestChanges(
        ("sdpa",), 6 * MS, 0.6, (0.59, 0.61), (6 * MS,), trial.Correctness.WITHIN_ROUNDING, "--- a/x"
    ),
    best_reduced_precision=trial.BestChanges(
        ("tf32", "sdpa"),
        4 * MS,
        0.4,
        (0.38, 0.42),
        (7 * MS, 4 * MS),
        trial.Correctness.WITHIN_ROUNDING,
        "torch.set_float32_matmul_precision('high')",
        (0.39, 0.41),
    ),
    runs=17,
)


def test_the_report_says_it_all() -> None:
    text = render_markdown(trial_document(RESULT, "opscope try train.py"))
    for words in (
        "6.00 ms, 1.67× as fast: sdpa",
        "4.00 ms, 2.50× as fast: tf32 + sdpa",
        "by process 39.0 %, 41.0 %",
        "101.0 % (95 % CI 99.0 to 102.0 %)",
        "17 runs of the program",
        "sdpa: 10.0 ms → 6.00 ms",
        "−3.50 ms",
        "`sdpa` pays off after 3 steps",
        "`tf32` is faster, the numerics agree within rounding; --allow-precision recommends it",
        "`mine` is faster but not recommended: losses differ by 0.01",
        "`compile` failed: RuntimeError:",
        "`scaled` was not timed: losses differ",
        "`cuda_graph` no verdict: includes 1",
        "`channels_last`: its models hold no convolutions",
        "opscope try train.py",
    ):
        assert words in text


def test_where_nothing_helps_it_says_so() -> None:
    undecided = msgspec.structs.replace(RESULT, best=None)
    assert "not decided: no verdict for 1 of 6 changes" in render_markdown(trial_document(undecided))
    decided = tuple(one for one in RESULT.variants if one.verdict is not trial.TrialVerdict.INCONCLUSIVE)
    coarse = msgspec.structs.replace(undecided, variants=decided)
    text = render_markdown(trial_document(coarse))
    assert "no change that was tried is faster with the same numerics" in text
    nothing = msgspec.structs.replace(coarse, best_reduced_precision=None, variants=(), is_complete=False)
    text = render_markdown(trial_document(nothing, "opscope try train.py"))
    assert "no change that was tried is faster\n" in text
    assert "stopped before all changes were tried" in text


def test_json_is_the_result() -> None:
    document = trial_json(RESULT)
    assert document.pop("schema_version") == 1
    assert msgspec.convert(document, trial.TrialResult, strict=False) == RESULT
    assert set(document) >= {"baseline", "noise", "variants", "not_tried", "best"}
