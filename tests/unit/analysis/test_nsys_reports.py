import pytest

from fakes import TraceBuilder
from opscope import load
from opscope.analysis.nsys_reports import report_tables

COPY = "Memcpy HtoD (Pageable -> Device)"


@pytest.fixture
def session(tmp_path):
    builder = TraceBuilder().launch(1, 0.5).kernel("void at::native::fast<float>(int)", 20, 9)
    builder.launch(30, 1, name="cudaMemcpyAsync").kernel(COPY, 60, 3, category="gpu_memcpy", bytes=2_000_000)
    return load(builder.write(tmp_path / "trace.json"))


def rows(session, name):
    (table,) = report_tables(session, [name])
    return table.rows


def test_copies_of_managed_memory_have_their_own_row(tmp_path):
    builder = TraceBuilder().launch(0).kernel("Memcpy Unified DtoH", 1, 2, category="gpu_memcpy", bytes=4096)
    table = rows(load(builder.write(tmp_path / "t.json")), "cuda_gpu_mem_size_sum")
    assert table[0]["Operation"] == "[CUDA memcpy Unified Device-to-Host]"


def test_base_names_are_functions_alone(session):
    assert rows(session, "cuda_gpu_kern_sum:base")[0]["Name"] == "fast"
    assert rows(session, "cuda_gpu_sum:base")[1]["Operation"] == "[CUDA memcpy Host-to-Device]"
