"""Every place a trace can lie in, every compression, and every way that fails."""

import builtins
import gzip
import json
import lzma
import marshal
import mmap
import sys
from pathlib import Path

import fsspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from case_tables import cases
from fakes import TraceBuilder
from opscope.errors import DependencyError, InputError
from opscope.ingest import source
from opscope.ingest.source import find_traces, local_text
from opscope.ingest.staging import locate_events

TEXT = TraceBuilder().operator("aten::mm", 10, 5).operator("aten::add", 30, 5).text().encode()


def read(path, scratch):
    (trace,) = find_traces(str(path))
    with local_text(trace, scratch) as local:
        return local.path.read_bytes(), local.damage


def codes(session):
    return {finding.code for finding in session.findings()}


class TestFinding:
    def test_the_traces_of_a_folder_in_the_natural_order_of_names(self, tmp_path):
        names = ["rank10.json", "rank2.json.gz", "rank1.json.zst", "a.json", "1²3.json", "10.json", "9.json"]
        for name in [*names, "t.opscope.json", ".hidden.json", "notes.txt", "t.json.partial"]:
            (tmp_path / name).touch()
        (tmp_path / "folder").mkdir()
        found = [Path(trace.name).name for trace in find_traces(str(tmp_path))]
        assert len(found) == len(names)
        assert found[:2] == ["1²3.json", "9.json"] or found[:3] == ["1²3.json", "9.json", "10.json"]
        assert found[-4:] == ["a.json", "rank1.json.zst", "rank2.json.gz", "rank10.json"]

    def test_a_pattern_of_names(self, tmp_path):
        for name in ("a/rank10.json", "a/rank2.json", "b/rank1.json.gz", "b/notes.txt"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text('{"traceEvents": [', "utf-8")
        found = find_traces(f"{tmp_path}/*/*")
        assert [one.name.removeprefix(f"{tmp_path}/") for one in found] == [
            "a/rank2.json", "a/rank10.json", "b/rank1.json.gz",
        ]  # fmt: skip
        with pytest.raises(InputError, match="no traces have names like this"):
            find_traces(f"{tmp_path}/*/*.txt")

    def test_a_file_of_any_name(self, tmp_path):
        path = tmp_path / "no suffix"
        path.write_bytes(TEXT)
        assert find_traces(str(path))[0].path == path
        assert find_traces(f"file://{path}")[0].path == path

    @pytest.mark.parametrize("name", ["missing.json", "missing/", "~nobody-of-that-name/t.json", "x" * 5_000])
    def test_nothing_there(self, tmp_path, name):
        given = name if name.startswith("~") else str(tmp_path / name)
        with pytest.raises(InputError, match="no such file or folder") as caught:
            find_traces(given)
        assert caught.value.source == given

    def test_a_folder_without_traces(self, tmp_path):
        with pytest.raises(InputError, match=r"the folder holds no traces\. Traces end in \.json, "):
            find_traces(str(tmp_path))

    def test_a_path_that_may_not_be_read_or_is_no_file(self, tmp_path):
        (tmp_path / "t.json").mkdir()
        with (
            pytest.raises(InputError, match="cannot be read"),
            local_text(source.TraceFile("t", path=tmp_path / "t.json"), tmp_path),
        ):
            pass


class TestCompression:
    @pytest.fixture(params=["isal", "zlib"])
    def inflate(self, request, monkeypatch):
        if request.param == "zlib":
            monkeypatch.setitem(sys.modules, "isal", None)
            monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
        else:
            pytest.importorskip("isal")
        return str(request.param)

    def test_plain_files_are_read_in_place(self, make_trace, tmp_path):
        path = make_trace(TEXT)
        with local_text(find_traces(str(path))[0], tmp_path) as local:
            assert local.path == path

    @pytest.mark.parametrize("name", ["t.json.gz", "t.json", "t"])
    def test_gzip_by_its_first_bytes(self, make_trace, tmp_path, inflate, name):
        path = make_trace(gzip.compress(TEXT), name)
        assert read(path, tmp_path) == (TEXT, None), inflate
        assert list(tmp_path.iterdir()) == [path]

    # The last one ends where the first member does.
    @pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 16, len(gzip.compress(TEXT[:100]))])
    def test_gzip_of_several_members(self, make_trace, tmp_path, inflate, monkeypatch, chunk):
        monkeypatch.setattr(source, "_GZIP_CHUNK_BYTES", chunk)
        parts = [TEXT[:100], b"", TEXT[100:101], TEXT[101:]]
        path = make_trace(b"".join(map(gzip.compress, parts)) + b"\0" * 99, "t.json.gz")
        assert read(path, tmp_path) == (TEXT, None), inflate

    def test_gzip_cut_off_or_damaged_is_salvaged(self, load, make_trace, inflate):
        compressed = gzip.compress(long_text())
        session = load(make_trace(compressed[: len(compressed) // 2], "t.json.gz"))
        assert {"trace.compression_damaged", "trace.truncated"} <= codes(session), inflate
        assert 100 < session.scalar("SELECT count(*) FROM operators") < 4_000
        compressed = bytearray(gzip.compress(long_text()))
        compressed[-6] ^= 0xFF
        session = load(make_trace(bytes(compressed), "t.json.gz"))
        assert {"trace.compression_damaged", "trace.truncated"} <= codes(session), inflate

    def test_gzip_without_any_text_is_an_error(self, make_trace, tmp_path, inflate):
        path = make_trace(gzip.compress(TEXT)[:15], "t.json.gz")
        with pytest.raises(InputError, match="broken gzip") as caught:
            read(path, tmp_path)
        assert (caught.value.source, caught.value.byte_offset) == (str(path), 15), inflate

    def test_zstd_of_one_or_several_frames(self, make_trace, tmp_path):
        compress = zstandard.ZstdCompressor().compress
        assert read(make_trace(compress(TEXT), "t.json.zst"), tmp_path) == (TEXT, None)
        frames = compress(TEXT[:50]) + compress(TEXT[50:])
        assert read(make_trace(frames, "t.json.zst"), tmp_path) == (TEXT, None)

    def test_zstd_damaged_or_cut_off_is_salvaged(self, load, make_trace, tmp_path):
        text = long_text()
        frames = zstandard.ZstdCompressor().compress(text[:50_000]) + b"\x28\xb5\x2f\xfd" + b"\xff" * 64
        session = load(make_trace(frames, "t.json.zst"))
        assert {"trace.compression_damaged", "trace.truncated"} <= codes(session)
        with pytest.raises(InputError, match="broken zstd"):
            read(make_trace(b"\x28\xb5\x2f\xfd" + b"\xff" * 64, "u.json.zst"), tmp_path)
        with pytest.raises(InputError, match="broken zstd: the zstd stream ends before any text"):
            read(make_trace(b"\x28\xb5\x2f\xfd", "v.json.zst"), tmp_path)
        compressed = zstandard.ZstdCompressor().compress(long_text())
        session = load(make_trace(compressed[: len(compressed) * 3 // 4], "t.json.zst"))
        assert "trace.truncated" in codes(session)


def long_text():
    trace = TraceBuilder()
    for index in range(4_000):
        trace.operator(f"aten::op{index * 7919 % 4001}", 10 * index, 8)
    return trace.text().encode()


class TestRemote:
    @pytest.fixture
    def memory(self):
        system = fsspec.filesystem("memory")
        yield system
        system.store.clear()
        system.pseudo_dirs[:] = [""]

    def test_a_file_and_a_compressed_one(self, memory, load):
        memory.pipe("/runs/t.json", TEXT)
        session = load("memory://runs/t.json")
        ((name, size_bytes),) = session.query("SELECT source, size_bytes FROM traces")
        assert name.startswith("memory://")
        assert name.endswith("runs/t.json")
        assert size_bytes == len(TEXT)
        memory.pipe("/runs/t.json.gz", gzip.compress(TEXT))
        assert load("memory://runs/t.json.gz").scalar("SELECT count(*) FROM operators") == 2

    def test_a_folder(self, memory, load):
        for name in ("rank10.json", "rank9.json", "rank9.opscope.json", "x.txt"):
            memory.pipe(f"/runs/{name}", TEXT)
        names = load("memory://runs").query("SELECT source FROM traces ORDER BY trace_id")
        assert [name.rsplit("/")[-1] for (name,) in names] == ["rank9.json", "rank10.json"]

    def test_nothing_there(self, memory):
        with pytest.raises(InputError, match="memory://none: no such file"):
            find_traces("memory://none")
        memory.makedirs("/empty")
        with pytest.raises(InputError, match="the folder holds no traces"):
            find_traces("memory://empty")

    def test_an_unknown_kind_of_address(self):
        with pytest.raises(InputError, match="unknown kind of address"):
            find_traces("nosuch://a/b.json")

    def test_a_system_that_fails(self, memory, monkeypatch):
        def fail(*_):
            raise ConnectionResetError("gone")

        monkeypatch.setattr(type(memory), "isdir", fail)
        with pytest.raises(InputError, match=r"cannot be reached \(ConnectionResetError: gone\)"):
            find_traces("memory://a.json")

    @cases("address", "module", "extra")
    def test_an_extra_that_is_not_installed(self, monkeypatch, address, module, extra):
        forget(monkeypatch, module)
        with pytest.raises(DependencyError) as caught:
            find_traces(address)
        assert caught.value.source == address
        assert f'pip install "opscope[{extra}]"' in str(caught.value)


def forget(monkeypatch, module):
    """Make a module look uninstalled, and fsspec try anew."""
    real = builtins.__import__

    def fail(name, *rest, **more):
        if name.split(".", maxsplit=1)[0] == module:
            raise ImportError(f"No module named {module!r}")
        return real(name, *rest, **more)

    for loaded in [name for name in sys.modules if name.startswith("fsspec.implementations.http")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", fail)
    monkeypatch.setattr(sys.modules["fsspec.registry"], "_registry", {})


def test_a_file_name_that_is_not_utf8(load, tmp_path):
    path = tmp_path / b"caf\xe9.json".decode("utf-8", "surrogateescape")
    try:
        path.write_bytes(TEXT)
    except OSError:
        pytest.skip("this file system refuses such names")
    assert load(path).query("SELECT source FROM traces") == [(str(tmp_path / "caf?.json"),)]


EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "cpu_op", "name": "a}]b", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2, "args": {}},
    {"ph": "X", "cat": "cpu_op", "name": 'q"},{"', "pid": 1, "tid": 1, "ts": 5, "dur": 2,
     "args": {"nested": [{"a": 1}, {"name": "b"}, {"c": [{"d": 2}]}]}},
]  # fmt: skip
TRAILER = {
    "INFO": ["[x] }] {", "a, ]}"],
    "distributedInfo": {"backend": "nccl", "rank": 3, "pg_config": [{"pg_name": "0"}, {"pg_name": "1"}]},
    "other": [{"a": 1}, {"b": [{}]}],
    "traceName": "/tmp/}],x",
}


def locate(content):
    """The array, and the bytes it spans."""
    data = content if isinstance(content, bytes) else content.encode()
    with mmap.mmap(-1, max(1, len(data))) as text:
        text[:] = data or b" "
        found = locate_events(text, "t.json")
        return found, text[found.start : found.end]


def events_of(content):
    found, span = locate(content)
    return json.loads(b"[" + span + b"]", strict=False), found.properties, found.lost_bytes


def error_of(content):
    with pytest.raises(InputError) as caught:
        locate(content)
    assert caught.value.source == "t.json"
    return caught.value


class TestWholeFiles:
    @pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n\t", " :\r\n")])
    @pytest.mark.parametrize("trailer", [{}, TRAILER], ids=["array-last", "keys-after"])
    @pytest.mark.parametrize("header", [{}, {"schemaVersion": 1, "deviceProperties": [{"id": 0}, {"id": 1}]}])
    def test_keys_before_and_after(self, header, trailer, separators):
        text = json.dumps({**header, "traceEvents": EVENTS, **trailer}, separators=separators)
        assert events_of(text) == (EVENTS, {**header, **trailer}, 0)

    @pytest.mark.parametrize("indent", [None, 0, 2])
    def test_a_bare_array(self, indent):
        assert events_of(json.dumps(EVENTS, indent=indent) + "\n") == (EVENTS, {}, 0)

    def test_whitespace_a_byte_order_mark_and_bytes_after_the_object(self):
        text = "\ufeff \n\t" + json.dumps({"traceEvents": EVENTS}) + "\r\n \n"
        assert events_of(text) == (EVENTS, {}, 0)
        assert events_of("\ufeff" + json.dumps(EVENTS)) == (EVENTS, {}, 0)
        assert events_of(json.dumps({"traceEvents": EVENTS}) + "\0\0\0") == (EVENTS, {}, 5)

    @cases("header")
    def test_the_key_elsewhere_is_not_the_array(self, header):
        header = {"wrapped": header} if "traceEvents" in header else header
        assert events_of(json.dumps({**header, "traceEvents": EVENTS})) == (EVENTS, header, 0)

    def test_flaws_in_other_keys_do_not_hide_the_array(self):
        text = b'{"a": NaN, "b": "\xff\x01", "traceEvents": [{"ph": "X"}], "traceName": "/tmp/\xe9"}'
        events, properties, lost_bytes = events_of(text)
        assert (events, lost_bytes) == ([{"ph": "X"}], 0)
        assert properties.keys() == {"a", "b", "traceName"}
        assert properties["traceName"] == "/tmp/\ufffd"

    def test_a_long_trailer_and_many_events(self):
        trailer = {"distributedInfo": {"pg_config": [{"ranks": list(range(50))} for _ in range(2_000)]}}
        text = json.dumps({"traceEvents": EVENTS, **trailer, "z": [{"q": 1}]})
        assert len(text) > 3 * (1 << 16)
        assert events_of(text) == (EVENTS, {**trailer, "z": [{"q": 1}]}, 0)
        many = EVENTS * 2_000
        text = json.dumps({"a": 1, "traceEvents": many, **TRAILER})
        assert events_of(text) == (many, {"a": 1, **TRAILER}, 0)


class TestTruncation:
    @pytest.mark.parametrize("trailer", [{}, TRAILER], ids=["array-last", "keys-after"])
    @pytest.mark.parametrize("form", ["object", "pretty", "bare"])
    def test_at_every_byte(self, form, trailer):
        if form == "bare":
            text = json.dumps(EVENTS)
        else:
            indent = 1 if form == "pretty" else None
            text = json.dumps({"a": "é", "traceEvents": EVENTS, **trailer}, indent=indent, ensure_ascii=False)
        data = text.encode()
        ends = event_ends(data)
        for cut in range(len(data)):
            complete = [end for end in ends if end <= cut]
            if not complete:
                assert (error_of(data[:cut]).byte_offset is not None) == (cut > 0)
                continue
            events, _, lost_bytes = events_of(data[:cut])
            assert events == EVENTS[: len(complete)], cut
            assert lost_bytes == cut - complete[-1], cut

    @given(st.binary(max_size=40), st.integers(0, 200))
    def test_garbage_at_the_end_is_salvaged_or_refused(self, garbage, cut):
        data = json.dumps({"traceEvents": EVENTS}).encode()[: -cut or None] + garbage
        try:
            found, _ = locate(data)
        except InputError:
            return
        assert 0 < found.start < found.end <= len(data)
        assert 0 <= found.lost_bytes <= len(data) - found.end


def event_ends(data):
    """Offset just after every event, by a decoder that is not ours."""
    text = data.decode()
    position = text.index("[", text.index('"traceEvents"') if text.startswith("{") else 0) + 1
    decoder, found = json.JSONDecoder(), []
    while True:
        while text[position] in " \n,":
            position += 1
        if text[position] == "]":
            return found
        position = decoder.raw_decode(text, position)[1]
        found.append(len(text[:position].encode()))


class TestNoTrace:
    @cases("content", "message", "byte_offset")
    def test_says_what_and_where(self, content, message, byte_offset):
        error = error_of(content.encode("latin-1"))
        assert error.message.startswith(message)
        assert error.byte_offset == byte_offset

    def test_says_which_other_file_it_is(self):
        archive = "an archive, not a trace"
        for head, message in (
            (b"NVR\0", "a report of Nsight Compute, not a trace"), (b"PK\3\4", archive),
            (b"t.json".ljust(257, b"\0") + b"ustar", archive),
            (bytes(8) + b"DUCK", "a saved session, not a trace"),
            (marshal.dumps({("a.py", 1, "f"): (1, 1, 0.5, 0.5, {})}), "a profile of cProfile"),
            (b"\x0a\xa1\xf0\x08\x12\x0e/host:metadata", "a profile of XLA"),
            (b"\x0a\x1d\x32\x19\x0a\x07\x08\x06", "a trace in Perfetto's own format"),
            (lzma.compress(b'{"traceEvents": []}'), "packed with xz, bzip2 or 7-Zip"),
        ):  # fmt: skip
            error = error_of(head + bytes(64))
            assert (error.message[: len(message)], error.byte_offset) == (message, None)
            assert error.hint
        deep = b'{"a": ' + b"[" * 100_000 + b', "traceEvents": []}'
        assert error_of(deep).message.startswith("not valid JSON")
