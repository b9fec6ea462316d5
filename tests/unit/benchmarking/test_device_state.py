"""Reading a device by NVML, with a fake binding: old and new drivers, missing values, the right device."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from case_tables import cases

torch = pytest.importorskip("torch")

from opscope.benchmarking import device_state  # noqa: E402
from opscope.benchmarking.device_state import (  # noqa: E402
    NvmlMonitor,
    driver_version,
    state_reader,
)
from opscope.errors import DependencyError, MeasurementError  # noqa: E402

UUIDS = ("11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555")


class FakeNvml(ModuleType):
    """A machine with two devices; queries that are None are not supported by the device."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *, reasons=0, power_mw=350_500, starts=True):
        super().__init__("pynvml")
        self.reasons, self.power_mw, self.starts = reasons, power_mw, starts
        self.looked_up = []

    def nvmlInit(self):
        if not self.starts:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.looked_up.append(uuid)
        if uuid.removeprefix("GPU-") not in UUIDS:
            raise self.NVMLError("Not Found")
        return UUIDS.index(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetHandleByIndex(self, index):
        self.looked_up.append(index)
        return index

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return {1: 1980, 2: 3201}[kind] - handle

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        assert kind == self.NVML_CLOCK_SM
        return 1995

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 41

    def nvmlDeviceGetPowerUsage(self, handle):
        if self.power_mw is None:
            raise self.NVMLError("Not Supported")
        return self.power_mw

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self.reasons


class NewNvml(FakeNvml):
    """Has the query's new name too, which an old driver does not know."""

    def __init__(self, *, driver_knows, **options):
        super().__init__(**options)
        self.driver_knows = driver_knows

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        if not self.driver_knows:
            raise self.NVMLError("Function Not Found")
        return self.reasons


@pytest.fixture
def install(monkeypatch):
    """Puts a fake binding in place, and a device as torch describes it."""

    def install(nvml, **properties):
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        device = SimpleNamespace(name="Test GPU", **(properties or {"uuid": UUIDS[1]}))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
        return nvml

    return install


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, ()),
        (0x1, ()),  # idle
        (0x3, ("applications_clocks",)),
        (0x8 | 0x10 | 0x20, ("hw_slowdown", "sync_boost", "sw_thermal")),
        (0x80 | 0x100, ("hw_power_brake", "display_clocks")),
        (0x4000, ("reason_0x4000",)),
    ],
)
def test_reasons_have_names_and_idle_is_not_one(install, bits, names):
    install(FakeNvml(reasons=bits))
    assert NvmlMonitor("cuda:0").read().throttle_reasons == names


@pytest.mark.parametrize("driver_knows", [True, False])
def test_reasons_are_read_under_the_new_name_and_the_old(install, driver_knows):
    install(NewNvml(driver_knows=driver_knows, reasons=0x4))
    assert NvmlMonitor("cuda:0").read().throttle_reasons == ("sw_power_cap",)


@cases("properties", "devices", "looked_up", "clock_mhz")
def test_which_device_it_is(install, monkeypatch, properties, devices, looked_up, clock_mhz):  # noqa: PLR0917 - a row
    nvml = install(FakeNvml(), **properties)
    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", lambda: devices)
    if clock_mhz is None:
        with pytest.raises(MeasurementError, match="does not know device 'cuda:0'"):
            NvmlMonitor("cuda:0")
    else:
        assert NvmlMonitor("cuda:0").read().sm_clock_mhz == clock_mhz
    assert nvml.looked_up == looked_up


def test_without_a_state_it_says_why(monkeypatch, install):
    read_state, reason = state_reader("cpu")
    assert read_state() is None
    assert reason == "a CPU's clocks are not read"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DependencyError, match=r"pip install 'opscope\[nvml\]'"):
        NvmlMonitor("cuda:0")
    read_state, reason = state_reader("cuda:0")
    assert read_state() is None
    assert "pip install" in reason
    install(FakeNvml(starts=False))
    read_state, reason = state_reader("cuda:0")
    assert read_state() is None
    assert reason.startswith("NVML does not start (Driver Not Loaded)")


def test_the_drivers_version_is_that_of_its_kernel_module(monkeypatch, tmp_path):
    file = tmp_path / "version"
    monkeypatch.setattr(device_state, "_DRIVER_FILE", file)
    assert driver_version() is None
    file.write_text("550.54.15\n")
    assert driver_version() == "550.54.15"
