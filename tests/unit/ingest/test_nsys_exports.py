"""Whole exports: their processes, what they say once, what they lack, and every way they cannot be read."""

import gzip
import json
import random
import re
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from case_tables import cases
from fakes import ExportBuilder, TraceBuilder
from opscope.analysis.provenance import read_provenance
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import IdleCause
from opscope.api import load
from opscope.errors import InputError
from opscope.ingest.nsys_reading import TAKES_TENSOR_LISTS
from opscope.provenance.native_functions import table_for


def finding(session, code):
    return next((one for one in session.findings() if one.code == code), None)


def small():
    return ExportBuilder().range("aten::mm, op_id = 1", 0, 100).launch(10).kernel("gemm", 20, 30)


class TestProcesses:
    def test_each_process_that_called_cuda_is_a_trace(self, load_export):
        builder = ExportBuilder()
        for process, thread in ((30, 31), (20, 21)):
            place = {"process": process, "thread": thread}
            builder.range(f"aten::of_{process}, op_id = 1", 0, 50, **place).launch(10, **place)
            # Both processes count alike, so that ids of one meet those of the other.
            builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["correlationId"] = 7
            builder.kernel(
                f"k{process}", 20, process, process=process, correlationId=7, deviceId=process // 10
            )
        builder.range("aten::elsewhere, op_id = 1", 0, 50, process=40, thread=41)
        session = load_export(builder)
        rows = session.query(
            """SELECT a.trace_id, t.process, n.name, o.name, a.device FROM device_activities a
            JOIN kernel_names n ON n.name_id = a.name_id JOIN operators o ON o.operator_id = a.operator_id
            JOIN threads t ON t.thread_id = o.thread_id ORDER BY a.trace_id"""
        )
        assert rows == [(0, "20", "k20", "aten::of_20", 2), (1, "30", "k30", "aten::of_30", 3)]
        assert finding(session, "nsys.other_processes").evidence == {"processes": [40]}

    def test_a_process_that_only_pushed_ranges_is_a_trace_where_none_called_cuda(self, load_export):
        session = load_export(ExportBuilder().range("aten::mm, op_id = 1", 0, 50))
        assert session.query("SELECT name FROM operators") == [("aten::mm",)]
        # What is missing is said once.
        assert finding(session, "trace.no_device_activity") is None
        assert "nsys profile" in str(finding(session, "nsys.no_cuda").suggestion)

    def test_pages_of_managed_memory_move_while_the_host_is_at_work(self, load_export):
        builder = ExportBuilder().launch(10).kernel("add(float*)", 20, 100)
        for at in (500, 900):
            builder.copy(at, 50, copyKind=12, correlationId=0)
        (partition,) = Summary(load_export(builder)).timeline.partitions
        assert partition.idle_by_cause == {IdleCause.NOTHING_SCHEDULED: 380 + 350}

    def test_where_cuda_was_traced_nobody_is_told_to_trace_it(self, load_export):
        def traced(*warned):
            builder = ExportBuilder()
            builder.plain_row("META_DATA_CAPTURE", name="PROCESS_0:COLLECT_CUDA_TRACE", value="true")
            for text in warned:
                builder.plain_row("DIAGNOSTIC_EVENT", severity=2, text=text)
            return builder

        said = "CUDA profiling might have not been started correctly."
        with pytest.raises(InputError, match=r"CUDA was traced, .*\. Either the program made no CUDA call"):
            load_export(traced())
        lacks = "Installed CUDA driver version (13.0) is not supported by this build of Nsight Systems"
        with pytest.raises(InputError, match=rf"says: {re.escape(lacks)}$"):
            load_export(traced().plain_row("ThreadNames", nameId=lacks, globalTid=1))
        before = ExportBuilder().plain_row("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value="Cuda")
        with pytest.raises(InputError, match="CUDA was traced"):
            load_export(before)
        with pytest.raises(InputError, match=rf"Nsight Systems says: {said[:-1]}$"):
            load_export(traced(said, "No NVTX events collected."))
        told = finding(load_export(traced().range("aten::mm, op_id = 1", 0, 50)), "nsys.no_cuda")
        assert "check that it uses the GPU" in told.suggestion
        told = finding(load_export(traced(said).range("aten::mm, op_id = 1", 0, 50)), "nsys.no_cuda")
        assert told.suggestion == f"Nsight Systems says: {said[:-1]}"

    def test_launches_without_device_records_are_counted(self, load_export):
        builder = ExportBuilder().range("aten::mm, op_id = 1", 0, 50)
        (one,) = Summary(load_export(builder.launch(10).launch(20, name="cudaMemcpy_v3020"))).defects
        assert (one.code, one.evidence["count"]) == ("recording.no_device_records", 2)
        assert one.message.startswith("2 launches and copies, 0 device records")
        assert "RestrictProfiling" in one.suggestion
        broken = Summary(load_export(ExportBuilder().launch(10, returnValue=222)))
        assert "launches returned errors" in broken.defects[0].message
        kernel = {"name": "SoftwareReleaseVersion", "value": "5.15.90.1-microsoft-standard-WSL2"}
        (one,) = Summary(load_export(builder.plain_row("TARGET_INFO_SYSTEM_ENV", **kernel))).defects
        assert "Windows driver" in one.suggestion and "RestrictProfiling" not in one.suggestion

    def test_work_outside_of_operators_is_a_warning_where_some_could_be_open(self, load_export):
        def severity(builder):
            return str(finding(load_export(builder), "attribution.outside_operator").severity)

        def plain(kernel="solve(float*)"):
            return ExportBuilder().launch(200).kernel(kernel, 210, 30)

        assert severity(plain()) == "info"
        assert severity(plain().range("setup", 0, 50)) == "warning"
        assert severity(plain("void at::native::fill<float>()")) == "warning"

    @pytest.mark.exhaustive(few=False)
    def test_rows_without_a_process_are_of_the_only_one_or_counted(self, load_export):
        builder = small().row("PROFILER_OVERHEAD", 3, 4, nameId="x", overheadType=0, globalTid=None)
        session = load_export(builder)
        assert session.scalar("SELECT count(*) FROM overheads") == 1
        assert finding(session, "nsys.without_process") is None
        session = load_export(builder.launch(1, process=99))
        assert session.scalar("SELECT count(*) FROM overheads") == 0
        assert finding(session, "nsys.without_process").evidence == {"row_count": 1}

    @pytest.mark.exhaustive(few=False)
    def test_a_rank_is_that_of_the_one_process(self, load_export):
        builder = small()
        for variable in ('RANK="3"', 'WORLD_SIZE="8"', 'SECRET_TOKEN="hunter2"', 'RANK_FILE="x"'):
            builder.plain_row("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=variable)
        assert load_export(builder).query("SELECT rank, world_size FROM traces") == [(3, 8)]
        builder.launch(1, process=99)
        assert load_export(builder).query("SELECT rank, world_size FROM traces") == [(None, None)] * 2


class TestFacts:
    def test_what_the_export_says_of_itself(self, load_export):
        builder = small()
        builder.plain_row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2026.2.1")
        builder.plain_row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.25.0")
        builder.plain_row("META_DATA_CAPTURE", name="CUDA_GRAPH_TRACE_OPTIONS:MODE", value="Node")
        builder.plain_row("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value='TOKEN="hunter2"')
        builder.plain_row("PROCESSES", globalPid=10 << 24, pid=10, name="python3")
        session = load_export(builder)
        ((form, count, properties),) = session.query("SELECT format, event_count, properties FROM traces")
        assert (form, count) == ("nsys", 3)
        assert json.loads(properties) == {
            "recorder": "Nsight Systems", "nsys_version": "2026.2.1", "schema_version": "3.25.0",
            "cuda_graph_trace": "Node", "process": 10, "process_name": "python3",
        }  # fmt: skip
        # An export holds the whole environment of the program; none of it may reach a Session.
        assert "hunter2" not in str(session.query("FROM traces")) + str(session.query("FROM findings"))

    def test_a_newer_schema_is_read_with_a_warning(self, load_export):
        builder = small().plain_row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="4.0.1")
        assert finding(load_export(builder), "nsys.newer_schema") is not None

    def test_no_operators_are_said_to_be_absent(self, load_export):
        def absent(kernel):
            return finding(load_export(ExportBuilder().launch(1).kernel(kernel, 2, 3)), "nsys.no_operators")

        assert "emit_nvtx" in str(absent("void at::native::fill<float>()"))
        assert absent("solve(float*)") is None  # of a program without PyTorch none are


class TestOtherVersions:
    def test_missing_tables_and_columns_are_named_and_the_rest_is_used(self, load_export):
        session = load_export(
            small().copy(60, 5),
            without=[
                "NVTX_EVENTS.textId", "NVTX_EVENTS.domainId", "CUPTI_ACTIVITY_KIND_KERNEL.mangledName",
                "CUPTI_ACTIVITY_KIND_KERNEL.graphId", "CUPTI_ACTIVITY_KIND_MEMCPY.srcKind", "ThreadNames",
                "CUPTI_ACTIVITY_KIND_MEMSET", "META_DATA_EXPORT", "META_DATA_CAPTURE", "PROCESSES",
            ],
        )  # fmt: skip
        missing = finding(session, "nsys.missing")
        assert missing.evidence == {
            "tables": ["ThreadNames", "PROCESSES"],
            "columns": [
                "CUPTI_ACTIVITY_KIND_KERNEL.mangledName", "CUPTI_ACTIVITY_KIND_MEMCPY.srcKind",
                "NVTX_EVENTS.textId", "NVTX_EVENTS.domainId",
            ],
        }  # fmt: skip
        rows = session.query(
            """SELECT n.name, o.name FROM device_activities a JOIN kernel_names n USING (name_id)
            JOIN operators o USING (operator_id) ORDER BY a.start_ns"""
        )
        assert rows == [("gemm", "aten::mm"), ("Memcpy HtoD (Unknown -> Device)", "aten::mm")]

    def test_without_calls_or_processes_what_is_there_is_read(self, load_export):
        session = load_export(small(), without=["CUPTI_ACTIVITY_KIND_RUNTIME"])
        assert session.query("SELECT attribution FROM device_activities") == [("no_launch_record",)]
        missing = finding(session, "nsys.missing")
        assert missing.evidence["tables"] == ["CUPTI_ACTIVITY_KIND_RUNTIME"]
        session = load_export(small(), without=["CUPTI_ACTIVITY_KIND_KERNEL.globalPid"])
        assert session.query("SELECT count(*) FROM traces") == [(1,)]
        assert session.query("SELECT attribution FROM device_activities") == [("correlation",)]


class TestSources:
    def test_a_folder_of_exports_and_a_compressed_one(self, tmp_path):
        small().write(tmp_path / "rank2.sqlite")
        plain = small().write(tmp_path / "rank10.db")
        (tmp_path / "rank10.sqlite.gz").write_bytes(gzip.compress(plain.read_bytes()))
        with load(tmp_path) as session:
            sources = [
                Path(source).name
                for (source,) in session.query("SELECT source FROM traces ORDER BY trace_id")
            ]
            assert sources == ["rank2.sqlite", "rank10.sqlite.gz"]
            assert session.scalar("SELECT sum(duration_ns) FROM device_activities") == 60

    def test_a_kineto_trace_and_an_export_in_one_session(self, tmp_path):
        trace = (
            TraceBuilder()
            .operator("aten::mm", 0, 10)
            .launch(2)
            .kernel("gemm", 20, 5)
            .write(tmp_path / "a.json")
        )
        with load([trace, small().write(tmp_path / "b.db")]) as session:
            assert session.query("SELECT format FROM traces ORDER BY trace_id") == [("kineto",), ("nsys",)]
            assert session.scalar("SELECT count(*) FROM kernel_names") == 1
            assert all(check.holds for check in session.check())


class TestUnreadable:
    @cases("table", "what")
    def test_another_programs_database(self, tmp_path, table, what):
        path = tmp_path / "x.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"CREATE TABLE {table} (title TEXT)")
        with pytest.raises(InputError, match=what):
            load(path)

    def test_garbage_an_empty_file_and_a_cut_one(self, tmp_path):
        path = tmp_path / "x.sqlite"
        path.write_bytes(bytes(range(256)) * 40)
        with pytest.raises(InputError, match="damaged, cut off or encrypted"):
            load(path)
        path.write_bytes(b"")
        with pytest.raises(InputError, match="the file is empty"):
            load(path)
        builder = ExportBuilder()
        for index in range(3000):
            builder.launch(index).kernel("k", index, 1)
        whole = builder.write(tmp_path / "whole.db").read_bytes()
        for share in (0.1, 0.5, 0.9):
            path.write_bytes(whole[: int(len(whole) * share)])
            with pytest.raises(InputError, match="cut off or damaged"):
                load(path)

    def test_a_file_that_is_being_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr("opscope.ingest.nsys_reading._LOCK_TIMEOUT_S", 0.05)
        path = small().write(tmp_path / "x.sqlite")
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN EXCLUSIVE")
            with pytest.raises(InputError, match="another program is writing it"):
                load(path)
        load(path).close()

    def test_a_report_without_nsys(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("opscope.toolchain.nsys.find_cuda_tool", lambda name: None)
        path = tmp_path / "x.nsys-rep"
        path.write_bytes(b"anything")
        with pytest.raises(InputError, match=r"nsys export --type sqlite .*x\.nsys-rep"):
            load(path)

    def test_an_export_without_anything_or_with_a_text_where_a_number_belongs(self, tmp_path):
        with pytest.raises(InputError, match="no CUDA calls, no device work and no NVTX ranges"):
            load(ExportBuilder().write(tmp_path / "empty.sqlite"))
        path = ExportBuilder().launch(1, correlationId="abc").write(tmp_path / "x.sqlite")
        with pytest.raises(InputError, match="CUPTI_ACTIVITY_KIND_RUNTIME holds something else than numbers"):
            load(path)


GPU = {
    "id": 5, "name": "NVIDIA H200", "totalMemory": 150_000, "smCount": 132, "threadsPerWarp": 32,
    "maxWarpsPerSm": 64, "maxThreadsPerBlock": 1024, "maxRegistersPerBlock": 65536,
    "maxRegistersPerSm": 65536, "maxShmemPerBlock": 49152, "maxShmemPerBlockOptin": 232448,
    "maxShmemPerSm": 233472, "computeMajor": 9, "computeMinor": 0,
}  # fmt: skip


def write(path, **tables):
    """A kernel on device 1, and further tables."""
    ExportBuilder().launch(1).kernel("k", 2, 3, deviceId=1).write(path, without=["META_DATA_EXPORT", *tables])
    with closing(sqlite3.connect(path)) as connection:
        for name, rows in tables.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(rows[0])})")
            for row in rows:
                marks = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {name} VALUES ({marks})", list(row.values()))
        connection.commit()
    return path


def devices(session):
    return session.records(
        """SELECT device, name, compute_major, compute_minor, sm_count, memory_bytes, warp_size,
            max_threads_per_sm, shared_memory_per_block_optin_bytes, activity_count
        FROM devices ORDER BY device"""
    )


def test_a_device_is_the_process_own_ordinal(tmp_path):
    path = write(
        tmp_path / "x.sqlite",
        TARGET_INFO_GPU=[GPU, {**GPU, "id": 6, "name": "NVIDIA T4"}],
        TARGET_INFO_CUDA_DEVICE=[{"gpuId": 5, "cudaId": 1, "pid": 10}, {"gpuId": 6, "cudaId": 1, "pid": 11}],
    )
    with load(path) as session:
        assert devices(session) == [
            {
                "device": 1, "name": "NVIDIA H200", "compute_major": 9, "compute_minor": 0, "sm_count": 132,
                "memory_bytes": 150_000, "warp_size": 32, "max_threads_per_sm": 2048,
                "shared_memory_per_block_optin_bytes": 232448, "activity_count": 1,
            }
        ]  # fmt: skip


def test_an_older_table_of_devices_and_none(tmp_path):
    old = {"deviceId": 1, "name": "Tesla V100", "computeCapabilityMajor": 7, "computeCapabilityMinor": 0}
    with load(write(tmp_path / "old.sqlite", TARGET_INFO_CUDA_GPU=[old])) as session:
        (device,) = devices(session)
        assert (device["name"], device["compute_major"], device["sm_count"]) == ("Tesla V100", 7, None)
    with load(write(tmp_path / "none.sqlite")) as session:
        (device,) = devices(session)
        assert (device["name"], device["activity_count"]) == (None, 1)


def test_times_count_from_the_start_unless_they_were_shifted(tmp_path):
    start = [{"utcEpochNs": 1_000_000}]
    shift = [{"name": "EXPORT_PARAM_TIME_SHIFT", "value": "250"}]
    normal = [*shift, {"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "true"}]
    cases = [
        ({"TARGET_INFO_SESSION_START_TIME": start}, 1_000_000),
        ({"TARGET_INFO_SESSION_START_TIME": start, "META_DATA_EXPORT": shift}, 999_750),
        ({"TARGET_INFO_SESSION_START_TIME": start, "META_DATA_EXPORT": normal}, -250),
        ({}, None),
    ]
    for index, (tables, expected) in enumerate(cases):
        with load(write(tmp_path / f"{index}.sqlite", **tables)) as session:
            assert session.scalar("SELECT base_time_ns FROM traces") == expected


def test_the_drivers_version_and_what_nsys_warned_of(tmp_path):
    path = write(
        tmp_path / "x.sqlite",
        TARGET_INFO_SYSTEM_ENV=[{"name": "CudaDriverVersion", "value": "12080"}],
        DIAGNOSTIC_EVENT=[
            {"severity": 1, "text": "started"},
            {"severity": 2, "text": "CUDA events\twere dropped."},
            {"severity": 3, "text": "Out of buffers."},
        ],
    )
    with load(path) as session:
        assert session.query("SELECT cuda_driver_version, driver_version FROM traces") == [(12080, "12.8")]
        (warned,) = [one for one in session.findings() if one.code == "nsys.diagnostics"]
        assert warned.message.endswith("CUDA events were dropped. Out of buffers.")


@pytest.fixture(scope="module")
def mfu(shared):
    return shared / "traces" / "nsys" / "mfu_2gpu_before.sqlite"


@pytest.fixture(scope="module")
def session(mfu):
    with load(mfu) as session:
        yield session


def owners(connection):
    """Innermost range that PyTorch named as an operator, by process and correlation id."""
    events = defaultdict(list)
    for thread, start, end, text in connection.execute(
        "SELECT globalTid, start, end, text FROM NVTX_EVENTS WHERE domainId = 0 AND text NOT LIKE 'FSDP::%' "
        "AND text NOT LIKE 'nccl:%'"
    ):
        # At one moment a range ends before a call, and begins before it.
        events[thread] += [(start, 1, text), (end, 0, None)]
    for thread, start, correlation in connection.execute(
        "SELECT globalTid, start, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    ):
        events[thread].append((start, 2, correlation))
    found = {}
    for thread, mine in events.items():
        open_ranges = []
        for _, kind, what in sorted(mine, key=lambda event: event[:2]):
            if kind == 0:
                open_ranges.pop()
            elif kind == 1:
                open_ranges.append(what)
            elif open_ranges:
                found[thread >> 24, what] = re.sub(r", (seq|op_id) = .*", "", open_ranges[-1])
    return found


def test_each_activity_belongs_to_the_innermost_operator_of_its_launch(mfu, session):
    with closing(sqlite3.connect(f"{mfu.as_uri()}?mode=ro", uri=True)) as connection:
        found = owners(connection)
        expected = Counter()
        for table in ("KERNEL", "MEMCPY", "MEMSET"):
            for process, correlation, duration_ns in connection.execute(
                f"SELECT globalPid, correlationId, end - start FROM CUPTI_ACTIVITY_KIND_{table}"
            ):
                expected[process >> 24 & 0xFFFFFF, found.get((process >> 24, correlation))] += duration_ns
    rows = session.query(
        """SELECT t.properties->>'process', o.name, sum(a.duration_ns)::BIGINT FROM device_activities a
        JOIN traces t ON t.trace_id = a.trace_id LEFT JOIN operators o ON o.operator_id = a.operator_id
        GROUP BY ALL"""
    )
    assert {(int(process), name): duration_ns for process, name, duration_ns in rows} == dict(expected)
    assert len(expected) == 28


def test_every_law_holds(shared, session):
    assert all(check.holds for check in session.check())
    with load(shared / "traces" / "nsys" / "mock.sqlite") as small:
        assert all(check.holds for check in small.check())
        assert small.query("SELECT count(*), sum(duration_ns) FROM device_activities") == [(3, 5_761)]


def test_names_are_those_that_tables_of_releases_know(session):
    assert read_provenance(session).hit_rates["2.11.0"] == 1.0
    assert session.query(
        """SELECT DISTINCT p.units FROM kernel_symbols s JOIN kernel_provenance p USING (name_id)
        WHERE s.mangled_name LIKE '%CatArrayBatchedCopy%'"""
    ) == [(["aten/src/ATen/native/cuda/Shape.cu"],)]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["operator", "range", "step", "launch", "kernel", "copy", "graph"]),
        st.integers(0, 400),
        st.integers(0, 5_000),
        st.integers(1, 2),  # thread
        st.integers(1, 2),  # process
    ),
    min_size=1,
    max_size=30,
)


def build(events, shift=0):
    builder = ExportBuilder(process=1).launch(shift)
    for index, (kind, moment, duration, thread, process) in enumerate(events):
        where = {"process": process, "thread": thread}
        # Of ranges that begin and end together no export tells which is the outer one.
        start = 32 * moment + index + shift
        if kind == "launch":
            builder.launch(start, duration, **where)
        elif kind == "kernel":
            builder.kernel(f"k{index % 3}", start + 1, duration, process=process)
        elif kind == "copy":
            builder.copy(start + 1, duration, process=process)
        elif kind == "graph":
            builder.graph(index, start + 1, duration, process=process)
        else:
            texts = {"operator": f"aten::op{index % 4}, op_id = {index + 1}", "step": f"ProfilerStep#{index}"}
            builder.range(texts.get(kind, f"range {index % 3}"), start, duration, **where)
    return builder


def facts(path, shift):
    with load(path) as session:
        assert all(check.holds for check in session.check())
        return [
            session.query(
                """SELECT a.trace_id, n.name, a.start_ns - ?, a.duration_ns, attribution, o.name, o.depth
                FROM device_activities a JOIN kernel_names n USING (name_id)
                LEFT JOIN operators o ON o.operator_id = a.operator_id ORDER BY ALL""",
                [shift],
            ),
            session.query(
                """SELECT trace_id, name, start_ns - ?, duration_ns, self_device_ns, total_device_ns
                FROM operators ORDER BY ALL""",
                [shift],
            ),
        ]


@settings(max_examples=settings.default.max_examples // 10)
@given(events=EVENTS, seed=st.integers(0, 1000))
@pytest.mark.exhaustive(few=False)
def test_conservation_order_and_shift(events, seed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    builder = build(events)
    straight = facts(builder.write(folder / "a.sqlite"), 0)
    durations = [
        row["end"] - row["start"]
        for table in ("KERNEL", "MEMCPY", "GRAPH_TRACE")
        for row in builder.rows[f"CUPTI_ACTIVITY_KIND_{table}"]
    ]
    assert sum(row[3] for row in straight[0]) == sum(durations)
    for rows in builder.rows.values():
        random.Random(seed).shuffle(rows)
    assert facts(builder.write(folder / "b.sqlite"), 0) == straight
    assert facts(build(events, 10**12).write(folder / "c.sqlite"), 10**12) == straight


def test_every_operator_that_takes_lists_of_tensors_is_known():
    pattern = re.compile(TAKES_TENSOR_LISTS)
    taking = {
        function.name
        for function in table_for(None).functions
        if re.search(r"Tensor(?:\([^)]*\))?\??\[\d*\]", function.schema.partition("->")[0].partition("*")[0])
        and "out" not in function.overload
    }
    assert len(taking) > 100
    assert {name for name in taking if not pattern.fullmatch(name)} == set()
    assert not any(
        pattern.fullmatch(f"aten::{name}") for name in ("mm", "addmm", "sum", "sort", "copy_", "split")
    )
