"""What each table of an export becomes."""

import pytest

from fakes import ExportBuilder

GEMM = "_ZN2at6native12_GLOBAL__N_14gemmIfLi4EEEvPT_"
GEMM_BY_KINETO = "void at::native::(anonymous namespace)::gemm<float, 4>(float*)"
GEMM_BY_NSYS = "void at::native::<unnamed>::gemm<float, (int)4>(T1 *)"


def names(session):
    return [
        name
        for (name,) in session.query(
            "SELECT n.name FROM device_activities JOIN kernel_names n USING (name_id) ORDER BY start_ns"
        )
    ]


class TestKernels:
    def test_a_kernel_has_its_launch_geometry_and_its_launch(self, load_export):
        session = load_export(
            ExportBuilder()
            .launch(10)
            .kernel(
                "gemm", 20, 7, deviceId=1, streamId=9, contextId=2, gridX=3, gridY=4, gridZ=5, blockX=64,
                blockY=2, blockZ=1, registersPerThread=40, staticSharedMemory=16, dynamicSharedMemory=32,
                graphId=6, graphNodeId=8,
            )
        )  # fmt: skip
        assert session.query(
            """SELECT kind, device, stream, context, a.start_ns, a.duration_ns, grid_x, grid_y, grid_z,
                block_x, block_y, block_z, registers_per_thread, shared_memory_bytes, graph_id, graph_node_id,
                occupancy_estimate, r.name, a.correlation_id = r.correlation_id
            FROM device_activities a JOIN runtime_calls r USING (runtime_call_id)"""
        ) == [
            ("kernel", 1, 9, 2, 20, 7, 3, 4, 5, 64, 2, 1, 40, 48, 6, 8, None, "cudaLaunchKernel", True)
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("columns", "name"),
        [
            ({"mangledName": None}, GEMM_BY_NSYS),
            (
                {"mangledName": "triton_poi_fused_0", "demangledName": "triton_poi_fused_0"},
                "triton_poi_fused_0",
            ),
            ({"mangledName": "_Znonsense"}, GEMM_BY_NSYS),
            ({"mangledName": None, "demangledName": None, "shortName": "gemm"}, "gemm"),
        ],
    )
    def test_the_next_best_name_where_there_is_no_symbol(self, load_export, columns, name):
        builder = ExportBuilder().launch(1)
        columns = {"demangledName": GEMM_BY_NSYS, "shortName": "gemm", **columns}
        assert names(load_export(builder.kernel("", 2, 3, **columns))) == [name]

    def test_kernels_of_several_symbols_share_the_name_that_kineto_gives_them(self, load_export):
        other = GEMM.replace("_GLOBAL__N_1", "_GLOBAL__N_2")
        builder = ExportBuilder().launch(1).kernel(GEMM_BY_NSYS, 2, 3, mangledName=GEMM)
        session = load_export(builder.launch(6).kernel(GEMM_BY_NSYS, 7, 3, mangledName=other))
        assert names(session) == [GEMM_BY_KINETO] * 2
        symbols = "SELECT mangled_name, recorded_name FROM kernel_symbols ORDER BY ALL"
        assert session.query(symbols) == [(GEMM, GEMM_BY_NSYS), (other, GEMM_BY_NSYS)]
        assert session.scalar("SELECT count(*) FROM kernel_names") == 1

    def test_a_graph_recorded_as_a_whole_is_one_activity_that_says_so(self, load_export):
        session = load_export(
            ExportBuilder().launch(10, name="cudaGraphLaunch_v10000").graph(77, 20, 500).graph(77, 900, 40)
        )
        assert names(session) == ["CUDA graph 77 (whole)"] * 2
        assert session.query(
            "SELECT kind, graph_id, grid_x, sum(duration_ns) FROM device_activities GROUP BY ALL"
        ) == [("kernel", 77, None, 540)]
        (finding,) = [one for one in session.findings() if one.code == "nsys.graphs_whole"]
        assert finding.evidence == {"launch_count": 2, "duration_ns": 540}
        assert "--cuda-graph-trace=node" in str(finding.suggestion)

    def test_records_without_times_or_calls_are_counted_or_told_apart(self, load_export):
        session = load_export(ExportBuilder().launch(1).kernel("k", 2, 3).graph(5, 0, 0))
        assert names(session) == ["k"]
        assert "trace.events_without_time" in {finding.code for finding in session.findings()}
        builder = ExportBuilder().launch(10).kernel("early", 5, 3, correlationId=2)
        session = load_export(builder.kernel("lost", 30, 3, correlationId=10_000))
        rows = session.query("SELECT attribution FROM device_activities ORDER BY start_ns")
        assert rows == [("before_window",), ("no_launch_record",)]


class TestCopies:
    def test_copies_are_named_as_kineto_names_them(self, load_export):
        named = {
            (1, 0, 2): "Memcpy HtoD (Pageable -> Device)",
            (2, 2, 1): "Memcpy DtoH (Device -> Pinned)",
            (8, 2, 2): "Memcpy DtoD (Device -> Device)",
            (9, 0, 0): "Memcpy HtoH (Pageable -> Pageable)",
            (10, 2, 2): "Memcpy PtoP (Device -> Device)",
            (3, 0, 3): "Memcpy HtoA (Pageable -> Array)",
            (11, 4, 4): "Memcpy Unified HtoD (Managed -> Managed)",
            (13, None, 5): "Memcpy Unified DtoD (Unknown -> Device Static)",
            (99, 2, 2): "Memcpy Unknown (Device -> Device)",
        }
        builder = ExportBuilder().launch(1)
        for index, (kind, source, target) in enumerate(named):
            builder.copy(10 * index, 3, copyKind=kind, srcKind=source, dstKind=target, bytes=64)
        session = load_export(builder)
        assert names(session) == list(named.values())
        assert session.query("SELECT DISTINCT kind, size_bytes FROM device_activities") == [("memcpy", 64)]

    def test_a_memset_and_a_page_that_unified_memory_moved(self, load_export):
        session = load_export(ExportBuilder().launch(1).memset(2, 3, bytes=512))
        assert names(session) == ["Memset (Device)"]
        assert session.query("SELECT kind, size_bytes FROM device_activities") == [("memset", 512)]
        session = load_export(ExportBuilder().launch(1).copy(2, 3, copyKind=11, correlationId=0))
        assert session.query("SELECT attribution, correlation_id FROM device_activities") == [
            ("no_correlation", None)
        ]


def test_a_call_loses_the_version_that_introduced_it(load_export):
    calls = [
        ("cudaLaunchKernel_v7000", 0, "cudaLaunchKernel", "runtime"),
        ("cudaStreamIsCapturing_v10000", 0, "cudaStreamIsCapturing", "runtime"),
        ("cudaStreamGetCaptureInfo_v2_v11030", 0, "cudaStreamGetCaptureInfo_v2", "runtime"),
        ("cuMemAlloc_v2", 1, "cuMemAlloc_v2", "driver"),
        ("cuLaunchKernelEx", None, "cuLaunchKernelEx", "driver"),
        ("cudaMalloc_v3020", None, "cudaMalloc", "runtime"),
    ]
    builder = ExportBuilder()
    for index, (recorded, event_class, _, _) in enumerate(calls):
        builder.launch(10 * index, 3, name=recorded, eventClass=event_class)
    session = load_export(builder)
    assert session.query("SELECT name, api, duration_ns FROM runtime_calls ORDER BY start_ns") == [
        (name, api, 3) for _, _, name, api in calls
    ]


def test_synchronizations_and_overheads_have_kinetos_words(load_export):
    builder = ExportBuilder().launch(1)
    builder.row(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", 100, 20, deviceId=0, streamId=2**32 - 1, correlationId=101,
        syncType=3, eventId=2**32 - 1,
    )  # fmt: skip
    builder.row(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", 130, 5, deviceId=0, streamId=7, correlationId=102,
        syncType=2, eventId=6,
    )  # fmt: skip
    builder.row("PROFILER_OVERHEAD", 3, 4, nameId="CUPTI Buffer flush", overheadType=3)
    builder.row("PROFILER_OVERHEAD", 8, 2, nameId="TLS allocation", overheadType=0)
    session = load_export(builder)
    assert session.query(
        "SELECT kind, stream, correlation_id, wait_on_event_id, start_ns, duration_ns FROM syncs ORDER BY 5"
    ) == [("Stream Sync", None, 101, None, 100, 20), ("Stream Wait Event", 7, 102, 6, 130, 5)]
    assert session.query("SELECT name, start_ns, duration_ns FROM overheads ORDER BY start_ns") == [
        ("Buffer Flush", 3, 4),
        ("TLS allocation", 8, 2),
    ]


def test_threads_have_their_numbers_and_names(load_export):
    builder = ExportBuilder(process=4_000_000).launch(1, thread=12).launch(3, thread=16_000_000)
    builder.plain_row("ThreadNames", nameId="worker", globalTid=4_000_000 << 24 | 12)
    builder.plain_row("PROCESSES", globalPid=4_000_000 << 24, pid=4_000_000, name="/usr/bin/python")
    session = load_export(builder)
    assert session.query(
        "SELECT process, native_thread, process_name, name FROM threads ORDER BY native_thread"
    ) == [("4000000", "12", "/usr/bin/python", "worker"), ("4000000", "16000000", "/usr/bin/python", None)]


def test_a_symbol_tells_the_file_of_a_kernel_that_no_release_has(load_export):
    from opscope.analysis.provenance import read_provenance

    builder = ExportBuilder().launch(1)
    for index, file in enumerate(("6_add_cu", "9_my_add_cu")):
        unit = f"_GLOBAL__N__0f1a8107_{file}_49f7391c"
        builder.kernel(
            f"<unnamed>::add{index}(float *)", 2 + index, 1, mangledName=f"_ZN{len(unit)}{unit}4add{index}EPf"
        )
    kernels = read_provenance(load_export(builder)).kernels
    # What stands as `_` in the second name may have been any other character of the file's name.
    assert {name: facts.units for name, facts in kernels.items()} == {
        "(anonymous namespace)::add0(float*)": ("add.cu",),
        "(anonymous namespace)::add1(float*)": (),
    }
