"""The first screen of reports: whose words it uses, and that it names what takes the time."""

import pytest

import opscope as opscope_api
from fakes import H200, ExportBuilder, TraceBuilder

WIDE = {"grid": [4096, 1, 1], "block": [256, 1, 1], "registers per thread": 255, "shared memory": 0}
# What a C++ programmer has no use for.
OF_TORCH = ("torch", "Torch", "opscope try", "opscope run", "DataLoader", "aten::", " 0.0 % attributed")


def recorded_by_cupti(folder):
    """30 rounds of a kernel, a copy to pageable memory, a wait and an allocation."""
    builder = TraceBuilder(deviceProperties=[H200])
    for start in range(0, 3000, 100):
        builder.launch(start, 4).kernel("solve(float*, int)", start + 6, 40)
        builder.launch(start + 6, 4, name="cudaMemcpyAsync")
        builder.kernel(
            "Memcpy DtoH (Device -> Pageable)", start + 46, 20, category="gpu_memcpy", bytes=400_000
        )
        builder.launch(start + 11, 60, name="cudaDeviceSynchronize").launch(start + 75, 10, name="cudaMalloc")
    return builder.write(folder / "solver.json")


def exported_by_nsys(folder):
    """The same in a range of the program's own."""
    builder = ExportBuilder().range("Solver::run", 0, 3_000_000)
    for start in range(0, 3_000_000, 100_000):
        builder.launch(start, 4_000).kernel("solve(float*, int)", start + 6_000, 40_000)
        builder.launch(start + 6_000, 64_000, name="cudaMemcpy_v3020")
        builder.copy(start + 46_000, 20_000, bytes=400_000, copyKind=2, srcKind=2, dstKind=0)
    return builder.write(folder / "solver.sqlite")


@pytest.mark.parametrize("recording", [recorded_by_cupti, exported_by_nsys])
def test_a_program_in_cuda_alone_gets_the_words_of_cuda(opscope, tmp_path, recording):
    trace, page, text = recording(tmp_path), tmp_path / "page.html", tmp_path / "report.md"
    told = opscope("analyze", trace, "-o", page, "-o", text, "--section", "change", "waits").fine()
    assert any(one in told.out for one in ("cudaEventRecord", "cudaMemcpyAsync", "cudaMallocHost"))
    assert [one for one in OF_TORCH if one in told.out] == []
    assert recording is exported_by_nsys or "operators" not in told.out  # ranges stand among them
    said = page.read_text("utf-8").partition("<script")[0] + text.read_text("utf-8")
    assert [one for one in OF_TORCH[:4] if one in said] == []


def test_exposed_communication_is_named_whatever_else_leads(opscope, tmp_path):
    def of_job(share):
        builder = TraceBuilder(deviceProperties=[H200]).step(1, 0, 1000)
        builder.operator("aten::mm", 0, 20).launch(5).kernel("gemm", 20, 900 - 10 * share)
        builder.operator("c10d::allreduce_", 30, 20).launch(35)
        builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 930 - 10 * share, 10 * share, stream=9)
        return opscope("analyze", builder.write(tmp_path / f"{share}.json")).words

    assert "Exposed communication, 58.0 % of the time" in of_job(58)
    assert "Exposed communication," not in of_job(8)


def test_what_a_report_prints_can_be_given_to_other_verbs(opscope, example, monkeypatch, tmp_path):
    """Kernels as they are shortened at 80 columns, operators, changes by their numbers."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = opscope("analyze", example, "--section", "kernels").out.partition("\nKernels\n")[2]
    names = [line.partition("  ")[0] for line in shown.splitlines() if "  kernel  " in line]
    assert len(names) > 8
    assert any("…" in one for one in names)
    written = tmp_path / "call.py"
    with opscope_api.load(example) as session:
        for name in names:
            assert opscope_api.explain(name, session).is_recorded, name
    query = " UNION ALL ".join(
        f"SELECT count(*) AS n FROM kernels WHERE shown_as(name, '{one}')" for one in names
    )
    assert all(one["n"] for one in opscope("sql", example, query, "--json").json)
    for name in (names[0], "elementwise_kernel<… direct_copy_kernel_cuda …>", "aten::addmm"):
        opscope("extract", example, name, "-o", written, "--force").fine()
    change = opscope("explain", "change 3", "--trace", example).fine("Change 3: Unfused attention")
    assert opscope("explain", 3, "--trace", example).out == change.out
    waits = opscope("explain", "waits", "--trace", example).fine("\nWhere the GPU waits\n").out
    assert opscope("analyze", example, "--section", "waits").out.count(waits) == 1
    opscope("explain", "硬件", "--trace", example, "--lang", "zh").fine("距离硬件极限多远")
    assert opscope("explain", "waits", "--trace", example, "--json").json["named"][0]["title"] in waits
    for none in (9, "first"):
        opscope("explain", none, "--trace", example).fails(f"nothing is known by the name '{none}'")
    opscope("explain", "waits").fails("with --trace also a change, a module or a section")


def test_a_module_that_a_report_names_is_explained(opscope, tmp_path):
    builder = TraceBuilder(deviceProperties=[H200]).frame("nn.Module: Encoder_0", 0, 90)
    builder.frame("nn.Module: Linear_0", 1, 40, parent=1).operator("aten::mm", 2, 20).launch(5)
    trace = builder.kernel("gemm", 20, 30).write(tmp_path / "modules.json")
    told = opscope("explain", "Linear", "--trace", trace).fine("By module", "· Linear 1 30.0 µs")
    assert "Encoder" not in told.out
    assert (
        opscope("explain", "Linear", "--trace", trace, "--json").json["named"][0]["self_device_ns"] == 30_000
    )


def own_kernel(folder, duration=60, name="square(float*)", operator=None):
    builder = TraceBuilder(deviceProperties=[H200]).frame("train.py(3): <module>", 0, 1000)
    builder.frame("train.py(12): square", 5, 300, parent=1).frame("cupy/core.py(7): launch", 6, 250, parent=2)
    if operator is not None:
        builder.operator(operator, 10, 200)
    builder.launch(20, 4, name="cuLaunchKernel")
    builder.kernel(name, 30, duration, **WIDE)
    builder.operator("aten::gelu", 400, 20).launch(405).kernel("gelu", 500, 40)
    return builder.write(folder / "own.json")


def test_a_kernel_of_no_operator_that_leads_is_named(opscope, tmp_path):
    opscope("analyze", own_kernel(tmp_path)).fine(
        "Kernel square: 60.0 % of device time, in no operator; train.py:12 square; "
        "12.5 % of warps resident (registers)"
    )
    assert "in no operator" not in opscope("analyze", own_kernel(tmp_path, duration=39)).out
    of_torch = own_kernel(tmp_path, name="void at::native::vectorized_elementwise_kernel<4>()")
    assert "in no operator" not in opscope("analyze", of_torch).out
    inside = own_kernel(tmp_path, operator="Square")
    opscope("analyze", inside).fine("Kernel square: 60.0 % of device time, in Square; 12.5 % of warps")
    of_aten = own_kernel(tmp_path, name="cudnn::softmax", operator="aten::_softmax")
    assert "Kernel" not in opscope("analyze", of_aten).words.partition("Top operators")[0]
