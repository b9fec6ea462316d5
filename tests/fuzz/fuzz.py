"""Mutated inputs of every reader, each in a process that is watched; `make fuzz FUZZ_MINUTES=30`.

A case is a number: its input is made anew from the seed and the number, so what fails is found again. A
worker reads case after case; the process that started it ends one that hangs, and starts the next. A reader
may refuse its input by a documented error and nothing else, within `MOST_S` and `MOST_BYTES`, and leaves no
open file and no temporary one. Where a recording loads, times are conserved. What failed once is kept in
`corpus/`, which the tests read on every run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zstandard

import opscope
from opscope.errors import OpscopeError
from opscope.provenance.binaries.elf import open_elf
from opscope.provenance.binaries.embedded import embedded_kernels
from opscope.testing import ExportBuilder, TraceBuilder
from opscope.toolchain.ncu_reading import MAGIC, read_container

__all__ = ["TARGETS", "check", "corpus", "mutated", "trace_text"]

MOST_S, MOST_BYTES = 10.0, 1 << 30
_CASES_OF_A_WORKER = 400
CORPUS = Path(__file__).parent / "corpus"
_NASTY = (
    "null", "true", '"abc"', '""', "[]", "{}", "-1", "0", "1e400", "-1e400", "NaN", "9223372036854775808",
    "18446744073709551616", "1.5", '"\\u0000"', '"\\ud800"', "[" * 200 + "]" * 200, '"' + "x" * 5000 + '"',
)  # fmt: skip


def trace_text() -> str:
    """A recording of three steps."""
    builder = TraceBuilder(deviceProperties=[{"id": 0, "name": "NVIDIA H100", "numSms": 132}])
    for number in range(3):
        at = 100.0 * number
        builder.step(number, at, 90)
        shapes = {"Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "float"]}
        builder.operator("aten::mm", at + 5, 30, **shapes).launch(at + 10, 4).kernel("gemm", at + 20, 30)
        builder.launch(at + 60, 5, name="cudaMemcpyAsync")
        builder.kernel("Memcpy DtoH (Device -> Pageable)", at + 62, 2, category="gpu_memcpy", bytes=64)
    return builder.text()


def _export(folder: Path) -> bytes:
    builder = ExportBuilder().range("step", 0, 90).launch(10).kernel("gemm", 20, 5)
    return builder.write(folder / "export.sqlite").read_bytes()


def _session(folder: Path) -> bytes:
    (folder / "trace.json").write_text(trace_text())
    with opscope.load(folder / "trace.json") as session:
        return session.save(folder / "saved.opscope").read_bytes()


def _result(_: Path) -> bytes:
    return (Path(__file__).parents[2] / "benchmarks/results/h200_gelu.json").read_bytes()


def _sidecar(_: Path) -> bytes:
    document = {
        "schema_version": 1,
        "opscope_version": "0.1.0",
        "created": "2026-11-01T00:00:00+00:00",
        "environment": {"torch": "2.11.0"},
        "kernels": [],
        "modules": [],
    }
    return json.dumps(document).encode()


def _library(_: Path) -> bytes:
    """A small shared library of this interpreter's, for its headers, symbols and relocations."""
    return min(
        Path(json.__file__).parents[1].rglob("*.so"), key=lambda file: file.stat().st_size
    ).read_bytes()


def _container(_: Path) -> bytes:
    """A report's header and one block, as `ncu_reading` describes them."""

    def message(*fields: tuple[int, int | bytes]) -> bytes:
        parts = b""
        for number, value in fields:
            if isinstance(value, int):
                parts += bytes([number << 3]) + _varint(value)
            else:
                parts += bytes([number << 3 | 2]) + _varint(len(value)) + value
        return len(parts).to_bytes(4, "little") + parts

    return MAGIC + message((1, 7)) + message((2, 1), (5, 8)) + bytes(8)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _load(path: Path) -> None:
    with opscope.load(path) as session:
        for check_ in session.check():
            assert not check_.violations, check_.name
        session.findings()
        opscope.summarize(session).operators  # noqa: B018 - computed when asked for


def _load_beside_a_trace(path: Path) -> None:
    trace = path.with_name("beside.json")
    trace.write_text(trace_text())
    path.rename(trace.with_suffix(".opscope.json"))
    _load(trace)


def _read_elf(path: Path) -> None:
    with open_elf(path) as elf:
        for section in elf.sections.values():
            elf.symbols(section)
        embedded_kernels(elf)


@dataclass(frozen=True)
class Target:
    """A reader: an input that it takes, and what it does with one."""

    seed: Callable[[Path], bytes]
    read: Callable[[Path], object]
    suffix: str = ""
    is_text: bool = False


TARGETS = {
    "trace": Target(lambda _: trace_text().encode(), _load, ".json", is_text=True),
    "gzip": Target(lambda _: gzip.compress(trace_text().encode()), _load, ".json.gz"),
    "zstd": Target(lambda _: zstandard.compress(trace_text().encode()), _load, ".json.zst"),
    "sidecar": Target(_sidecar, _load_beside_a_trace, ".json", is_text=True),
    "session": Target(_session, _load, ".opscope"),
    "export": Target(_export, _load, ".sqlite"),
    "result": Target(_result, opscope.load_result, ".json", is_text=True),
    "elf": Target(_library, _read_elf, ".so"),
    "report": Target(_container, read_container, ".ncu-rep"),
}


def mutated(seed: bytes, random_: random.Random, *, is_text: bool) -> bytes:
    """The seed with one to four mutations, of structure, of tokens or of bytes."""
    data = seed
    for _ in range(random_.randint(1, 4)):
        kinds = (_of_structure, _of_token, _of_bytes) if is_text else (_of_bytes,)
        data = random_.choice(kinds)(data, random_)
    return data


def _of_bytes(data: bytes, random_: random.Random) -> bytes:
    place = random_.randrange(len(data) + 1)
    end = min(len(data), place + random_.choice((1, 1, 2, 4, 8, 64, 1024)))
    kind = random_.randrange(6)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + data[end:]
    if kind == 2:
        return data[:end] + data[place:end] * random_.choice((1, 2, 50)) + data[end:]
    if kind == 3:
        return data[:place] + random_.randbytes(end - place) + data[end:]
    value = random_.choice((0, 1, 0x7F, 0x80, 0xFF))
    return data[:place] + bytes([value]) * (end - place) + data[end:]


def _of_token(data: bytes, random_: random.Random) -> bytes:
    """Another value in the place of one that follows a colon, a bracket or a comma."""
    places = [place for place, byte in enumerate(data) if byte in b":[,"]
    if not places:
        return data
    begin = random_.choice(places) + 1
    end = next((place for place in range(begin, len(data)) if data[place] in b",}]"), len(data))
    return data[:begin] + random_.choice(_NASTY).encode() + data[end:]


def _of_structure(data: bytes, random_: random.Random) -> bytes:
    """Something of the document left out, doubled, moved or put in another's place."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places = list(_places(document))
    if not places:
        return data
    holder, key = random_.choice(places)
    other, other_key = random_.choice(places)
    kind = random_.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == 2:
        holder[key], other[other_key] = json.loads(json.dumps((other[other_key], holder[key])))
    else:
        holder[key] = random_.choice((None, -1, 2**63, "abc", [], {}, 1.5, True))
    return json.dumps(document).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def check(name: str, data: bytes, folder: Path) -> str | None:
    """What is wrong with how a reader takes an input; None if nothing is."""
    target = TARGETS[name]
    path = folder / f"input{target.suffix}"
    path.write_bytes(data)
    before, began = _open_files(), time.perf_counter()
    failure = None
    try:
        target.read(path)
    except OpscopeError:
        pass
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        failure = f"{type(error).__name__}: {str(error)[:300]}"
    took_s = time.perf_counter() - began
    left = [file for file in folder.iterdir() if file.name.startswith("opscope-")]
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    if failure is None and took_s > MOST_S:
        failure = f"took {took_s:.1f} s"
    if failure is None and _open_files() > before:
        failure = f"{_open_files() - before} files stay open"
    if failure is None and left:
        failure = f"leaves {', '.join(file.name for file in left)}"
    return failure


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def corpus() -> list[tuple[str, Path]]:
    """Inputs that failed once: the reader and the file."""
    return [(file.name.partition("-")[0], file) for file in sorted(CORPUS.iterdir()) if file.is_file()]


def _seeds(folder: Path) -> dict[str, bytes]:
    return {name: target.seed(folder) for name, target in TARGETS.items()}


def case(seeds: dict[str, bytes], seed: int, number: int) -> tuple[str, bytes]:
    """The reader and the input of a case."""
    random_ = random.Random(f"{seed}-{number}")
    name = random_.choice(list(TARGETS))
    return name, mutated(seeds[name], random_, is_text=TARGETS[name].is_text)


def _work(seeds: dict[str, bytes], seed: int, numbers: range, said: Connection) -> None:
    """Read case after case; what is said of each goes to the process that watches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tempfile.tempdir = name
        os.environ["TMPDIR"] = name
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
        for number in numbers:
            said.send((number, None))
            target, data = case(seeds, seed, number)
            failure = check(target, data, folder)
            peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            if failure is None and peak_bytes > MOST_BYTES:
                failure = f"took {peak_bytes >> 20} MiB"
            said.send((number, failure or ""))
            if peak_bytes > MOST_BYTES:
                return


def _watched(seeds: dict[str, bytes], seed: int, first: int, until: float) -> Iterator[tuple[int, str]]:
    """Every case that failed, and how; the last item is the number of the next case, and nothing."""
    number = first
    context = multiprocessing.get_context("fork")
    while time.monotonic() < until:
        ours, theirs = context.Pipe(duplex=False)
        numbers = range(number, number + _CASES_OF_A_WORKER)
        worker = context.Process(target=_work, args=(seeds, seed, numbers, theirs))
        worker.start()
        theirs.close()
        try:
            while ours.poll(3 * MOST_S):
                number, failure = ours.recv()
                if failure:
                    yield number, failure
                if failure is not None:
                    number += 1
                if time.monotonic() > until:
                    break
            else:
                yield number, f"no end after {3 * MOST_S:.0f} s"
                number += 1
        except EOFError:
            if worker.is_alive() or worker.exitcode:
                worker.join(1)
            if worker.exitcode:
                yield number, f"the process ended with {worker.exitcode}"
                number += 1
        worker.kill()
        worker.join()
    yield number, ""


def main() -> int:
    """Fuzz for some time and tell what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--keep", type=Path, help="folder for inputs that fail")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seeds = _seeds(Path(folder))
    failed, number, until = 0, options.first, time.monotonic() + options.seconds
    for number, failure in _watched(seeds, options.seed, options.first, until):
        if failure:
            failed += 1
            name, data = case(seeds, options.seed, number)
            print(f"{name} {options.seed}-{number}: {failure}", flush=True)
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{name}-{options.seed}-{number}{TARGETS[name].suffix}").write_bytes(data)
    print(f"{number - options.first:,} inputs of seed {options.seed}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
