import re

import msgspec
import pytest

from fakes import ON_A_GPU, TraceBuilder, benchmark_result
from opscope.analysis.comparison_rules import compare_benchmarks
from opscope.analysis.session_comparison import compare_sessions
from opscope.model import benchmark
from opscope.model.comparison import Presence, TimeChange
from opscope.model.sidecar import Environment
from opscope.report import comparison
from opscope.report.document import Strong
from opscope.report.json_encoding import to_json
from opscope.report.markdown import render_markdown

from .conftest import rendered, text_of


def gemm(name, duration, *, gelu=10):
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


def plain(duration):
    """Without steps, with launches of no operator."""
    builder = TraceBuilder().operator("aten::mm", 0, 50, **{"Input Dims": [[2, 2]]}).launch(10)
    builder.kernel(OLD, 20, duration).operator("aten::mm", 100, 50, **{"Input Dims": [[4, 4]]}).launch(110)
    return builder.kernel("splitK", 120, 3).launch(300).kernel("own", 320, duration)


def cpu(*durations):
    builder = TraceBuilder()
    for at, duration in enumerate(durations):
        builder.operator("aten::mm", 100 * at, duration)
    return builder


SIDES = {
    "slower by another kernel": (gemm(OLD, 100), gemm(NEW, 150)),
    "slower by the same kernels": (gemm(OLD, 100), gemm(OLD, 150, gelu=12)),
    "equal": (gemm(OLD, 100), gemm(OLD, 100)),
    "without steps": (plain(100), plain(150)),
    "CPU time counts calls": (cpu(50), cpu(50, 70)),
}


def test_reports_on_recordings(load, expect):
    found = {name: compare_sessions(*map(load, sides)) for name, sides in SIDES.items()}
    documents = {name: comparison.comparison_document(one) for name, one in found.items()}
    documents["cut"] = comparison.comparison_document(found["slower by the same kernels"], top=1)
    documents["all"] = comparison.comparison_document(found["slower by the same kernels"], top=None)
    expect("comparison.txt", re.sub(r"/\S+/(\w+\.json)", r"\1", text_of(documents, 100)))
    unsteady = comparison.comparison_json(found["without steps"])
    assert unsteady["wall_time"] is None
    assert unsteady["unattributed"][0]["kernels"][0]["candidate_name"] == "own"


def row(name, median_ns, **fields):
    samples = tuple(median_ns * (1 + 0.001 * (index % 7)) for index in range(40))
    return benchmark.BenchmarkRow(
        **{"name": name, "status": benchmark.Status.OK, "samples_ns": samples, **fields}
    )


def launching(name):
    return {
        "profile": benchmark.CallProfile(1, 1, 1, (benchmark.KernelUse(name, name, "kernel", 1, 1),)),
        "kernels_launched": 1.0,
    }


def result(*rows, torch="2.11.0", **fields):
    environment = Environment(python="3.12", platform="Linux", opscope="0", torch=torch)
    return benchmark_result(*rows, shape=(8, 16), environment=environment, **ON_A_GPU, **fields)


@pytest.fixture
def benchmarks():
    wrong = benchmark.BenchmarkRow(
        name="cuda", status=benchmark.Status.WRONG, reason="max relative error 0.3"
    )
    return compare_benchmarks(
        [result(row("triton", 80e3, ratio=0.8, **launching("a")), row("cuda", 70e3), row("old", 60e3))],
        [
            result(row("triton", 96e3, ratio=0.9, **launching("b")), wrong, torch="2.12.0"),
            result(parameters={"n": 2}),
        ],
        reference_source="old.json",
        candidate_source="new.json",
    )


def test_reports_on_benchmarks(benchmarks, expect):
    reports = [comparison.comparison_document(benchmarks, top=top) for top in (20, 2)]
    expect("benchmark_comparison.txt", "\n".join(map(render_markdown, reports)))
    assert max(map(len, rendered(reports[0]).splitlines())) <= 100


def test_the_benchmark_document(benchmarks):
    document = comparison.comparison_json(benchmarks)
    assert (document["kind"], document["reference"]["source"]) == ("benchmark", "old.json")
    (point,) = document["points"]
    rows = {one["name"]: one for one in point["rows"]}
    assert rows["triton"]["verdict"] == "slower"
    assert rows["triton"]["kernels_added"] == ["b"]
    assert (rows["cuda"]["reference_status"], rows["cuda"]["candidate_status"]) == ("ok", "wrong")
    assert rows["old"]["presence"] == "removed"
    assert document["only_in_candidate"][0]["parameters"] == {"n": "2"}
    assert msgspec.json.decode(to_json(document).encode()) == msgspec.to_builtins(document)


def test_a_ratio_and_its_interval_are_of_one_quantity_or_it_is_bare():
    """`1.46× faster [0.68, 0.69]` would be the ratio one way round and its interval the other."""
    faster = TimeChange(
        146, 100, ratio=100 / 146, ratio_interval=(1 / 1.48, 1 / 1.44), verdict=benchmark.Verdict.FASTER
    )
    assert comparison._headline(faster).endswith("(−46 ns, 1.46× faster [1.440, 1.480])")
    slower = TimeChange(100, 146, ratio=1.46, ratio_interval=(1.44, 1.48), verdict=benchmark.Verdict.SLOWER)
    assert comparison._headline(slower).endswith("(+46 ns, 1.46× slower [1.440, 1.480])")
    unjudged = TimeChange(100, 150, ratio=1.5, verdict=benchmark.Verdict.AMBIGUOUS, reason="too few")
    assert comparison.ratio_words(unjudged) == "1.500×"
    judged = TimeChange(100, 150, ratio=1.5, ratio_interval=(1.4, 1.6), verdict=benchmark.Verdict.SLOWER)
    assert comparison.ratio_cell(judged, Presence.BOTH) == Strong("1.50× slower")
    assert comparison.ratio_cell(judged, Presence.REPLACED) == Strong("1.50× slower")
    assert comparison.ratio_cell(TimeChange(None, 150), Presence.ADDED) == "added"
