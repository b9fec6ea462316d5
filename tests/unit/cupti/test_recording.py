"""Files of records: as the C writer makes them, and damaged."""

import shutil
import subprocess
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.cupti import recording as record_format
from opscope.cupti.library import native_folder
from opscope.cupti.recording import (
    CHUNK_HEAD,
    HEADER,
    RECORDS,
    TEXT_HEAD,
    ChunkKind,
    FileState,
    TextTable,
    read_recording,
)
from opscope.errors import InputError

from .record_bytes import chunk, header, text

NATIVE = Path(__file__).parent / "native"


@pytest.fixture(scope="module")
def compiler():
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        pytest.skip("no C compiler")
    return found


@pytest.fixture(scope="module")
def writer(compiler, tmp_path_factory):
    program = tmp_path_factory.mktemp("writer") / "writer"
    sources = [str(NATIVE / "writer.c"), str(native_folder() / "record_file.c")]
    flags = ["-std=gnu11", "-Wall", "-Werror", "-O1", f"-I{native_folder()}"]
    subprocess.run([compiler, *flags, *sources, "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize(("kernels", "texts"), [(1, 1), (743, 300), (745, 1), (5000, 2000)])
def test_what_the_writer_writes_is_read(writer, tmp_path, kernels, texts):
    subprocess.run([writer, tmp_path, str(kernels), str(texts)], check=True)
    (path,) = tmp_path.iterdir()
    recording = read_recording(path)
    assert recording.outcome.truncated_bytes == 0
    assert recording.outcome.state is FileState.ENDED
    assert recording.of(ChunkKind.KERNELS)["start_ns"].tolist() == [1000 + 10 * i for i in range(kernels)]
    assert recording.of(ChunkKind.RUNTIME_CALLS)["correlation"].tolist() == list(range(kernels))
    names = recording.names[TextTable.KERNEL]
    assert names == {i: "kernel_" + "x" * i for i in range(min(kernels, texts))}
    assert recording.activity_count == 2 * kernels


NAME = text(TextTable.KERNEL, 0, b"_Z3addv")
WHOLE = (
    header(process=7, start_ns=5, start_realtime_ns=1005, write_errno=28, lost_count=3)
    + NAME
    + chunk(ChunkKind.KERNELS, 3)
    + chunk(ChunkKind.RUNTIME_CALLS, 2)
    + chunk(ChunkKind.KERNELS, 1)
)


HEAD, KERNEL, CALL = (
    one.itemsize for one in (CHUNK_HEAD, RECORDS[ChunkKind.KERNELS], RECORDS[ChunkKind.RUNTIME_CALLS])
)
# Lengths of the whole file at which a header, a text or a record ends.
ENDS = list(
    accumulate([HEADER.itemsize, len(NAME), HEAD + KERNEL, KERNEL, KERNEL, HEAD + CALL, CALL, HEAD + KERNEL])
)


def read(folder, content):
    path = folder / "7.0.cuda"
    path.write_bytes(content)
    return read_recording(path)


@given(length=st.integers(HEADER.itemsize, len(WHOLE)))
def test_a_file_cut_anywhere_gives_its_whole_records(tmp_path_factory, length):
    recording = read(tmp_path_factory.mktemp("cut"), WHOLE[:length])
    first = HEADER.itemsize + len(NAME) + HEAD
    starts = recording.of(ChunkKind.KERNELS)["start_ns"].tolist()
    expected = max(0, min(3, (length - first) // KERNEL))
    assert starts[:expected] == [10, 11, 12][:expected]
    assert len(starts) == expected + (length == len(WHOLE))
    whole = max(end for end in ENDS if end <= length)
    assert recording.outcome.truncated_bytes == length - whole


def test_a_kind_of_a_later_version_ends_the_reading_and_no_file_is_an_error(tmp_path):
    unknown = np.array([(99, 1, 8)], CHUNK_HEAD).tobytes() + b"12345678"
    assert read(tmp_path, WHOLE + unknown).outcome.truncated_bytes == len(unknown)
    with pytest.raises(InputError, match="No such file"):
        read_recording(tmp_path / "none.cuda")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no header"),
        (b"opscope cuda 01", "has no header"),
        (b"x" * HEADER.itemsize, "not a file of records"),
        (header(header_bytes=512), "not a file of records"),
        (header(state=77), "not a file of records"),
    ],
)
def test_what_is_no_file_of_records(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, content)


STRUCTS = {
    "file_header": HEADER,
    "chunk_head": CHUNK_HEAD,
    "text_record": TEXT_HEAD,
    "kernel_record": RECORDS[ChunkKind.KERNELS],
    "copy_record": RECORDS[ChunkKind.COPIES],
    "set_record": RECORDS[ChunkKind.SETS],
    "call_record": RECORDS[ChunkKind.RUNTIME_CALLS],
    "migration_record": RECORDS[ChunkKind.MIGRATIONS],
    "overhead_record": RECORDS[ChunkKind.OVERHEADS],
    "device_record": RECORDS[ChunkKind.DEVICES],
}
ENUMS = {
    "FILE": record_format.FileState,
    "UNIFIED": record_format.UnifiedState,
    "CHUNK": ChunkKind,
    "TEXT": record_format.TextTable,
}


@pytest.fixture(scope="module")
def told(compiler, tmp_path_factory):
    """What a program that includes the header prints."""
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.c").write_text(_program(), encoding="utf-8")
    program = folder / "layout"
    subprocess.run([compiler, f"-I{native_folder()}", folder / "layout.c", "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def _program():
    lines = []
    for struct, dtype in STRUCTS.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof(struct {struct}));')
        for field in dtype.names or ():
            at, size = f"offsetof(struct {struct}, {field})", f"sizeof(((struct {struct} *)0)->{field})"
            lines.append(f'printf("{struct}.{field} %zu %zu\\n", {at}, {size});')
    for prefix, enum in ENUMS.items():
        lines += [f'printf("{prefix}_{one.name} %d\\n", {prefix}_{one.name});' for one in enum]
    lines.append('printf("%s\\n", RECORD_MARK);')
    body = "\n".join(lines)
    return (
        '#include <stddef.h>\n#include <stdio.h>\n#include "record_format.h"\n'
        f"int main(void) {{\n{body}\nreturn 0; }}\n"
    )


def test_they_agree_on_every_field(told):
    expected = []
    for struct, dtype in STRUCTS.items():
        expected.append(f"{struct} {dtype.itemsize}")
        for name in dtype.names or ():
            kind, offset = dtype.fields[name][:2]
            expected.append(f"{struct}.{name} {offset} {kind.itemsize}")
    expected += [f"{prefix}_{one.name} {one.value}" for prefix, enum in ENUMS.items() for one in enum]
    assert told == [*expected, record_format.MARK.decode()]
