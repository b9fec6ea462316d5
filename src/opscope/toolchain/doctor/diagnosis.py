"""All checks in the order of a report, and what they say of a machine together."""

from __future__ import annotations

from dataclasses import dataclass

from opscope.toolchain.doctor import gpu_checks
from opscope.toolchain.doctor import gpu_checks as torch_checks
from opscope.toolchain.doctor import software_checks as extension_checks
from opscope.toolchain.doctor import software_checks as folder_checks
from opscope.toolchain.doctor import software_checks as profiling_checks
from opscope.toolchain.doctor import software_checks as python_checks
from opscope.toolchain.doctor.facts import Facts
from opscope.toolchain.doctor.outcome import Check, Outcome, Verdict, unknown

__all__ = ["CHECKS", "CheckResult", "Diagnosis", "diagnose"]


CHECKS = (
    Check("python.version", "Python new enough", python_checks.python_version, is_required=True),
    Check("torch.installed", "torch installed", torch_checks.torch_installed, is_required=True),
    Check("torch.import", "torch can be imported", torch_checks.torch_import, is_required=True),
    Check("torch.version", "torch new enough", torch_checks.torch_version),
    Check("torch.build", "torch is a release build", torch_checks.torch_build),
    Check("gpu.reachable", "GPU usable by programs", gpu_checks.gpu_reachable, is_required=True),
    Check("gpu.visible", "GPU not hidden", gpu_checks.gpu_visible),
    Check("driver.launch", "kernel launch by the driver alone", gpu_checks.driver_launch),
    Check("driver.runtime", "driver new enough for torch's CUDA", torch_checks.driver_runtime),
    Check("torch.gpu", "torch uses the GPU", torch_checks.torch_gpu, is_required=True),
    Check("torch.architectures", "torch built for this GPU", torch_checks.torch_architectures),
    Check("torch.libraries", "torch uses its own CUDA libraries", torch_checks.library_shadowing),
    Check("gpu.calculation", "calculation on every GPU", torch_checks.gpu_calculation, is_required=True),
    Check("profiler.records", "profiler records", profiling_checks.profiler_records, is_required=True),
    Check("profiler.taken", "no other tool holds CUPTI", profiling_checks.profiler_taken),
    Check("profiler.settings", "no setting distorts times", profiling_checks.profiler_settings),
    Check("gpu.mig", "GPU not partitioned", gpu_checks.gpu_mig),
    Check("gpu.processes", "GPU idle", gpu_checks.gpu_processes),
    Check("gpu.compute_mode", "GPU takes several processes", gpu_checks.gpu_compute_mode),
    Check("gpu.persistence", "driver stays loaded", gpu_checks.gpu_persistence),
    Check("gpu.clocks", "clocks not held down", gpu_checks.gpu_clocks),
    Check("triton.version", "Triton is the one torch pins", python_checks.triton_version),
    Check("triton.single", "one package provides Triton", python_checks.triton_single),
    Check("packages.companions", "torch's companions fit it", python_checks.companion_versions),
    Check("vllm.torch", "torch is the one vLLM pins", python_checks.vllm_torch),
    Check("tools.ncu", "ncu installed", profiling_checks.ncu_tool),
    Check("counters.access", "hardware counters can be read", profiling_checks.counter_access),
    Check("counters.monitor", "no monitor holds the counters", profiling_checks.counter_monitor),
    Check("tools.nsys", "nsys installed", profiling_checks.nsys_tool),
    Check("tools.cuobjdump", "cuobjdump installed", profiling_checks.cuobjdump_tool),
    Check("build.compiler", "C++ compiler for extensions", extension_checks.compiler),
    Check("build.python_headers", "Python's headers", python_checks.python_headers),
    Check("build.ninja", "ninja for extensions", extension_checks.ninja),
    Check("build.nvcc", "nvcc installed", extension_checks.nvcc),
    Check("build.nvcc_version", "nvcc fits torch's CUDA", extension_checks.nvcc_version),
    Check("build.nvcc_host", "nvcc takes the compiler", extension_checks.nvcc_host_compiler),
    Check("build.cuda_home", "torch finds the CUDA toolkit", extension_checks.cuda_home),
    Check("folders.output", "working folder writable", folder_checks.output_folder),
    Check("folders.temporary", "temporary folder writable", folder_checks.temporary_folder, is_required=True),
    Check("folders.caches", "caches writable", folder_checks.cache_folders),
    Check("folders.space", "room on the disks", folder_checks.free_space),
    Check("folders.shared_memory", "room in shared memory", folder_checks.shared_memory),
    Check("doctor.probes", "all found out", folder_checks.probes_answered),
)


@dataclass(frozen=True)
class CheckResult:
    """One check with its outcome."""

    check: Check
    outcome: Outcome

    @property
    def verdict(self) -> Verdict:
        """Of the outcome."""
        return self.outcome.verdict


@dataclass(frozen=True)
class Diagnosis:
    """What all checks say of a machine.

    Attributes:
        facts: What they were told.
        results: In the order of CHECKS.
    """

    facts: Facts
    results: tuple[CheckResult, ...]

    @property
    def can_profile(self) -> bool:
        """Whether programs can be profiled here: no required check found a problem."""
        return not any(one.check.is_required and one.verdict is Verdict.PROBLEM for one in self.results)

    @property
    def verdict(self) -> Verdict:
        """PROBLEM if programs cannot be profiled, WARNING if anything else stands badly, OK otherwise."""
        if not self.can_profile:
            return Verdict.PROBLEM
        stands_badly = any(one.verdict in (Verdict.PROBLEM, Verdict.WARNING) for one in self.results)
        return Verdict.WARNING if stands_badly else Verdict.OK


def diagnose(facts: Facts) -> Diagnosis:
    """The outcome of every check."""
    return Diagnosis(facts, tuple(CheckResult(one, _answer(one, facts)) for one in CHECKS))


def _answer(check: Check, facts: Facts) -> Outcome:
    try:
        return check.answer(facts)
    except Exception as error:  # noqa: BLE001 - a check's own defect must not hide the others
        return unknown(f"the check itself failed: {type(error).__name__}: {error}")
