"""What an nvcc says of itself: scripts in place of releases, and the one of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.errors import DependencyError
from opscope.hardware.architectures import Target
from opscope.hardware.toolkit import find_cuda_tool
from opscope.toolchain.nvcc.command import read_nvcc

VERSION = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2023 NVIDIA Corporation
Cuda compilation tools, release {release}, V{version}
Build cuda_{release}.r{release}/compiler.33281558_0"""
HELP = """
        Allowed values for this option:  'compute_50','compute_80','compute_90','compute_90a',
        'lto_50','sm_50','sm_80','sm_90','sm_90a'."""


def nvcc(folder: Path, *, release: str = "12.3", version: str = "12.3.52", listing: str | None = None) -> str:
    """A program that answers as nvcc does; without a listing it does not know the option."""
    answers = "\n".join(f"echo {word}" for word in (listing or "").split()) or "exit 1"
    script = folder / "nvcc"
    script.write_text(
        "#!/bin/sh\n"
        f'case "$1" in\n'
        f"--version) cat <<'EOF'\n{VERSION.format(release=release, version=version)}\nEOF\n;;\n"
        f"--help) cat <<'EOF'\n{HELP}\nEOF\n;;\n"
        f"--list-gpu-code) {answers}\n;;\nesac\n"
    )
    script.chmod(0o755)
    return str(script)


def test_release_and_targets_with_those_only_the_help_has(tmp_path):
    found = read_nvcc(nvcc(tmp_path, listing="sm_50 sm_80 sm_90"))
    assert (found.release, found.version) == ("12.3", "12.3.52")
    assert [one.name for one in found.targets] == ["sm_50", "sm_80", "sm_90", "sm_90a"]
    assert found.general_targets == (Target(5, 0), Target(8, 0), Target(9, 0))


def test_a_release_without_the_listing_is_read_by_its_help(tmp_path):
    assert [one.name for one in read_nvcc(nvcc(tmp_path)).targets][-1] == "sm_90a"


def test_what_does_not_answer_is_no_nvcc(tmp_path):
    script = tmp_path / "nvcc"
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o755)
    with pytest.raises(DependencyError, match="does not answer as nvcc does"):
        read_nvcc(str(script))
    with pytest.raises(DependencyError, match="cannot be started"):
        read_nvcc(str(tmp_path / "nothing"))


@pytest.mark.skipif(find_cuda_tool("nvcc") is None, reason="no nvcc")
def test_the_nvcc_here_knows_hopper():
    found = read_nvcc(find_cuda_tool("nvcc") or "")
    assert Target(9, 0) in found.targets
    assert int(found.release.split(".")[0]) >= 11
