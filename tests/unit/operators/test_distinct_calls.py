"""Distinct calls: each activity in exactly one, alike calls as one, unlike ones apart."""

from fakes import TraceBuilder
from opscope.operators.distinct_calls import collect_calls, collect_launches

COPY = "Memcpy DtoD (Device -> Device)"


def collect(session):
    session.replace_rows("activity_costs", [])
    calls = [*collect_calls(session)]
    calls += collect_launches(session, first_id=len(calls))
    return calls


def arguments(*shapes, types=None):
    return {"Input Dims": list(shapes), "Input type": types or ["float"] * len(shapes)}


def transfer(built, start, activity, size, *, name="aten::copy_"):
    category = "gpu_memset" if "Memset" in activity else "gpu_memcpy"
    size_bytes = {} if size is None else {"bytes": size}
    built.operator(name, start, 5).launch(start + 1, name="cudaMemcpyAsync")
    return built.kernel(activity, start + 2, 1, category=category, **size_bytes)


def test_copies_and_sets_alone_are_told_by_their_sizes(load):
    built = TraceBuilder()
    up, down = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)"
    recorded = ((COPY, 64), (COPY, 32), (up, 64), (down, 64), ("Memset (Device)", 16), (up, None))
    for number, (activity, size) in enumerate(recorded):
        transfer(built, 10 * number, activity, size)
    moved = {(one.read_bytes, one.written_bytes) for one in collect(load(built))}
    assert moved == {(64, 64), (32, 32), (0, 64), (64, 0), (0, 16), (None, None)}


def test_a_call_that_also_launches_a_kernel_is_told_by_its_arguments(load):
    built = transfer(TraceBuilder(), 0, "Memset (Device)", 16, name="aten::mm")
    built.launch(3).kernel("gemm", 10, 2)
    (one,) = collect(load(built))
    assert (one.name, one.calls, one.self_device_ns, one.written_bytes) == ("aten::mm", 1, 3_000, None)


def test_lists_of_tensors_tell_calls_apart_by_kernel_and_blocks(load):
    built = TraceBuilder()
    for start, (kernel, blocks) in enumerate((("a", 4), ("a", 4), ("a", 8), ("b", 4))):
        built.operator("aten::cat", 20 * start, 5, **arguments([], types=["TensorList"]))
        built.launch(20 * start + 1).kernel(kernel, 20 * start + 6, 1, grid=[blocks, 1, 1])
    found = {(one.kernel, one.block_count): one.calls for one in collect(load(built))}
    assert found == {("a", 4): 2, ("a", 8): 1, ("b", 4): 1}


def test_launches_of_no_operator_are_grouped_by_what_is_known_of_them(load):
    built = TraceBuilder()
    for start in (0, 10, 20):
        built.launch(start, thread=2).kernel("mine", start + 1, 1)
    built.launch(30, thread=2).kernel(COPY, 31, 1, category="gpu_memcpy", bytes=8)
    kernel, copy = collect(load(built))
    assert (kernel.name, kernel.attribution, kernel.calls) == ("mine", "outside_operator", 3)
    assert (copy.name, copy.read_bytes, copy.written_bytes) == (COPY, 8, 8)


def test_kernels_of_a_graph_are_not_their_operators(load):
    built = TraceBuilder().operator("Torch-Compiled Region: 0/0", 0, 50)
    built.launch(1, name="cudaGraphLaunch")
    built.kernel("a", 10, 2, **{"graph id": 1, "graph node id": 1})
    built.kernel("b", 20, 3, **{"graph id": 1, "graph node id": 2})
    assert {(one.name, one.attribution, one.self_device_ns) for one in collect(load(built))} == {
        ("a", "graph", 2_000),
        ("b", "graph", 3_000),
    }


def test_a_kernel_with_its_own_record_of_a_collective_goes_by_that(load):
    record = {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 100, "Out msg nelems": 100,
        "Group size": 4,
    }  # fmt: skip
    built = TraceBuilder().operator("record_param_comms", 0, 5).launch(1)
    built.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 6, 9, **record)
    (one,) = collect(load(built))
    assert (one.name, one.collective.name) == ("record_param_comms", "allreduce")
    assert (one.collective.in_element_count, one.collective.group_size) == (100, 4)
