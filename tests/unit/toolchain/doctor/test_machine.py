"""What a machine is asked: its files, and a driver, an NVML and a torch made for the test."""

import shutil
import subprocess
from pathlib import Path

import pytest

from case_tables import cases
from opscope.hardware.driver import CudaDevice
from opscope.toolchain.doctor import machine as asked
from opscope.toolchain.doctor.machine import (
    Counters,
    Driver,
    Gpu,
    ProgramFacts,
    Torch,
    read_answer,
    read_counters,
)
from opscope.toolchain.programs import ProgramExit

FOLDER = Path(__file__).resolve().parent
FIRST = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
SECOND = "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"
BUS = "/sys/bus/pci/devices/0000:1b:00.0"


def test_gpus_are_counted_on_the_bus(machine):
    assert machine().machine.pci_gpu_count == 0
    files = {
        f"{BUS}/vendor": "0x10de\n", f"{BUS}/class": "0x030200\n",
        "/sys/bus/pci/devices/0000:1c:00.0/vendor": "0x10de\n",
        "/sys/bus/pci/devices/0000:1c:00.0/class": "0x068000\n",  # a switch of theirs
        "/sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
        "/sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
    }  # fmt: skip
    assert machine(files=files).machine.pci_gpu_count == 1


def test_the_machine_from_its_files(machine):
    files = {
        "/proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654\n",
        "/proc/meminfo": "MemTotal:       131072 kB\n",
    }
    facts = machine(files=files, variables={"CUDA_LAUNCH_BLOCKING": "1", "SECRET": "x"}).machine
    assert facts.processor == "AMD EPYC 9654"
    assert facts.memory_bytes == 131072 * 1024
    assert facts.variables == {"CUDA_LAUNCH_BLOCKING": "1"}
    assert facts.container is None


@cases("files", "variables", "kind")
def test_kinds_of_containers(machine, files, variables, kind):
    assert machine(files=files, variables=variables).machine.container == kind


def test_the_driver_from_its_files(machine):
    files = {
        "/sys/module/nvidia/version": "580.95.05\n",
        "/dev/nvidia0": "", "/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/dev/null": "",
    }  # fmt: skip
    facts = machine(files=files, python="/nonexistent/python").driver
    assert facts.version == "580.95.05"
    assert facts.device_files == ("nvidia-uvm", "nvidia0", "nvidiactl")
    assert "cannot be started" in (facts.library_failure or "")


@cases("name", "said", "version")
def test_versions_of_tools(machine, name, said, version):
    assert getattr(machine(), name) == ProgramFacts(name)
    here = machine(programs={name: f"printf '%s\\n' '{said}'"})
    found = getattr(here, name)
    assert (found.name, found.version, found.failure) == (name, version, None)
    assert found.path.startswith(here.environment["PATH"])


@cases("script", "words")
def test_a_tool_that_does_not_answer(machine, script, words):
    found = machine(programs={"nsys": script}).nsys
    assert found.path is not None
    assert words in (found.failure or "")


RAW_PAGE = (FOLDER / "ncu_raw_page.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (RAW_PAGE, None),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "ERR_NVGPUCTRPERM"),
        ("==ERROR== Profiling failed because a driver resource was unavailable.\n", "was unavailable"),
        ("==ERROR== LibraryNotLoaded\n" + RAW_PAGE, "LibraryNotLoaded"),
        ("==PROF== nothing\n", "exit code 1"),
        (RAW_PAGE.replace("2,816", "n/a"), "no counter"),
    ],
)  # fmt: skip
def test_whether_a_counter_was_read(out, words):
    facts = read_counters(ProgramExit(0 if words is None else 1, out, ""))
    assert facts.is_readable is (words is None)
    assert (facts.failure is None) if words is None else words in (facts.failure or "")


def test_counters_are_read_with_ncu_of_a_kernel_of_torch(machine, tmp_path, gpu_machine):
    page = tmp_path / "page.csv"
    page.write_text(RAW_PAGE, encoding="utf-8")
    known = {name: gpu_machine[name] for name in ("driver", "devices", "torch")}
    here = machine(programs={"ncu": f'echo "$@" > {tmp_path}/log; /bin/cat {page}'}, **known)
    assert here.counters.is_readable
    words = (tmp_path / "log").read_text(encoding="utf-8").split()
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[-2].endswith("child.py")
    assert words[-1] == "kernel"
    assert machine(ncu=ProgramFacts("ncu"), **known).counters == Counters(failure="ncu is not installed")


@pytest.mark.parametrize(
    ("end", "facts", "stopped"),
    [
        (ProgramExit(0, 'opscope-doctor {"a": 1}\nopscope-doctor {"a": 2, "b": 3}\n', ""), {"a": 2, "b": 3},
         None),
        (ProgramExit(1, 'noise opscope-doctor {"a": 1}\n', ""), {"a": 1}, None),
        (ProgramExit(-11, 'opscope-doctor {"a": 1}\nopscope-doctor {"b', ""), {"a": 1}, "died of SIGSEGV"),
        (ProgramExit(-99, "opscope-doctor 5\n", ""), {}, "died of signal 99"),
        (ProgramExit(7, "", ""), {}, "ended with exit code 7"),
        (ProgramExit(None, "", "", "did not end within 3 s"), {}, "did not end within 3 s"),
    ],
)  # fmt: skip
def test_what_was_said_before_an_end_counts(end, facts, stopped):
    assert read_answer(end) == (facts, stopped)


@pytest.fixture(scope="module")
def fake_cuda(tmp_path_factory):
    """A folder with a libcuda.so.1 of host memory."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("cuda")
    library, source = folder / "libcuda.so.1", FOLDER / "fake_cuda.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return folder


def _driver(make, folder, mode):
    return make(variables={"LD_LIBRARY_PATH": str(folder), "OPSCOPE_FAKE_CUDA": mode}).driver


def test_a_driver_that_answers(machine, fake_cuda):
    facts = _driver(machine, fake_cuda, "none")
    assert (facts.cuda_version, facts.init_error) == ("13.1", None)
    assert facts.library == str(fake_cuda / "libcuda.so.1")
    assert facts.devices == (
        CudaDevice(0, "Fake A", "9.0", 132, 1 << 33, FIRST),
        CudaDevice(1, "Fake B", "9.1", 132, 2 << 33, SECOND),
    )


@cases("mode", "words")
def test_a_driver_that_fails_says_where(machine, fake_cuda, mode, words):
    facts = _driver(machine, fake_cuda, mode)
    assert words in facts.init_error
    assert facts.devices is None


def test_a_driver_that_hangs_does_not_hang_doctor(machine, fake_cuda, monkeypatch):
    monkeypatch.setattr(asked, "DRIVER_TIMEOUT_S", 1.5)
    facts = _driver(machine, fake_cuda, "hang")
    assert facts.init_error == "the program that asks the driver did not end within 1.5 s"
    assert facts.cuda_version == "13.1"


def test_a_driver_without_a_device_or_a_library(machine, fake_cuda, tmp_path):
    facts = _driver(machine, fake_cuda, "no_device")
    assert (facts.devices, facts.init_error) == ((), None)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libcuda.so.1").write_text("no library", encoding="utf-8")
    facts = _driver(machine, broken, "none")
    assert (facts.library, facts.devices) == (None, None)
    assert "libcuda.so.1" in (facts.library_failure or "")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (f"{FIRST}, 4, 3", (4 << 20, 0.03, ("/usr/bin/python -c, x (pid 42)",))),
        (f"{FIRST}, [N/A], [N/A]", (None, None, ("/usr/bin/python -c, x (pid 42)",))),
        (f"{SECOND}, 4, 3", (None, None, None)),  # it knows another GPU
        ("No devices were found", (None, None, None)),
    ],
)
def test_the_state_of_gpus_by_nvidia_smi(machine, usage, expected):
    processes = f"{FIRST}, 42, /usr/bin/python -c, x"
    smi = f'case "$1" in --query-gpu=*) echo "{usage}";; *) echo "{processes}";; esac'
    device = CudaDevice(0, "A", "9.0", 132, 5, FIRST)
    here = machine(programs={"nvidia-smi": smi}, driver=Driver(devices=(device,)))
    assert here.devices == (Gpu(device, *expected),)


def test_devices_are_those_of_cuda_else_those_of_torch(machine):
    shown = (CudaDevice(0, "A", "9.0", 132, 5, FIRST), CudaDevice(1, "B", "7.0", 80, 6, SECOND))
    assert [one.device for one in machine(driver=Driver(devices=shown)).devices] == [*shown]
    by_torch = machine(driver=Driver(), torch=Torch(devices=shown), programs={"nvidia-smi": "exit 9"})
    assert by_torch.devices == (Gpu(shown[0]), Gpu(shown[1]))
    assert machine(driver=Driver(), torch=None).devices == ()


TORCH = Path(__file__).with_name("fake_torch.txt").read_text(encoding="utf-8")
WORKING = {
    "multiply": "return Tensor([one * number for one in self.values])",
    "available": "True",
    "init": "lambda: None",
    "enter": "return self",
    "kernels": "8",
}


def _torch(make, folder, **parts):
    return _asked_torch(make, folder, TORCH.format(**{**WORKING, **parts}))


def _asked_torch(make, folder, text):
    """What Python imports as torch is a module made for the test."""
    file = folder / "modules/torch/__init__.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return make(variables={"PYTHONPATH": str(folder / "modules")}).torch


def test_torch_on_a_machine_with_two_gpus(machine, tmp_path):
    facts = _torch(machine, tmp_path)
    assert (facts.version, facts.cuda) == ("2.11.0+cu130", "13.0")
    assert (facts.git_version, facts.cudnn) == ("abc", "9.10.2")
    assert facts.architectures == ("sm_90",)
    assert facts.devices[1] == CudaDevice(1, "NVIDIA H200", "9.0", 132, 5, "GPU-0-1")
    assert (facts.has_calculated, facts.calculation_error, facts.stopped) == (True, None, None)
    capture = facts.capture
    assert (capture.activities, capture.operator_count) == (("CPU", "CUDA"), 1)
    assert (capture.kernels_launched, capture.kernels_recorded) == (8, 8)


def test_a_recording_that_fails_and_what_the_profiler_says(machine, tmp_path):
    enter = "sys.stderr.write('CUPTI_ERROR_INVALID_DEVICE\\nchatter\\n'); raise RuntimeError('no Kineto')"
    facts = _torch(machine, tmp_path, enter=enter)
    assert facts.capture.error == "RuntimeError: no Kineto"
    assert facts.capture.messages == "CUPTI_ERROR_INVALID_DEVICE"


@cases("parts", "stopped")
@pytest.mark.exhaustive(few=False)
def test_a_torch_that_hangs_or_crashes_is_told_with_its_stage(machine, tmp_path, monkeypatch, parts, stopped):
    monkeypatch.setattr(asked, "TORCH_TIMEOUT_S", 1.5)
    facts = _torch(machine, tmp_path, **parts)
    assert facts.stopped == stopped
    assert facts.version == "2.11.0+cu130", "what was said before"
    if "recording" in stopped:
        assert facts.capture.error == stopped


@cases("text", "error")
def test_a_torch_that_cannot_be_imported(machine, tmp_path, text, error):
    facts = _asked_torch(machine, tmp_path, text)
    assert (facts.import_error, facts.stopped, facts.version) == (error, None, None)


def test_a_torch_that_is_not_installed(machine, tmp_path):
    text = "raise ModuleNotFoundError(\"No module named 'torch'\")"
    assert _asked_torch(machine, tmp_path, text) is None


def test_a_wrong_result_is_an_error(machine, tmp_path):
    facts = _torch(machine, tmp_path, multiply="return Tensor([0, 0, 0])")
    said = "a calculation on cuda:0 fails: ArithmeticError: [1, 2, 3] * 2 gave [0.0, 0.0, 0.0]"
    assert facts.calculation_error == said


def test_torch_whose_cuda_does_not_start(machine, tmp_path):
    facts = _torch(machine, tmp_path, available="False", init="_boom")
    assert facts.cuda_error == "RuntimeError: CUDA unknown error"
    assert (facts.devices, facts.has_calculated) == ((), False)
    assert facts.capture is not None, "the CPU is recorded all the same"
    assert (facts.capture.operator_count, facts.capture.kernels_launched) == (1, 0)
