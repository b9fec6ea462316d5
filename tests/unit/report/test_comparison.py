from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from opscope.analysis.benchmark_comparison import compare_benchmarks
from opscope.analysis.session_comparison import compare_sessions
from opscope.model.benchmark import (
    BenchmarkOptions,
    BenchmarkResult,
    BenchmarkRow,
    CacheState,
    CallProfile,
    KernelUse,
    Status,
    Verdict,
)
from opscope.model.comparison import FailOn, Presence, SessionComparison, TimeChange
from opscope.model.environment import Environment
from opscope.model.measurement import Clock
from opscope.report.comparison import (
    _headline,
    benchmark_comparison_document,
    comparison_document,
    count_text,
    difference_text,
    measured_text,
    ratio_cell,
    ratio_words,
    session_comparison_document,
)
from opscope.report.document import Strong, only_sections
from opscope.report.html.result_charts import _ratio_bar
from opscope.report.json_encoding import to_json
from opscope.report.markdown import render_markdown
from opscope.testing import TraceBuilder

from .conftest import rendered


def gemm(name: str, duration: float, *, gelu: float = 10) -> TraceBuilder:
    builder = TraceBuilder()
    for step in range(7):
        start = 10_000 * step
        builder.step(step, start, 5_000)
        builder.operator("aten::mm", start, 50).launch(start + 5)
        builder.kernel(name, start + 100, duration + step / 1000)
        builder.operator("aten::gelu", start + 200, 50).launch(start + 210).kernel("gelu", start + 400, gelu)
    return builder


OLD = "nvjet_sm90_tst_64x8_64x16_4x2_h_bz_bias_TNT"
NEW = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT"


@pytest.fixture
def sessions(load: Callable[..., Any]) -> SessionComparison:
    return compare_sessions(load(gemm(OLD, 100)), load(gemm(NEW, 150)))


def test_the_terminal_report_says_what_got_slower_and_why(sessions: SessionComparison) -> None:
    text = rendered(session_comparison_document(sessions))
    assert "110 µs → 160 µs (+50.0 µs, 1.45× slower [" in text
    assert "slower: device time, 95 % CI" in text
    assert f"→ {NEW}" in text
    assert "tile 64x8x64 → 128x128x64" in text
    assert "Without a difference in time: 1 operator." in text
    assert "1 in both, 1 only in the reference, 1 only in the candidate" in text
    assert "to the nanosecond" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_the_markdown_report_keeps_full_names(sessions: SessionComparison) -> None:
    text = render_markdown(session_comparison_document(sessions))
    assert "## Operators by difference" in text
    assert f"| `{OLD}` | 100 µs |  |  | replaced |  |" in text
    assert f"| → `{NEW}` |  | 150 µs | +50.0 µs | **1.50× slower** | 1 |" in text


def test_cut_rows_are_counted_with_their_time(load: Callable[..., Any]) -> None:
    comparison = compare_sessions(load(gemm(OLD, 100)), load(gemm(OLD, 150, gelu=12)))
    document = session_comparison_document(comparison, top=1)
    text = rendered(only_sections(replace(document, blocks=()), ["operators"]))
    assert "Further 1 operator: +2.00 µs in all." in text
    assert "aten::gelu" not in text
    assert "aten::gelu" in rendered(session_comparison_document(comparison, top=None))


def test_equal_recordings_make_a_short_report(load: Callable[..., Any]) -> None:
    session = load(gemm(OLD, 100))
    text = rendered(session_comparison_document(compare_sessions(session, session)))
    assert "Every operator takes the same time to the nanosecond on both sides." in text
    assert "same: device time, equal to the nanosecond" in text


def test_a_report_without_steps_says_what_it_lacks(load: Callable[..., Any]) -> None:
    def plain(duration: float) -> TraceBuilder:
        builder = TraceBuilder().operator("aten::mm", 0, 50, **{"Input Dims": [[2, 2]]}).launch(10)
        builder.kernel(OLD, 20, duration).operator("aten::mm", 100, 50, **{"Input Dims": [[4, 4]]}).launch(
            110
        )
        return builder.kernel("splitK", 120, 3).launch(300).kernel("own", 320, duration)

    comparison = compare_sessions(load(plain(100)), load(plain(150)))
    text = rendered(session_comparison_document(comparison))
    assert "no verdict: 0 steps recorded, 6 needed (--active 6)" in text
    assert "no steps compared" in text
    assert "Unattributed time" in text
    assert "launched while no operator was open" in " ".join(text.split())
    assert "+50.0 µs with inputs [[2,2]], 1 calls" in text
    document = comparison_document(comparison)
    assert document["wall_time"] is None
    assert document["unattributed"][0]["kernels"][0]["candidate_name"] == "own"


def test_a_report_on_cpu_time_counts_calls(load: Callable[..., Any]) -> None:
    first = TraceBuilder().operator("aten::mm", 0, 50)
    second = TraceBuilder().operator("aten::mm", 0, 50).operator("aten::mm", 100, 70)
    text = rendered(session_comparison_document(compare_sessions(load(first), load(second))))
    assert "CPU time in operators" in text
    assert "1 → 2" in text
    assert "Kernel launches" not in text


def test_the_session_document_accounts_for_every_nanosecond(sessions: SessionComparison) -> None:
    document = comparison_document(sessions, fail_on=FailOn.SLOWER, failures=["the total is slower"])
    assert (document["schema_version"], document["kind"], document["verdict"]) == (2, "session", "slower")
    assert (document["metric"], document["basis"]) == ("self_device_ns", "step")
    for side in ("reference", "candidate"):
        rows = [row[side] for row in (*document["operators"], *document["unattributed"]) if row[side]]
        spent_ns = sum(row["time_ns"] for row in rows) + document[side]["outside_steps_ns"]
        assert spent_ns == document[side]["whole_ns"] == document[side]["accounted_ns"]
        assert all(sum(row["step_ns"]) == row["time_ns"] for row in rows)
    assert document["gate"] == {
        "fail_on": "slower",
        "failures": ["the total is slower"],
        "inconclusive": None,
    }
    (kernel,) = document["operators"][0]["kernels"]
    assert (kernel["presence"], kernel["reference_name"], kernel["candidate_name"]) == ("replaced", OLD, NEW)
    assert to_json(document)


def row(name: str, median_ns: float, **fields: Any) -> BenchmarkRow:
    samples = tuple(median_ns * (1 + 0.001 * (index % 7)) for index in range(40))
    return BenchmarkRow(**{"name": name, "status": Status.OK, "samples_ns": samples, **fields})


def launching(name: str) -> dict[str, Any]:
    return {
        "profile": CallProfile(1, 1, 1, (KernelUse(name, name, "kernel", 1, 1),)),
        "kernels_launched": 1.0,
    }


def result(*rows: BenchmarkRow, torch: str = "2.11.0", **fields: Any) -> BenchmarkResult:
    environment = Environment(python="3.12", platform="Linux", opscope="0", torch=torch)
    return BenchmarkResult(
        suite="gelu", shape=(8, 16), dtype="float32", device="cuda:0", reference="torch",
        clock=Clock.CUDA_EVENT, cache_state=CacheState.COLD, options=BenchmarkOptions(),
        environment=environment, created="", rows=rows, **fields,
    )  # fmt: skip


@pytest.fixture
def benchmarks() -> Any:
    wrong = BenchmarkRow(name="cuda", status=Status.WRONG, reason="max relative error 0.3")
    return compare_benchmarks(
        [result(row("triton", 80e3, ratio=0.8, **launching("a")), row("cuda", 70e3), row("old", 60e3))],
        [
            result(row("triton", 96e3, ratio=0.9, **launching("b")), wrong, torch="2.12.0"),
            result(parameters={"n": 2}),
        ],
        reference_source="old.json",
        candidate_source="new.json",
    )


def test_the_benchmark_report(benchmarks: Any) -> None:
    text = rendered(benchmark_comparison_document(benchmarks))
    assert "PyTorch 2.11.0 → 2.12.0" in text
    assert "gelu 8 × 16, float32, cuda" in text
    assert "1.20× slower" in text
    assert "cuda: ok → wrong: max relative error 0.3" in text
    assert "triton also launches b" in text
    assert "triton no longer launches a" in text
    assert "of its own run 0.800× → 0.900×" in " ".join(text.split())
    assert "gelu 8 × 16, float32, cuda, n=2: only in the candidate" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_broken_and_missing_rows_come_first_and_the_rest_is_counted(benchmarks: Any) -> None:
    text = render_markdown(benchmark_comparison_document(benchmarks, top=2))
    assert text.index("`cuda`") < text.index("`old`")
    assert "1 more rows changed less." in text


def test_the_benchmark_document(benchmarks: Any) -> None:
    document = comparison_document(benchmarks)
    assert (document["kind"], document["reference"]["source"]) == ("benchmark", "old.json")
    (point,) = document["points"]
    rows = {one["name"]: one for one in point["rows"]}
    assert rows["triton"]["verdict"] == "slower"
    assert rows["triton"]["kernels_added"] == ["b"]
    assert (rows["cuda"]["reference_status"], rows["cuda"]["candidate_status"]) == ("ok", "wrong")
    assert rows["old"]["presence"] == "removed"
    assert document["only_in_candidate"][0]["parameters"] == {"n": "2"}
    assert msgspec.json.decode(to_json(document).encode()) == msgspec.to_builtins(document)


def test_cells() -> None:
    assert [difference_text(value) for value in (0, 1500, -2.5e6, 0.4)] == [
        "0 ns",
        "+1.50 µs",
        "−2.50 ms",
        "+0.4 ns",
    ]
    assert measured_text(131.2e3, (131.1e3, 131.3e3)) == "131.2 ± 0.1 µs"
    assert measured_text(None) == "–"
    assert count_text(Fraction(3), Fraction(3)) == "3"
    assert count_text(Fraction(1, 2), Fraction(3)) == "0.5 → 3"
    assert count_text(None, Fraction(3)) == "– → 3"


def test_a_ratio_and_its_interval_are_of_one_quantity() -> None:
    """`1.46× faster [0.68, 0.69]` would be the ratio one way round and its interval the other."""
    faster = TimeChange(
        146, 100, ratio=100 / 146, ratio_interval=(1 / 1.48, 1 / 1.44), verdict=Verdict.FASTER
    )
    assert _headline(faster).endswith("(−46 ns, 1.46× faster [1.440, 1.480])")
    slower = TimeChange(100, 146, ratio=1.46, ratio_interval=(1.44, 1.48), verdict=Verdict.SLOWER)
    assert _headline(slower).endswith("(+46 ns, 1.46× slower [1.440, 1.480])")
    assert _ratio_bar("one", faster).hover == "1.46× faster, 95 % interval 1.440 to 1.480"


def test_a_ratio_without_an_interval_is_bare() -> None:
    unjudged = TimeChange(100, 150, ratio=1.5, verdict=Verdict.AMBIGUOUS, reason="too few")
    assert ratio_words(unjudged) == "1.500×"
    judged = TimeChange(100, 150, ratio=1.5, ratio_interval=(1.4, 1.6), verdict=Verdict.SLOWER)
    assert ratio_cell(judged, Presence.BOTH) == Strong("1.50× slower")
    assert ratio_cell(judged, Presence.REPLACED) == Strong("1.50× slower")
    assert ratio_cell(TimeChange(None, 150), Presence.ADDED) == "added"
