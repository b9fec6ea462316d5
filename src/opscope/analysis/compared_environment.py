"""Where each side of a comparison was measured, by label, and the finding that the places differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from opscope.model.benchmark import BenchmarkResult
from opscope.model.environment import Environment
from opscope.model.finding import Finding, Severity
from opscope.model.session import Session

__all__ = ["benchmark_environment", "environment_finding", "session_environment"]

_VERSIONS_SQL = "SELECT torch_version, cuda_version, driver_version FROM traces"
_CPUS_SQL = """
SELECT value::JSON->>'$.environment.cpu' FROM metadata WHERE key LIKE 'sidecar:%'"""
_DEVICES_SQL = """
SELECT coalesce(name, 'unnamed device'), count(*) FROM devices WHERE activity_count > 0
GROUP BY ALL ORDER BY 1"""


def session_environment(session: Session, recognized_torch: str | None) -> dict[str, str]:
    """What a Session tells of where it was recorded.

    Args:
        session: The Session.
        recognized_torch: The release its kernels were recognized by, where its traces name none.
    """
    versions = session.query(_VERSIONS_SQL)
    devices = [name if count == 1 else f"{count} × {name}" for name, count in session.query(_DEVICES_SQL)]
    facts = {
        "GPU": ", ".join(devices),
        "CPU": None if devices else _joined(row[0] for row in session.query(_CPUS_SQL)),
        "PyTorch": _joined(row[0] for row in versions) or recognized_torch,
        "CUDA": _joined(row[1] for row in versions),
        "CUDA driver": _joined(row[2] for row in versions),
    }
    return {label: value for label, value in facts.items() if value}


def _joined(values: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({value for value in values if value})) or None


def benchmark_environment(result: BenchmarkResult) -> dict[str, str]:
    """What a result was measured on and with, by label; the machine's CPU and the GPU only where used."""
    environment = result.environment
    is_cpu = result.device.partition(":")[0] == "cpu"
    facts = {
        "CPU" if is_cpu else "GPU": environment.cpu if is_cpu else _gpu(environment, result.device),
        "CUDA driver": None if is_cpu else environment.cuda_driver,
        "CUDA": None if is_cpu else environment.cuda_runtime,
        "cuDNN": None if is_cpu else environment.cudnn,
        "PyTorch": environment.torch,
        "Triton": environment.triton,
    }
    return {label: value for label, value in facts.items() if value}


def _gpu(environment: Environment, device: str) -> str | None:
    _, _, index = device.partition(":")
    gpus = environment.gpu
    if not gpus:
        return None
    return gpus[int(index)].name if index.isdigit() and int(index) < len(gpus) else gpus[0].name


def environment_finding(reference: Mapping[str, str], candidate: Mapping[str, str]) -> Iterator[Finding]:
    """That both sides ran on or with something else; what only one side tells is left out."""
    changed = {
        label: [value, candidate[label]]
        for label, value in reference.items()
        if label in candidate and candidate[label] != value
    }
    if not changed:
        return
    told = "; ".join(f"{label} {before} → {after}" for label, (before, after) in changed.items())
    yield Finding(
        "compare.environment_differs",
        Severity.WARNING,
        f"The sides were not measured in the same environment: {told}. Ratios hold between these "
        "environments, not for the program alone.",
        evidence=changed,
    )
