"""Reports of nsys found, exported and read."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from opscope.errors import CaptureError
from opscope.toolchain import nsys as running
from opscope.toolchain.nsys import export_report, readable_source


@pytest.fixture(autouse=True)
def _nowhere_else(monkeypatch, tmp_path):
    monkeypatch.setattr(running, "find_cuda_tool", shutil.which)
    monkeypatch.setenv("PATH", str(tmp_path))


def stand_in(folder, body):
    """An executable nsys with a Python body."""
    path = folder / "nsys"
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(0o755)
    return str(path)


EXPORTS = "open(next(w[9:] for w in sys.argv if w.startswith('--output=')), 'w').write('export')"


def test_an_export_that_fails_says_what_nsys_said(tmp_path):
    executable = stand_in(tmp_path, "sys.stderr.write('Importer error: version\\n'); sys.exit(1)")
    with pytest.raises(CaptureError, match="Importer error: version"):
        export_report(tmp_path / "r.nsys-rep", tmp_path / "r.sqlite", executable=executable)


class TestReadableSources:
    def test_an_export_beside_a_report_is_read_if_it_is_no_older(self, tmp_path):
        report, export = tmp_path / "r.nsys-rep", tmp_path / "r.sqlite"
        report.touch()
        export.touch()
        os.utime(report, ns=(0, 1000))
        os.utime(export, ns=(0, 1000))
        with readable_source(str(report)) as found:
            assert found == str(export)
        os.utime(export, ns=(0, 999))
        with readable_source(str(report)) as found:
            assert found == str(report)

    def test_a_report_is_exported_for_as_long_as_it_is_read(self, tmp_path):
        report = tmp_path / "r.NSYS-REP"
        report.touch()
        with readable_source(str(report)) as found:
            assert found == str(report)
        stand_in(tmp_path, EXPORTS)
        with readable_source(str(report)) as found:
            assert Path(found).name == "r.sqlite"
            assert Path(found).read_text() == "export"
        assert not Path(found).exists()
        assert [one.name for one in tmp_path.iterdir() if one.suffix == ".sqlite"] == []
