"""Whole exports: their processes, what they say once, what they lack, and every way they cannot be read."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from opscope.api import load
from opscope.errors import InputError
from opscope.model.finding import Finding
from opscope.model.session import Session
from opscope.testing import ExportBuilder, TraceBuilder

LoadExport = Callable[..., Session]


def finding(session: Session, code: str) -> Finding | None:
    return next((one for one in session.findings() if one.code == code), None)


def small() -> ExportBuilder:
    return ExportBuilder().range("aten::mm, op_id = 1", 0, 100).launch(10).kernel("gemm", 20, 30)


class TestProcesses:
    def test_each_process_that_called_cuda_is_a_trace(self, load_export: LoadExport) -> None:
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
        left_out = finding(session, "nsys.other_processes")
        assert left_out is not None
        assert left_out.evidence == {"processes": [40]}

    def test_a_process_that_only_pushed_ranges_is_a_trace_where_none_called_cuda(
        self, load_export: LoadExport
    ) -> None:
        session = load_export(ExportBuilder().range("aten::mm, op_id = 1", 0, 50))
        assert session.query("SELECT name FROM operators") == [("aten::mm",)]
        absent = finding(session, "trace.no_device_activity")
        assert absent is not None
        assert "nsys profile" in str(absent.suggestion)

    @pytest.mark.exhaustive(few=False)
    def test_rows_without_a_process_are_of_the_only_one_or_counted(self, load_export: LoadExport) -> None:
        builder = small().row("PROFILER_OVERHEAD", 3, 4, nameId="x", overheadType=0, globalTid=None)
        session = load_export(builder)
        assert session.scalar("SELECT count(*) FROM overheads") == 1
        assert finding(session, "nsys.without_process") is None
        session = load_export(builder.launch(1, process=99))
        assert session.scalar("SELECT count(*) FROM overheads") == 0
        lost = finding(session, "nsys.without_process")
        assert lost is not None
        assert lost.evidence == {"row_count": 1}

    @pytest.mark.exhaustive(few=False)
    def test_a_rank_is_that_of_the_one_process(self, load_export: LoadExport) -> None:
        builder = small()
        for variable in ('RANK="3"', 'WORLD_SIZE="8"', 'SECRET_TOKEN="hunter2"', 'RANK_FILE="x"'):
            builder.plain_row("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=variable)
        assert load_export(builder).query("SELECT rank, world_size FROM traces") == [(3, 8)]
        builder.launch(1, process=99)
        assert load_export(builder).query("SELECT rank, world_size FROM traces") == [(None, None)] * 2


class TestFacts:
    def test_what_the_export_says_of_itself(self, load_export: LoadExport) -> None:
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

    def test_a_newer_schema_is_read_with_a_warning(self, load_export: LoadExport) -> None:
        builder = small().plain_row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="4.0.1")
        assert finding(load_export(builder), "nsys.newer_schema") is not None

    def test_no_operators_are_said_to_be_absent(self, load_export: LoadExport) -> None:
        def absent(kernel: str) -> object:
            return finding(load_export(ExportBuilder().launch(1).kernel(kernel, 2, 3)), "nsys.no_operators")

        assert "emit_nvtx" in str(absent("void at::native::fill<float>()"))
        assert absent("solve(float*)") is None  # of a program without PyTorch none are


class TestOtherVersions:
    def test_missing_tables_and_columns_are_named_and_the_rest_is_used(self, load_export: LoadExport) -> None:
        session = load_export(
            small().copy(60, 5),
            without=[
                "NVTX_EVENTS.textId", "NVTX_EVENTS.domainId", "CUPTI_ACTIVITY_KIND_KERNEL.mangledName",
                "CUPTI_ACTIVITY_KIND_KERNEL.graphId", "CUPTI_ACTIVITY_KIND_MEMCPY.srcKind", "ThreadNames",
                "CUPTI_ACTIVITY_KIND_MEMSET", "META_DATA_EXPORT", "META_DATA_CAPTURE", "PROCESSES",
            ],
        )  # fmt: skip
        missing = finding(session, "nsys.missing")
        assert missing is not None
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

    def test_without_calls_nothing_can_be_attributed(self, load_export: LoadExport) -> None:
        session = load_export(small(), without=["CUPTI_ACTIVITY_KIND_RUNTIME"])
        assert session.query("SELECT attribution FROM device_activities") == [("no_launch_record",)]
        missing = finding(session, "nsys.missing")
        assert missing is not None
        assert missing.evidence["tables"] == ["CUPTI_ACTIVITY_KIND_RUNTIME"]

    def test_without_processes_there_is_one(self, load_export: LoadExport) -> None:
        session = load_export(small(), without=["CUPTI_ACTIVITY_KIND_KERNEL.globalPid"])
        assert session.query("SELECT count(*) FROM traces") == [(1,)]
        assert session.query("SELECT attribution FROM device_activities") == [("correlation",)]


class TestSources:
    def test_a_folder_of_exports_and_a_compressed_one(self, tmp_path: Path) -> None:
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

    def test_a_kineto_trace_and_an_export_in_one_session(self, tmp_path: Path) -> None:
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

    def test_the_file_is_not_touched(self, tmp_path: Path) -> None:
        path = small().write(tmp_path / "a.sqlite")
        before = path.read_bytes()
        load(path).close()
        assert path.read_bytes() == before
        assert [one.name for one in tmp_path.iterdir()] == ["a.sqlite"]


class TestUnreadable:
    def test_another_programs_database(self, tmp_path: Path) -> None:
        path = tmp_path / "x.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE songs (title TEXT)")
        with pytest.raises(InputError, match=r"not an export of Nsight Systems \(its tables are songs"):
            load(path)

    def test_garbage_an_empty_file_and_a_cut_one(self, tmp_path: Path) -> None:
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

    def test_a_file_that_is_being_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("opscope.ingest.nsys_export._LOCK_TIMEOUT_S", 0.05)
        path = small().write(tmp_path / "x.sqlite")
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN EXCLUSIVE")
            with pytest.raises(InputError, match="another program is writing it"):
                load(path)
        load(path).close()

    def test_a_report_without_nsys(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("opscope.toolchain.nsys._PLACES", ())
        path = tmp_path / "x.nsys-rep"
        path.write_bytes(b"anything")
        with pytest.raises(InputError, match=r"nsys export --type sqlite .*x\.nsys-rep"):
            load(path)

    def test_an_export_without_anything(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no CUDA calls, no device work and no NVTX ranges"):
            load(ExportBuilder().write(tmp_path / "x.sqlite"))

    def test_a_text_where_a_number_belongs(self, tmp_path: Path) -> None:
        path = ExportBuilder().launch(1, correlationId="abc").write(tmp_path / "x.sqlite")
        with pytest.raises(InputError, match="CUPTI_ACTIVITY_KIND_RUNTIME holds something else than numbers"):
            load(path)
