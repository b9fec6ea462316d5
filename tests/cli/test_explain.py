"""`opscope explain`: one name in, the whole chain out, as text or as one JSON document."""

import re

import pytest

import opscope as library

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"  # noqa: E501


@pytest.fixture
def explain(opscope):
    """Runs `opscope explain … --torch-version 2.6.0`."""
    return lambda *arguments: opscope("explain", *arguments, "--torch-version", "2.6.0")


def test_calls_of_several_recordings_are_added(opscope, tmp_path):
    trace, second = library.example_trace(), tmp_path / "second.json.gz"
    second.write_bytes(trace.read_bytes())
    document = opscope("explain", "gelu", "--trace", trace, second, "--json").json
    assert document["operators"][0]["calls"] == 2 * 36
    assert document["kernels"][0]["launched_by"][0]["operator"] == "aten::gelu"


class TestSource:
    def test_lines_come_from_a_checkout(self, explain, tmp_path):
        file = tmp_path / "aten/src/ATen/native/cuda/Activation.cpp"
        file.parent.mkdir(parents=True)
        file.write_text("".join(f"// line {number}\n" for number in range(1, 121)), encoding="utf-8")
        outcome = explain("aten::gelu", "--checkout", tmp_path)
        assert "// line 96" in outcome.out
        assert "// line 95\n" not in outcome.out
        assert "Its source is not on this machine." in outcome.out
        assert re.search(r"^https://github.com/pytorch/pytorch/blob/\w{40}/.*#L96", outcome.out, re.MULTILINE)
        first = explain("aten::gelu", "--checkout", tmp_path, "--json").json["sources"][0]
        assert (first["line"], first["lines"][0]) == (96, "// line 96")

    def test_lines_come_from_the_installed_headers(self, opscope):
        torch = pytest.importorskip("torch")
        outcome = opscope("explain", FILL, "--full", "--json", "--torch-version", torch.__version__)
        lines = {source["file"]: source["lines"] for source in outcome.json["sources"]}
        template = lines["aten/src/ATen/native/cuda/CUDALoops.cuh"]
        assert any("vectorized_elementwise_kernel" in line for line in template)
