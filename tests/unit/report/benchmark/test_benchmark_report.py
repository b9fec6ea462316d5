from __future__ import annotations

from opscope.model.benchmark import Ceiling, DeviceState, Status, Verdict
from opscope.model.finding import Finding, Severity
from opscope.report.benchmark import benchmark_document, benchmark_table, benchmark_title, kernel_use_section
from opscope.report.document import Table
from opscope.report.markdown import render_markdown

from ..conftest import cells, rendered
from .conftest import COPY


def test_the_table_fits_100_columns_with_every_figure(row, result, profile) -> None:
    figures = {
        "ceiling": "copy", "ceiling_fraction": 0.96, "peak_memory_bytes": 268_000_000,
        "max_relative_error": 1.2e-7,
    }  # fmt: skip
    rows = (
        row("torch", profile=profile("gelu"), **figures),
        row(
            "cuda_teaching", 1_390_000, profile=profile(*"abcdefgh"), ratio=10.6, verdict=Verdict.SLOWER,
            **figures,
        ),
    )  # fmt: skip
    text = rendered(benchmark_document(result(*rows)))
    assert max(map(len, text.splitlines())) <= 100
    line = next(line for line in text.splitlines() if line.startswith("cuda_teaching "))
    assert line.split() == [
        "cuda_teaching", "1.390", "±", "0.001", "ms", "10.6×", "slower", "8", "386", "GB/s", "96", "%",
        "268", "MB", "1.2e-07",
    ]  # fmt: skip


def test_columns_that_no_row_fills_are_left_out(row, result) -> None:
    table = benchmark_table(result(row("torch"), row("x", ratio=1.2, verdict=Verdict.SLOWER)))
    assert [column.title for column in table.columns] == ["Implementation", "Median", "Verdict", "Rate"]


def test_unavailable_rows_are_told_once_with_their_reason(row, result) -> None:
    left = {"status": Status.UNAVAILABLE, "reason": "nvcc is not installed. Install the CUDA toolkit"}
    findings = (
        Finding("bench.unavailable", Severity.INFO, "cuda is left out", evidence={"implementation": "cuda"}),
        Finding("bench.few_samples", Severity.WARNING, "Too few samples."),
    )
    made = result(
        row("torch"), row("cuda", None, **left), row("cuda_teaching", None, **left), findings=findings
    )
    text = rendered(benchmark_document(made))
    assert text.count("nvcc is not installed") == 1
    assert "cuda, cuda_teaching: unavailable; nvcc" in text
    assert "cuda is left out" not in text
    assert "Too few samples." in text
    assert cells(benchmark_table(made)) == [["torch", "131.2 ± 0.1 µs", "reference", "4.09 TB/s"]]


def test_the_fastest_is_named_with_its_interval_turned_around(row, result) -> None:
    rows = (
        row("torch", ratio=1.0),
        row("triton", 65_600, ratio=0.5, ratio_interval=(0.4, 0.625), verdict=Verdict.FASTER),
    )
    text = rendered(benchmark_document(result(*rows)))
    assert "triton is the fastest: 2.00× faster than torch (95 % interval 1.6–2.5)." in text


def test_conditions_say_clock_cache_check_and_state(row, result, check) -> None:
    before = DeviceState(1, sm_clock_mhz=1980, max_sm_clock_mhz=1980, temperature_c=40)
    after = DeviceState(2, sm_clock_mhz=1755, max_sm_clock_mhz=1980, throttle_reasons=("sw_power_cap",))
    made = result(
        row("torch", check=check), device_state_before=before, device_state_after=after, complete=False,
        ceilings=(COPY, Ceiling("read", 4e12, "bytes", ""), Ceiling("matrix_tf32", 4.09e14, "flop", "8192³")),
    )  # fmt: skip
    text = " ".join(rendered(benchmark_document(made), width=200).split())
    assert "NVIDIA H200 (cuda:0)" in text
    assert "CUDA events on the device around each call; L2 flushed before each call (cold)" in text
    assert "7 of each, interleaved in random order" in text
    assert "against torch in float64; largest relative error 1e-05" in text
    assert "copy 4.28 TB/s (copy_ of 256 MB); read 4.00 TB/s; matrix_tf32 409 TFLOP/s (8192³)" in text
    assert "1980 of 1980 MHz, 40 °C → 1755 of 1980 MHz, sw_power_cap" in text
    assert "no: interrupted" in text


def test_a_ratio_of_fewer_rounds_than_the_medians_is_explained(row, result) -> None:
    rows = row("torch", 20_300), row("fast", 9_110, ratio=1 / 4.64), row("same", 20_300, ratio=1.001)
    text = rendered(benchmark_document(result(*rows)))
    assert "ratios are of the rounds both sides have (fast)" in " ".join(text.split())
    assert "rounds both sides have" not in rendered(benchmark_document(result(rows[0], rows[2])))


def test_the_title_names_size_dtype_and_parameters(row, result) -> None:
    made = result(row("torch"), parameters={"approximate": "tanh", "dtype": "float32"})
    assert benchmark_title(made) == "gelu 8192 × 8192, float32, approximate=tanh"
    assert benchmark_title(result(row("x"), shape=None, dtype=None)) == "gelu"


def test_kernels_are_listed_for_each_implementation(row, result, profile) -> None:
    kernel = profile("gelu_kernel(float)", grid=(65_536, 1, 1), source_file="aten/src/GeluKernel.cu")
    made = result(row("torch", profile=kernel, first_call_ns=2_000_000), row("x", first_call_ns=1_000))
    section = kernel_use_section(made)
    assert [child.title for child in section.sections] == ["torch"]
    (table,) = section.sections[0].blocks
    assert isinstance(table, Table)
    assert cells(table) == [
        ["gelu_kernel", "1", "130 µs", "65536×1×1", "–", "–", "–", "aten::x", "aten/src/GeluKernel.cu"]
    ]


def test_the_report_is_markdown_too(row, result) -> None:
    text = render_markdown(benchmark_document(result(row("torch"), row("x|y", ratio=1.2))))
    assert text.startswith("# gelu 8192 × 8192, float32\n")
    assert "| `x\\|y` |" in text


def test_a_result_without_rows_is_still_a_report(result) -> None:
    assert "gelu" in rendered(benchmark_document(result(complete=False)))
