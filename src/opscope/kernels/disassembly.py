"""PTX and machine code of kernels in this process's libraries and in cubins, as cuobjdump prints them.

PyTorch's and NVIDIA's own libraries are left out: dumping gigabytes takes minutes, for kernels that nobody
here has written. No import of torch.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection
from itertools import zip_longest
from pathlib import Path

from opscope.errors import DependencyError, MeasurementError
from opscope.hardware.toolkit import find_cuda_tool
from opscope.kernels.ptx import ptx_functions, ptx_preamble
from opscope.provenance.demangle import demangle

_MAPS = Path("/proc/self/maps")
# Packages with device code of their own, the system's folders, and libraries of the driver, CUDA and torch.
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/(?:torch|nvidia|triton|cupy|jax\w*)/|^/(?:usr/)?lib"
    r"|/lib(?:torch|c10|nccl|nvidia-|cu[a-z]+)"
)
_FUNCTION = re.compile(r"^\s*Function\s*:?\s+(\S+?):?\s*$", re.MULTILINE)
# `/*0010*/  S2R R2, SR_TID.X ;  /* 0x... */`: without the encoding, and without lines of encoding alone.
_ENCODING = re.compile(r"\s*/\* 0x[0-9a-f]{16} \*/")
_NO_DEVICE_CODE = "does not contain device code"  # an answer, although an error of cuobjdump
_FATBIN = "\nFatbin "  # begins the next image of a file with several


def kernel_libraries(maps: Path = _MAPS) -> list[Path]:
    """Libraries with device code that this process has loaded, without those of torch and NVIDIA.

    Args:
        maps: What the system says of this process's mappings.
    """
    from opscope.provenance.binaries.process import mapped_libraries  # noqa: PLC0415 - seldom needed

    return [path for path in mapped_libraries(maps) if not _FOREIGN.search(str(path))]


def library_symbols(library: Path) -> dict[str, str]:
    """Names of a library's kernels, as a profile shows them, and their symbols."""
    text = _cuobjdump("-res-usage", str(library))
    return {demangle(symbol) or symbol: symbol for symbol in _FUNCTION.findall(text)}


def library_sass(library: Path, symbols: Collection[str]) -> dict[str, str]:
    """Machine code of some kernels, by symbol; of the first architecture that has it."""
    return split_sass(_cuobjdump("-sass", "-fun", ",".join(symbols), str(library)))


def library_ptx(library: Path, symbols: Collection[str]) -> dict[str, str]:
    """PTX of some kernels, by symbol; kernels whose PTX is not in the library are missing."""
    found: dict[str, str] = {}
    for module in re.split(r"^Fatbin ptx code:$", _cuobjdump("-ptx", str(library)), flags=re.MULTILINE):
        preamble = ptx_preamble(module)
        for function in ptx_functions(module) if preamble else ():
            if function.is_kernel and function.symbol in symbols:
                found.setdefault(function.symbol, f"{preamble}{function.text}")
    return found


def file_sass(file: Path, target: str) -> dict[str, str]:
    """Machine code for one target in a program, library, object or cubin: text by symbol."""
    return split_sass(_cuobjdump("-sass", "-arch", target, str(file)))


def cubin_sass(cubin: bytes) -> str:
    """Machine code of all kernels of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return "\n".join(split_sass(_cuobjdump("-sass", file.name)).values())


def split_sass(text: str) -> dict[str, str]:
    """Machine code by symbol, of what cuobjdump prints."""
    found: dict[str, str] = {}
    starts = list(_FUNCTION.finditer(text))
    for start, following in zip_longest(starts, starts[1:]):
        body = text[start.end() : len(text) if following is None else following.start()]
        image, _, _ = body.partition(_FATBIN)
        lines = (_ENCODING.sub("", line).rstrip() for line in image.splitlines())
        found.setdefault(
            start[1], "\n".join(line for line in lines if line.strip() and line.strip() != "." * 10)
        )
    return found


def _cuobjdump(*arguments: str) -> str:
    program = find_cuda_tool("cuobjdump")
    if program is None:
        raise DependencyError(
            "cuobjdump, which prints machine code, was not found",
            hint="It comes with the CUDA toolkit, and with Triton: pip install triton",
        )
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0 and _NO_DEVICE_CODE not in done.stderr + done.stdout:
        message = (done.stderr or done.stdout).strip()
        raise MeasurementError(f"cuobjdump failed: {message}", source=arguments[-1])
    return done.stdout
