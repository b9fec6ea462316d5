"""Python and the packages that belong to one another."""

from __future__ import annotations

from collections.abc import Sequence

from opscope.toolchain.doctor.checks.outcome import Outcome, not_applicable, ok, problem, unknown, warning
from opscope.toolchain.doctor.checks.presence import GpuPresence, gpu_presence
from opscope.toolchain.doctor.checks.versions import numbers
from opscope.toolchain.doctor.facts import Facts, Pin

__all__ = [
    "companion_versions",
    "python_headers",
    "python_version",
    "triton_single",
    "triton_version",
    "vllm_torch",
]

_LEAST_PYTHON = (3, 10)


def python_version(facts: Facts) -> Outcome:
    """Python too old."""
    version = facts.python.version
    if not numbers(version):
        return unknown("the version of Python is not known")
    if numbers(version) < _LEAST_PYTHON:
        return problem(f"Python {version} is older than 3.10", "conda create -n opscope python=3.12")
    return ok(f"Python {version}")


def python_headers(facts: Facts) -> Outcome:
    """Python.h missing: extensions and Triton's launcher are compiled against it."""
    if facts.python.headers is not None:
        return ok(f"Python.h is in {facts.python.headers}")
    short = ".".join(map(str, numbers(facts.python.version)[:2])) or "3"
    return warning(
        "Python.h is missing: neither extensions nor Triton kernels can be built",
        f"sudo apt-get install python{short}-dev",
    )


def triton_version(facts: Facts) -> Outcome:
    """Triton not the one torch pins."""
    if facts.packages.failure is not None:
        return unknown(facts.packages.failure, "pip install packaging")
    if facts.packages.versions.get("torch") is None:
        return not_applicable("torch is not installed")
    pins = [one for one in facts.packages.pins if one.package == "torch"]
    if not pins:
        return not_applicable("this torch asks for no Triton")
    unmet = [one for one in pins if not one.is_met]
    if not unmet:
        return ok(_met(pins))
    if all(one.installed is None for one in unmet) and gpu_presence(facts) is not GpuPresence.PRESENT:
        return not_applicable(f"{_wish(unmet[0])} is not installed; there is no GPU to use it on")
    return warning(_unmet(unmet) + "; torch.compile may fail", _install(unmet))


def triton_single(facts: Facts) -> Outcome:
    """More than one package that provides the module triton."""
    packages = facts.packages.triton_packages
    if not packages:
        return not_applicable("Triton is not installed")
    if len(packages) == 1:
        return ok(f"{packages[0]} {facts.packages.versions.get(packages[0])}")
    return warning(
        f"{' and '.join(packages)} overwrite each other's files",
        f"pip uninstall -y {' '.join(packages)} && pip install --force-reinstall {packages[0]}",
    )


def companion_versions(facts: Facts) -> Outcome:
    """torchvision, torchaudio, xformers or flash-attn made for another torch."""
    return _fits(facts, "torch's companions", exclude="vllm", mends_companion=True)


def vllm_torch(facts: Facts) -> Outcome:
    """The torch that is installed not the one vLLM pins."""
    if facts.packages.versions.get("vllm") is None:
        return not_applicable("vLLM is not installed")
    return _fits(facts, "vLLM", only="vllm")


def _fits(
    facts: Facts,
    what: str,
    *,
    only: str | None = None,
    exclude: str | None = None,
    mends_companion: bool = False,
) -> Outcome:
    """Whether packages compiled against torch meet the torch that is there."""
    if facts.packages.failure is not None:
        return unknown(facts.packages.failure, "pip install packaging")
    pins = [
        one
        for one in facts.packages.pins
        if one.package not in ("torch", exclude) and only in (None, one.package)
    ]
    if not pins:
        return not_applicable(f"{what} ask for no version of torch")
    unmet = [one for one in pins if not one.is_met]
    if not unmet:
        return ok(_met(pins))
    names = " ".join(dict.fromkeys(one.package for one in unmet))
    remedy = f"pip install --upgrade torch {names}" if mends_companion else _install(unmet)
    return problem(_unmet(unmet), remedy)


def _wish(pin: Pin) -> str:
    return f"{pin.requires}{pin.specifier}"


def _met(pins: Sequence[Pin]) -> str:
    return "; ".join(f"{one.package} asks for {_wish(one)}: {one.installed}" for one in pins)


def _unmet(pins: Sequence[Pin]) -> str:
    return "; ".join(
        f"{one.package} asks for {_wish(one)}, and {one.installed or 'none'} is installed" for one in pins
    )


def _install(pins: Sequence[Pin]) -> str:
    return "pip install " + " ".join(f"'{_wish(one)}'" for one in pins)
