import os
import platform
from types import SimpleNamespace

import pytest

from case_tables import cases
from opscope.capture import environment as module
from opscope.capture.environment import collect_environment, launched_as
from opscope.errors import DependencyError
from opscope.hardware.driver import cudnn_text
from opscope.model.sidecar import RANK_VARIABLES, GpuInfo


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


@cases("text", "fraction")
def test_pressure_is_that_of_the_last_ten_seconds(monkeypatch, tmp_path, text, fraction):
    file = tmp_path / "cpu"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(module, "_PRESSURE", file)
    assert module.cpu_pressure_fraction() == fraction
    assert collect_environment().cpu_pressure_fraction == fraction


@cases("number", "text")
def test_cudnn_numbers_of_both_kinds(number, text):
    assert cudnn_text(number) == text


def test_devices_are_read(monkeypatch):
    torch = pytest.importorskip("torch")
    properties = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150754820096
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert collect_environment().gpu == (GpuInfo("NVIDIA H200", "9.0", 132, 150754820096),)


@cases("variables", "rank", "ranks")
def test_ranks_are_those_of_the_launcher(monkeypatch, variables, rank, ranks):
    for name in (name for pair in RANK_VARIABLES for name in pair):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched_as() == (rank, ranks)
