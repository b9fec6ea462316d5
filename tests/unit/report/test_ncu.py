"""What people and programs are shown of hardware counters."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from opscope.analysis.counter_findings import analyze_counters
from opscope.analysis.counters import CountedCall, CountedKernel, CounterAnalysis, Match
from opscope.operators.call_cost import CallCost
from opscope.provenance.kernel_names.decoder import decode
from opscope.report.document import Document
from opscope.report.json_encoding import to_json
from opscope.report.markdown import render_markdown
from opscope.report.ncu import ncu_document, ncu_json
from opscope.toolchain.ncu_reading import read_report
from opscope.toolchain.ncu_report import (
    QUANTITIES,
    KernelCounters,
    NcuDevice,
    NcuReport,
    Occupancy,
    Process,
    Quantity,
)


def made(*, command: str | None = None, **values: float) -> CounterAnalysis:
    """A report of one kernel with these counters, matched to a call that issues it alone."""
    counters = KernelCounters(
        0, "k", "k", "k", Process(), NcuDevice(name="GPU"), (4, 1, 1), (128, 1, 1), 32, 1024,
        {Quantity(name): value for name, value in values.items()},
        {"barrier": 3.0, "selected": 1.0},
        Occupancy(0.5, 0.25, 2.0, {"registers": 2, "threads": 4}),
    )  # fmt: skip
    call = CountedCall(
        "aten::x",
        None,
        "[[8, 2], [], [[1], [2]]]",
        None,
        None,
        1,
        1.0,
        cost=CallCost(read_bytes=100, written_bytes=100),
    )
    kernel = CountedKernel(counters, "k", decode("k"), Match.ORDER, call, ("aten::x",), 3, 1.0, 9_000)
    return CounterAnalysis(
        NcuReport(Path("a.ncu-rep"), (kernel,), command=command), (kernel,), (), ("t.json",)
    )


def text(document: Document) -> str:
    return render_markdown(document)


def test_every_fact_of_a_kernel_that_was_collected() -> None:
    shown = text(
        ncu_document(
            made(
                duration_ns=10_000,
                dram_bytes=300,
                dram_read_bytes=200,
                dram_written_bytes=100,
                l2_bytes=4000,
                global_load_sectors=3200,
                global_load_requests=100,
                global_load_bytes_per_sector=4.0,
                global_store_sectors=0,
                global_store_requests=0,
                shared_wavefronts=400,
                shared_wavefronts_ideal=300,
                threads_per_instruction=16.0,
                sm_throughput_fraction=0.1,
                memory_throughput_fraction=0.9,
                dram_throughput_fraction=0.9,
            )
        )
    )
    for said in (
        "10.0 µs; 9.00 µs recorded (median of 3 launches)",
        "300 B (200 B read, 100 B written); 4.00 kB through L2; 1.50 × the minimum of 200 B",
        "compute 10.0 %, memory system 90.0 %, device memory 90.0 %",
        "loads touch 32.0 sectors per request, 4.0 would suffice; no stores",
        "100 of 400 passes through shared memory (25.0 %)",
        "16.0 of 32 threads active per instruction",
        "25.0 % of 50.0 % possible, limited by registers; 2.00 waves",
        "other warps of the block at a barrier (barrier) 75.0 %",
        "on 8×2, 2 tensors (the profiled launches occur in this order in the recording)",
    ):
        assert said in shown, said


def test_what_was_not_collected_is_said_and_named_once() -> None:
    shown = text(ncu_document(made(duration_ns=10_000)))
    assert shown.count("not collected") >= 4
    assert "## Not collected" in shown
    assert "dram__bytes.sum" in shown
    assert "--section WarpStateStats" in shown


def test_the_hardwares_count_of_conflicts_is_an_upper_bound() -> None:
    shown = text(ncu_document(made(shared_load_bank_conflicts=5, shared_store_bank_conflicts=2)))
    assert "at most 7 passes by the hardware's count, which includes others" in shown


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("ncu --clock-control none x", "and empties the caches before each, at the clocks of the moment"),
        ("ncu --cache-control none x", "once per group of counters, at ncu's base clock"),
        (None, "at ncu's base clock unless told otherwise"),
    ],
)
def test_how_ncus_times_came_about(command: str | None, said: str) -> None:
    assert said in text(ncu_document(made(duration_ns=1, command=command)))


def test_launches_without_a_certain_call_are_named() -> None:
    analysis = made(duration_ns=1)
    lost = CountedKernel(analysis.kernels[0].counters, "k", decode("k"), Match.NOT_RECORDED)
    shown = text(ncu_document(CounterAnalysis(analysis.report, (lost,), (), ("t.json",))))
    assert "Without a certain call in the recording: launch 0 (`k`, the recording has no launch" in shown


def test_only_the_longest_are_shown_if_asked() -> None:
    analysis = made(duration_ns=1)
    both = CounterAnalysis(analysis.report, (analysis.kernels[0],) * 2)
    assert "The longest 1 of 2 launches." in text(ncu_document(both, top=1))
    assert "The longest" not in text(ncu_document(both, top=None))


def test_a_report_without_kernel_launches() -> None:
    report = NcuReport(Path("a.ncu-rep"), (), ("range",))
    shown = text(ncu_document(CounterAnalysis(report, ())))
    assert "1 results are not kernel launches" in shown


def test_json_has_every_quantity_and_names_what_is_missing() -> None:
    document = json.loads(to_json(ncu_json(made(duration_ns=10_000, dram_bytes=300))))
    (kernel,) = document["kernels"]
    assert document["schema_version"] == 2
    assert kernel.keys() >= {str(quantity) for quantity in QUANTITIES}
    assert (kernel["duration_ns"], kernel["dram_bytes"], kernel["traffic_ratio"]) == (10_000, 300, 1.5)
    assert kernel["global_load_sectors"] is None
    assert kernel["recorded"]["call"]["shapes"] == [[8, 2], [], [[1], [2]]]
    assert kernel["recorded"]["match"] == "order"
    missing = {entry["quantity"]: entry for entry in kernel["not_collected"]}
    assert missing["dram_read_bytes"]["metrics"] == ["dram__bytes_read.sum", "dram__bytes_op_read.sum"]
    assert "duration_ns" not in missing


def test_a_real_report_as_a_document(shared: Path) -> None:
    if find_spec("ncu_report") is None:
        pytest.skip("ncu-report is not installed")
    analysis = analyze_counters(read_report(shared / "ncu" / "ops.ncu-rep.gz"))
    shown = text(ncu_document(analysis))
    assert "NVIDIA H200 (compute capability 9.0)" in shown
    assert "ncu 2025.3.1.0" in shown
    for title in ("cunn_SoftMaxForwardReg", "GeluCUDAKernelImpl", "vectorized_layer_norm_kernel"):
        assert title in shown
    assert len(ncu_json(analysis)["kernels"]) == 5
