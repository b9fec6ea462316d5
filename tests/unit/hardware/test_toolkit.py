"""Where programs of the CUDA toolkit are looked for."""

from pathlib import Path

import pytest

from opscope.hardware.driver import find_cuda_tool, require_nvcc


def program(folder, name="nvcc"):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with nothing of CUDA, and packages in the folder returned."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setattr("sys.path", [str(packages)])
    return packages


def test_folders_are_searched_in_order(bare, monkeypatch, tmp_path):
    (bare / "nvidia").mkdir()
    package = program(bare / "nvidia" / "cu13" / "bin")
    assert find_cuda_tool("nvcc", root=tmp_path) == package
    numbered = program(tmp_path / "usr/local/cuda-13.0/bin")
    assert find_cuda_tool("nvcc", root=tmp_path) == numbered
    usual = program(tmp_path / "usr/local/cuda/bin")
    assert find_cuda_tool("nvcc", root=tmp_path) == usual
    on_path = program(tmp_path / "path")
    assert find_cuda_tool("nvcc", root=tmp_path) == on_path
    home = program(tmp_path / "home" / "bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert find_cuda_tool("nvcc") == home == require_nvcc()


def test_the_newest_version_that_installers_put_somewhere_is_taken(bare, tmp_path):
    for folder in (
        "nsight-systems/2025.1/target-linux-x64",
        "nsight-compute/2024.1",
        "nsight-compute/2025.3",
    ):
        program(tmp_path / "opt/nvidia" / folder, Path(folder).parts[0].partition("-")[2])
    assert find_cuda_tool("compute", root=tmp_path) == str(
        tmp_path / "opt/nvidia/nsight-compute/2025.3/compute"
    )
    assert find_cuda_tool("systems", root=tmp_path) is not None
