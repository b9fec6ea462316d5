"""Reports on hand-made benchmark results: rows with every figure given, so that nothing is measured.

`--update-golden` writes what is expected of all of them: read the difference before you commit it.
"""

from fakes import ON_A_GPU, benchmark_result
from opscope.benchmarking.benchmark_sweep import BenchmarkSweep
from opscope.model.benchmark import (
    BenchmarkRow,
    CallProfile,
    Ceiling,
    DeviceState,
    KernelUse,
    OutputCheck,
    Status,
    Verdict,
)
from opscope.model.finding import Finding, Severity
from opscope.model.sidecar import Environment, GpuInfo
from opscope.report import benchmark
from opscope.report.document import Document

from .conftest import text_of

SAME, SLOWER, FASTER, AMBIGUOUS = Verdict.SAME, Verdict.SLOWER, Verdict.FASTER, Verdict.AMBIGUOUS
COPY = Ceiling("copy", 4.28e12, "bytes", "copy_ of 256 MB")
GPU = GpuInfo("NVIDIA H200", "9.0", 132, 150_109_880_320)


def profile(*names, device_ns=130_000, **geometry):
    """Kernels by name, each launched once per call."""
    uses = (
        KernelUse(name, name.partition("(")[0], "kernel", 1, device_ns, "aten::x", **geometry)
        for name in names
    )
    return CallProfile(3, len(names), device_ns * len(names), tuple(uses))


def row(name, median_ns=131_200, **fields):
    """A measured row; figures that are not given follow from its median."""
    made = {"status": Status.OK, "min_bytes": 537_000_000, **fields}
    if (profile := made.get("profile")) is not None:
        made |= {"kernels_launched": profile.kernels_launched, "device_ns": profile.device_ns}
    if median_ns is not None:
        interval_ns = (median_ns * 0.999, median_ns * 1.001)
        rate = made["min_bytes"] / median_ns * 1e9
        made = {"samples_ns": (median_ns,) * 7, "interval_ns": interval_ns, "bytes_per_s": rate, **made}
    return BenchmarkRow(name=name, median_ns=median_ns, **made)


def result(*rows, **fields):
    """A result on an H200 whose first row is the reference."""
    given = {
        "shape": (8192, 8192), "reference": rows[0].name if rows else "torch", "ceilings": (COPY,),
        "environment": Environment(python="3.11", platform="Linux", opscope="0.1.0", gpu=(GPU,)),
        "created": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return benchmark_result(*rows, **{**ON_A_GPU, **given, **fields})


MEDIANS = (
    (131_200, (131_100, 131_300)), (131_200, (119_200, 143_200)), (1_390_000, (1_380_000, 1_400_000)),
    (999_950, (999_000, 1_001_000)), (131_200, (131_200, 131_200)), (131_200, (131_199.999, 131_200.001)),
    (57_600, (50_000, 28_000_000)), (850, (840, 860)), (2_500_000_000, None), (None, None),
)  # fmt: skip
RATIOS = ((9.83, SLOWER), (10.63, SLOWER), (0.5, FASTER), (1.0031, SAME), (0.98, AMBIGUOUS), (3.2, None))
KERNEL = profile("pow_kernel(float)")
AT_COPY = {"ceiling": "copy", "ceiling_fraction": 0.97}
UNAVAILABLE = {"status": Status.UNAVAILABLE, "reason": "nvcc is not installed. Install the CUDA toolkit"}
RESULTS = {
    "a median has the digits that its interval leaves": result(
        *(row(f"r{at}", median_ns, interval_ns=ends) for at, (median_ns, ends) in enumerate(MEDIANS))
    ),
    "ratios read as words": result(
        row("torch", ratio=1.0), *(row(f"{ratio}", ratio=ratio, verdict=verdict) for ratio, verdict in RATIOS)
    ),
    "the verdict of a row that was not timed is its status": result(
        row("torch"), row("wrong", None, status=Status.WRONG), row("checked", None, status=Status.CHECKED),
        row("failed", None, status=Status.FAILED), row("unjudged"),
    ),
    "a rate is that of the ceiling that binds": result(
        row("copy", 1_000_000, ceiling="copy", flop_per_s=8.12e14),
        row("matrix", 1_000_000, ceiling="matrix_bfloat16", flop_per_s=8.12e14, ceiling_fraction=0.0148),
        row("little", ceiling="copy", ceiling_fraction=0.0004), row("none", None),
    ),
    "the same kernel": result(row("torch", profile=KERNEL), row("power", profile=KERNEL, verdict=SAME,
        ratio=1.001)),
    "the same kernel twice is another launch": result(
        row("torch", profile=profile("pow")), row("twice", profile=profile("pow", "pow"), verdict=SAME,
            ratio=1.0)
    ),
    "another kernel at the same ceiling": result(
        row("torch", profile=profile("pow"), ceiling="copy", ceiling_fraction=0.981),
        row("multiply", profile=profile("mul"), verdict=SAME, ratio=1.0, ceiling="copy",
            ceiling_fraction=0.972),
    ),
    "the same bytes": result(row("torch"), row("power", verdict=SAME, ratio=1.0)),
    "many kernels and their memory": result(
        row("torch", profile=profile("gelu"), peak_memory_bytes=268_000_000, max_relative_error=1.2e-7,
            **AT_COPY),
        row(
            "naive", 1_390_000, profile=profile(*"abcdefgh", device_ns=174_000), verdict=SLOWER, ratio=10.6,
            peak_memory_bytes=1_070_000_000, max_relative_error=1.2e-7, **AT_COPY,
        ),
    ),
    "more kernels do not explain a faster row": result(
        row("torch", profile=profile("a")), row("split", 100_000, profile=profile("a", "b"), verdict=FASTER,
            ratio=0.8)
    ),
    "above the ceiling": result(row("torch", ceiling="copy", ceiling_fraction=1.4)),
    "undecided": result(
        row("torch"), row("x", ratio=1.01, verdict=AMBIGUOUS,
            verdict_reason="the interval 0.98 to 1.04 is wide")
    ),
    "unavailable rows are told once": result(
        row("torch"), row("cuda", None, **UNAVAILABLE), row("cuda_teaching", None, **UNAVAILABLE),
        findings=(
            Finding("bench.unavailable", Severity.INFO, "cuda is left out",
                evidence={"implementation": "cuda"}),
            Finding("bench.few_samples", Severity.WARNING, "Too few samples."),
        ),
    ),
    "the fastest with its interval turned around": result(
        row("torch", ratio=1.0), row("triton", 65_600, ratio=0.5, ratio_interval=(0.4, 0.625), verdict=FASTER)
    ),
    "conditions": result(
        row("torch", check=OutputCheck(1.2e-7, 1e-5, 64, 0, "torch in float64")), complete=False,
        device_state_before=DeviceState(1, sm_clock_mhz=1980, max_sm_clock_mhz=1980, temperature_c=40,
            power_w=90.4),
        device_state_after=DeviceState(2, sm_clock_mhz=1755, max_sm_clock_mhz=1980,
            throttle_reasons=("sw_power_cap",)),
        ceilings=(COPY, Ceiling("read", 4e12, "bytes", ""), Ceiling("matrix_tf32", 4.09e14, "flop", "8192³")),
    ),
    "ratios of fewer rounds than the medians": result(
        row("torch", 20_300), row("fast", 9_110, ratio=1 / 4.64), row("same", 20_300, ratio=1.001)
    ),
    "the title names parameters": result(row("x|y"), parameters={"approximate": "tanh", "dtype": "float32"}),
    "neither size nor type": result(row("x"), shape=None, dtype=None),
    "no rows": result(complete=False),
}  # fmt: skip
LAUNCHED = result(
    row("torch", profile=profile("gelu_kernel(float)", grid=(65_536, 1, 1),
        source_file="aten/src/GeluKernel.cu"),
        first_call_ns=2_000_000),
    row("x", first_call_ns=1_000),
)  # fmt: skip
POINTS = tuple(
    result(
        row("torch", median_ns), row("x", other_ns, ratio=other_ns / median_ns, verdict=SLOWER),
        row("cuda", None, status=Status.UNAVAILABLE, reason="no GPU"), shape=None, parameters={"n": n},
        findings=(Finding("bench.outliers", Severity.INFO, f"At {n}."),),
    )
    for n, median_ns, other_ns in ((1024, 1e5, 1e6), (2048, 4e5, 2e6), (4096, 16e5, 4e6))
)  # fmt: skip
SWEPT = {"n": (1024, 2048, 4096)}
SWEEPS = {
    "a sweep": BenchmarkSweep(suite="mine.py", parameters=SWEPT, points=POINTS),
    "failed and interrupted": BenchmarkSweep(
        suite="mine.py", parameters=SWEPT, points=POINTS[:1], failures=("n=8192: no memory",), complete=False
    ),
    "no points": BenchmarkSweep(suite="f", parameters={"n": (1,)}, complete=False),
}


def test_reports(expect):
    documents = {name: benchmark.benchmark_document(one) for name, one in RESULTS.items()}
    documents |= {name: benchmark.benchmark_document(one) for name, one in SWEEPS.items()}
    documents["kernels"] = Document("", sections=(benchmark.kernel_use_section(LAUNCHED),))
    documents["no kernels"] = Document("", sections=(benchmark.kernel_use_section(result(row("x"))),))
    expect("benchmark.txt", text_of(documents, 100))
