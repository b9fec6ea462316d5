"""The C header and its Python counterpart describe one layout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from opscope.toolchain.injection import recording as record_format
from opscope.toolchain.injection.library import native_folder
from opscope.toolchain.injection.recording import CHUNK_HEAD, HEADER, RECORDS, TEXT_HEAD, ChunkKind

COMPILER = shutil.which("cc") or shutil.which("gcc")
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
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a program that includes the header prints."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.c").write_text(_program(), encoding="utf-8")
    program = folder / "layout"
    command = [COMPILER, f"-I{native_folder()}", str(folder / "layout.c"), "-o", str(program)]
    subprocess.run(command, check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def _program() -> str:
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


def test_they_agree_on_every_field(told: list[str]) -> None:
    expected = []
    for struct, dtype in STRUCTS.items():
        expected.append(f"{struct} {dtype.itemsize}")
        for name in dtype.names or ():
            kind, offset = dtype.fields[name][:2]  # type: ignore[index]
            expected.append(f"{struct}.{name} {offset} {kind.itemsize}")
    expected += [f"{prefix}_{one.name} {one.value}" for prefix, enum in ENUMS.items() for one in enum]
    assert told == [*expected, record_format.MARK.decode()]


def test_every_kind_of_record_has_a_layout() -> None:
    assert set(RECORDS) == set(ChunkKind) - {ChunkKind.TEXTS}
    assert all(dtype.itemsize % 8 == 0 for dtype in RECORDS.values())


def test_the_sources_are_part_of_the_package() -> None:
    assert {path.name for path in Path(native_folder()).iterdir()} >= {
        "recorder.c",
        "record_format.h",
        "include",
    }
