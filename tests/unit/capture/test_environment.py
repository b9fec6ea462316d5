from __future__ import annotations

import os
import platform
from types import SimpleNamespace

import pytest

from opscope.capture import environment as module
from opscope.capture.environment import collect_environment
from opscope.errors import DependencyError
from opscope.model.environment import GpuInfo


def test_versions_without_torch(monkeypatch):
    def missing():
        raise DependencyError("PyTorch is not installed")

    monkeypatch.setattr(module, "require_torch", missing)
    environment = collect_environment()
    assert environment.python == platform.python_version()
    assert environment.torch is None
    assert environment.gpu == ()


def test_versions_with_torch_name_no_host_and_no_path():
    torch = pytest.importorskip("torch")
    environment = collect_environment()
    assert environment.torch == torch.__version__
    assert environment.torch_git_version == torch.version.git_version
    assert len(environment.gpu) == torch.cuda.device_count()
    assert os.sep + "home" not in repr(environment)


@pytest.mark.parametrize(
    ("number", "text"), [(91002, "9.10.2"), (90100, "9.1.0"), (8902, "8.9.2"), (0, None), (None, None)]
)
def test_cudnn_numbers_of_both_kinds(number, text):
    assert module._cudnn_version(number) == text


class DriverLibrary:
    def __init__(self, version):
        self.version = version

    def cuDriverGetVersion(self, out):
        if self.version is None:
            return 3  # CUDA_ERROR_NOT_INITIALIZED
        out._obj.value = self.version
        return 0


@pytest.mark.parametrize(("version", "text"), [(12080, "12.8"), (13000, "13.0"), (None, None)])
def test_the_driver_is_asked(monkeypatch, version, text):
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: DriverLibrary(version))
    torch = SimpleNamespace(version=SimpleNamespace(cuda="13.0"))
    assert module._cuda_driver(torch) == text
    torch.version.cuda = None
    assert module._cuda_driver(torch) is None


def test_no_driver_library_is_no_version(monkeypatch):
    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(module.ctypes, "CDLL", absent)
    assert module._cuda_driver(SimpleNamespace(version=SimpleNamespace(cuda="13.0"))) is None


def test_devices_are_read():
    properties = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150754820096
    )
    torch = SimpleNamespace(
        cuda=SimpleNamespace(device_count=lambda: 1, get_device_properties=lambda index: properties),
    )
    assert module._gpus(torch) == (GpuInfo("NVIDIA H200", "9.0", 132, 150754820096),)
