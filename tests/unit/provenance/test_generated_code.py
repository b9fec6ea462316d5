from pathlib import Path

import pytest

from case_tables import cases
from opscope.provenance.generated_code import parse_graph, parse_kernel, source_hash

USER_KERNEL = Path(__file__).with_name("user_kernel.txt").read_text(encoding="utf-8")


def test_the_hash_is_inductors_own():
    # torch._inductor.codecache.code_hash("x = 1") of 2.13
    assert source_hash("\nx = 1\n") == "cr72dnxxriujikwm2dmnnocaaje5y3sx54kis4grygrldgbkojqt"


def test_a_generated_kernel_says_what_it_is(kernel_text):
    text = kernel_text("triton_poi_fused_gelu_0")
    kernel = parse_kernel(text)
    lines = text.split("\n")
    assert (kernel["kernel"], kernel["heuristic"]) == ("triton_poi_fused_gelu_0", "pointwise")
    assert lines[kernel["line"] - 1].startswith("def triton_poi_fused_gelu_0(")
    assert kernel["end_line"] == len(lines) - 1
    assert kernel["meta"] == {
        "kernel_name": "triton_poi_fused_gelu_0", "grid_type": "Grid1D", "num_load": 2, "num_reduction": 0,
        "kernel_num_gb": 0.5, "tiling_scores": {"x": -1}, "size_hints": {"x": 1024},
        "reduction_hint": "INNER",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "", "def f(: pass", "x = 1\0", "def plain(): pass", "(" * 5000,
        "@triton.jit\ndef a(): pass\n@triton.jit\ndef b(): pass\n",
    ],
)  # fmt: skip
def test_a_text_that_defines_no_kernel_or_several_yields_none(text):
    assert parse_kernel(text) is None


@cases("literal", "value")
def test_values_are_json_or_unknown(literal, value):
    text = f"@triton_heuristics.x(inductor_meta={{'num_load': {literal}}})\n@triton.jit\ndef k(): pass\n"
    assert parse_kernel(text)["meta"] == ({} if value is None else {"num_load": value})


def test_the_code_of_a_graph_names_its_kernels(graph_text, kernel_text):
    gelu, norm = kernel_text("triton_poi_gelu_0"), kernel_text("triton_per_norm_1", heuristic="reduction")
    graph = parse_graph(graph_text("0_forward", {"triton_poi_gelu_0": gelu, "triton_per_norm_1": norm}))
    assert graph.graph == "0_forward"
    first, second = graph.kernels
    assert (first.name, first.function, first.hash) == ("triton_poi_gelu_0",) * 2 + (source_hash(gelu),)
    assert first.file == f"/cache/ab/{source_hash(gelu)}.py"
    assert first.text.strip() == gelu.strip()
    assert first.original_aten == ("aten::gelu", "prims::x")
    assert first.source_nodes == ("h", "h_1", "used_triton_poi_gelu_0")
    assert second.hash == source_hash(norm)


def test_a_users_own_kernel_keeps_its_place():
    text = (
        "# Original path: /home/me/my kernels.py:12\n"
        f"scale_0 = async_compile.triton('scale', '''{USER_KERNEL}''', device_str='cuda')\n"
    )
    (kernel,) = parse_graph(text).kernels
    assert (kernel.user_file, kernel.user_line, kernel.file) == ("/home/me/my kernels.py", 12, None)
    assert kernel.hash == source_hash(USER_KERNEL)


def test_functions_that_a_kernel_calls_are_not_the_kernel():
    kernel = parse_kernel(USER_KERNEL)
    assert (kernel["kernel"], kernel["heuristic"]) == ("scale", "user_autotune")
    assert kernel["meta"]["configs"][1] == {"kwargs": {"BLOCK": 128}, "num_warps": 8}
    assert parse_kernel(USER_KERNEL, "helper")["line"] == 3
