"""Runs all probes and puts their facts together.

GPUs are looked at before anything runs on them, and counters are read after all else has left them; the rest
runs at the same time. A probe that raises or does not come back leaves its facts empty and is named.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from opscope.toolchain.doctor.facts import (
    BuildFacts,
    CounterFacts,
    DriverFacts,
    Facts,
    FolderFacts,
    MachineFacts,
    PackageFacts,
    ProgramFacts,
    PythonFacts,
    TorchFacts,
)
from opscope.toolchain.doctor.gpu_probes import (
    TORCH_TIMEOUT_S,
    CudaVersions,
    DeviceInventory,
    ask_driver,
    complete_devices,
    probe_counters,
    probe_devices,
    probe_driver_files,
    probe_torch,
)
from opscope.toolchain.doctor.software_probes import (
    probe_build,
    probe_cuobjdump,
    probe_folders,
    probe_machine,
    probe_ncu,
    probe_nsys,
    probe_packages,
    probe_python,
)
from opscope.toolchain.doctor.surroundings import Surroundings

_T = TypeVar("_T")
_LIMIT_S = TORCH_TIMEOUT_S + 15
_FOLDER_LIMIT_S = 10.0


class _Probe(Generic[_T]):
    """One probe in a thread of its own, which the process does not wait for when it ends."""

    def __init__(
        self, name: str, function: Callable[[], _T], nothing: _T, *, limit_s: float = _LIMIT_S
    ) -> None:
        self._name = name
        self._result = nothing
        self._failure: str | None = None
        self._end = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._function = function
        self._thread = threading.Thread(target=self._run, name=f"doctor {name}", daemon=True)
        self._thread.start()

    def result(self, failures: dict[str, str]) -> _T:
        """Its facts; those of nothing found, and why among the failures, if it gave none."""
        self._thread.join(max(0.0, self._end - time.monotonic()))
        if self._thread.is_alive():
            failures[self._name] = f"gave no answer within {self._limit_s:g} s"
        elif self._failure is not None:
            failures[self._name] = self._failure
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._function()
        except Exception as error:  # noqa: BLE001 - one probe's defect must not hide what the others found
            self._failure = f"{type(error).__name__}: {error}"


def gather_facts(surroundings: Surroundings, cuda_versions: CudaVersions) -> Facts:
    """Everything the probes find; raises nothing.

    Args:
        surroundings: Where to look.
        cuda_versions: What the hardware table knows of a compute capability.
    """
    failures: dict[str, str] = {}
    machine = _Probe("machine", lambda: probe_machine(surroundings), MachineFacts(system="")).result(failures)
    files = _Probe("driver files", lambda: probe_driver_files(surroundings), DriverFacts()).result(failures)
    inventory = _Probe(
        "devices", lambda: probe_devices(surroundings, files.smi), DeviceInventory((), None, files.smi)
    ).result(failures)
    files = replace(files, version=inventory.driver_version or files.version, smi=inventory.smi)
    facts = _gather_rest(surroundings, machine, files, failures)
    of_torch = facts.torch.devices if facts.torch is not None else ()
    devices = complete_devices(inventory.devices, facts.driver, of_torch, cuda_versions)
    facts = replace(facts, devices=devices)
    counters = _Probe("counters", lambda: _counters(surroundings, facts), CounterFacts()).result(failures)
    return replace(facts, counters=counters, failed_probes=failures)


def _gather_rest(
    surroundings: Surroundings, machine: MachineFacts, files: DriverFacts, failures: dict[str, str]
) -> Facts:
    """All but the devices' state and the counters, at the same time."""
    nothing = PackageFacts()
    # Before the others, which take longer: it says whether and where there is a torch.
    packages = _Probe("packages", lambda: probe_packages(surroundings), nothing).result(failures)
    torch = _Probe[TorchFacts | None]("torch", lambda: _torch(surroundings, packages), None)
    driver = _Probe("driver", lambda: ask_driver(surroundings, files), files)
    build = _Probe("extensions", lambda: probe_build(surroundings, packages.torch_folder), BuildFacts())
    nsys = _Probe("nsys", lambda: probe_nsys(surroundings), ProgramFacts("nsys"))
    ncu = _Probe("ncu", lambda: probe_ncu(surroundings), ProgramFacts("ncu"))
    cuobjdump = _Probe("cuobjdump", lambda: probe_cuobjdump(surroundings), ProgramFacts("cuobjdump"))
    folders = _Probe[tuple[FolderFacts, ...]](
        "folders", lambda: probe_folders(surroundings), (), limit_s=_FOLDER_LIMIT_S
    )
    python = _Probe("python", lambda: probe_python(surroundings), PythonFacts(version=""))
    return Facts(
        machine=machine,
        python=python.result(failures),
        packages=packages,
        build=build.result(failures),
        driver=driver.result(failures),
        torch=torch.result(failures),
        nsys=nsys.result(failures),
        ncu=ncu.result(failures),
        cuobjdump=cuobjdump.result(failures),
        folders=folders.result(failures),
    )


def _torch(surroundings: Surroundings, packages: PackageFacts) -> TorchFacts | None:
    if packages.versions.get("torch") is None and packages.torch_folder is None:
        return None
    return probe_torch(surroundings)


def _counters(surroundings: Surroundings, facts: Facts) -> CounterFacts:
    """Nothing is tried where the kernel to be counted does not run."""
    if not facts.devices:
        return CounterFacts(failure="there is no GPU")
    if not facts.driver.launched:
        return CounterFacts(failure="no kernel runs on the GPU")
    return probe_counters(surroundings, facts.ncu)
