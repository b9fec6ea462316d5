import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TINY = ("--param", "layers=1", "hidden=16", "--device", "cpu", "--active", 2)

WORKLOADS = Path(__file__).with_name("workloads.py.txt").read_text(encoding="utf-8")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def workloads(tmp_path):
    file = tmp_path / "cases_of_profile.py"
    file.write_text(WORKLOADS)
    return file


@pytest.fixture
def profile(opscope, out):
    """Runs `opscope profile … --seq-lens 8 --output-dir OUT --skip-benchmark`."""
    rest = ("--seq-lens", 8, "--output-dir", out, "--skip-benchmark")
    return lambda *arguments: opscope("profile", *arguments, *rest)


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_three_files_a_configuration_and_a_summary(opscope, out):
    sizes = ("--batch-sizes", 1, 2, "--seq-lens", 8)
    page = out.parent / "page.html"
    outcome = opscope(
        "profile", "bert", *sizes, "--output-dir", out, "--output", page, "--skip-benchmark", *TINY
    ).fine()
    of_each = (
        "profiling_stats_{}.json kernel_analysis_report_{}.md bert_trace_{}.json bert_trace_{}.opscope.json"
    )
    files = {name.format(label) for label in ("bs1_seq8", "bs2_seq8") for name in of_each.split()}
    assert names(out) == files | {"profiling_summary.json", "profiling_summary.md"}
    assert outcome.out.splitlines()[-1] == f"Wrote {out / 'profiling_summary.md'}"
    assert f"Wrote {page}" in outcome.out
    assert "bs2_seq8" in page.read_text("utf-8")
    assert "bs2_seq8: " in outcome.err
    stats = json.loads((out / "profiling_stats_bs2_seq8.json").read_text("utf-8"))
    assert (stats["config"]["workload"], stats["config"]["batch_size"]) == ("bert", 2)
    # What the operator guide's own commands read, from these files.
    assert stats["summary"]["total_cuda_time_ms"] == 0
    top = stats["top_aten_operators"][:3]
    assert {one["cuda_time_total_ms"] for one in top} == {0}
    assert any(one["potential_cuda_file"].startswith("aten/src/ATen/native/cuda/") for one in top)
    assert stats["summary"]["wall_time_ms_per_step"] > 0
    assert stats["step"]["unrecorded_ms"]["samples"] >= 6
    assert "Step, median (95 %)" in outcome.out
    assert "report.cpu_time" in {finding["code"] for finding in stats["findings"]}
    report = (out / "kernel_analysis_report_bs2_seq8.md").read_text("utf-8")
    assert "## 4. Top operators" in report
    assert all(f"\n### 4.{place} aten::" in report for place in (1, 2, 3))


def test_json_with_a_benchmark_is_one_document(opscope, out):
    page = out.parent / "page.html"
    outcome = opscope(
        "profile", "transformer", "--batch-sizes", 2, "--seq-lens", 4, "--output-dir", out, "--json",
        "--output", page, *TINY
    ).fine()  # fmt: skip
    (configuration,) = outcome.json["configurations"]
    assert "aten::addmm" in page.read_text("utf-8")  # the recording's page: there is one point
    assert configuration["files"]["trace"] == "transformer_trace_bs2_seq4.json"
    assert configuration["latency_ms"]["median"] > 0
    assert configuration["throughput_sequences_per_s"] == pytest.approx(
        2e3 / configuration["latency_ms"]["median"]
    )
    stats = json.loads((out / configuration["files"]["stats"]).read_text("utf-8"))
    assert len(stats["benchmark"]["latency_ms"]["samples"]) >= 10


def test_a_configuration_that_fails_does_not_stop_the_others(profile, out, workloads):
    outcome = profile(f"{workloads}:fails_at_4", "--batch-sizes", 4, 2).fails("bs4_seq8: failed: ", out=None)
    assert "no such | batch" in outcome.out
    assert "fails_at_4_trace_bs2_seq8.json" in names(out)
    summary = json.loads((out / "profiling_summary.json").read_text("utf-8"))
    assert [one["status"] for one in summary["configurations"]] == ["failed", "complete"]
    assert "no such \\| batch" in (out / "profiling_summary.md").read_text("utf-8")


@pytest.mark.exhaustive(few=False)
def test_an_interrupt_keeps_what_is_done(profile, out, workloads):
    target = f"{workloads}:interrupted_at_4"
    profile(target, "--batch-sizes", 1, 4, 8).fails(
        f"interrupted: 1 of 3 configurations are kept in {out}", code=130, out=None
    )
    summary = json.loads((out / "profiling_summary.json").read_text("utf-8"))
    assert [one["label"] for one in summary["configurations"]] == ["bs1_seq8"]
