"""The scanner: compiled and in Python the same, whole or in chunks, exact, and safe on any bytes."""

import gzip
import json
import mmap
import os
import random
import shutil
import subprocess
from contextlib import contextmanager
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.ingest import scan as scanning
from opscope.ingest.scan import MEMBERS, TARGETS, ColumnKind, scan, scan_in_python, scan_natively

exhaustive = pytest.mark.exhaustive(few=False)
needs_library = pytest.mark.skipif(scanning.native_library() is None, reason="scan.c was not compiled here")
passes = pytest.mark.parametrize(
    "one_pass", [pytest.param(scan_natively, marks=needs_library), scan_in_python], ids=["C", "Python"]
)
SOUND = b'{"ph": "X", "name": "%d", "args": {"a": [{"b": 1}], "stream": {}}}'
ODD = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"NaN", b"null", b"-", b"1e5", b"\n", b"\xff", b"\x00",
    b"\\ud800", b"\\u00e9", b"\\x", b"0.0000001", b"99999999999999999999", b"-inf", b'"ph"', b"{}",
]  # fmt: skip


@contextmanager
def mapped(data):
    with mmap.mmap(-1, max(1, len(data))) as text:
        text[:] = data or b" "
        yield text


def rows(scanned):
    """Each event as a person would write it."""
    kinds = {member.name: member.kind for member in MEMBERS}
    found = [{} for _ in range(scanned.row_count)]
    heads = [{} for _ in scanned.heads["ph"][0]]
    everything = [(range(len(heads)), heads, scanned.heads)]
    everything += [(place.tolist(), found, columns) for place, _, columns in scanned.classes]
    for places, into, columns in everything:
        for name, (values, bits) in columns.items():
            present = np.unpackbits(bits, count=len(places), bitorder="little")
            shown = values.view(np.float64) if kinds[name] is ColumnKind.REAL else values
            for at in np.flatnonzero(present).tolist():
                value = shown[at].item()
                into[places[at]][name] = scanned.decoded[value] if values.dtype == np.int32 else value
    for places, of_each, _ in scanned.classes:
        for place, head in zip(places.tolist(), of_each.tolist(), strict=True):
            found[place] = heads[head] | found[place]
    return found


def events(one_pass, data):
    with mapped(data) as text:
        scanned = scanning._decoded(text, one_pass(text, 1, len(text)))
        return rows(scanned), scanned


def outcome(one_pass, data):
    found, scanned = events(one_pass, data)
    return found, scanned[1:8], scanned.flaws


def mutated(data, chance):
    """Some of a text, broken in one to three places."""
    start = chance.randrange(max(1, len(data) - 4_000))
    piece = bytearray(b"[" + data[start : start + 4_000])
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(piece))
        how = chance.randrange(4)
        if how == 0:
            piece[at] = chance.randrange(256)
        elif how == 1:
            del piece[at : at + chance.randrange(1, 30)]
        elif how == 2:
            piece[at:at] = chance.choice(ODD)
        else:
            del piece[at:]
        piece = piece or bytearray(b"[")
    return bytes(piece)


@needs_library
class TestTheSame:
    @pytest.mark.parametrize("part", [0, *(pytest.param(one, marks=exhaustive) for one in range(1, 8))])
    def test_of_every_trace_and_of_broken_ones(self, shared, part):
        files = [*shared.glob("traces/**/*.json.gz"), *shared.glob("field/files/*.json.gz")]
        assert len(files) > 40
        files = sorted(files)[part::8]
        for file in files:
            data = gzip.decompress(file.read_bytes())
            array = data[data.find(b"[", max(0, data.find(b'"traceEvents"'))) :]
            chance = random.Random(file.name)
            for text in (array[:300_000], *(mutated(array, chance) for _ in range(20))):
                assert outcome(scan_natively, text) == outcome(scan_in_python, text), (file, text[:5_000])


class TestNumbers:
    @passes
    def test_every_digit_of_a_time(self, one_pass):
        chance = random.Random(1)
        texts = [
            "0", "-0.0005", "1e-9", "1.5e3", "9223372036854775.807", "9223372036854775.808", "-5.25", "1E2",
        ]  # fmt: skip
        for _ in range(2_000):
            whole = str(chance.randrange(10 ** chance.randrange(1, 17)))
            digits = chance.randrange(6)
            fraction = "." + str(chance.randrange(10**digits)).zfill(digits) if digits else ""
            texts.append(chance.choice(("", "-")) + whole + fraction + chance.choice(("", "", "e3", "e-2")))
        found, _ = events(one_pass, ("[" + ",".join(f'{{"ts":{text}}}' for text in texts) + "]").encode())
        for text, event in zip(texts, found, strict=True):
            exact = int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_UP))
            assert event.get("start_ns") == (exact if abs(exact) < 1 << 63 else None), text

    @passes
    @cases("text", "value")
    def test_a_value_of_another_type_is_none(self, one_pass, text, value):
        found, chunk = events(one_pass, b'[{"ph":"X","args":{"stream": %b}}]' % text.encode())
        assert found[0].get("stream") == value
        assert chunk.irregular_count == (value is None)


class TestBrokenEvents:
    @passes
    @pytest.mark.parametrize(
        "broken",
        [
            b'{"ph": "X", "name": "Library("_inductor", "IMPL")\n(1)", "args": {"a": {"b": 1}}}',
            b'{"ph": "X", "name": "C:\\Users\\user\\x.py"}',
            b'{"ph": "X", "name": "cut off',
            b'{"ph": "X", "dur": , "args": {"ts": 1}}',
            b'{"ph": "X", "name": "\\ud800"}',
            b'{"ph": "X", "args": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
            b'"no event"',
        ],
        ids=["quotes", "backslashes", "cut", "no-value", "half-character", "deep", "text"],
    )
    @pytest.mark.parametrize("place", [0, 1, 39])
    def test_one_costs_itself_alone(self, one_pass, broken, place):
        sound = [SOUND % index for index in range(40)]
        text = b"[" + b",\n  ".join([*sound[:place], broken, *sound[place:]]) + b"]"
        found, chunk = events(one_pass, text)
        assert [event["name"] for event in found] == [str(index) for index in range(40)]
        assert chunk.flaws == {"broken_events": text.index(broken)}
        assert chunk.is_closed
        assert chunk.irregular_count == 40  # no value twice

    @passes
    def test_what_no_text_may_hold_is_replaced(self, one_pass):
        text = b'[{"name": "a\x01b"}, {"name": "\xff\xe9c"}, {"name": "\\u00e9\\n\\ud83d\\ude00"}]'
        found, chunk = events(one_pass, text)
        assert [event["name"] for event in found] == ["a b", "??c", "é\n😀"]
        assert chunk.flaws == {"control_characters": text.index(b"\x01"), "invalid_utf8": text.index(b"\xff")}

    @passes
    def test_an_event_too_large_to_be_one(self, one_pass):
        huge = b'{"ph": "X", "name": "' + b"x" * (17 << 20) + b'"}'
        found, chunk = events(one_pass, b"[" + b",".join([SOUND % 1, huge, SOUND % 2]) + b"]")
        assert [event["name"] for event in found] == ["1", "2"]
        assert chunk.flaws == {"broken_events": 2 + len(SOUND % 1)}


class TestChunks:
    @cases("chunk_bytes", "name")
    def test_cuts_change_nothing(self, load, monkeypatch, chunk_bytes, name):
        trace = TraceBuilder()
        for index in range(60):
            trace.operator(f"{name}{index % 7}", 10 * index, 8, decoy=[{"name": "a"}, {"ph": "X"}] * 3)
            trace.launch(10 * index + 1).kernel(f"k{index % 3}", 10 * index + 5, 3)
        queries = (
            "SELECT name, start_ns, duration_ns, depth, self_device_ns FROM operators ORDER BY start_ns",
            "SELECT activity_id, stream, start_ns, attribution FROM device_activities ORDER BY activity_id",
            "SELECT event_count FROM traces",
        )
        whole = load(trace)
        monkeypatch.setattr(scanning, "_CHUNK_BYTES", chunk_bytes)
        session = load(trace, threads=3)
        for query in queries:
            assert session.query(query) == whole.query(query)

    def test_a_cut_inside_of_a_text_is_made_good(self, monkeypatch):
        monkeypatch.setattr(scanning, "_CHUNK_BYTES", 64)
        decoy = json.dumps("},".join(['{"ph":"X"'] * 20))
        data = (
            b"["
            + b",".join(b'{"ph":"X","name":%b,"tid":%d}' % (decoy.encode(), at) for at in range(9))
            + b"]"
        )
        with mapped(data) as text, scan(text, 1, 2) as chunks:
            found = [event["tid"] for chunk in chunks for event in rows(chunk)]
        assert found == [str(at) for at in range(9)]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
@pytest.mark.exhaustive(few=False)
def test_no_byte_out_of_place_and_nothing_undefined(tmp_path):
    """scan.c under the sanitizers of addresses and undefined behaviour, on broken texts of every kind."""
    source = Path(scanning.__file__).with_name("scan.c")
    program, driver = tmp_path / "driver", Path(__file__).with_name("scan_driver.c")
    keys = ", ".join(
        f'{{"{one.key}", {len(one.key.encode())}, {one.kind.value}, {target}, {int(one.in_arguments)}}}'
        for one, target in zip(MEMBERS, TARGETS, strict=True)
    )
    (tmp_path / "members.h").write_text(keys)
    names = ", ".join(f'"{name}"' for name in scanning._CATEGORIES)
    numbers = ", ".join(map(str, scanning._CATEGORIES.values()))
    given = f"const char *const categories[] = {{{names}}};\nconst int32_t classes[] = {{{numbers}}};\n"
    (tmp_path / "categories.h").write_text(given)
    flags = [
        f"-I{source.parent}",
        f"-I{tmp_path}",
        "-std=gnu11",
        "-g",
        "-O1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]
    built = subprocess.run(
        ["gcc", *flags, str(driver), "-o", str(program)], capture_output=True, text=True, check=False
    )
    if "cannot find" in built.stderr:
        pytest.skip("gcc has no sanitizers here")
    assert built.returncode == 0, built.stderr
    chance, files = random.Random(5), []
    text = (
        TraceBuilder()
        .operator("aten::mm", 1, 5, **{"Input Dims": [[2, 2]]})
        .launch(2)
        .kernel("k", 3, 1)
        .text()
    )
    array = text[text.index("[") :].encode() * 20
    for index in range(int(os.environ.get("OPSCOPE_SCAN_CASES", "500"))):
        files.append(tmp_path / f"{index}.json")
        files[-1].write_bytes(mutated(array, chance)[1:])
    for at in range(0, len(files), 500):
        run = subprocess.run([program, *files[at : at + 500]], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr[-3000:]


def test_a_machine_without_a_compiler_reads_the_same(load, shared, monkeypatch):
    file = shared / "traces" / "h200" / "bert_compile_bf16.json.gz"
    queries = (
        "FROM operators", "FROM device_activities", "FROM runtime_calls", "FROM frames", "FROM modules",
    )  # fmt: skip
    compiled = load(file, threads=2)
    monkeypatch.setattr(scanning, "native_library", lambda: None)
    in_python = load(file, threads=2)
    for query in queries:
        assert in_python.query(query) == compiled.query(query)
