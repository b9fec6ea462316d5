"""What building C++ and CUDA extensions needs."""

from __future__ import annotations

import re

from opscope.toolchain.doctor.checks.outcome import Outcome, not_applicable, ok, problem, unknown, warning
from opscope.toolchain.doctor.checks.versions import major_minor
from opscope.toolchain.doctor.facts import Facts

__all__ = ["compiler", "cuda_home", "ninja", "nvcc", "nvcc_host_compiler", "nvcc_version"]

_LAST_GCC = re.compile(r"gcc versions later than (\d+)")
_LESS_CLANG = re.compile(r"clang version must be less than (\d+)")
_NVCC_INSTALL = "sudo apt-get install cuda-nvcc-{}  # or conda install -c nvidia cuda-nvcc={}"


def compiler(facts: Facts) -> Outcome:
    """No C++ compiler, or one too old for torch's headers."""
    build = facts.build
    if build.compiler.path is None:
        return warning(
            f"there is no C++ compiler ({build.compiler.name}): neither extensions, nor torch.compile, nor "
            "opscope trace can build what they need",
            "sudo apt-get install g++",
        )
    title = f"{build.compiler_kind or build.compiler.name} {build.compiler.version or '(version not known)'}"
    if build.compiles is False:
        remedy = "sudo apt-get install g++-13 && export CC=gcc-13 CXX=g++-13"
        return problem(f"{title} does not compile C++{build.cxx_standard}: {build.compiler_message}", remedy)
    if build.compiles is None:
        return unknown(f"{title} was not tried")
    return ok(f"{title} compiles C++{build.cxx_standard}")


def nvcc(facts: Facts) -> Outcome:
    """No nvcc."""
    found = facts.build.nvcc
    if found.path is None:
        wanted = _torch_cuda(facts)
        if wanted is None:
            return not_applicable("nvcc is not installed, and torch is not built for CUDA")
        return warning("nvcc is missing: CUDA extensions cannot be built", _install(wanted))
    if found.failure is not None:
        return problem(f"{found.path} does not answer: {found.failure}", f"{found.path} --version")
    return ok(f"nvcc {found.version} ({found.path})")


def nvcc_version(facts: Facts) -> Outcome:
    """An nvcc of another CUDA than torch's.

    Source: torch/utils/cpp_extension.py, _check_cuda_version: another major version is an error, another
    minor one a warning that says it is most likely no problem.
    """
    wanted, found = _torch_cuda(facts), facts.build.nvcc.version
    ours, theirs = major_minor(found), major_minor(wanted)
    if wanted is None or theirs is None:
        return not_applicable("torch is not built for CUDA")
    if ours is None:
        return not_applicable("there is no nvcc")
    if ours[0] != theirs[0]:
        age = "newer" if ours > theirs else "older"
        return problem(
            f"nvcc {found} is {age} than the CUDA {wanted} of torch, which refuses to build with it",
            _install(wanted),
        )
    if ours != theirs:
        return ok(f"nvcc {found} and torch's CUDA {wanted} differ in the minor version only")
    return ok(f"nvcc {found} and torch's CUDA {wanted}")


def nvcc_host_compiler(facts: Facts) -> Outcome:
    """A compiler that nvcc does not take."""
    build = facts.build
    if build.nvcc.path is None:
        return not_applicable("there is no nvcc")
    if build.nvcc_starts is None:
        return unknown("nvcc was not tried")
    if build.nvcc_starts:
        return ok("nvcc works with the host compiler")
    return problem(f"nvcc does not work with the host compiler: {build.nvcc_message}", _host_remedy(facts))


def _host_remedy(facts: Facts) -> str:
    message = facts.build.nvcc_message
    gcc, clang = _LAST_GCC.search(message), _LESS_CLANG.search(message)
    if gcc is not None:
        return (
            f"sudo apt-get install g++-{gcc.group(1)} && export CC=gcc-{gcc.group(1)} CXX=g++-{gcc.group(1)}"
        )
    if clang is not None:
        version = int(clang.group(1)) - 1
        return f"sudo apt-get install clang-{version} && export CC=clang-{version} CXX=clang++-{version}"
    return "sudo apt-get install g++" if facts.build.compiler.path is None else "unset CC NVCC_CCBIN"


def cuda_home(facts: Facts) -> Outcome:
    """A toolkit folder that torch takes for CUDA's and that is none."""
    build = facts.build
    if _torch_cuda(facts) is None:
        return not_applicable("torch is not built for CUDA")
    if build.cuda_home is None:
        return not_applicable("there is no CUDA toolkit")
    named = f"{build.cuda_home} (by {build.cuda_home_from})"
    remedy = f"export CUDA_HOME={build.toolkits[0]}" if build.toolkits else _install(_torch_cuda(facts) or "")
    if build.nvcc.path is not None and not build.nvcc.path.startswith(f"{build.cuda_home}/"):
        return problem(f"torch takes {named} for the CUDA toolkit, which has no nvcc", remedy)
    if build.has_cuda_headers is False:
        return warning(f"torch takes {named} for the CUDA toolkit, which has no cuda_runtime.h", remedy)
    return ok(f"torch finds the CUDA toolkit in {named}")


def ninja(facts: Facts) -> Outcome:
    """No ninja, which torch builds extensions with."""
    found, beside = facts.build.ninja, facts.build.ninja_beside_python
    if found.path is not None and found.failure is None:
        return ok(f"ninja {found.version}")
    if found.path is not None:
        return warning(
            f"{found.path} does not answer: {found.failure}", "pip install --force-reinstall ninja"
        )
    if beside is not None:
        folder = beside.rpartition("/")[0]
        return warning(f"ninja is installed ({beside}), but not on PATH", f"export PATH={folder}:$PATH")
    return warning("ninja is missing: torch.utils.cpp_extension.load cannot build", "pip install ninja")


def _torch_cuda(facts: Facts) -> str | None:
    return facts.torch.cuda if facts.torch is not None else None


def _install(cuda: str) -> str:
    version = major_minor(cuda)
    if version is None:
        return "install the CUDA toolkit: developer.nvidia.com/cuda-downloads"
    return _NVCC_INSTALL.format("-".join(map(str, version)), ".".join(map(str, version)))
