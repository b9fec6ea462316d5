"""Building the CUDA kernels: what is missing, what the compilers say. torch and its builder are fakes."""

import os
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest

from opscope.errors import DependencyError, MeasurementError
from opscope.kernels import build

NINJA_OUTPUT = Path(__file__).with_name("ninja_output.txt").read_text(encoding="utf-8")


class FakeBuilder:
    """torch.utils.cpp_extension, with a toolkit of one empty nvcc."""

    def __init__(self, folder):
        nvcc = folder / "cuda" / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text("#!/bin/sh\n")
        nvcc.chmod(0o755)
        self.CUDA_HOME = str(folder / "cuda")
        self.root = folder / "root"
        self.error: Exception | None = None
        self.calls: list[dict] = []
        self.paths: list[str] = []

    def get_default_build_root(self):
        return str(self.root)

    def load(self, **options):
        self.calls.append(options)
        self.paths.append(os.environ["PATH"])
        assert not (Path(options["build_directory"]) / "lock").exists()
        if self.error is not None:
            raise self.error


@pytest.fixture
def torch():
    return SimpleNamespace(
        __version__="2.9.0+cu130",
        version=SimpleNamespace(cuda="13.0"),
        cuda=SimpleNamespace(
            is_available=lambda: True, device_count=lambda: 2, get_device_capability=lambda device: (9, 0)
        ),
        ops=SimpleNamespace(opscope_kernels="the operators"),
    )


@pytest.fixture
def builder(tmp_path, monkeypatch, torch):
    fake = FakeBuilder(tmp_path)
    monkeypatch.setattr(build, "require_torch", lambda: torch)
    monkeypatch.setattr(build, "_cpp_extension", lambda: fake)
    monkeypatch.setattr(build, "_loaded", None)
    for name in ("CXX", "TORCH_CUDA_ARCH_LIST", "TORCH_EXTENSIONS_DIR"):
        monkeypatch.delenv(name, raising=False)
    return fake


NO_NVCC = r"(?s)nvcc.*not found.*Install the CUDA toolkit 13\.0.*set CUDA_HOME"


@pytest.mark.parametrize(
    ("place", "value", "error", "said"),
    [
        ("torch.version.cuda", None, DependencyError, "built without CUDA"),
        ("torch.cuda.is_available", bool, MeasurementError, "need a CUDA device"),
        ("builder.CUDA_HOME", None, DependencyError, NO_NVCC),
        ("builder.CUDA_HOME", "/nonexistent", DependencyError, NO_NVCC),
        ("builder.error", RuntimeError("Ninja is required"), MeasurementError, "Ninja is required"),
        ("builder.error", OSError("undefined symbol: launch"), MeasurementError, "symbol: launch"),
    ],
)
def test_what_is_missing_is_said(builder, torch, place, value, error, said):  # noqa: PLR0917 - a row
    owner, _, name = place.rpartition(".")
    setattr(attrgetter(owner)(SimpleNamespace(torch=torch, builder=builder)), name, value)
    with pytest.raises(error, match=said):
        build.load_cuda_kernels()


def test_the_compilers_message_is_shown_and_the_build_is_not_tried_again(builder):
    builder.error = RuntimeError(NINJA_OUTPUT)
    for _ in range(2):
        with pytest.raises(MeasurementError, match='identifier "wrong" is undefined') as caught:
            build.load_cuda_kernels()
    assert "TORCH_EXTENSION_NAME" not in str(caught.value)
    assert len(builder.calls) == 1


def test_something_missing_is_looked_for_again(builder):
    home, builder.CUDA_HOME = builder.CUDA_HOME, None
    with pytest.raises(DependencyError):
        build.load_cuda_kernels()
    builder.CUDA_HOME = home
    assert build.load_cuda_kernels() == "the operators"


def test_it_is_built_once_for_the_gpus_at_hand(builder):
    assert build.load_cuda_kernels() == build.load_cuda_kernels() == "the operators"
    (call,) = builder.calls
    assert call["extra_cuda_cflags"][-2:] == [
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    ]
    assert {Path(path).suffix for path in call["sources"]} == {".cpp", ".cu"}
    assert all(Path(path).is_file() for path in call["sources"])
    assert Path(call["build_directory"]).parent.name.endswith("_cu130")


@pytest.mark.parametrize("is_another", [False, True])
def test_another_torch_gets_another_build_and_other_extensions_change_nothing(
    builder, monkeypatch, torch, is_another
):
    build.load_cuda_kernels()
    monkeypatch.setattr(build, "_loaded", None)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;9.0")
    if is_another:
        torch.__version__ = "2.9.1+cu130"
    build.load_cuda_kernels()
    first, second = builder.calls
    assert (first == second) is not is_another
    assert (first["build_directory"] == second["build_directory"]) is not is_another
    assert any("code=compute_" in flag for flag in first["extra_cuda_cflags"])


def test_a_lock_that_a_killed_build_left_is_removed(builder, monkeypatch):
    build.load_cuda_kernels()
    monkeypatch.setattr(build, "_loaded", None)
    lock = Path(builder.calls[0]["build_directory"]) / "lock"
    lock.touch()
    build.load_cuda_kernels()  # The fake builder looks for it.
    assert len(builder.calls) == 2


def test_path_has_the_folder_of_this_python_only_while_building(builder, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    build.load_cuda_kernels()
    assert builder.paths[0].startswith("/usr/bin:/bin:")
    assert os.environ["PATH"] == "/usr/bin:/bin"


def test_a_message_begins_with_the_first_error_and_says_what_is_left_out():
    assert build.compiler_message(NINJA_OUTPUT).splitlines() == [
        'b.cu(3): error: identifier "wrong" is undefined',
        "      y[0] = wrong;",
        "             ^",
        '1 error detected in the compilation of "b.cu".',
    ]
    assert build.compiler_message("Error building extension 'x': ninja: error: loading 'build.ninja'") == (
        "ninja: error: loading 'build.ninja'"
    )
    lines = build.compiler_message("\n".join(f"a.cu({i}): error: number {i}" for i in range(50))).splitlines()
    assert lines[0] == "a.cu(0): error: number 0"
    assert len(lines) == 31
    assert lines[-1] == "… and 20 more lines"
