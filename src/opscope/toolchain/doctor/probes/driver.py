"""NVIDIA's driver: what the kernel shows of it, and what its library answers in a process of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec

from opscope.toolchain.doctor.facts import CudaDevice, DriverFacts, ProgramFacts
from opscope.toolchain.doctor.probes.child import run_child
from opscope.toolchain.doctor.probes.surroundings import Surroundings

__all__ = ["ask_driver", "probe_driver_files"]

_TIMEOUT_S = 60.0
_MODULE_VERSION = re.compile(r"Kernel Module\S*(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_ADMIN_ONLY = re.compile(r"^RmProfilingAdminOnly:\s*(\d+)", re.MULTILINE)
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-f]+)", re.MULTILINE)
# Source: linux/capability.h.
_CAP_SYS_ADMIN = 21


def probe_driver_files(surroundings: Surroundings) -> DriverFacts:
    """What files tell, at once and without touching the driver."""
    return DriverFacts(
        version=_module_version(surroundings),
        device_files=_device_files(surroundings),
        admin_only_counters=_admin_only(surroundings),
        is_admin=_is_admin(surroundings),
        smi=ProgramFacts("nvidia-smi", surroundings.find("nvidia-smi")),
    )


def ask_driver(
    surroundings: Surroundings, known: DriverFacts, *, timeout_s: float = _TIMEOUT_S
) -> DriverFacts:
    """The same with what the driver's library answers."""
    answer = run_child(surroundings, "doctor_driver", timeout_s=timeout_s)
    facts: dict[str, Any] = {
        name: answer.facts.get(name)
        for name in (
            "library", "library_failure", "cuda_version", "init_error", "devices", "launched", "launch_error",
        )
    }  # fmt: skip
    if answer.stopped is not None:
        facts |= _unanswered(facts, f"the program that asks the driver {answer.stopped}")
    if facts["devices"] and facts["launched"] is None:
        facts["launched"] = False
    if facts["devices"] is not None:
        facts["devices"] = msgspec.convert(facts["devices"], tuple[CudaDevice, ...])
    return replace(known, **facts)


def _unanswered(facts: dict[str, Any], reason: str) -> dict[str, Any]:
    """The first question that was not answered, and why."""
    if facts["devices"]:
        return {"launch_error": reason}
    return {"init_error": reason} if facts["library"] else {"library_failure": reason}


def _module_version(surroundings: Surroundings) -> str | None:
    found = _MODULE_VERSION.search(surroundings.text("/proc/driver/nvidia/version") or "")
    if found is not None:
        return found.group(1)
    return (surroundings.text("/sys/module/nvidia/version") or "").strip() or None


def _device_files(surroundings: Surroundings) -> tuple[str, ...]:
    """Devices of the driver; dxg is the one through which Linux inside Windows reaches it."""
    try:
        names = sorted(entry.name for entry in surroundings.at("/dev").iterdir())
    except OSError:
        return ()
    return tuple(name for name in names if re.fullmatch(r"nvidia(\d+|ctl|-uvm)|dxg", name))


def _admin_only(surroundings: Surroundings) -> bool | None:
    found = _ADMIN_ONLY.search(surroundings.text("/proc/driver/nvidia/params") or "")
    return None if found is None else found.group(1) != "0"


def _is_admin(surroundings: Surroundings) -> bool | None:
    """Whether the process may do what the driver keeps to administrators: CAP_SYS_ADMIN."""
    found = _CAPABILITIES.search(surroundings.text("/proc/self/status") or "")
    return None if found is None else bool(int(found.group(1), 16) >> _CAP_SYS_ADMIN & 1)
