from __future__ import annotations

from collections.abc import Sequence

from opscope.model.benchmark import BenchmarkResult, Engine, Status, Verdict
from opscope.report.benchmark_explanation import explanations
from opscope.report.document import plain


def said(result: BenchmarkResult) -> Sequence[str]:
    return [plain(text) for text in explanations(result)]


def test_same_rows_that_launch_the_same_kernel_say_so(row, result, profile) -> None:
    kernel = profile("pow_kernel(float)")
    rows = (
        row("torch", profile=kernel),
        row("power", profile=kernel, verdict=Verdict.SAME, ratio=1.001),
    )
    assert said(result(*rows)) == ["torch and power launch the same kernel: pow_kernel."]


def test_the_same_kernel_launched_twice_is_another_launch(row, result, profile) -> None:
    rows = (
        row("torch", profile=profile("pow")),
        row("twice", profile=profile("pow", "pow"), verdict=Verdict.SAME, ratio=1.0),
    )
    assert not any("the same kernel" in text for text in said(result(*rows)))


def test_same_rows_of_other_kernels_at_the_ceiling_say_what_binds(row, result, profile) -> None:
    rows = (
        row("torch", profile=profile("pow"), ceiling="copy", ceiling_fraction=0.981),
        row(
            "multiply", profile=profile("mul"), verdict=Verdict.SAME, ratio=1.0,
            ceiling="copy", ceiling_fraction=0.972,
        ),
    )  # fmt: skip
    assert said(result(*rows))[0] == (
        "multiply launches another kernel (mul), but takes the same time as torch: both are at 97–98 % of "
        "the copy ceiling, so moving 537 MB sets the time, not the arithmetic."
    )


def test_same_rows_without_a_profile_name_the_bytes(row, result) -> None:
    rows = (row("torch"), row("power", verdict=Verdict.SAME, ratio=1.0))
    assert said(result(*rows)) == [
        "power takes the same time as torch: both move 537 MB a call, at 4.09 TB/s."
    ]


def test_many_kernels_explain_a_slower_row_with_their_memory(row, result, profile) -> None:
    rows = (
        row("torch", profile=profile("gelu"), peak_memory_bytes=268_000_000),
        row(
            "naive", 1_390_000, profile=profile(*"abcdefgh", device_ns=174_000), verdict=Verdict.SLOWER,
            ratio=10.6, peak_memory_bytes=1_070_000_000,
        ),
    )  # fmt: skip
    assert said(result(*rows)) == [
        "naive launches 8 kernels where torch launches 1, of 174 µs each on average: intermediate results "
        "pass through memory, 1.07 GB at the peak against 268 MB."
    ]


def test_more_kernels_do_not_explain_a_faster_row(row, result, profile) -> None:
    rows = (
        row("torch", profile=profile("a")),
        row("split", 100_000, profile=profile("a", "b"), verdict=Verdict.FASTER, ratio=0.8),
    )
    assert said(result(*rows)) == []


def test_a_teaching_version_is_set_beside_its_good_one(row, result, profile) -> None:
    rows = (
        row("torch"),
        row(
            "cuda", engine=Engine.CUDA, ceiling="copy", ceiling_fraction=0.97,
            profile=profile("k", grid=(4096, 1, 1), block=(512, 1, 1)),
        ),
        row(
            "cuda_teaching", 206_000, engine=Engine.CUDA, teaching=True, note="one element per thread",
            ceiling="copy", ceiling_fraction=0.61,
            profile=profile("k", grid=(262_144, 1, 1), block=(256, 1, 1)),
        ),
    )  # fmt: skip
    assert said(result(*rows))[0] == (
        "cuda_teaching (one element per thread) takes 1.57× the time of cuda: 61 % of the copy ceiling "
        "against 97 %; 262144×1×1 blocks of 256×1×1 threads against 4096×1×1 blocks of 512×1×1 threads."
    )


def test_rows_above_the_ceiling_are_explained_by_a_cache(row, result) -> None:
    rows = (row("torch", ceiling="copy", ceiling_fraction=1.4),)
    assert said(result(*rows)) == [
        "torch exceeds the copy ceiling (140 %): part of the data stays in a cache, which is faster than the "
        "memory that was measured."
    ]


def test_an_undecided_row_gives_its_reason(row, result) -> None:
    rows = (
        row("torch"),
        row("x", ratio=1.01, verdict=Verdict.AMBIGUOUS, verdict_reason="the interval 0.98 to 1.04 is wide"),
    )
    assert said(result(*rows)) == ["x is ambiguous: the interval 0.98 to 1.04 is wide."]


def test_nothing_is_said_of_rows_without_figures(row, result) -> None:
    rows = (row("torch", None, status=Status.FAILED), row("x"))
    assert said(result(*rows)) == []
