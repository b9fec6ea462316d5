"""One small trace per table, with the rows it must become."""

import json
from operator import itemgetter

import pytest

import opscope
from fakes import H200, TraceBuilder

EPOCH_NS = 1_763_712_000_000_000_000


def one(session, table):
    (record,) = session.records(f"SELECT * FROM {table}")
    return record


def test_operators(load):
    trace = (
        TraceBuilder()
        .step(4, 0, 100)
        .operator(
            "aten::linear", 10, 50.25,
            **{"Sequence number": 7, "Fwd thread id": 0, "Input Dims": [[8, 16], []],
               "Input type": ["float", ""], "Input Strides": [[16, 1], []], "Concrete Inputs": ["", "1"]},
        )
        .operator("aten::addmm.out", 20, 30)
        .launch(25).kernel("gemm", 200, 9.5)
        .operator("aten::t", 12, 2)
        .operator("elsewhere", 300, 1, thread=2)
    )  # fmt: skip
    session = load(trace)
    columns = (
        "operator_id, thread_id, name, overload, external_id, start_ns, duration_ns, parent_id, depth, "
        "last_descendant_id, is_outermost, step, self_cpu_ns, self_device_ns, total_device_ns"
    )
    assert session.query(f"SELECT {columns} FROM operators ORDER BY operator_id") == [
        (0, 0, "aten::linear", None, 1, 10_000, 50_250, None, 0, 2, True, 4, 18_250, 0, 9_500),
        (1, 0, "aten::t", None, 3, 12_000, 2_000, 0, 1, 1, True, 4, 2_000, 0, 0),
        (2, 0, "aten::addmm", "out", 2, 20_000, 30_000, 0, 1, 2, True, 4, 30_000, 9_500, 9_500),
        (3, 1, "elsewhere", None, 4, 300_000, 1_000, None, 0, 3, True, None, 1_000, 0, 0),
    ]
    columns = (
        "sequence_number, forward_thread_id, input_shapes, input_types, input_strides, concrete_inputs, "
        "call_stack, module_hierarchy, module_id"
    )
    recorded = session.query(f"SELECT {columns} FROM operators ORDER BY operator_id")
    assert recorded[0] == (
        7, 0, "[[8,16],[]]", '["float",""]', "[[16,1],[]]", '["","1"]', None, None, None,
    )  # fmt: skip
    assert recorded[1] == (None,) * 9


def test_overloads_are_taken_from_names(load):
    whole = (
        "aten::add", "Optimizer.step#AdamW.step", "a.b::c",
        "autograd::engine::evaluate_function: AddBackward0", "<built-in method run of Foo.bar at 0x1>", "",
    )  # fmt: skip
    built = TraceBuilder()
    for index, name in enumerate(("aten::add.Tensor", *whole)):
        built.operator(name, 10 * index, 2)
    assert load(built).query("SELECT name, overload FROM operators ORDER BY start_ns") == [
        ("aten::add", "Tensor"),
        *((name, None) for name in whole),
    ]


def test_runtime_calls(load):
    trace = (
        TraceBuilder()
        .step(1, 0, 50).operator("aten::mm", 10, 20)
        .launch(12, 1.5, external_id=1)
        .launch(60, 2, name="cudaDeviceSynchronize", thread=2)
        .event("cuda_driver", "cuLaunchKernel", 14, 1, 1, {"correlation": 900})
        .event("cuda_runtime", "cudaEventQuery", 16, 0, 1, {})
    )  # fmt: skip
    columns = (
        "runtime_call_id, thread_id, name, api, correlation_id, external_id, start_ns, duration_ns, "
        "operator_id, step"
    )
    session = load(trace)
    found = session.query(f"SELECT {columns} FROM runtime_calls ORDER BY start_ns")
    assert [row[1:] for row in found] == [
        (0, "cudaLaunchKernel", "runtime", 101, 1, 12_000, 1_500, 0, 1),
        (0, "cuLaunchKernel", "driver", 900, None, 14_000, 1_000, 0, 1),
        (0, "cudaEventQuery", "runtime", None, None, 16_000, 0, 0, 1),
        (1, "cudaDeviceSynchronize", "runtime", 102, None, 60_000, 2_000, None, None),
    ]
    assert sorted(row[0] for row in found) == [0, 1, 2, 3]


def test_device_activities(load):
    details = {
        "context": 1, "registers per thread": 64, "shared memory": 49_152, "blocks per SM": 0.5,
        "warps per SM": 2.25, "est. achieved occupancy %": 25, "graph id": 0, "graph node id": 0,
        "occupancy": {"limitingFactors": "REGS", "blockLimitRegs": 2},
    }  # fmt: skip
    trace = (
        TraceBuilder()
        .step(2, 0, 50).operator("aten::mm", 10, 20)
        .launch(12)
        .kernel("gemm<float>", 30, 5.125, grid=[2**31 - 1, 2, 3], block=[128, 4, 1], device=1, **details)
        .launch(14)
        .event(
            "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 40, 2, 7,
            {"device": 1, "stream": 9, "correlation": 102, "bytes": 4096, "External id": 1, "context": 1},
            process=1,
        )
        .event("gpu_memset", "Memset (Device)", 50, 1, "stream 13", {"bytes": 8}, process=3)
        .launch(16, name="cudaGraphLaunch")
        .kernel("gemm<float>", 60, 1, **{"graph id": 5, "graph node id": 77, "est. achieved occupancy %": 0})
    )  # fmt: skip
    session = load(trace)
    columns = (
        "activity_id, a.kind, n.name, correlation_id, external_id, device, stream, context, start_ns, "
        "duration_ns, size_bytes, graph_id, graph_node_id, operator_id, attribution, step"
    )
    query = f"SELECT {columns} FROM device_activities a JOIN kernel_names n USING (name_id) ORDER BY start_ns"
    copy = "Memcpy HtoD (Pageable -> Device)"
    assert session.query(query) == [
        (1, "kernel", "gemm<float>", 101, None, 1, 7, 1, 30_000, 5_125, None, None, None, 0,
         "correlation", 2),
        (2, "memcpy", copy, 102, 1, 1, 9, 1, 40_000, 2_000, 4096, None, None, 0, "external_id", 2),
        (3, "memset", "Memset (Device)", None, None, 3, 13, None, 50_000, 1_000, 8, None, None, None,
         "no_correlation", None),
        (0, "kernel", "gemm<float>", 103, None, 0, 7, None, 60_000, 1_000, None, 5, 77, 0, "graph", 2),
    ]  # fmt: skip
    columns = (
        "grid_x, grid_y, grid_z, block_x, block_y, block_z, registers_per_thread, shared_memory_bytes, "
        "blocks_per_sm, warps_per_sm, occupancy_estimate"
    )
    assert session.query(f"SELECT {columns} FROM device_activities ORDER BY start_ns") == [
        (2**31 - 1, 2, 3, 128, 4, 1, 64, 49_152, 0.5, 2.25, 0.25),
        (None,) * 11,
        (None,) * 11,
        (4, 1, 1, 128, 1, 1, None, None, None, None, None),
    ]
    assert session.query("SELECT name_id, name, kind FROM kernel_names ORDER BY 1") == [
        (0, "gemm<float>", "kernel"),
        (1, copy, "memcpy"),
        (2, "Memset (Device)", "memset"),
    ]
    launchers = (
        "SELECT a.start_ns, c.start_ns FROM device_activities a LEFT JOIN runtime_calls c "
        "USING (runtime_call_id) ORDER BY 1"
    )
    assert session.query(launchers) == [(30_000, 12_000), (40_000, 14_000), (50_000, None), (60_000, 16_000)]


def test_annotations_and_steps(load):
    trace = (
        TraceBuilder()
        .step(3, 0, 100).step(12, 100, 50.5).step(13, 155, 2)  # the program did not go on with the last
        .event("user_annotation", "forward", 5, 20, 1, {"External id": 44})
        .event("gpu_user_annotation", "forward", 30, 7, 7, {"External id": 44}, process=1)
        .event("gpu_user_annotation", "ProfilerStep#3", 30, 70, 7, {}, process=1)
        .event("user_annotation", "ProfilerStep#x", 5, 20, 1, {})
        .operator("aten::mm", 50, 20)
        .launch(60).kernel("late", 120, 8)
        .launch(99.999).kernel("edge", 130, 2, category="gpu_memset")
        .launch(100).kernel("next", 140, 4)
        .launch(151).kernel("after", 160, 1)
    )  # fmt: skip
    session = load(trace)
    columns = "side, name, thread_id, device, stream, external_id, start_ns, duration_ns"
    assert session.query(f"SELECT {columns} FROM annotations ORDER BY annotation_id") == [
        ("host", "ProfilerStep#3", 0, None, None, None, 0, 100_000),
        ("host", "ProfilerStep#12", 0, None, None, None, 100_000, 50_500),
        ("host", "ProfilerStep#13", 0, None, None, None, 155_000, 2_000),
        ("host", "forward", 0, None, None, 44, 5_000, 20_000),
        ("device", "forward", None, 1, 7, 44, 30_000, 7_000),
        ("device", "ProfilerStep#3", None, 1, 7, None, 30_000, 70_000),
        ("host", "ProfilerStep#x", 0, None, None, None, 5_000, 20_000),
    ]
    assert session.query("SELECT * FROM steps ORDER BY start_ns") == [
        (0, 3, 0, 100_000, 0, 10_000, 1),
        (0, 12, 100_000, 50_500, 0, 4_000, 1),
    ]
    activities = (
        "SELECT name, step FROM device_activities JOIN kernel_names USING (name_id) ORDER BY start_ns"
    )
    assert session.query(activities) == [("late", 3), ("edge", 3), ("next", 12), ("after", None)]
    without_device = TraceBuilder().step(1, 0, 100).step(2, 100, 2).operator("aten::mm", 100, 1)
    assert load(without_device).query("SELECT step FROM steps") == [(1,), (2,)]


def frame(name, start, duration, number, **args):
    return ("python_function", name, start, duration, 1, {"Python id": number, **args})


def test_frames_and_modules(load):
    trace = TraceBuilder()
    trace.event(*frame("train.py(3): main", 0, 100, 1))
    trace.event(*frame("nn.Module: Linear_0", 10, 30, 2, **{"Python parent id": 1, "Python module id": 0}))
    trace.event(*frame("nn.Module: My_Net_1", 20, 5, 3, **{"Python parent id": 2, "Python module id": 1}))
    trace.event(*frame("nn.Module: Linear_0", 50, 30, 4, **{"Python parent id": 1, "Python module id": 0}))
    trace.operator("before", 5, 2).operator("in linear", 12, 2).operator("in net", 21, 2)
    trace.operator("in linear again", 60, 2).operator("elsewhere", 12, 1, thread=2)
    session = load(trace)
    assert session.query("SELECT * FROM modules ORDER BY module_id") == [
        (0, 0, 0, "Linear_0", "Linear", 2),
        (1, 0, 1, "My_Net_1", "My_Net", 1),
    ]
    columns = "thread_id, name, python_id, parent_python_id, module_id, start_ns, duration_ns"
    assert session.query(f"SELECT {columns} FROM frames ORDER BY frame_id") == [
        (0, "train.py(3): main", 1, None, None, 0, 100_000),
        (0, "nn.Module: Linear_0", 2, 1, 0, 10_000, 30_000),
        (0, "nn.Module: My_Net_1", 3, 2, 1, 20_000, 5_000),
        (0, "nn.Module: Linear_0", 4, 1, 0, 50_000, 30_000),
    ]
    assert dict(session.query("SELECT name, module_id FROM operators")) == {
        "before": None, "in linear": 0, "in net": 1, "in linear again": 0, "elsewhere": None,
    }  # fmt: skip


def test_a_module_without_an_id_is_the_module_of_its_frames(load):
    session = load(TraceBuilder().frame("nn.Module: Net_0", 0, 30).operator("aten::mm", 1, 5))
    assert session.query("SELECT module_id, python_module_id, name, call_count FROM modules") == [
        (0, None, "Net_0", 1)
    ]
    for table in ("frames", "operators"):
        assert session.query(f"SELECT module_id FROM {table}") == [(0,)]


def memory(start, thread, **args):
    return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": thread,
            "ts": start, "args": args}  # fmt: skip


@pytest.mark.parametrize("has_category", [True, False])
def test_memory_events(load, has_category):
    trace = TraceBuilder().operator("aten::empty", 10, 5)
    allocation = {"Addr": 2**64 - 4096, "Bytes": 512, "Device Type": 1, "Device Id": 0}
    trace.events += [
        memory(12.5, 1, **allocation, **{"Total Allocated": 1024, "Total Reserved": 2**21}),
        memory(20, 1, **{**allocation, "Bytes": -512}),
        memory(13, 2, **{"Addr": 64, "Bytes": 8, "Device Type": 0, "Device Id": -1}),
    ]
    if not has_category:
        for event in trace.events[1:]:
            del event["cat"]
    session = load(trace)
    columns = (
        "memory_event_id, thread_id, time_ns, address, size_bytes, device_type, device, "
        "total_allocated_bytes, total_reserved_bytes, operator_id"
    )
    found = session.query(f"SELECT {columns} FROM memory_events ORDER BY time_ns")
    assert [row[1:] for row in found] == [
        (0, 12_500, 2**64 - 4096, 512, 1, 0, 1024, 2**21, 0),
        (1, 13_000, 64, 8, 0, None, None, None, None),
        (0, 20_000, 2**64 - 4096, -512, 1, 0, None, None, None),
    ]
    assert sorted(row[0] for row in found) == [0, 1, 2]


COLLECTIVE = {
    "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1024, "Out msg nelems": 2048,
    "In split size": "[]", "Out split size": "[1, 2]", "Process Group Name": "0",
    "Process Group Description": "default_pg", "Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]",
    "Seq": 17,
}  # fmt: skip


def test_collectives(load):
    trace = (
        TraceBuilder()
        .operator("record_param_comms", 10, 20, **COLLECTIVE)
        .launch(12).kernel("ncclDevKernel_AllReduce", 40, 100, **COLLECTIVE)
        .operator("record_param_comms", 50, 20, **{**COLLECTIVE, "Src Rank": 1, "Dst Rank": 2, "Seq": 18})
    )  # fmt: skip
    session = load(trace)
    rest = ("allreduce", "BFloat16", 1024, 2048, "[]", "[1, 2]", "0", "default_pg", 4, "[0, 1, 2, 3]")
    assert [row[1:] for row in session.query("SELECT * FROM collectives ORDER BY sequence, side")] == [
        (0, "device", 0, 0, *rest, None, None, 17),
        (0, "host", 0, None, *rest, None, None, 17),
        (0, "host", 1, None, *rest, 1, 2, 18),
    ]


def test_syncs(load):
    trace = TraceBuilder().operator("aten::item", 10, 20)
    trace.event("cuda_sync", "Stream Sync", 12, 3.5, 7, {
        "cuda_sync_kind": "Stream Sync", "stream": 7, "correlation": 55, "device": 0, "context": 1,
        "External id": 1,
    }, process=0)  # fmt: skip
    trace.event("cuda_sync", "Stream Wait Event", 14, 0, 20, {
        "stream": 20, "correlation": 56, "device": 0, "wait_on_stream": 7, "wait_on_cuda_event_id": 9,
        "wait_on_cuda_event_record_corr_id": 51,
    }, process=0)  # fmt: skip
    assert load(trace).query("SELECT * FROM syncs ORDER BY start_ns") == [
        (0, 0, "Stream Sync", 0, 7, 55, 1, None, None, None, 12_000, 3_500),
        (1, 0, "Stream Wait Event", 0, 20, 56, None, 7, 9, 51, 14_000, 0),
    ]


def test_triton_launches(load):
    arguments = {
        "kernel_backend": "triton", "kernel_file": "/tmp/c.py", "kernel_hash": "abc", "grid": "grid(1024,)",
        "kernel_name": "triton_poi_fused_0", "num_warps": 4, "num_stages": 1, "kernel_flop": 1e9,
        "kernel_num_gb": 0.125, "kernel_kwargs": "XBLOCK=256", "stream": 7,
    }  # fmt: skip
    trace = TraceBuilder().operator("triton_poi_fused_0", 10, 5, **arguments).operator("aten::mm", 20, 5)
    assert load(trace).query("SELECT * FROM triton_launches") == [
        (0, 0, "triton_poi_fused_0", "triton", "/tmp/c.py", "abc", "XBLOCK=256", "grid(1024,)", 7, 4, 1,
         1e9, 0.125)
    ]  # fmt: skip


def flow(phase, number, start, thread):
    return {
        "ph": phase, "id": number, "cat": "fwdbwd", "name": "fwdbwd", "pid": 1, "tid": thread, "ts": start,
    }  # fmt: skip


def autograd_trace(*, has_arrows):
    trace = (
        TraceBuilder()
        .operator("aten::linear", 10, 20)
        .operator("aten::addmm", 10, 15, **{"Sequence number": 5, "Fwd thread id": 0})
        .operator("aten::relu", 40, 5, **{"Sequence number": 6, "Fwd thread id": 0})
        .operator("ReluBackward0", 100, 5, thread=2, **{"Sequence number": 6, "Fwd thread id": 1})
        .operator("AddmmBackward0", 110, 5, thread=2, **{"Sequence number": 5, "Fwd thread id": 1})
        .operator("never forward", 120, 5, thread=2, **{"Sequence number": 99, "Fwd thread id": 1})
    )
    if has_arrows:
        trace.events += [
            flow("s", 1, 10, 1),
            flow("f", 1, 110, 2),
            flow("s", "2", 40, 1),
            flow("f", 2, 100, 2),
        ]
        trace.events += [flow("s", 3, 41, 1), flow("f", 3, 120, 2)]
    return trace


@pytest.mark.parametrize(("has_arrows", "evidence"), [(True, "flow"), (False, "sequence_number")])
def test_autograd_links(load, has_arrows, evidence):
    session = load(autograd_trace(has_arrows=has_arrows))
    query = """SELECT link_id, f.name, b.name, evidence FROM autograd_links l
        JOIN operators f ON f.operator_id = forward_operator_id
        JOIN operators b ON b.operator_id = backward_operator_id ORDER BY link_id"""
    assert session.query(query) == [
        (0, "aten::relu", "ReluBackward0", evidence),
        (1, "aten::addmm", "AddmmBackward0", evidence),
    ]


def test_overheads(load):
    trace = TraceBuilder().operator("a", 1, 2)
    trace.event("overhead", "Activity Buffer Request", 5, 2.5, 0, {}, process=-1)
    assert load(trace).query("SELECT * FROM overheads") == [
        (0, 0, "Activity Buffer Request", 1, 5_000, 2_500)
    ]


def label(kind, text, process, thread):
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": {"name": text}}


@pytest.mark.parametrize("more", [{"cat": "hardware_counters", "tid": 0}, {}])  # of Kineto, of torch's own
def test_counters(load, more):
    trace = TraceBuilder().operator("aten::mm", 0, 10).launch(2).kernel("gemm", 20, 10).kernel("gemm", 40, 10)
    trace.operator("aten::add", 11, 5).launch(12).kernel("add", 52, 4)
    samples = [("sm", 0, 19.999, 1), ("sm", 0, 20, 50.5), ("sm", 0, 49.999, 99.5), ("sm", 1, 45, 7)]
    samples += [("dram", 0, 29, 10), ("sm", 0, 50, 3), ("sm", 0, 55, 8)]
    for name, device, start, value in samples:
        place = {"pid": f"GPU {device} Counters", "ts": start, "args": {"": value}}
        trace.events.append({"ph": "C", "name": name, **place, **more})
    for args in ({"": "text"}, {"": None}, {"sm": 1}):  # a sample of none of these is known
        trace.events.append(
            {"ph": "C", "name": "other", "pid": "GPU 0 Counters", "ts": 1, "args": args, **more}
        )
    trace.events.append({"ph": "C", "name": "host", "pid": 7, "ts": 1, "args": {"": 1}, **more})
    session = load(trace)
    assert session.query("SELECT name, device, time_ns, value FROM counters ORDER BY time_ns") == [
        (name, device, round(start * 1000), value)
        for name, device, start, value in sorted(samples, key=itemgetter(2))
    ]
    summary = opscope.summarize(session)
    means = [tuple(one.values()) for one in summary.counters]
    assert means == [("add", "sm", 1, 8.0), ("gemm", "dram", 1, 10.0), ("gemm", "sm", 2, 75.0)]
    assert summary.kernel_launches == 3


def test_threads(load):
    trace = TraceBuilder().operator("a", 10, 2, thread=77).operator("b", 1, 2, thread=8).kernel("k", 20, 5)
    trace.events += [
        label("process_name", "python", 1, 0),
        label("thread_name", "thread 77 (main)", 1, 77),
        label("thread_name", "stream 7", 0, 7),
        label("process_labels", "CPU", 1, 0),
    ]
    assert load(trace).query("SELECT * FROM threads ORDER BY thread_id") == [
        (0, 0, "1", "77", "python", "thread 77 (main)"),
        (1, 0, "1", "8", "python", None),
    ]


def test_devices(load):
    other = {"id": "1", "name": "AMD Instinct", "numSms": "104", "maxSharedMemoryPerMultiProcessor": 65_536}
    trace = (
        TraceBuilder(deviceProperties=[H200, other])
        .kernel("a", 10, 10)
        .kernel("b", 15, 10, stream=8)
        .kernel("c", 40, 5)
        .kernel("d", 0, 1, device=3)
    )
    assert load(trace).query("SELECT * FROM devices ORDER BY device") == [
        (0, 0, "NVIDIA H200", 9, 0, 132, 150_109_880_320, 32, 1024, 2048, 65_536, 65_536, 49_152, 232_448,
         233_472, 3, 10_000, 45_000, 35_000, 20_000, 15_000),
        (0, 1, "AMD Instinct", None, None, 104, *(None,) * 8, 65_536, 0, *(None,) * 5),
        (0, 3, *(None,) * 13, 1, 0, 1_000, 1_000, 1_000, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "properties",
    [
        {}, "x",
        [5, None, "x", {"name": "no id"}, {"id": "²"}, {"id": -1}, {"id": 99_999_999_999}, {"id": True}],
    ],
)  # fmt: skip
def test_device_properties_that_describe_no_device_are_passed_over(load, properties):
    session = load(TraceBuilder(deviceProperties=properties).kernel("k", 1, 2))
    assert session.query("SELECT device, name, activity_count FROM devices") == [(0, None, 1)]


def test_device_facts_of_another_type_are_unknown(load):
    values = ["abc", [1], {"a": 1}, True, 2**40, 2**70, 1e300]
    described = [{"id": number, "name": "X", "numSms": value} for number, value in enumerate(values)]
    session = load(TraceBuilder(deviceProperties=described).operator("a", 1, 2))
    assert session.query("SELECT name, sm_count FROM devices") == [("X", None)] * len(values)


MI300X = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4, "numSms": 304,
          "totalGlobalMem": 206_141_652_992, "warpSize": 64}  # fmt: skip


def test_a_device_that_is_not_described_is_one_of_a_host_of_equal_ones(load):
    """Under HIP_VISIBLE_DEVICES a recorder numbers kernels otherwise than properties."""
    equal = TraceBuilder(deviceProperties=[MI300X, MI300X | {"id": 1}]).kernel("k", 1, 2, device=5)
    assert load(equal).query("SELECT name, sm_count FROM devices WHERE device = 5") == [
        ("AMD Instinct MI300X", 304)
    ]
    mixed = TraceBuilder(deviceProperties=[MI300X, H200 | {"id": 1}]).kernel("k", 1, 2, device=5)
    assert load(mixed).query("SELECT name, sm_count FROM devices WHERE device = 5") == [(None, None)]


def test_a_nameless_gpu_is_the_one_that_alone_has_its_size(load):
    session = load(TraceBuilder(deviceProperties=[MI300X | {"name": ""}]).kernel("k", 1, 2))
    assert session.query("SELECT name FROM devices") == [("AMD Instinct MI300X",)]
    (finding,) = (one for one in session.findings() if one.code == "device.recognized")
    assert "no name of device 0" in finding.message
    two_fit = {"id": 0, "name": "", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    unknown = load(TraceBuilder(deviceProperties=[two_fit]).kernel("k", 1, 2))
    assert unknown.query("SELECT name, sm_count FROM devices") == [(None, 132)]


def test_traces(load):
    trace = TraceBuilder(
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8}, baseTimeNanoseconds=EPOCH_NS,
        cuda_runtime_version=13_000, cuda_driver_version="13010", cupti_version=130_000,
        deviceProperties=[H200], displayTimeUnit="ms",
    ).operator("a", 5, 10)  # fmt: skip
    trace.event("Trace", "PyTorch Profiler (0)", 1, 99.5, "PyTorch Profiler", {}, process="Spans")
    record = one(load(trace), "traces")
    properties = json.loads(record.pop("properties"))
    assert properties == {key: value for key, value in trace.properties.items() if key != "deviceProperties"}
    assert record.pop("source").endswith("trace.json")
    assert record == {
        "trace_id": 0, "format": "kineto", "rank": 3, "world_size": 8, "backend": "nccl",
        "base_time_ns": EPOCH_NS, "window_start_ns": 1_000, "window_end_ns": 100_500,
        "cuda_runtime_version": 13_000, "cuda_driver_version": 13_010, "cupti_version": 130_000,
        "size_bytes": len(trace.text().encode()), "event_count": 2,
        "torch_version": None, "torch_git_version": None, "cuda_version": None, "driver_version": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "properties",
    [
        {"distributedInfo": "x"},
        {"distributedInfo": {"rank": "x", "backend": ["nccl"], "world_size": None}},
        {"distributedInfo": {"rank": 2**40, "backend": {"a": 1}}, "baseTimeNanoseconds": 2**70},
        {"distributedInfo": {"rank": True}, "cupti_version": [1], "baseTimeNanoseconds": float("nan")},
    ],
)
def test_facts_of_another_type_are_unknown(load, properties):
    record = one(load(TraceBuilder(**properties).operator("a", 1, 2)), "traces")
    unknown = ("rank", "world_size", "backend", "base_time_ns", "cupti_version", "window_start_ns")
    assert {record[name] for name in unknown} == {None}


def test_half_a_character_in_a_header_is_replaced(load):
    text = TraceBuilder().operator("a", 1, 2).text()
    text = text.replace(
        '"schemaVersion": 1', '"traceName": "\\ud800", "distributedInfo": {"backend": "\\udfff"}'
    )
    assert load(text).query("SELECT backend, properties->>'traceName' FROM traces") == [("?", "?")]
