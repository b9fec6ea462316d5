"""What the driver tells of itself and of its GPUs, with a driver of our own."""

import pytest

from opscope.hardware import driver
from opscope.hardware.driver import CudaDevice, driver_cuda_version, version_text, visible_gpus

H200, A100 = CudaDevice(0, "NVIDIA H200", "9.0"), CudaDevice(1, "NVIDIA A100-SXM4-80GB", "8.0")


class Library:
    """What libcuda offers, for devices given as name and compute capability."""

    def __init__(self, *devices, starts=0, version=None):
        self.devices = devices
        self.starts = starts
        self.version = version

    def cuInit(self, flags):
        return self.starts

    def cuDriverGetVersion(self, version):
        version._obj.value = self.version or 0
        return 3 if self.version is None else 0  # CUDA_ERROR_NOT_INITIALIZED

    def cuDeviceGetCount(self, count):
        count._obj.value = len(self.devices)
        return 0

    def cuDeviceGet(self, device, index):
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name, length, device):
        name.value = self.devices[device][0].encode()
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        if attribute not in (75, 76):
            return 1
        value._obj.value = self.devices[device][{75: 1, 76: 2}[attribute]]
        return 0 if value._obj.value else int(attribute == 75)


@pytest.fixture
def install(monkeypatch):
    """Puts a library in place of libcuda; None is a machine without one."""

    def install(library):
        def load(name):
            if library is None:
                raise OSError(name)
            return library

        monkeypatch.setattr(driver.ctypes, "CDLL", load)

    return install


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        (None, ()),
        (Library(starts=100), ()),
        (Library(), ()),
        (Library(("NVIDIA H200", 9, 0), ("NVIDIA A100-SXM4-80GB", 8, 0)), (H200, A100)),
        (Library(("lost", 0, 0), ("NVIDIA B200", 10, 0)), (CudaDevice(1, "NVIDIA B200", "10.0"),)),
    ],
)
def test_gpus_that_answer_are_told(install, library, expected):
    install(library)
    assert visible_gpus() == expected


@pytest.mark.parametrize(
    ("library", "text"),
    [(Library(version=12080), "12.8"), (Library(version=13000), "13.0"), (Library(), None), (None, None)],
)
def test_the_cuda_that_the_driver_serves(install, library, text):
    install(library)
    assert version_text(driver_cuda_version()) == text
