"""The extension that examples 12 and 13 record: add.cu on a GPU, add.cpp on a CPU, built by torch.

torch keeps what it built in its cache for extensions, so only the first run compiles.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.cpp_extension import CUDA_HOME, is_ninja_available, load

FOLDER = Path(__file__).parent


def load_add(device: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The extension's operator; torch.add, and a sentence that says so, where it cannot be compiled."""
    needs = {
        "a C++ compiler": shutil.which("c++") is not None,
        "ninja": is_ninja_available(),
        "nvcc": device == "cpu" or CUDA_HOME is not None,
    }
    missing = [name for name, is_there in needs.items() if not is_there]
    if missing:
        print(f"The extension is left out (missing: {', '.join(missing)}); torch.add takes its place.")
        return torch.add
    source = FOLDER / ("add.cu" if device == "cuda" else "add.cpp")
    load(f"vector_add_{device}", [str(source)], is_python_module=False)
    return torch.ops.vector_add.add
