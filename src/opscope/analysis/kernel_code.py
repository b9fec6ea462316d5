"""A kernel's machine code where this machine has it: its instructions, and what its registers cost.

Looked for in Triton's cache by the kernel's name, and in the libraries of the installed torch. What the code
was compiled for need not be what was recorded: the grade says how far it is the same.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import msgspec

from opscope.errors import InputError
from opscope.hardware.architectures import WARP_SIZE, architecture
from opscope.hardware.occupancy import ActiveBlocks, active_blocks
from opscope.kernels.code import cubin_use, instruction_mix
from opscope.model.evidence import Grade
from opscope.model.files import scratch_prefix
from opscope.model.session import Session
from opscope.provenance.binaries.device_code import cubin_with
from opscope.provenance.binaries.elf import open_elf
from opscope.provenance.binaries.library import installed_libraries
from opscope.provenance.demangle import demangle
from opscope.provenance.installation import installed_torch

_MOST_REGISTERS, _FEWEST_REGISTERS = 255, 16


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


def kernel_code(name: str, session: Session | None = None, torch_version: str | None = None) -> KernelCode:
    """The code of a kernel, for the device and the block of a recording where one is given.

    Raises:
        InputError: This machine has no code of it.
        DependencyError: cuobjdump is not installed.
    """
    wanted, threads = (None, None) if session is None else _recorded(name, session)
    for cubin in _cached(name):
        stated = json.loads(cubin.with_suffix(".json").read_text(encoding="utf-8"))
        target = stated["target"]["arch"]
        if wanted in {None, target}:
            threads = stated["num_warps"] * WARP_SIZE
            use = cubin_use(cubin, cubin.stem)
            return _code(name, str(cubin), Grade.INFERRED, target, threads, stated["shared"], use)
    library = installed_libraries().holding(name)
    if library is not None:
        with open_elf(library.path) as elf:
            found = cubin_with(elf, lambda names: _named(names, name), wanted)
        if found is not None:
            content, symbol, target = found
            with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as scratch:
                cubin = Path(scratch) / "code.cubin"
                cubin.write_bytes(content)
                use = cubin_use(cubin, symbol)
            is_same = torch_version in {None, installed_torch()[0]}
            grade = Grade.EXACT if is_same else Grade.NEIGHBOR_VERSION
            return _code(name, library.path, grade, target, threads, 0, use)
    of = "" if wanted is None else f" for sm_{wanted}"
    raise InputError(
        f"this machine has no machine code{of} of {name}",
        hint="It is read from Triton's cache (TRITON_CACHE_DIR) and the libraries of the installed torch: "
        "ask where it was recorded",
    )


_SHOWN = 3


def kernel_codes(
    names: Sequence[str], session: Session | None = None, torch_version: str | None = None
) -> list[KernelCode]:
    """Of the first kernels whose code is here; an InputError if there is none of any."""
    found, missing = (
        [],
        InputError("it has no kernel", hint="Name a kernel, or give a recording: --trace"),
    )
    for name in names:
        try:
            found.append(kernel_code(name, session, torch_version))
        except InputError as error:
            missing = error
        if len(found) == _SHOWN:
            break
    if not found:
        raise missing
    return found


def _recorded(name: str, session: Session) -> tuple[int | None, int | None]:
    """Architecture of the only kind of device (90 is 9.0), and threads of a block, of most launches."""
    devices = session.query("SELECT DISTINCT 10 * compute_major + compute_minor FROM devices")
    blocks = session.query(_BLOCK_SQL, [name])
    return (devices[0][0] if len(devices) == 1 else None), (blocks[0][0] if blocks else None)


_BLOCK_SQL = """
SELECT block_x * block_y * block_z FROM device_activities JOIN kernel_names USING (name_id)
WHERE name = $1 AND block_x IS NOT NULL GROUP BY ALL ORDER BY count(*) DESC LIMIT 1"""


def _cached(name: str) -> Iterator[Path]:
    """Cubins of Triton's caches, the newest first: its own, and those of torch.compile."""
    if re.fullmatch(r"\w+", name) is None:
        return
    caches = [os.environ.get("TRITON_CACHE_DIR"), Path.home() / ".triton" / "cache"]
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    roots = [Path(inductor)] if inductor else sorted(Path(tempfile.gettempdir()).glob("torchinductor_*"))
    places = [Path(one) for one in caches if one] + [one for root in roots for one in root.glob("triton/*")]
    found = [cubin for place in places for cubin in place.glob(f"*/{name}.cubin")]
    yield from sorted(found, key=lambda one: -one.stat().st_mtime_ns)


def _named(symbols: Set[str], name: str) -> str | None:
    """The mangled name that a trace shows so."""
    words = re.findall(r"[A-Za-z_]\w+", name.partition("<")[0].partition("(")[0])
    word = words[-1] if words else name
    return next((one for one in symbols if word in one and name in {one, demangle(one)}), None)


def _code(  # noqa: PLR0917 - fields of a KernelCode
    name: str,
    file: str,
    grade: Grade,
    target: int,
    threads: int | None,
    dynamic_shared_bytes: int,
    use: tuple[dict[str, int], str],
) -> KernelCode:
    used, sass = use
    registers, shared_bytes = used["REG"], max(dynamic_shared_bytes, used.get("SHARED", 0))
    limits = architecture(f"{target // 10}.{target % 10}")

    def held(count: int) -> ActiveBlocks | None:
        if limits is None or threads is None:
            return None
        return active_blocks(limits, threads=threads, registers_per_thread=count, shared_bytes=shared_bytes)

    def first(counts: range, sign: int) -> int | None:
        """The first number of registers with more blocks, or with fewer."""
        blocks = [(count, of.blocks_per_sm if (of := held(count)) else 0) for count in counts]
        return next((count for count, many in blocks if sign * (many - blocks[0][1]) > 0), None)

    active = held(registers)
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
        active=active,
        more_blocks_at=None if active is None else first(range(registers, _FEWEST_REGISTERS, -1), 1),
        fewer_blocks_at=None if active is None else first(range(registers, _MOST_REGISTERS + 1), -1),
    )
