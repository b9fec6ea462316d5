"""A kernel's machine code where this machine has it: its instructions, and what its registers cost.

Looked for in Triton's cache by the kernel's name, and in the libraries of the installed torch. What the code
was compiled for need not be what was recorded: the grade says how far it is the same.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from opscope.data import packaged_toml
from opscope.errors import DependencyError, InputError, MeasurementError
from opscope.hardware.architectures import WARP_SIZE, architecture
from opscope.hardware.driver import find_cuda_tool
from opscope.hardware.occupancy import ActiveBlocks, active_blocks
from opscope.model.files import scratch_prefix
from opscope.model.location import Grade
from opscope.model.queries import statements
from opscope.model.session import Session
from opscope.provenance.binaries.device_code import cubin_with
from opscope.provenance.binaries.elf import open_elf
from opscope.provenance.binaries.library import installed_libraries
from opscope.provenance.demangle import demangle
from opscope.provenance.installation import installed_torch

_MOST_REGISTERS = 255
_SHOWN = 3


class KernelCode(msgspec.Struct, frozen=True):
    name: str
    file: str  # that holds the code
    grade: Grade
    target: str  # such as `sm_90`
    threads: int | None  # of a block; None if neither code nor recording tells
    registers: int  # of a thread
    stack_bytes: int  # of a thread, in local memory
    shared_bytes: int  # of a block
    instructions: dict[str, int]  # by what they are, the most first
    active: ActiveBlocks | None  # on one multiprocessor; None if unknown
    more_blocks_at: int | None  # registers at which a multiprocessor holds a block more
    fewer_blocks_at: int | None  # and from which it holds one less


def kernel_code(
    name: str, session: Session | None = None, torch_version: str | None = None
) -> KernelCode | None:
    """The code of a kernel, for the device and the block of a recording where one is given; None if not here.

    Raises:
        DependencyError: cuobjdump is not installed.
    """
    asked = statements(__package__, "kernel_code")
    devices = [] if session is None else session.query(asked["architecture"])
    blocks = [] if session is None else session.query(asked["block"], [name])
    wanted = devices[0][0] if len(devices) == 1 else None
    found = next(chain(_in_caches(name, wanted), _in_libraries(name, wanted, torch_version)), None)
    if found is None:
        return None
    file, grade, target, (used, sass), stated = found
    threads = stated["num_warps"] * WARP_SIZE if stated else blocks[0][0] if blocks else None
    registers, shared_bytes = used["REG"], max(stated.get("shared", 0), used.get("SHARED", 0))
    limits = architecture(f"{target // 10}.{target % 10}")
    held = {
        count: active_blocks(limits, threads=threads, registers_per_thread=count, shared_bytes=shared_bytes)
        for count in range(1, _MOST_REGISTERS + 1)
        if limits is not None and threads is not None
    }
    many = {count: of.blocks_per_sm if of is not None else 0 for count, of in held.items()}
    now = many.get(registers, 0)
    return KernelCode(
        name=name,
        file=file,
        grade=grade,
        target=f"sm_{target}",
        threads=threads,
        registers=registers,
        stack_bytes=used.get("STACK", 0),
        shared_bytes=shared_bytes,
        instructions=instruction_mix(sass),
        active=held.get(registers),
        more_blocks_at=max((count for count, blocks in many.items() if blocks > now), default=None),
        fewer_blocks_at=min((count for count, blocks in many.items() if blocks < now), default=None),
    )


def kernel_codes(
    names: Sequence[str], session: Session | None = None, torch_version: str | None = None
) -> list[KernelCode]:
    """Of the first kernels whose code is here; an InputError if there is none of any."""
    codes = (code for name in names if (code := kernel_code(name, session, torch_version)) is not None)
    found = list(islice(codes, _SHOWN))
    if not names:
        raise InputError("it has no kernel", hint="Name a kernel, or give a recording: --trace")
    if not found:
        raise InputError(
            f"this machine has no machine code of {names[-1]}",
            hint="It is read from Triton's cache (TRITON_CACHE_DIR) and the libraries of the installed torch:"
            " ask where it was recorded",
        )
    return found


# File, grade, architecture (90 is 9.0), what `cubin_use` says, what Triton states of the launch.
_Found = tuple[str, Grade, int, tuple[dict[str, int], str], dict[str, Any]]


def _in_caches(name: str, wanted: int | None) -> Iterator[_Found]:
    """Of Triton's caches, the newest first: its own, and those of torch.compile."""
    if re.fullmatch(r"\w+", name) is None:
        return
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    roots = [Path(inductor)] if inductor else sorted(Path(tempfile.gettempdir()).glob("torchinductor_*"))
    own = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    places = [own, *(one for root in roots for one in root.glob("triton/*"))]
    cubins = [cubin for place in places for cubin in place.glob(f"*/{name}.cubin")]
    for cubin in sorted(cubins, key=lambda one: -one.stat().st_mtime_ns):
        stated = json.loads(cubin.with_suffix(".json").read_text(encoding="utf-8"))
        if wanted in {None, target := stated["target"]["arch"]}:
            yield str(cubin), Grade.INFERRED, target, cubin_use(cubin, cubin.stem), stated


def _in_libraries(name: str, wanted: int | None, torch_version: str | None) -> Iterator[_Found]:
    if (library := installed_libraries().holding(name)) is None:
        return
    with open_elf(library.path) as elf:
        found = cubin_with(elf, lambda names: _named(names, name), wanted)
    if found is not None:
        content, symbol, target = found
        grade = Grade.EXACT if torch_version in {None, installed_torch()[0]} else Grade.NEIGHBOR_VERSION
        with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as scratch:
            cubin = Path(scratch) / "code.cubin"
            cubin.write_bytes(content)
            yield library.path, grade, target, cubin_use(cubin, symbol), {}


def _named(symbols: Set[str], name: str) -> str | None:
    """The mangled name that a trace shows so."""
    words = re.findall(r"[A-Za-z_]\w+", name.partition("<")[0].partition("(")[0])
    word = words[-1] if words else name
    return next((one for one in symbols if word in one and name in {one, demangle(one)}), None)


_SASS_FUNCTION = re.compile(r"^\s*Function\s*:?\s+(\S+?):?\s*$", re.MULTILINE)
# `/*0010*/  S2R R2, SR_TID.X ;  /* 0x... */`: without the encoding, and without lines of encoding alone.
_ENCODING = re.compile(r"\s*/\* 0x[0-9a-f]{16} \*/")
_NO_DEVICE_CODE = "does not contain device code"  # an answer, although an error of cuobjdump
_FATBIN = "\nFatbin "  # begins the next image of a file with several


# What cuobjdump prints of a kernel: `REG:95 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:568 …`.
_USAGE = re.compile(r"^ Function (?P<symbol>\S+):\s*\n\s*(?P<used>.*)$", re.MULTILINE)
_USED = re.compile(r"(\w+):(\d{1,18})")


def cubin_use(file: Path, symbol: str) -> tuple[dict[str, int], str]:
    """What a kernel of a cubin takes (`REG`, `STACK`, `SHARED`, `LOCAL`), and its machine code."""
    usage = {found["symbol"]: found["used"] for found in _USAGE.finditer(_cuobjdump(file, "-res-usage"))}
    code = split_sass(_cuobjdump(file, "-sass")).get(symbol)
    if code is None or symbol not in usage:
        raise MeasurementError(f"cuobjdump prints no code of {symbol}", source=file)
    return {name: int(count) for name, count in _USED.findall(usage[symbol])}, code


_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z]\w*)(?P<rest>[.\w]*)", re.M
)
_WIDTHS = re.compile(r"\.(?:U|S)?(256|128|64|16|8)(?!\w)")


def instruction_mix(sass: str) -> dict[str, int]:
    """Instructions of machine code by what they are, the most first; of global memory also by width.

    What addresses, moves, compares and branches is `other`; instructions that do nothing do not count.
    """
    mix: Counter[str] = Counter()
    kinds = packaged_toml(__package__, "instructions.toml").items()
    for found in _INSTRUCTION.finditer(sass):
        if found["name"] == "NOP":
            continue
        title = next((kind for kind, pattern in kinds if re.fullmatch(pattern, found["name"])), "other")
        if title in {"global loads", "global stores"}:
            width = _WIDTHS.search(found["rest"])
            title += f" of {int(width[1]) // 8 if width else 4} bytes"
        mix[title] += 1
    return dict(mix.most_common())


def _cuobjdump(file: Path, *options: str) -> str:
    if (program := find_cuda_tool("cuobjdump")) is None:
        raise DependencyError(
            "cuobjdump, which prints machine code, was not found",
            hint="It comes with the CUDA toolkit, and with Triton: pip install triton",
        )
    done = subprocess.run(
        [program, *options, str(file)], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0 and _NO_DEVICE_CODE not in done.stderr + done.stdout:
        raise MeasurementError(f"cuobjdump failed: {(done.stderr or done.stdout).strip()}", source=file)
    return done.stdout


def split_sass(text: str) -> dict[str, str]:
    """Machine code by symbol, of what cuobjdump prints."""
    found: dict[str, str] = {}
    parts = _SASS_FUNCTION.split(text)
    for symbol, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = (_ENCODING.sub("", line).rstrip() for line in body.partition(_FATBIN)[0].splitlines())
        found.setdefault(symbol, "\n".join(line for line in lines if line.strip() not in {"", "." * 10}))
    return found
