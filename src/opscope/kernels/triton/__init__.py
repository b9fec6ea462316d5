"""Triton kernels: the good version of each operator, and a simple one to learn from beside it.

As functions of tensors, compiled for a GPU or run by the interpreter on the CPU: Triton decides which when it
is imported, and for the whole process. Importing this package imports neither torch nor Triton.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from opscope.errors import DependencyError, MeasurementError


def require_triton() -> Any:
    """The triton module; a DependencyError where it cannot be imported."""
    try:
        return importlib.import_module("triton")
    except ImportError as error:
        what = "is not installed" if error.name == "triton" else f"cannot be imported ({error})"
        raise DependencyError(f"Triton {what}", hint="pip install 'opscope[triton]'") from error


def decide_interpreter(*, interpret: bool) -> None:
    """Whether Triton interprets kernels in this process, unless it is imported and has decided already."""
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = str(int(interpret))  # also what Triton before 3.4 reads


def load_triton(name: str, *, interpret: bool = False) -> ModuleType:
    """A module of kernels, such as `"softmax"`: its kernels are compiled, or interpreted.

    A MeasurementError if Triton does the other in this process.
    """
    decide_interpreter(interpret=interpret)
    triton = require_triton()
    if isinstance(triton.language.cdiv, triton.JITFunction) == interpret:  # a kernel of Triton's own
        raise MeasurementError(
            "Triton was imported before, and compiles the kernels of this process"
            if interpret
            else "Triton was imported before, and interprets the kernels of this process",
            hint="Use another process",
        )
    return importlib.import_module(f"opscope.kernels.triton.{name}")
