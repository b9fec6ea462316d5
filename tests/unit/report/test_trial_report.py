"""What is said of a trial: the best set first, every change, why one is not recommended."""

import msgspec
from msgspec.structs import replace

from opscope.model import trial
from opscope.report.trial import trial_document, trial_json

from .conftest import text_of

MS = 1_000_000.0
FASTER, ROUNDED = trial.TrialVerdict.FASTER, trial.Correctness.WITHIN_ROUNDING
PATCH = "model = load(attn_implementation='sdpa')"
RESULT = trial.TrialResult(
    program="train.py --lr 1",
    baseline=trial.Baseline(10 * MS, (9.9 * MS, 10.1 * MS), 3, 90, 2_000_000),
    noise=trial.Noise(1.01, (0.99, 1.02)),
    variants=(
        trial.Variant(
            name="sdpa", finding="advice.eager_attention", step_ns=6 * MS, interval_ns=(5.9 * MS, 6.1 * MS),
            ratio=0.6, ratio_interval=(0.59, 0.61), verdict=FASTER, correctness=ROUNDED, is_recommended=True,
            predicted_gain_ns=3.5 * MS, peak_bytes=1_500_000, warm_up_ns=9 * MS, pays_off_after_steps=3,
            patch='attn_implementation="sdpa"',
        ),
        trial.Variant(name="tf32", ratio=0.7, ratio_interval=(0.6, 0.8), verdict=FASTER, correctness=ROUNDED),
        trial.Variant(
            name="mine", ratio=0.5, ratio_interval=(0.4, 0.6), verdict=FASTER,
            correctness=trial.Correctness.CHANGED, reason="losses differ by 0.01",
        ),
        trial.Variant(name="scaled", verdict=trial.TrialVerdict.REFUSED, reason="losses differ"),
        trial.Variant(name="compile", verdict=trial.TrialVerdict.FAILED, error="RuntimeError: <no compiler>"),
        trial.Variant(
            name="cuda_graph", ratio=0.99, ratio_interval=(0.9, 1.1),
            verdict=trial.TrialVerdict.INCONCLUSIVE, reason="includes 1",
        ),
    ),
    not_tried=(trial.NotTried("channels_last", "its models hold no convolutions"),),
    best=trial.BestChanges(("sdpa",), 6 * MS, 0.6, (0.59, 0.61), (6 * MS,), ROUNDED, PATCH),
    best_reduced_precision=trial.BestChanges(
        ("tf32", "sdpa", "compile"), 4 * MS, 0.4, (0.38, 0.42), (7 * MS, None, 4 * MS), ROUNDED,
        "torch.set_float32_matmul_precision('high')", (0.39, 0.41),
    ),
    runs=17,
)  # fmt: skip
UNDECIDED = replace(RESULT, best=None)
DECIDED = tuple(one for one in RESULT.variants if one.verdict is not trial.TrialVerdict.INCONCLUSIVE)
NO_BEST = replace(UNDECIDED, variants=DECIDED)
NOTHING = replace(NO_BEST, best_reduced_precision=None, variants=(), is_complete=False)


def test_reports(expect):
    results = {"all": RESULT, "not decided": UNDECIDED, "none is faster": NO_BEST, "stopped": NOTHING}
    expect("trial.txt", text_of({name: trial_document(one, "opscope try") for name, one in results.items()}))


def test_an_interval_that_tells_nothing_is_too_noisy():
    noisy = replace(
        RESULT, variants=tuple(replace(one, ratio_interval=(0.0, 1669.57)) for one in RESULT.variants)
    )
    told = text_of({"noisy": trial_document(noisy, "opscope try")})
    assert "too noisy" in told
    assert "166957" not in told


def test_json_is_the_result():
    document = trial_json(RESULT)
    assert document.pop("schema_version") == 1
    assert msgspec.convert(document, trial.TrialResult, strict=False) == RESULT
    assert set(document) >= {"baseline", "noise", "variants", "not_tried", "best"}
