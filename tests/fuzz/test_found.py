"""What an attack found, by class: descriptors, claimed sizes, time, damage, endless tables."""

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zstandard

import opscope
from case_tables import cases
from fakes import ExportBuilder, TraceBuilder
from opscope.errors import InputError, OpscopeError
from opscope.ingest.arrow import ArrowRows
from opscope.signals import Terminated

from .fuzz import TARGETS, check, program_text, trace_text

MEBIBYTE = 1 << 20
EVENT = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": {}}'


def loaded_s(path):
    """Processor time of a load, which other programs lengthen less."""
    began = time.process_time()
    with suppress(OpscopeError):
        opscope.load(path).close()
    return time.process_time() - began


def sound_text(events):
    return '{"traceEvents": [' + ",\n".join([EVENT] * events) + "]}"


@cache
def sound_s(mebibytes):
    """Time to load a sound file of that size."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sound.json"
        path.write_text(sound_text(mebibytes * MEBIBYTE // len(EVENT)))
        return loaded_s(path)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


class TestDescriptors:
    @pytest.mark.parametrize(
        "change",
        [('"stream": 7', '"stream": "abc"'), ('"dur": 30', '"dur": "abc"'), ('"ts": 5', '"ts": x')],
        ids=["another type", "no time", "no JSON"],
    )
    def test_a_flawed_text_leaves_none_open(self, tmp_path, change):
        path = tmp_path / "trace.json"
        text = trace_text()
        assert change[0] in text
        path.write_text(text.replace(*change))
        loaded_s(path)
        before = descriptors()
        loaded_s(path)
        assert descriptors() == before

    @pytest.mark.exhaustive(few=False)
    def test_sixty_four_are_enough_for_any_number_of_loads(self, tmp_path):
        (tmp_path / "trace.json").write_text(trace_text().replace('"stream": 7', '"stream": "abc"'))
        script = "import sys, opscope\nfor _ in range(60): opscope.load(sys.argv[1]).close()"
        command = f"ulimit -n 64; exec {sys.executable} -c '{script}' {tmp_path / 'trace.json'}"
        subprocess.run(["bash", "-c", command], check=True, timeout=120)


class TestClaims:
    @cases("rows")
    def test_a_schema_of_a_few_words_has_no_end_of(self, tmp_path, rows):
        path = (
            ExportBuilder().range("step", 0, 90).launch(10).kernel("gemm", 20, 5).write(tmp_path / "a.sqlite")
        )
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE StringIds")
            connection.execute(f"CREATE VIEW StringIds AS {rows}")
        connection.close()
        with pytest.raises(InputError, match="cannot be read"):
            opscope.load(path)


@pytest.mark.exhaustive(few=False)
@pytest.mark.parametrize(
    ("marker", "filler"),
    [
        ('"traceEvents"', " " * 8 * MEBIBYTE + '"traceEvents"'),
        ("[{", " " * 8 * MEBIBYTE + "[{"),
        ("]}", "]" + " " * 8 * MEBIBYTE + "}"),
        ('{"traceEvents"', "{" + '"a": {"traceEvents": 1}, ' * 20_000 + '"traceEvents"'),
        ('{"traceEvents"', '{"a": "' + '\\"traceEvents\\": ' * 20_000 + '", "traceEvents"'),
        ("]}", ", " + '"ph"' * 200_000),
        ("]}", ', {"a": ' * 200_000 + '"ph"'),
        ("]}", "}]" * 200_000),
        ("]}", '}], "a": [{' * 100_000),
        ("]}", ""),
        ("]}", ", " + EVENT[:-9]),
    ],
    ids=[
        "space before the key", "space before the array", "space behind it", "keys within", "keys in a text",
        "phases", "objects", "ends", "ends and keys", "no end", "half an event",
    ],
)  # fmt: skip
def test_reading_takes_no_longer_than_that_of_a_sound_file(tmp_path, marker, filler):
    """Three times as long, but for a second that any machine may have lost."""
    text = sound_text(20_000).replace(marker, filler, 1)
    (tmp_path / "hostile.json").write_text(text)
    assert loaded_s(tmp_path / "hostile.json") < 3 * sound_s(len(text) // MEBIBYTE) + 1


def test_space_of_any_size_changes_nothing(tmp_path):
    packed = zstandard.compress(
        trace_text().replace('"traceEvents"', " " * MEBIBYTE + '"traceEvents"').encode()
    )
    (tmp_path / "a.json.zst").write_bytes(packed)
    (tmp_path / "b.json").write_text(trace_text())
    with opscope.load(tmp_path / "a.json.zst") as spaced, opscope.load(tmp_path / "b.json") as plain:
        assert spaced.query("SELECT * FROM operators") == plain.query("SELECT * FROM operators")


class TestDamage:
    @pytest.mark.parametrize(
        ("written", "instead"),
        [
            ('"numSms": 132', '"numSms": 0'),
            ('"numSms": 132', '"numSms": -1'),
            ("[[4, 4], [4, 4]]", "[" * 3_000 + "]" * 3_000),
            ('"ts": 5.0', '"ts": ' + "[" * 100_000 + "]" * 100_000),
            ('"dur": 30', '"dur": "abc"'),
            ("aten::mm", "aten::\\ud800"),
        ],
        ids=["no multiprocessors", "fewer", "deep shapes", "a deep time", "no duration", "half a character"],
    )
    def test_of_a_trace(self, tmp_path, written, instead):
        text = trace_text()
        assert written.removesuffix(".0") in text
        assert check("trace", text.replace(written, instead).encode(), tmp_path) is None

    @pytest.mark.parametrize(
        ("target", "written", "instead"),
        [
            ("program", '"aten::_foreach_add_"', "null"),
            ("verbs", '"cudaMemsetAsync"', "null"),
        ],
    )
    def test_of_a_program(self, tmp_path: Path, target: str, written: str, instead: str) -> None:
        text = program_text()
        assert written in text
        assert check(target, text.replace(written, instead).encode(), tmp_path) is None

    @pytest.mark.parametrize("target", ["sidecar", "result", "limits"])
    @pytest.mark.parametrize("data", [b"\xff\xfe", b"[" * 100_000, b'{"schema_version": "\xff"}', b"null"])
    def test_of_a_document(self, tmp_path, target, data):
        assert check(target, data, tmp_path) is None

    def test_a_bad_event_costs_itself_alone(self, tmp_path):
        builder = TraceBuilder().operator("aten::add", 10, 20).launch(12, 4).kernel("add", 20, 5)
        builder.operator("aten::mul", 50, 20)
        path = tmp_path / "trace.json"
        path.write_text(builder.text().replace('"dur": 5', '"dur": "abc"'))
        with opscope.load(path) as session:
            assert session.scalar("SELECT count(*) FROM operators") == 2
            assert session.findings()


@pytest.mark.exhaustive(few=False)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_and_a_byte_are_no_input_of_any_reader(name, tmp_path):
    for data in (b"", b"\0", b"{", b"\xff" * 100):
        assert check(name, data, tmp_path) is None, data


@pytest.mark.exhaustive(few=False)
def test_many_loads_keep_no_objects_and_no_descriptors(tmp_path):
    """Of a release without a table of its own, whose neighbor's serves."""
    path = tmp_path / "trace.json"
    path.write_text(trace_text())

    def load():
        with opscope.load(path) as session:
            opscope.summarize(session).operators  # noqa: B018 - computed when asked for

    for _ in range(2):
        load()
    gc.collect()
    objects, files = len(gc.get_objects()), descriptors()
    for _ in range(3):
        load()
    gc.collect()
    assert descriptors() == files
    assert len(gc.get_objects()) - objects < 200


class TestInterrupts:
    @pytest.mark.parametrize("raised", [KeyboardInterrupt, Terminated])
    def test_one_that_the_engine_swallows_is_one(self, tmp_path, monkeypatch, raised):
        """In what it calls to read rows, errors become its own."""

        def column(*_):
            raise raised

        monkeypatch.setattr(ArrowRows, "_column", column)
        path = tmp_path / "trace.json"
        path.write_text(trace_text())
        with opscope.load(path) as session, pytest.raises(KeyboardInterrupt):
            session.query("SELECT * FROM operators")

    @pytest.mark.exhaustive(few=False)
    @pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
    def test_an_operator_of_a_query_that_looks_at_no_signal(self, tmp_path, name):
        number = getattr(signal, name)
        (tmp_path / "trace.json").write_text(trace_text())
        query = "SELECT count(*) FROM range(100000000000) a, range(1000)"
        process = subprocess.Popen(
            [sys.executable, "-m", "opscope", "sql", "trace.json", query],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # It is in the query once it has computed for longer than starting and loading take.
        while process.poll() is None and used_s(process.pid) < 4:
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=10)
        assert process.returncode == 128 + number
        assert said == "interrupted: files already written are kept, nothing else was written\n"
        assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]


def used_s(process):
    """Processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("limit", ["0", "1", "1MB", "1e999"])
def test_a_limit_of_memory_that_nothing_fits_in(tmp_path, capsys, limit):
    from opscope.cli import main

    (tmp_path / "trace.json").write_text(trace_text())
    assert main(["analyze", str(tmp_path / "trace.json"), "--memory-limit", limit]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "memory" in said or "not a size in bytes" in said


def test_nothing_is_no_name_of_a_folder():
    with pytest.raises(InputError, match="without a name"):
        opscope.load("")
