"""GPUs as the driver tells them, with a driver of our own."""

from __future__ import annotations

from typing import Any

import pytest

from opscope.toolchain.nvcc import gpus
from opscope.toolchain.nvcc.gpus import VisibleGpu, visible_gpus


class Driver:
    """What libcuda offers, for devices given as name and compute capability."""

    def __init__(self, *devices: tuple[str, int, int], starts: int = 0) -> None:
        self.devices = devices
        self.starts = starts

    def cuInit(self, flags: int) -> int:
        return self.starts

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.devices)
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:
        name.value = self.devices[device.value][0].encode()
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = self.devices[device.value][{75: 1, 76: 2}[attribute]]
        return 0 if value._obj.value else int(attribute == 75)


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (None, ()),
        (Driver(starts=100), ()),
        (Driver(), ()),
        (
            Driver(("NVIDIA H200", 9, 0), ("NVIDIA A100-SXM4-80GB", 8, 0)),
            (VisibleGpu("NVIDIA H200", "9.0"), VisibleGpu("NVIDIA A100-SXM4-80GB", "8.0")),
        ),
        (Driver(("lost", 0, 0), ("NVIDIA B200", 10, 0)), (VisibleGpu("NVIDIA B200", "10.0"),)),
    ],
)
def test_gpus_that_answer_are_told(monkeypatch, driver, expected):
    monkeypatch.setattr(gpus, "_driver", lambda: driver)
    assert visible_gpus() == expected


def test_a_missing_library_is_no_error(monkeypatch):
    monkeypatch.setattr(gpus, "_LIBRARIES", ("libnothing.so.1",))
    assert visible_gpus() == ()
