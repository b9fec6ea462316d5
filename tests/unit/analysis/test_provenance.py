"""What the provenance tables say of kernels and operators, and how much of the time that covers."""

import json

import pytest

import opscope
from fakes import TraceBuilder
from opscope.analysis.provenance import Accuracy, limited, read_provenance
from opscope.model.origin import Grade
from opscope.model.queries import sql
from opscope.provenance.resolution.resolvers import session_of_names

from .conftest import FILL_KERNEL, GELU_KERNEL


@pytest.fixture(scope="module")
def known():
    names = [("aten::gelu", ""), ("aten::topk", ""), ("aten::_scaled_mm", "out"), ("aten::_softmax", "")]
    with session_of_names(names, [GELU_KERNEL, FILL_KERNEL], torch_version="2.6.0") as session:
        return read_provenance(session)


def function(known, name):
    (use,) = known.functions[name]
    return use


def place(location):
    return None if location is None else str(location)


def test_of_several_launchers_or_a_librarys_none_is_guessed(known):
    topk = function(known, "aten::topk")
    assert topk.details["launchers"] == ["launch_gather_topk_kernel", "sortKeyValueInplace"]
    assert (topk.stub, topk.stub_location) == (None, None)
    product = function(known, "aten::_scaled_mm")
    assert product.details["launchers"] == ["f8f8bf16_rowwise"]
    assert product.stub_location is None


def test_what_is_limited_is_known_no_better(known):
    lower = limited(known, Grade.NEIGHBOR_VERSION)
    softmax, fill = function(lower, "aten::_softmax"), lower.kernels[FILL_KERNEL]
    assert softmax.overload_grade is Grade.NEIGHBOR_VERSION
    assert (softmax.location.file_grade, softmax.location.line_grade) == (Grade.NEIGHBOR_VERSION,) * 2
    assert place(softmax.location) == place(function(known, "aten::_softmax").location).replace(":", ":≈")
    assert (softmax.stub_location, fill.unit_grade) == (None, Grade.NEIGHBOR_VERSION)
    assert limited(known, Grade.EXACT) == known


FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64> >(Flash_fwd_params)"

# 200 us of device time: 100 + 40 + 20 of operators, 30 of another one's, 10 of none.
KERNELS = {
    "a": {"library": "aten", "family": "elementwise", "grades": {"family": "name_pattern"}, "units": ["A.cu"],
          "unit_grade": "exact", "file": "A.cuh", "file_grade": "exact", "line": 3,
          "line_grade": "neighbor_version"},
    "gemm": {"library": "cublas", "family": "gemm", "grades": {"family": "inferred"}},
    "sort": {"library": "cub", "units": ["B.cu", "C.cu"], "unit_grade": "release_index"},
    FLASH: {"family": "attention_flash", "grades": {"family": "name_pattern"}},
    "leaked": {},
}  # fmt: skip
FUNCTIONS = {
    "aten::add": {"yaml_line": 5, "overload": "Tensor", "overload_grade": "exact", "file": "Add.cpp",
                  "file_grade": "release_index", "line": 7, "line_grade": "neighbor_version"},
    "aten::mm": {"details": {"candidates": ["", "out"]}, "overload_grade": "release_index",
                 "file": "Mm.cpp", "file_grade": "release_index"},
    "aten::sort": {"yaml_line": 9, "overload_grade": "exact", "stub_file": "Sort.cu",
                   "stub_file_grade": "exact", "stub_line": 4, "stub_line_grade": "exact"},
    "my::attention": {"kind": "custom"},
}  # fmt: skip


def annotate(session):
    """Its provenance, by hand."""
    ids = session.query("SELECT name, name_id FROM kernel_names")
    kernels = [{"name_id": name_id, "category": "other", **KERNELS[name]} for name, name_id in ids]
    query = "SELECT name, count(*), sum(self_device_ns)::BIGINT FROM operators GROUP BY ALL ORDER BY name"
    operators = [
        {"name": name, "native_function_id": at, "calls": calls, "self_device_ns": ns}
        for at, (name, calls, ns) in enumerate(session.query(query))
    ]
    common = {"kind": "native", "category": "other"}
    functions = [
        {**common, "name": one["name"], "native_function_id": at, **FUNCTIONS[one["name"]]}
        for at, one in enumerate(operators)
    ]
    session.replace_rows("kernel_provenance", kernels)
    session.replace_rows("native_functions", functions)
    session.replace_rows("operator_functions", operators)
    session.replace_rows("recognition", [{"torch_version": "2.6.0", "grade": "exact", "reason": "given"}])
    return session


def test_shares_of_device_time(load):
    built = TraceBuilder()
    work = [("aten::add", "a", 100), ("aten::mm", "gemm", 40), ("aten::sort", "sort", 20)]
    for index, (operator, kernel, kernel_us) in enumerate([*work, ("my::attention", FLASH, 30)]):
        built.operator(operator, 100 * index, 50).launch(100 * index + 10)
        built.kernel(kernel, 1_000 + 200 * index, kernel_us)
    built.kernel("leaked", 5, 10, correlation=3)
    accuracy = opscope.summarize(annotate(load(built))).accuracy
    assert accuracy == Accuracy(
        attributed_fraction=190 / 200,
        operator_entry_fraction=160 / 200,
        family_fraction=170 / 200,
        # Of the time of ATen's operators.
        aten_operator_entry_fraction=1.0,
        aten_operator_file_fraction=1.0,
        aten_operator_line_fraction=120 / 160,
        # Of `a`, `sort` and the attention kernel, whose name tells no library: not of cuBLAS's.
        aten_kernel_unit_fraction=120 / 150,
        aten_kernel_single_unit_fraction=100 / 150,
        by_grade={
            "kernel_unit": {"exact": 100 / 150, "release_index": 20 / 150, "unknown": 30 / 150},
            "kernel_line": {"neighbor_version": 100 / 150, "unknown": 50 / 150},
            "kernel_family": {"name_pattern": 130 / 200, "inferred": 40 / 200, "unknown": 30 / 200},
            "operator_entry": {"exact": 120 / 190, "release_index": 40 / 190, "unknown": 30 / 190},
            "operator_file": {"exact": 20 / 190, "release_index": 140 / 190, "unknown": 30 / 190},
            "operator_line": {"exact": 20 / 190, "neighbor_version": 100 / 190, "unknown": 70 / 190},
        },
        aten_operator_ns=160_000,
        torch_kernel_ns=150_000,
    )


def rows(session):
    return {row.pop("name"): row for row in session.records(sql("opscope.analysis", "triton_kernels"))}


def launch(built, name, start, duration, **arguments):
    arguments = {"kernel_backend": "triton", "kernel_file": "/c/ca.py", "kernel_hash": "ca", **arguments}
    return built.operator(name, start, 5, **arguments).launch(start + 1).kernel(name, start + 2, duration)


def test_launches_agree_or_are_counted_apart(load):
    built = TraceBuilder()
    for start, warps in ((0, 4), (10, 4), (20, 8)):
        facts = {"num_stages": 1, "kernel_kwargs": "XBLOCK=64", "kernel_num_gb": 0.5}
        launch(built, "triton_poi_k_0", start, start + 1, num_warps=warps, kernel_flop=1e9 * warps, **facts)
    ((name, row),) = rows(load(built)).items()
    assert (name, row["file"], row["hash"]) == ("triton_poi_k_0", "/c/ca.py", "ca")
    assert (row["kernel_num_gb"], row["kernel_flop"]) == (0.5, None)
    told = [(one["num_warps"], one["calls"], one["total_ns"]) for one in json.loads(row["configurations"])]
    assert told == [(8, 1, 21_000), (4, 2, 12_000)]


def test_two_sources_of_one_name_are_no_source(load):
    built = launch(launch(TraceBuilder(), "k", 0, 1), "k", 10, 1, kernel_file="/c/cb.py", kernel_hash="cb")
    assert (rows(load(built))["k"]["file"], rows(load(built))["k"]["hash"]) == (None, None)


def test_older_recorders_name_the_operator_after_the_kernel(load):
    built = launch(TraceBuilder(), "triton_poi_k_0", 0, 1, grid="grid(100,)", stream=0)
    launch(built, "triton kernel", 10, 1)
    session = load(built)
    assert session.query("SELECT kernel_name, grid, stream FROM triton_launches ORDER BY operator_id") == [
        ("triton_poi_k_0", "grid(100,)", 0),
        (None, None, None),
    ]
    found = rows(session)
    assert found.keys() == {"triton_poi_k_0"}
    assert json.loads(found["triton_poi_k_0"]["configurations"])[0]["grid"] == "grid(100,)"


def test_replays_are_found_by_their_recorded_source(load):
    built = TraceBuilder().operator("replay", 0, 9).launch(1, name="cudaGraphLaunch")
    built.kernel("triton_red_x_1", 5, 2).kernel("gelu_tanh", 7, 1).kernel("nvjet", 9, 1)
    session = load(built)
    assert not rows(session)
    ids = dict(session.query("SELECT name, name_id FROM kernel_names"))
    inductor = {
        "name_id": ids["triton_red_x_1"], "kind": "inductor", "evidence": "process", "file": "/c/cx.py",
        "line": 18, "hash": "cx", "heuristic": "reduction", "meta": {"num_load": 2},
    }  # fmt: skip
    session.replace_rows("kernel_sources", [
        {**inductor, "graph": "0_forward", "original_aten": ["aten::sum"], "source_nodes": ["b", "a"]},
        {**inductor, "graph": "1_forward", "original_aten": ["aten::sum"], "source_nodes": ["c"]},
        {"name_id": ids["gelu_tanh"], "kind": "triton", "evidence": "process", "file": "/me/k.py", "line": 3},
        {"name_id": ids["nvjet"], "kind": "cuda", "evidence": "process", "file": "/me/k.cu", "line": 3},
    ])  # fmt: skip
    found = rows(session)
    assert found.keys() == {"triton_red_x_1", "gelu_tanh"}
    red = found["triton_red_x_1"]
    assert (red["configurations"], red["file"], red["line"], red["hash"]) == (None, "/c/cx.py", 18, "cx")
    assert found["gelu_tanh"]["line"] == 3
