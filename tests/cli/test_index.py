"""`opscope index`: the list of releases, and adding a library or a checkout that traces then use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from opscope.api import load
from opscope.provenance.binaries.translation_unit import TranslationUnit
from opscope.provenance.indexer import units as additions
from opscope.provenance.operators import packaged_table
from opscope.provenance.operators import table as lookup
from opscope.provenance.releases.catalog import forget_tables
from opscope.provenance.resolution import annotate, session_of_names
from opscope.provenance.resolution import evidence as gather

Run = Callable[..., Any]

PACKAGED = ["2.6.0", "2.11.0", "2.13.0", "2.14.1"]
ELF = b"\x7fELF\x02\x01\x01".ljust(64, b"\0")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILE = "aten/src/ATen/native/cuda/Scale.cu"
KERNEL = "void at::native::scale_kernel<float, 4>(float*, int)"


@pytest.fixture(autouse=True)
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The empty folder of added tables; no torch is installed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(lookup, "installed_table", lambda: None)
    monkeypatch.setattr(gather, "include_folder", lambda: None)
    packaged_table.cache_clear()
    yield tmp_path / "cache" / "opscope" / "releases"
    packaged_table.cache_clear()
    forget_tables()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library with one kernel of `Scale.cu`, in no installation."""

    class Fake:
        build_id = None

        def kernel_names(self) -> list[str]:
            return [KERNEL]

        def units_of(self, _: str) -> tuple[TranslationUnit, ...]:
            return (TranslationUnit("Scale.cu", None, FILE),)

    monkeypatch.setattr(additions, "read_library", lambda path: Fake())
    path = tmp_path / "libtorch_cuda.so"
    path.write_bytes(ELF)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A PyTorch source tree of 2.12.0 with one kernel and one structured function."""
    texts = {
        "version.txt": "2.12.0a0\n",
        ".git/HEAD": f"{COMMIT}\n",
        FILE: """
            #include <ATen/native/cuda/Loops.cuh>
            namespace at::native {
            template <typename scalar_t, int vec_size>
            __global__ void scale_kernel(scalar_t* data, int n) {
              data[0] = n;
            }
            }
            """,
        "aten/src/ATen/native/cuda/Blas.cpp": """
            namespace at::native {
            TORCH_IMPL_FUNC(mm_out_cuda)(const Tensor& self, const Tensor& mat2, const Tensor& result) {
              scale(result);
            }
            }
            """,
    }
    root = tmp_path / "pytorch"
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(dedent(text).lstrip("\n"), encoding="utf-8")
    return root


class TestListing:
    def test_without_options_it_lists_the_packaged_releases(self, opscope: Run) -> None:
        found = opscope("index")
        assert (found.code, found.err) == (0, "")
        head, *rows = [line for line in found.out.splitlines() if line.strip()][1:]
        assert head.split()[:4] == ["PyTorch", "Tables", "Kernels", "Units"]
        assert [row.split()[0] for row in rows[1:5]] == PACKAGED
        assert rows[1].split()[1] == "packaged"
        assert "A dash: no such table" in rows[5]

    @pytest.mark.parametrize("columns", [80, 200])
    def test_no_figure_is_cut(self, opscope: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = opscope("index").out.splitlines()
        assert max(map(len, lines)) <= columns
        assert not any("…" in line for line in lines)

    def test_as_json_it_is_one_document(self, opscope: Run) -> None:
        found = opscope("index", "--json")
        assert (found.code, found.err) == (0, "")
        document = json.loads(found.out)
        assert document["schema_version"] == 1
        assert document["written"] == []
        assert [one["version"] for one in document["releases"]] == PACKAGED
        assert document["releases"][0] == {
            "version": "2.6.0", "is_added": False, "kernels": 21027, "units": 411,
            "native_functions": 3144, "definitions": document["releases"][0]["definitions"],
            "header_definitions": None,
        }  # fmt: skip


class TestRefusing:
    """Exit code 1 and one line that says what, where, and what to do."""

    @pytest.mark.parametrize("options", [(), ("--release", "2.12.0"), ("--json",)])
    def test_a_library_that_is_none(self, opscope: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("no library at all")
        found = opscope("index", "--library", path, *options)
        assert (found.code, found.out) == (1, "")
        assert found.err == f"error: {path}, byte 0: not an ELF file\n"

    def test_a_library_without_device_code(self, opscope: Run, tmp_path: Path) -> None:
        path = tmp_path / "libm.so"
        path.write_bytes(ELF)
        found = opscope("index", "--library", path, "--release", "2.12.0")
        assert (found.code, found.err) == (1, f"error: {path}: no CUDA device code in it\n")

    def test_a_library_of_unknown_version(self, opscope: Run, library: Path) -> None:
        found = opscope("index", "--library", library)
        assert found.code == 1
        assert found.err == (
            f"error: {library}: the library lies in no torch installation, so its version is unknown. "
            "Name it with --release\n"
        )

    def test_a_file_that_is_not_there(self, opscope: Run, tmp_path: Path) -> None:
        found = opscope("index", "--library", tmp_path / "none.so")
        assert found.code == 1
        assert str(tmp_path / "none.so") in found.err
        assert found.err.count("\n") == 1

    def test_a_folder_that_is_no_checkout(self, opscope: Run, tmp_path: Path) -> None:
        found = opscope("index", "--source", tmp_path)
        assert (found.code, found.out) == (1, "")
        assert found.err == (
            f"error: {tmp_path}: not a PyTorch source tree: it holds no aten/src/ATen. "
            "Give the root folder of a checkout of pytorch/pytorch\n"
        )

    def test_a_checkout_of_unknown_version(self, opscope: Run, checkout: Path) -> None:
        (checkout / "version.txt").unlink()
        found = opscope("index", "--source", checkout)
        assert found.code == 1
        assert str(checkout / "version.txt") in found.err

    @pytest.mark.parametrize("release", ["../escape", "a b", "ours"])
    def test_a_name_for_a_checkout_that_is_no_version(
        self, opscope: Run, checkout: Path, releases: Path, release: str
    ) -> None:
        found = opscope("index", "--source", checkout, "--release", release)
        assert found.code == 1
        assert f"{release!r} is not a version" in found.err
        assert not releases.exists()

    def test_a_release_with_nothing_to_add(self, opscope: Run) -> None:
        found = opscope("index", "--release", "2.12.0")
        assert (found.code, found.out) == (1, "")
        assert "--library or --source" in found.err

    def test_a_damaged_added_table(self, opscope: Run, releases: Path) -> None:
        damaged = releases / "2.12.0" / "units.msgpack.zst"
        damaged.parent.mkdir(parents=True)
        damaged.write_bytes(b"no table")
        found = opscope("index")
        assert (found.code, found.out) == (1, "")
        assert found.err.startswith(f"error: {damaged}: not a kernel table")
        assert found.err.count("\n") == 1


class TestAdding:
    def test_a_library_under_a_given_release(self, opscope: Run, library: Path, releases: Path) -> None:
        written = releases / "2.12.0" / "units.msgpack.zst"
        found = opscope("index", "--library", library, "--release", "2.12.0")
        assert (found.code, found.err) == (0, "")
        assert found.out.splitlines()[-1] == f"Wrote {written}"
        (row,) = [line for line in found.out.splitlines() if line.startswith("2.12.0")]
        assert row.split() == ["2.12.0", "added", "1", "1", "–", "–", "–"]

    def test_as_json_what_was_written_is_in_the_document(
        self, opscope: Run, library: Path, releases: Path
    ) -> None:
        written = str(releases / "2.12.0" / "units.msgpack.zst")
        found = opscope("index", "--library", library, library, "--release", "2.12.0", "--json")
        assert json.loads(found.out)["written"] == [written]
        assert found.err == f"Wrote {written}\n"

    def test_a_checkout_answers_for_its_release(
        self, opscope: Run, checkout: Path, library: Path, releases: Path
    ) -> None:
        found = opscope("index", "--source", checkout, "--library", library, "--release", "2.12.0")
        assert (found.code, found.err) == (0, "")
        with session_of_names([("aten::mm", "")], [KERNEL], torch_version="2.12.0+cu130") as session:
            annotate(session)
            link = f"https://github.com/pytorch/pytorch/blob/{COMMIT}"
            assert session.query("SELECT torch_version, grade, source_indexes FROM recognition") == [
                ("2.12.0", "release_index", ["2.12.0"])
            ]
            assert session.query(
                "SELECT file, line, end_line, file_grade, line_grade, url FROM kernel_provenance"
            ) == [(FILE, 4, 6, "release_index", "release_index", f"{link}/{FILE}#L4-L6")]
            assert session.query(
                "SELECT cuda_function, file, line, overload_grade FROM native_functions"
            ) == [("mm_out_cuda", "aten/src/ATen/native/cuda/Blas.cpp", 2, "neighbor_version")]

    def test_the_version_of_a_checkout_is_read_from_it(
        self, opscope: Run, checkout: Path, releases: Path
    ) -> None:
        found = opscope("index", "--source", checkout)
        assert found.out.splitlines()[-1] == f"Wrote {releases / '2.12.0' / 'sources.msgpack.zst'}"
        (row,) = [line for line in found.out.splitlines() if line.startswith("2.12.0")]
        assert row.split() == ["2.12.0", "added", "–", "–", "–", "2", "–"]

    def test_a_trace_of_that_release_uses_it(
        self, opscope: Run, checkout: Path, library: Path, trace: Path, tmp_path: Path
    ) -> None:
        opscope("index", "--source", checkout, "--library", library, "--release", "2.12.0")
        renamed = tmp_path / "renamed.json"
        renamed.write_text(trace.read_text().replace("gelu_kernel", KERNEL))
        with load(renamed) as session:
            annotate(session)
            # Without a label one name is too little to tell the release for certain.
            assert session.query(
                "SELECT file, line, unit_grade FROM kernel_provenance WHERE file IS NOT NULL"
            ) == [(FILE, 4, "neighbor_version")]
