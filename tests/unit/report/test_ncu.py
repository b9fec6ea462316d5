"""What people and programs are shown of hardware counters."""

from pathlib import Path

from opscope.analysis.counters import CountedCall, CountedKernel, CounterAnalysis, Match, counter_findings
from opscope.operators.effects import CallCost
from opscope.provenance.kernel_names.decoder import decode
from opscope.report.ncu import ncu_document
from opscope.toolchain.ncu_report import KernelCounters, NcuDevice, NcuReport, Occupancy, Quantity

from .conftest import text_of


def made(**values):
    """A report of one kernel with these counters, matched to a call that issues it alone."""
    counters = KernelCounters(
        0, "k", "k", "k", NcuDevice(name="GPU"), (4, 1, 1), (128, 1, 1), 32, 1024,
        {Quantity(name): value for name, value in values.items()},
        {"barrier": 3.0, "selected": 1.0},
        Occupancy(0.5, 0.25, 2.0, {"registers": 2, "threads": 4}),
    )  # fmt: skip
    cost = CallCost(read_bytes=100, written_bytes=100)
    facts = {"shapes": "[[8, 2], [], [[1], [2]]]", "calls": 1, "activities_per_call": 1.0}
    call = CountedCall(call_id=0, name="aten::x", cost=cost, **facts)
    kernel = CountedKernel(counters, "k", decode("k"), Match.ORDER, call, ("aten::x",), 3, 1.0, 9_000)
    return CounterAnalysis(NcuReport(Path("a.ncu-rep"), (kernel,)), (kernel,), (), ("t.json",))


EVERYTHING = {
    "duration_ns": 10_000, "dram_bytes": 300, "dram_read_bytes": 200, "dram_written_bytes": 100,
    "l2_bytes": 4000, "global_load_sectors": 3200, "global_load_requests": 100,
    "global_load_bytes_per_sector": 4.0, "global_store_sectors": 0, "global_store_requests": 0,
    "shared_wavefronts": 400, "shared_wavefronts_ideal": 300, "threads_per_instruction": 16.0,
    "sm_throughput_fraction": 0.1, "memory_throughput_fraction": 0.9, "dram_throughput_fraction": 0.9,
}  # fmt: skip
MADE = made(duration_ns=1)
LOST = CountedKernel(MADE.kernels[0].counters, "k", decode("k"), Match.NOT_RECORDED)
BOTH = CounterAnalysis(MADE.report, (MADE.kernels[0],) * 2)
WAITING = made(duration_ns=10_000, sm_throughput_fraction=0.2, memory_throughput_fraction=0.1).kernels
REPORTS = {
    "everything was collected": ncu_document(made(**EVERYTHING)),
    "what was not collected is named once": ncu_document(made(duration_ns=10_000)),
    "without a certain call": ncu_document(CounterAnalysis(MADE.report, (LOST,), (), ("t.json",))),
    "the longest": ncu_document(BOTH, top=1),
    "all": ncu_document(BOTH, top=None),
    "what to change, of launches alike": ncu_document(
        CounterAnalysis(MADE.report, WAITING * 2, counter_findings(WAITING * 2))
    ),
    "one was not measured": ncu_document(
        CounterAnalysis(MADE.report, (*WAITING, CountedKernel(made().kernels[0].counters, "k", decode("k"))))
    ),
    "no kernel launches": ncu_document(CounterAnalysis(NcuReport(Path("a.ncu-rep"), (), ("range",)), ())),
}


def test_reports(expect):
    expect("ncu.txt", text_of(REPORTS))
