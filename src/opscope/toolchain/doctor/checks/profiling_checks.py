"""What recording needs: torch's profiler, CUPTI for itself, counters, NVIDIA's tools."""

from __future__ import annotations

from opscope.toolchain.doctor.checks.outcome import Outcome, not_applicable, ok, problem, unknown, warning
from opscope.toolchain.doctor.checks.presence import GpuPresence, gpu_presence, is_amd
from opscope.toolchain.doctor.checks.remedies import ALLOW_COUNTERS, install_torch
from opscope.toolchain.doctor.facts import CaptureFacts, Facts, ProgramFacts

__all__ = [
    "counter_access",
    "counter_monitor",
    "cuobjdump_tool",
    "ncu_tool",
    "nsys_tool",
    "profiler_records",
    "profiler_settings",
    "profiler_taken",
]

_INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_TRACERS = ("nsys", "nsys-launcher", "ncu", "nvprof", "dynolog")
_MONITORS = ("nv-hostengine", "dcgm-exporter", "dcgmproftester")
_DISTORTING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver",
    "CUDA_FORCE_PTX_JIT": "every kernel is compiled by the driver",
}
_OFF = ("", "0")


def profiler_records(facts: Facts) -> Outcome:
    """A recording by torch's profiler in which kernels arrive."""
    torch = facts.torch
    if torch is None or torch.version is None:
        return not_applicable("torch was not imported")
    capture = torch.capture
    if capture is None:
        return problem(f"nothing could be recorded: torch {torch.stopped or 'gave no answer'}")
    if capture.error is not None:
        return problem(f"recording fails: {capture.error}", _capture_remedy(facts, capture))
    if not torch.devices:
        if not capture.operator_count:
            return problem("the recording has no operators", install_torch(facts))
        return ok(f"{capture.operator_count} operators recorded on the CPU")
    return _kernels_arrive(facts, capture)


def _kernels_arrive(facts: Facts, capture: CaptureFacts) -> Outcome:
    count = f"{capture.kernels_recorded} of {capture.kernels_launched} kernels"
    said = f" ({capture.messages})" if capture.messages else ""
    if capture.kernels_recorded == 0:
        return problem(
            f"CUPTI delivers no kernels: {count} were recorded{said}", _capture_remedy(facts, capture)
        )
    if capture.kernels_recorded < capture.kernels_launched:
        return warning(f"recordings miss kernels: {count} arrived{said}", _capture_remedy(facts, capture))
    return ok(f"{count} and {capture.operator_count} operators recorded")


def _capture_remedy(facts: Facts, capture: CaptureFacts) -> str:
    taken = [name for name in _INJECTIONS if facts.machine.variables.get(name)]
    if taken:
        return f"unset {' '.join(taken)}"
    if "PRIVILEGES" in capture.messages.upper():
        return ALLOW_COUNTERS
    if capture.activities and not {"CUDA", "XPU"} & set(capture.activities):
        return install_torch(facts)
    return "end other profilers (nsys, ncu, dynolog) on this machine; else update the driver"


def profiler_taken(facts: Facts) -> Outcome:
    """Another tool inside the process or beside it: CUPTI serves one at a time."""
    variables = [name for name in _INJECTIONS if facts.machine.variables.get(name)]
    if variables:
        first = variables[0]
        return warning(
            f"{first}={facts.machine.variables[first]} puts another tool into every CUDA program, and CUPTI "
            "serves one",
            f"unset {' '.join(variables)}",
        )
    running = [name for name in facts.machine.tools_running if name in _TRACERS]
    if running:
        return warning(
            f"{', '.join(running)} runs on this machine and may hold CUPTI", "end it while recording"
        )
    return ok("no other profiler in sight")


def profiler_settings(facts: Facts) -> Outcome:
    """Settings under which times are not those of the program as it usually runs."""
    active = [name for name in _DISTORTING if facts.machine.variables.get(name, "") not in _OFF]
    if not active:
        return ok("no setting that distorts times")
    reasons = "; ".join(f"{name}={facts.machine.variables[name]}: {_DISTORTING[name]}" for name in active)
    return warning(reasons, f"unset {' '.join(active)}")


def counter_access(facts: Facts) -> Outcome:
    """Whether this user may read hardware counters."""
    counters = facts.counters
    if gpu_presence(facts) is not GpuPresence.PRESENT or is_amd(facts):
        return not_applicable("there is no GPU of NVIDIA that CUDA shows")
    if counters.is_readable:
        return ok("ncu read a counter")
    if counters.is_readable is None:
        return unknown(f"not tried: {counters.failure}; {_setting(facts)}")
    if counters.is_denied:
        return problem(f"the driver does not let this user read counters ({_setting(facts)})", ALLOW_COUNTERS)
    if counters.is_taken:
        return problem("another tool holds the hardware counters", "dcgmi profread --pause")
    return problem(f"ncu reads no counter: {counters.failure}", "use an ncu as new as the driver, or newer")


def _setting(facts: Facts) -> str:
    """What the driver's setting says, which is not what a test says."""
    driver = facts.driver
    if driver.admin_only_counters is None:
        return "the driver's setting is not shown"
    if not driver.admin_only_counters:
        return "the driver's setting allows it to everyone"
    who = {True: "is one", False: "is none", None: "may be one"}[driver.is_admin]
    return f"the driver's setting allows it to administrators, and this process {who}"


def counter_monitor(facts: Facts) -> Outcome:
    """Monitoring that samples hardware counters."""
    running = [name for name in facts.machine.tools_running if name in _MONITORS]
    if not running:
        return ok("no monitor of counters in sight")
    if facts.counters.is_readable:
        return ok(f"{', '.join(running)} runs, and counters can be read")
    return warning(f"{', '.join(running)} runs and may hold the counters", "dcgmi profread --pause")


def nsys_tool(facts: Facts) -> Outcome:
    """Nsight Systems missing."""
    return _tool(
        facts,
        facts.nsys,
        "nsys is missing: opscope trace records CUDA programs without it, opscope stats gives its reports",
        "sudo apt-get install nsight-systems-cli  # or from developer.nvidia.com/nsight-systems",
    )


def ncu_tool(facts: Facts) -> Outcome:
    """Nsight Compute missing."""
    return _tool(
        facts,
        facts.ncu,
        "ncu is missing: hardware counters cannot be read; opscope analyze tells what a trace can",
        "sudo apt-get install nsight-compute  # or from developer.nvidia.com/nsight-compute",
    )


def cuobjdump_tool(facts: Facts) -> Outcome:
    """No program that takes compiled kernels apart."""
    found = facts.cuobjdump
    if found.path is None:
        return warning("cuobjdump is missing: machine code of kernels cannot be shown", "pip install triton")
    return _found(found)


def _tool(facts: Facts, found: ProgramFacts, without: str, remedy: str) -> Outcome:
    if found.path is not None:
        return _found(found)
    without_gpu = (GpuPresence.NONE, GpuPresence.HIDDEN, GpuPresence.ON_HOST)
    if gpu_presence(facts) in without_gpu or is_amd(facts):
        return not_applicable(f"{found.name} is not installed; there is no GPU to use it on")
    return warning(without, remedy)


def _found(found: ProgramFacts) -> Outcome:
    if found.failure is not None:
        return warning(f"{found.path} does not answer: {found.failure}", f"{found.path} --version")
    return ok(f"{found.name} {found.version}")
