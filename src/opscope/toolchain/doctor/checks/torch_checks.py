"""torch: installed, built for this GPU, and calculating on it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opscope.toolchain.doctor.checks.outcome import Outcome, not_applicable, ok, problem, unknown, warning
from opscope.toolchain.doctor.checks.presence import GpuPresence, gpu_presence
from opscope.toolchain.doctor.checks.remedies import install_torch, newer_driver
from opscope.toolchain.doctor.checks.versions import major_minor, numbers
from opscope.toolchain.doctor.facts import CudaDevice, Facts, TorchFacts

__all__ = [
    "driver_runtime",
    "gpu_calculation",
    "library_shadowing",
    "torch_architectures",
    "torch_build",
    "torch_gpu",
    "torch_import",
    "torch_installed",
    "torch_version",
]

_LEAST_TORCH = (2, 4)
_CODE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
# Of one major capability, but not binary compatible with the others: integrated GPUs. Source:
# torch/cuda/__init__.py of 2.13, DEVICE_REQUIREMENT.
_INTEGRATED = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1)})
_ASK_KERNEL = "dmesg | grep -i -e xid -e nvrm"


def torch_installed(facts: Facts) -> Outcome:
    """No torch to profile."""
    version = facts.packages.versions.get("torch")
    if version is None and facts.torch is None:
        return problem(
            "torch is not installed; traces made elsewhere can be read",
            install_torch(facts, is_replacement=False),
        )
    return ok(f"torch {version or 'is installed'}")


def torch_import(facts: Facts) -> Outcome:
    """A torch that cannot be imported."""
    torch = facts.torch
    if torch is None:
        return _without_torch(facts)
    if torch.import_error is not None:
        return problem(f"import torch fails: {torch.import_error}", install_torch(facts))
    if torch.version is None:
        return problem(f"import torch does not end: it {torch.stopped}", install_torch(facts))
    return ok(f"imported in {torch.import_s:.1f} s" if torch.import_s is not None else "imported")


def torch_version(facts: Facts) -> Outcome:
    """A torch older than opscope knows."""
    version = _version(facts)
    if not numbers(version):
        return not_applicable("torch is not installed")
    if numbers(version)[:2] < _LEAST_TORCH:
        return warning(
            f"torch {version} is older than 2.4, the oldest that opscope is made for", install_torch(facts)
        )
    return ok(f"torch {version}")


def torch_build(facts: Facts) -> Outcome:
    """A debug build: its times say little."""
    torch = facts.torch
    if torch is None or torch.version is None:
        return not_applicable("torch was not imported")
    if torch.is_debug_build:
        return warning(
            "this torch is a debug build: its host times are not those of a release", install_torch(facts)
        )
    return ok("a release build")


def torch_gpu(facts: Facts) -> Outcome:
    """A GPU that torch cannot use: built without CUDA, or CUDA does not start."""
    torch = facts.torch
    if torch is None or torch.version is None:
        return not_applicable("torch was not imported")
    presence = gpu_presence(facts)
    if presence is not GpuPresence.PRESENT:
        return not_applicable("there is no GPU that CUDA shows")
    if torch.cuda is None and torch.hip is None:
        return problem(
            f"there is a GPU, and torch {torch.version} is built without CUDA", install_torch(facts)
        )
    if torch.cuda_error is not None or not torch.is_available:
        return _not_started(facts, torch)
    count = len(torch.devices)
    kind = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}"
    return ok(f"torch built for {kind} sees {count} GPU{'' if count == 1 else 's'}")


def _not_started(facts: Facts, torch: TorchFacts) -> Outcome:
    if torch.stopped is not None:
        return problem(f"torch does not start CUDA: it {torch.stopped}", _ASK_KERNEL)
    if driver_runtime(facts).remedy is not None:
        return problem(
            f"torch does not start CUDA: {torch.cuda_error or 'it sees no GPU'}", driver_runtime(facts).remedy
        )
    command = 'python -c "import torch; torch.cuda.init()"'
    return problem(f"torch does not start CUDA: {torch.cuda_error or 'it sees no GPU'}", command)


def driver_runtime(facts: Facts) -> Outcome:
    """A driver too old for the CUDA that torch is built for."""
    torch, driver = facts.torch, facts.driver
    runtime = major_minor(torch.cuda) if torch is not None else None
    if torch is None or torch.cuda is None or runtime is None:
        return not_applicable("no torch that is built for CUDA")
    served = major_minor(driver.cuda_version)
    if served is None:
        if driver.library is None:
            return not_applicable("no CUDA driver")
        return unknown("the driver does not say which CUDA it serves")
    pair = f"the driver serves CUDA {driver.cuda_version}, torch is built for {torch.cuda}"
    if served >= runtime:
        return ok(pair)
    if served[0] == runtime[0]:
        return warning(
            f"{pair}: an older minor version runs its kernels, but does not compile its PTX",
            newer_driver(torch.cuda),
        )
    return problem(
        f"{pair}: the driver is too old", f"{newer_driver(torch.cuda)}; or: {install_torch(facts)}"
    )


def torch_architectures(facts: Facts) -> Outcome:
    """A torch without kernels for a GPU's architecture."""
    torch = facts.torch
    if torch is None or not torch.architectures or torch.hip is not None:
        return not_applicable("no torch with kernels for CUDA")
    devices = _distinct(torch.devices or facts.driver.devices or ())
    if not devices:
        return not_applicable("there is no GPU that CUDA shows")
    built = " ".join(torch.architectures)
    bare = [one for one in devices if not _has_binary(torch.architectures, one)]
    if not bare:
        return ok(f"built for {built}, which covers {_capabilities(devices)}")
    without = [one for one in bare if not _has_ptx(torch.architectures, one)]
    if without:
        return problem(
            f"torch is built for {built}; none of it runs on {_capabilities(without)}", install_torch(facts)
        )
    return warning(
        f"torch is built for {built}; for {_capabilities(bare)} the driver compiles each kernel at its first "
        "launch, which takes minutes in all",
        install_torch(facts),
    )


def _distinct(devices: Iterable[CudaDevice]) -> list[CudaDevice]:
    """One of each name and capability."""
    return list({(one.name, one.compute_capability): one for one in devices}.values())


def _capabilities(devices: Iterable[CudaDevice]) -> str:
    return ", ".join(f"{one.name} (sm_{one.compute_capability.replace('.', '')})" for one in devices)


def _has_binary(architectures: Iterable[str], device: CudaDevice) -> bool:
    """Whether one of the binaries runs on a device.

    Source: CUDA Programming Guide, Binary Compatibility: within a major capability, from its own minor up; an
    integrated GPU only its own; `a` is exact, `f` within the family.
    """
    wanted = major_minor(device.compute_capability) or (0, 0)
    for kind, major, minor, suffix in _codes(architectures):
        code = (major, minor)
        is_exact = suffix == "a" or code in _INTEGRATED or wanted in _INTEGRATED
        if kind == "sm" and major == wanted[0] and (minor == wanted[1] if is_exact else minor <= wanted[1]):
            return True
    return False


def _has_ptx(architectures: Iterable[str], device: CudaDevice) -> bool:
    """Whether the driver can compile one of the intermediate codes for a device."""
    wanted = major_minor(device.compute_capability) or (0, 0)
    return any(
        kind == "compute" and not suffix and (major, minor) <= wanted
        for kind, major, minor, suffix in _codes(architectures)
    )


def _codes(architectures: Iterable[str]) -> Iterable[tuple[str, int, int, str]]:
    for found in map(_CODE.fullmatch, architectures):
        if found is not None:
            yield found.group(1), int(found.group(2)), int(found.group(3)), found.group(4)


def gpu_calculation(facts: Facts) -> Outcome:
    """A calculation on every GPU, by a kernel and by cuBLAS."""
    torch = facts.torch
    if torch is None or not torch.devices:
        return not_applicable("torch sees no GPU")
    failed = [one for one in torch.calculations if one.error is not None]
    if failed:
        one = failed[0]
        return problem(
            f"a calculation on cuda:{one.device} fails: {one.error}", _calculation_remedy(facts, one.error)
        )
    if len(torch.calculations) < len(torch.devices):
        return problem(f"a calculation on the GPU does not end: torch {torch.stopped}", _ASK_KERNEL)
    if torch.product_error is not None:
        remedy = "unset LD_LIBRARY_PATH" if torch.shadowed else install_torch(facts)
        return problem(f"a matrix product fails: {torch.product_error}", remedy)
    if not torch.has_product:
        return problem(f"a matrix product does not end: torch {torch.stopped}", _ASK_KERNEL)
    return ok(f"right on {len(torch.devices)} of {len(torch.devices)} GPUs, with a kernel and with cuBLAS")


def _calculation_remedy(facts: Facts, error: str | None) -> str:
    text = (error or "").lower()
    if "no kernel image" in text:
        return install_torch(facts)
    if "out of memory" in text or "busy or unavailable" in text:
        return "nvidia-smi  # shows who uses the GPU; end it, or choose another with CUDA_VISIBLE_DEVICES"
    return _ASK_KERNEL


def library_shadowing(facts: Facts) -> Outcome:
    """CUDA libraries of LD_LIBRARY_PATH in place of those torch came with."""
    torch = facts.torch
    if torch is None or torch.version is None:
        return not_applicable("torch was not imported")
    if not torch.shadowed:
        return (
            ok("torch uses its own CUDA libraries")
            if torch.libraries
            else not_applicable("this torch loads no CUDA libraries")
        )
    loaded, own = torch.shadowed[0]
    more = f" and {len(torch.shadowed) - 1} more" if len(torch.shadowed) > 1 else ""
    return warning(
        f"LD_LIBRARY_PATH makes torch load {loaded}{more} in place of its own {own}", "unset LD_LIBRARY_PATH"
    )


def _version(facts: Facts) -> str | None:
    known = facts.packages.versions.get("torch")
    return (facts.torch.version if facts.torch is not None else None) or known


def _without_torch(facts: Facts) -> Outcome:
    if facts.packages.versions.get("torch") is None:
        return not_applicable("torch is not installed")
    return unknown(f"torch was not tried: {facts.failed_probes.get('torch', 'no reason is known')}")
