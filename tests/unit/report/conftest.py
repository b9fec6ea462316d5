"""A hand-built Summary: operators with kernels, a leak from the warm-up step, names full of markup."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from opscope.analysis.roofline import Efficiency
from opscope.analysis.summary import DeviceTime, StepTotal, Summary
from opscope.analysis.totals import CategoryTotal, KernelTotal, OperatorTotal
from opscope.launches.facts import LaunchGeometry
from opscope.model.benchmark import Latency
from opscope.model.finding import Finding, Severity
from opscope.model.session import Session
from opscope.model.sidecar import Environment, GpuInfo
from opscope.report.document import Document, FactList, Section, plain
from opscope.report.markdown import render_markdown
from opscope.report.terminal import render_terminal

GEMM = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute"
)
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#1}, std::array<char*, 2ul> >(int, |a|, `b`)"  # noqa: E501


def rendered(document, width=100):
    """The document as a terminal of so many columns shows it."""
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(render_terminal(document))
    return stream.getvalue()


def markdown_of(facts, blocks=None):
    """Lists of facts, and blocks, each under its name."""
    shown = [Section(name, (FactList(tuple(one)),)) for name, one in facts.items()]
    shown += [Section(name, tuple(one)) for name, one in (blocks or {}).items()]
    return render_markdown(Document("", sections=tuple(shown)))


def text_of(documents, *widths):
    """Documents by name, in Markdown; terminals of these widths show them without cutting a line."""
    for document in documents.values():
        for width in widths:
            assert max(map(len, rendered(document, width).splitlines()), default=0) <= width
    return "\n".join(f"§ {name}\n{render_markdown(one)}" for name, one in documents.items())


def cells(table):
    return [[plain(cell) for cell in row] for row in table.rows]


def said(facts):
    return {label: plain(text) for label, text in facts}


EXPECTED = Path(__file__).parent / "expected"


@pytest.fixture
def expect(request):
    """Compares a text with the expected one, or writes that."""

    def compare(name, text):
        path = EXPECTED / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        assert text == path.read_text("utf-8")

    return compare


# Sections that no trace stands behind.
UNKNOWN = {
    "accuracy": None, "torch_version": None, "torch_version_grade": None, "torch_version_reason": None,
    "accounts": {}, "efficiency": Efficiency(), "limits_reason": None, "improvements": {},
    "is_of_torch": True,
}  # fmt: skip


@pytest.fixture
def summary():
    gemm = KernelTotal(
        GEMM, "kernel", 6, 6_000_000, 900_000, 1_100_000, 0.6, None,
        (
            LaunchGeometry((96, 1, 1), (128, 1, 1), 200, 49_152, 0.12, 4, 4_000_000),
            LaunchGeometry((384, 2, 1), (128, 1, 1), 200, 49_152, 0.5, 2, 2_000_000),
        ),
    )  # fmt: skip
    gelu = KernelTotal(
        ELEMENTWISE, "kernel", 3, 3_000_001, 1_000_000, 1_000_001, 0.3, None,
        (LaunchGeometry((4096, 1, 1), (128, 1, 1), 32, 0, 0.9, 3, 3_000_001),),
    )  # fmt: skip
    copy = KernelTotal("Memcpy HtoD (Pageable -> Device)", "memcpy", 1, 999_999, 999_999, 999_999, 0.1, 4_096)
    return Summary(
        Session(),
        traces=("runs/bert.json",), ranks=(None,), has_device=True, device_time_ns=10_000_000,
        attributed_ns=9_000_001, cpu_time_ns=20_000_000, kernel_launches=9, activity_count=10,
        operator_calls=12, operator_names=3, window_ns=30_000_000, **UNKNOWN,
        devices=(
            DeviceTime(
                0, None, 0, "NVIDIA H200", "9.0", 132, 150_109_880_320, 12_000_000, 9_500_000, 2_500_000, 10
            ),
        ),
        steps=(
            StepTotal(0, 3, 10_000_000, 5_000_000, 5, 10_000_000),
            StepTotal(0, 4, 9_000_000, 5_000_000, 4, 10_000_000),
        ),
        unattributed_ns={"before_window": 999_999},
        operators=(
            OperatorTotal(
                "aten::addmm", None, "matrix", 6, 6_000_000, 6_000_000, 800_000, 900_000, 6, 0.6, 0.6,
                (("[[768],[1024,768],[768,768]]", 4), ("[[3072],[1024,768],[768,3072]]", 2)), (gemm,),
            ),
            OperatorTotal(
                "aten::_gelu_", "", "activation", 3, 3_000_001, 3_000_001, 90_000, 100_000, 3, 0.3, 0.3, (),
                (gelu,),
            ),
            OperatorTotal("aten::linear", None, "matrix", 6, 0, 6_000_000, 90_000, 1_000_000, 0, 0.0, 0.6),
        ),
        categories=(
            CategoryTotal("matrix", 6_000_000, 890_000, 0.6, 12),
            CategoryTotal("activation", 3_000_001, 90_000, 0.3, 3),
        ),
        kernels=(gemm, gelu, copy),
        findings=(
            Finding("trace.before_window", Severity.INFO, "10.0 % of device time was launched before."),
            Finding("trace.truncated", Severity.WARNING, "128 bytes lost | at the end.", "Record it again."),
        ),
    )  # fmt: skip


@pytest.fixture
def cpu_summary():
    return Summary(
        Session(),
        traces=("cpu.json", "cpu2.json"), ranks=(0, 1), has_device=False, device_time_ns=0, attributed_ns=0,
        cpu_time_ns=1_000_000, kernel_launches=0, activity_count=0, operator_calls=3, operator_names=2,
        window_ns=None, devices=(), steps=(), unattributed_ns={}, **UNKNOWN,
        operators=(
            OperatorTotal("aten::mm", None, "matrix", 2, 0, 0, 900_000, 900_000, 0, 0.0, 0.0),
            OperatorTotal("aten::add", None, "elementwise", 1, 0, 0, 100_000, 100_000, 0, 0.0, 0.0),
        ),
        categories=(
            CategoryTotal("matrix", 0, 900_000, 0.9, 2),
            CategoryTotal("elementwise", 0, 100_000, 0.1, 1),
        ),
    )  # fmt: skip


@pytest.fixture
def config():
    return {
        "workload": "bert", "batch_size": 8, "seq_len": 128, "dtype": "float32", "device": "cuda",
        "attn_implementation": None, "parameters": 108_000_000, "steps": 2,
    }  # fmt: skip


@pytest.fixture
def environment():
    gpu = GpuInfo("NVIDIA H200", "9.0", 132, 150_109_880_320)
    return Environment(python="3.11.7", platform="Linux", opscope="0.1.0", torch="2.13.0", gpu=(gpu,))


@pytest.fixture
def latency():
    return Latency(samples_ns=(4_000_000, 5_000_000, 6_000_000), clock="cuda_event", warmup_count=2)
