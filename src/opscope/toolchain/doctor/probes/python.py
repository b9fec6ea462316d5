"""The Python that runs opscope, and the installed packages by their metadata; nothing is imported."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

from opscope.toolchain.doctor.facts import PackageFacts, Pin, PythonFacts
from opscope.toolchain.doctor.probes.surroundings import Surroundings

__all__ = ["probe_packages", "probe_python"]

TRITON_PACKAGES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")
_COMPANIONS = ("vllm", "torchvision", "torchaudio", "xformers", "flash-attn")
_SHOWN = (
    "torch", *TRITON_PACKAGES, *_COMPANIONS, "transformers", "numpy", "nvidia-ml-py", "ncu-report",
    "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cupti", "nvidia-cuda-cupti-cu12",
)  # fmt: skip


def probe_python(surroundings: Surroundings) -> PythonFacts:
    """The interpreter of this process."""
    folder = sysconfig.get_path("include")
    has_headers = folder is not None and (Path(folder) / "Python.h").is_file()
    return PythonFacts(
        version=platform.python_version(),
        implementation=platform.python_implementation(),
        executable=surroundings.python,
        is_free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        headers=folder if has_headers else None,
    )


def probe_packages(surroundings: Surroundings) -> PackageFacts:
    """Versions, and what torch and the packages around it require of each other."""
    found = {name: _distribution(surroundings, name) for name in _SHOWN}
    versions = {name: None if one is None else one.version for name, one in found.items()}
    providers = tuple(name for name in TRITON_PACKAGES if versions[name] is not None)
    folder = _torch_folder(surroundings)
    try:
        pins = tuple(_pins(found, versions))
    except ImportError as error:
        return PackageFacts(versions, (), providers, folder, f"package requirements cannot be read ({error})")
    return PackageFacts(versions, pins, providers, folder)


def _distribution(surroundings: Surroundings, name: str) -> Distribution | None:
    path = sys.path if surroundings.package_path is None else list(surroundings.package_path)
    return next(iter(Distribution.discover(name=name, path=path)), None)


def _pins(found: dict[str, Distribution | None], versions: dict[str, str | None]) -> Iterator[Pin]:
    """Requirements of torch on Triton, and of companions on torch and Triton, that apply on this machine."""
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - 80 ms, only here

    for package in ("torch", *_COMPANIONS):
        distribution = found[package]
        for line in (distribution.requires or []) if distribution is not None else []:
            try:
                one = Requirement(line)
            except InvalidRequirement:
                continue
            name = re.sub(r"[-_.]+", "-", one.name).lower()
            wanted = name in TRITON_PACKAGES or (package != "torch" and name == "torch")
            if not wanted or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
                continue
            installed = versions[name]
            is_met = installed is not None and one.specifier.contains(installed, prereleases=True)
            yield Pin(package, name, str(one.specifier), installed, is_met)


def _torch_folder(surroundings: Surroundings) -> str | None:
    if surroundings.package_path is not None:
        folders = (Path(one) / "torch" for one in surroundings.package_path)
        return next((str(folder) for folder in folders if folder.is_dir()), None)
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # ValueError: a half-loaded module of this name
        return None
    return next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None
