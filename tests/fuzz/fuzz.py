"""Mutated inputs of every reader, each in a process that is watched; `make fuzz FUZZ_MINUTES=30`.

A case is a number: its input is made anew from the seed and the number, so what fails is found again. A
worker reads case after case; the process that started it ends one that hangs, and starts the next. A reader
may refuse its input by a documented error and nothing else, within `MOST_S` and `MOST_BYTES`, and leaves no
open file, no temporary one and no process. Where a recording loads, times are conserved. What fails is made
small (`minimized`) and kept in `corpus/`, which the tests read on every run. `--results` counts the inputs of
each reader in a file.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import multiprocessing
import os
import pickle
import random
import re
import resource
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import zstandard

import opscope
from fakes import ExportBuilder, TraceBuilder
from opscope.analysis.program.stacks import StackBasis
from opscope.analysis.session_comparison import compare_sessions
from opscope.cupti.recording import read_recording
from opscope.cupti.trace_file import write_trace
from opscope.errors import OpscopeError
from opscope.extraction.alone_calls import alone_calls, extracted
from opscope.hardware.limits import read_measured
from opscope.ingest.memory_snapshot import read_memory_snapshot
from opscope.model.origin import RecordedKernel
from opscope.model.sidecar import (
    Environment,
    ProgramLine,
    RecordedDataflow,
    RecordedModule,
    RecordedRegion,
    RecordedRounds,
    RecordedSchedule,
    RecordedSettings,
    RecordedStructure,
    Sidecar,
    StepKind,
    StepPlace,
    ThreadOperators,
    UnrecordedStep,
)
from opscope.nvcc.compile import compilers_words, launch_bounds, parse_ptxas
from opscope.provenance.binaries.device_code import embedded_kernels
from opscope.provenance.binaries.elf import open_elf
from opscope.provenance.binaries.library import read_library
from opscope.provenance.generated_code import parse_graph, parse_kernel
from opscope.report.analysis import recording_document
from opscope.report.comparison import comparison_document
from opscope.report.explanation import explanation_document
from opscope.report.extraction import call_list_document, call_text
from opscope.report.html.page import session_page
from opscope.report.json_encoding import to_json
from opscope.report.markdown import render_markdown
from opscope.report.memory import memory_document, memory_json
from opscope.report.summary_json import analysis_json
from opscope.toolchain.ncu_report import read_report

MOST_S, MOST_BYTES = 10.0, 1 << 30
_CASES_OF_A_WORKER = 400
_MEMORY = Path("/dev/shm")  # quicker than a disk
CORPUS = Path(__file__).parent / "corpus"
SOUND = Path(__file__).parent / "sound"
_NASTY = (
    "null", "true", '"abc"', '""', "[]", "{}", "-1", "0", "1e400", "-1e400", "NaN", "9223372036854775808",
    "18446744073709551616", "1.5", '"\\u0000"', '"\\ud800"', "[" * 200 + "]" * 200, '"' + "x" * 5000 + '"',
)  # fmt: skip


def trace_text() -> str:
    """A recording of three steps."""
    device = {
        "id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_000_000_000, "computeMajor": 9, "numSms": 132,
        "computeMinor": 0, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "warpSize": 32,
        "regsPerBlock": 65_536, "regsPerMultiprocessor": 65_536, "sharedMemPerBlock": 49_152,
        "sharedMemPerBlockOptin": 232_448, "sharedMemPerMultiprocessor": 233_472,
    }  # fmt: skip
    builder = TraceBuilder(deviceProperties=[device])
    for number in range(3):
        at = 100.0 * number
        builder.step(number, at, 90)
        shapes = {"Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "float"]}
        builder.operator("aten::mm", at + 5, 30, **shapes).launch(at + 10, 4).kernel("gemm", at + 20, 30)
        wide = {"grid": [133, 1, 1], "block": [1024, 1, 1], "registers per thread": 64, "shared memory": 0}
        builder.launch(at + 41, 4).kernel("tail", at + 64, 25, **wide)
        builder.launch(at + 60, 5, name="cudaMemcpyAsync")
        builder.kernel("Memcpy DtoH (Device -> Pageable)", at + 62, 2, category="gpu_memcpy", bytes=64)
    return builder.text()


_COLLECTIVE = {
    "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 64, "Out msg nelems": 64,
    "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": 3,
}  # fmt: skip


def program_text(rank: int = 0, steps: int = 2) -> str:
    """Steps of training in which there is one of each: what the other recording has not."""
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    device = json.loads(trace_text())["deviceProperties"][0]
    builder = TraceBuilder(deviceProperties=[device], distributedInfo=info)
    for at in range(0, 200 * steps, 200):
        builder.step(at // 200, at, 200)
        builder.frame("train.py(7): step", at + 1, 190).frame(
            "nn.Module: Net_0", at + 2, 60, parent=1, module=0
        )
        builder.frame("nn.Module: Linear_0", at + 3, 30, parent=2, module=1)
        floats = {"Input type": ["float", "float", "float"]}
        builder.operator("aten::linear", at + 4, 28, **floats, **{"Input Dims": [[8, 4], [4, 4], [4]]})
        addmm = {"Input Dims": [[4], [8, 4], [4, 4]], "Sequence number": at, "Fwd thread id": 0}
        builder.operator("aten::addmm", at + 5, 20, **floats, **addmm).launch(at + 8, 4)
        builder.kernel("ampere_sgemm_32x32_sliced1x4_tn", at + 20, 30, **{"registers per thread": 80})
        builder.operator("aten::gelu", at + 40, 8, **{"Input Dims": [[8, 4]], "Input type": ["float"]})
        gelu = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)"
        builder.launch(at + 42, 3).kernel(gelu, at + 52, 5, **{"shared memory": 64, "stream": 7})
        backward = {"Sequence number": at, "Fwd thread id": 1}
        builder.operator("AddmmBackward0", at + 70, 20, thread=2, **backward).launch(at + 75, 4, thread=2)
        builder.kernel("gemm_backward", at + 80, 20).differentiates(at + 5, at + 70)
        builder.operator("record_param_comms", at + 95, 5, **_COLLECTIVE).launch(at + 96, 2)
        builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 102, 20, stream=9, **_COLLECTIVE)
        builder.event("user_annotation", "Optimizer.step#SGD.step", at + 125, 20, 1, {})
        builder.event("gpu_user_annotation", "Optimizer.step#SGD.step", at + 130, 12, 7, {}, process=0)
        builder.operator("aten::_foreach_add_", at + 126, 10).launch(at + 128, 3).kernel(
            "foreach", at + 132, 6
        )
        builder.launch(at + 147, 3, name="cudaGraphLaunch")
        for node in (1, 2):
            builder.kernel("replayed", at + 146 + 5 * node, 4, **{"graph id": 1, "graph node id": node})
        builder.operator("aten::item", at + 165, 20).launch(at + 166, 2, name="cudaMemcpyAsync")
        copy = "Memcpy DtoH (Device -> Pageable)"
        builder.kernel(copy, at + 168, 2, category="gpu_memcpy", bytes=4, **{"memory bandwidth (GB/s)": 0.5})
        builder.launch(at + 170, 12, name="cudaStreamSynchronize").launch(at + 184, 2, name="cudaMemsetAsync")
        builder.event("cuda_sync", "Stream Sync", at + 170, 10, 7, {"stream": 7, "device": 0}, process=0)
        builder.kernel("Memset (Device)", at + 188, 1, category="gpu_memset", bytes=128)
        memory = {
            "Bytes": 512,
            "Addr": 4096 + at,
            "Device Type": 1,
            "Device Id": 0,
            "Total Allocated": 512 + at,
        }
        place = {"pid": 1, "tid": 1, "ts": at + 6}
        name = {"cat": "cpu_instant_event", "name": "[memory]", "s": "t"}
        builder.events.append({"ph": "i", **name, **place, "args": {**memory, "Total Reserved": 2048}})
        counters = {"pid": "GPU 0 Counters", "ts": at + 21, "name": "sm__throughput"}
        builder.events.append({"ph": "C", **counters, "args": {"": 41.5}})
    return builder.text()


def _snapshot(_: Path) -> bytes:
    """A memory snapshot, as text: a pickle of it is written before it is read."""
    module = {"filename": "/torch/nn/modules/module.py", "line": 7, "name": "_call_impl"}
    frames = [{"filename": "/home/u/model.py", "line": 12, "name": "forward"}, module]
    blocks = [
        {"size": 64, "requested_size": 60, "address": 1, "state": "active_allocated", "frames": frames},
        {"size": 32, "address": 65, "state": "inactive", "frames": []},
    ]
    events = [
        {"action": "segment_alloc", "addr": 1, "size": 96, "time_us": 5},
        {"action": "alloc", "addr": 1, "size": 64, "time_us": 9, "frames": frames},
        {"action": "alloc", "addr": 65, "size": 8, "time_us": 10, "frames": []},
        {"action": "free_completed", "addr": 65, "size": 8, "time_us": 11},
        {"action": "oom", "size": 900, "device_free": 3, "frames": frames},
    ]
    segment = {"device": 0, "address": 1, "total_size": 96, "blocks": blocks}
    return json.dumps({"segments": [segment], "device_traces": [events]}).encode()


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
    sidecar = Sidecar(
        trace="beside.json",
        created="2026-11-01T00:00:00+00:00",
        environment=Environment("3.12.3", "linux", "0.1.0", "2.11.0"),
        schedule=RecordedSchedule(0, 1, 3, 1, 0),
        settings=RecordedSettings(True, True, True, False, ("cpu", "cuda")),
        steps=3,
        partial=False,
        clean_window=True,
        wall_time_ns_per_step=(100_000, 100_000, 100_000),
        workload={"workload": "bert", "batch_size": 8},
        kernels=(RecordedKernel("gemm", "/usr/lib/libtorch_cuda.so"),),
        regions=(RecordedRegion(1_000, 2_000, ("cuda",), 1),),
        structure=RecordedStructure(
            ("train.py",), (RecordedModule("A_0", "B_0", "layer.0"),), 0, (10,), (3,)
        ),
        unrecorded_steps=(
            UnrecordedStep(StepKind.PERIOD, StepPlace.BEFORE, 0, 0, 1, 90_000, 80_000),
            UnrecordedStep(StepKind.PERIOD, StepPlace.AFTER, 1, 9, 2, 180_000),
        ),
        dataflow=RecordedDataflow(
            (ThreadOperators(1, ("aten::mm",), "0"),),
            rounds=(RecordedRounds("train.py:8 step", None, ((0, 1),), is_ragged=False, has_weights=False),),
            lines=(
                ProgramLine("train.py:7 step", -1, 1, ()),
                ProgramLine("net.py:5 forward", 0, 3, ((0, 1),)),
            ),
        ),
    )
    return msgspec.json.encode(sidecar)


def _library(_: Path) -> bytes:
    """A small shared library of this interpreter's, for its headers, symbols and relocations."""
    return min(
        Path(json.__file__).parents[1].rglob("*.so"), key=lambda file: file.stat().st_size
    ).read_bytes()


def _beside(file: str) -> dict[str, Any]:
    """What the tests of a reader use to write what it reads."""
    return runpy.run_path(str(Path(__file__).parents[1] / "unit" / file))


def _binaries() -> dict[str, Any]:
    """The writers of ELF files and of containers of device code."""
    return _beside("provenance/binaries/conftest.py")


def device_code() -> bytes:
    """A library that registers kernels and holds cubins, of both packings, and PTX."""
    write = _binaries()
    name = write["internal"]("/src/add.cu")
    cubin, ptx = write["cubin_bytes"]([name, "plain"], ["other"]), write["ptx_bytes"]([name])
    code = write["Code"]
    container = write["container_bytes"](
        code(cubin), code(cubin, flags=write["LZ4"]), code(ptx, kind=write["PTX"], flags=0)
    )
    units = [write["Unit"]("add", [name, "plain"], ["variable"])]
    return bytes(write["library_bytes"](units, device_code=container, relocatable=container))


def _records(_: Path) -> bytes:
    """What the recorder of `opscope trace` writes, as the tests of its reader write it."""
    return bytes(_beside("cupti/record_bytes.py")["every_kind"]())


def _limits(_: Path) -> bytes:
    text = (Path(__file__).parents[2] / "benchmarks/results/h200_limits.json").read_bytes()
    return json.dumps(json.loads(text)["measured"]).encode()


_PTX = (SOUND / "add.ptx").read_text(encoding="utf-8")
_COMPILER = (SOUND / "compiler.txt").read_text(encoding="utf-8")
_GENERATED = (SOUND / "generated.txt").read_text(encoding="utf-8")


def _load(path: Path) -> None:
    with opscope.load(path) as session:
        for check_ in session.check():
            assert not check_.violations, check_.name
        session.findings()
        summary = opscope.summarize(session)
        render_markdown(recording_document(summary, top=None, is_full=True))
        render_markdown(recording_document(summary, is_screen=True))
        to_json(analysis_json(summary, top=None))


def _load_beside_a_trace(path: Path) -> None:
    trace = path.with_name("beside.json")
    trace.write_text(trace_text())
    path.rename(trace.with_suffix(".opscope.json"))
    _load(trace)


def _load_as_a_rank(path: Path) -> None:
    path.with_name("rank0.json").write_text(program_text(0, 1))
    path.rename(path.with_name("rank1.json"))
    _load(path.parent)


def _read_by_verbs(path: Path) -> None:
    """What other verbs than `analyze` make of a recording, and the page."""
    with opscope.load(path) as session:
        summary = opscope.summarize(session)
        session_page(session, summary)
        opscope.stats(session, ["all"])
        for basis in StackBasis:
            with suppress(OpscopeError):
                opscope.flamegraph(session, by=basis)
        calls = alone_calls(session, summary.efficiency)
        rows = [
            extracted(rank, one, what=call_text(summary, one, "")) for rank, one in enumerate(calls[:3], 1)
        ]
        render_markdown(call_list_document(summary, calls, rows))
        for named in (*summary.operators[:1], *summary.kernels[:1]):
            with suppress(OpscopeError):
                render_markdown(explanation_document(opscope.explain(named.name, session)))
        path.with_name("other.json").write_text(program_text(0, 1))
        with opscope.load(path.with_name("other.json")) as other, suppress(OpscopeError):
            render_markdown(comparison_document(compare_sessions(session, other), top=None))


def _read_snapshot(path: Path) -> None:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        document = path.read_bytes()
    path.write_bytes(pickle.dumps(document))
    devices = read_memory_snapshot(path)
    render_markdown(memory_document(devices, top=None))
    to_json(memory_json(devices, top=None))


def _read_elf(path: Path) -> None:
    with open_elf(path) as elf:
        for section in elf.sections.values():
            elf.symbols(section)
        embedded_kernels(elf)


def _read_device_code(path: Path) -> None:
    _read_elf(path)
    read_library(path)


def _read_records(path: Path) -> None:
    recording = read_recording(path)
    written = write_trace(path.with_name("written.json"), recording, recording.start_ns)
    json.loads(written.path.read_bytes())


def _read_text(read: Callable[[str], object]) -> Callable[[Path], object]:
    return lambda path: read(path.read_text(encoding="utf-8", errors="replace"))


def _read_ptx(text: str) -> None:
    launch_bounds(text)


def _read_messages(text: str) -> None:
    compilers_words(text)
    parse_ptxas(text)


def _read_generated(text: str) -> None:
    parse_graph(text)
    parse_kernel(text)
    parse_kernel(text.partition("'''")[2].partition("'''")[0])


@dataclass(frozen=True)
class Target:
    """A reader: an input that it takes, and what it does with one."""

    seed: Callable[[Path], bytes]
    read: Callable[[Path], object]
    suffix: str = ""
    is_text: bool = False
    weight: int = 1


def _text(text: str) -> Callable[[Path], bytes]:
    return lambda _: text.encode()


TARGETS = {
    "trace": Target(lambda _: trace_text().encode(), _load, ".json", is_text=True, weight=2),
    "program": Target(_text(program_text()), _load, ".json", is_text=True, weight=2),
    "rank": Target(_text(program_text(1, 1)), _load_as_a_rank, ".json", is_text=True),
    "verbs": Target(_text(program_text(0, 1)), _read_by_verbs, ".json", is_text=True),
    "snapshot": Target(_snapshot, _read_snapshot, ".pickle", is_text=True, weight=6),
    "gzip": Target(lambda _: gzip.compress(trace_text().encode()), _load, ".json.gz"),
    "zstd": Target(lambda _: zstandard.compress(trace_text().encode()), _load, ".json.zst"),
    "sidecar": Target(_sidecar, _load_beside_a_trace, ".json", is_text=True),
    "session": Target(_session, _load, ".opscope"),
    "export": Target(_export, _load, ".sqlite"),
    "result": Target(_result, opscope.load_result, ".json", is_text=True, weight=4),
    "limits": Target(_limits, read_measured, ".json", is_text=True, weight=4),
    "elf": Target(_library, _read_elf, ".so", weight=8),
    "fatbin": Target(lambda _: device_code(), _read_device_code, ".so", weight=12),
    "records": Target(_records, _read_records, ".cuda", weight=6),
    "ptx": Target(_text(_PTX), _read_text(_read_ptx), ".ptx", is_text=True, weight=8),
    "compiler": Target(_text(_COMPILER), _read_text(_read_messages), ".txt", is_text=True, weight=8),
    "generated": Target(_text(_GENERATED), _read_text(_read_generated), ".py", is_text=True, weight=8),
}


_REPORT = Path(__file__).parents[3] / "shared/ncu/ops.ncu-rep.gz"


def _report(_: Path) -> bytes:
    """The header and one result of a report that was recorded."""
    content = gzip.decompress(_REPORT.read_bytes())
    return content[:10] + content[9_718_197:9_806_950]


if _REPORT.is_file() and find_spec("ncu_report"):
    TARGETS["ncu"] = Target(_report, read_report, ".ncu-rep")


WHOLE = ("trace", "program", "rank", "verbs", "sidecar")  # texts of which whole reports are made


def mutated(seed: bytes, random_: random.Random, *, is_text: bool, is_whole: bool = False) -> bytes:
    """The seed with one to four mutations, of structure, of tokens or of bytes.

    Of one that is read for a whole report up to 16 places are mutated, and bytes, which mostly make it no
    document at all, seldom: a report takes a hundred times as long as a refusal.
    """
    data = seed
    if is_whole and random_.randrange(8):
        for _ in range(random_.choice((1, 2, 4, 8, 16))):
            data = random_.choice((_of_structure, _of_structure, _of_token))(data, random_)
        return data
    for _ in range(random_.randint(1, 4)):
        kinds = (_of_structure, _of_token, _of_bytes) if is_text else (_of_bytes,)
        data = random_.choice(kinds)(data, random_)
    return data


def _of_device(data: bytes, random_: random.Random) -> bytes:
    """One to three properties of a trace's device that are not what a device has, or are not there."""
    document = json.loads(data)
    (device,) = document["deviceProperties"]
    for name in random_.sample(sorted(device), random_.randint(1, 3)):
        value = random_.choice(("gone", 0, -1, 1, 2**63, 0.0, 1e308, None, "", "abc", [], True))
        device[name] = value
        if value == "gone":
            del device[name]
    return json.dumps(document).encode()


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


@dataclass
class Count:
    """What became of inputs of one reader."""

    inputs: int = 0
    refused: int = 0
    failed: int = 0
    longest_s: float = 0.0


def check(name: str, data: bytes, folder: Path) -> str | None:
    """What is wrong with how a reader takes an input; None if nothing is."""
    return _checked(name, data, folder)[0]


def _checked(name: str, data: bytes, folder: Path) -> tuple[str | None, bool, float]:
    """The same, whether it was refused, and the seconds; once more if too long, as machines are busy."""
    found = _checked_once(name, data, folder)
    return found if found[2] <= MOST_S else _checked_once(name, data, folder)


def _checked_once(name: str, data: bytes, folder: Path) -> tuple[str | None, bool, float]:
    target = TARGETS[name]
    place, scratch = folder / "in", folder / "tmp"
    for one in (place, scratch):
        one.mkdir(exist_ok=True)
    tempfile.tempdir, before_tempdir = str(scratch), tempfile.tempdir
    (path := place / f"input{target.suffix}").write_bytes(data)
    before, began = _open_files(), time.process_time()  # other programs lengthen it less; who hangs is ended
    failure, is_refused = None, False
    try:
        target.read(path)
    except OpscopeError:
        is_refused = True
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        failure = f"{type(error).__name__}: {str(error)[:300]}"
    took_s = time.process_time() - began
    left = [file.name for file in scratch.iterdir()]
    tempfile.tempdir = before_tempdir
    for file in place.iterdir():
        file.unlink()
    if failure is None and took_s > MOST_S:
        failure = f"took {took_s:.1f} s"
    if failure is None and _open_files() > before:
        failure = f"{_open_files() - before} files stay open"
    if failure is None and left:
        failure = f"leaves {', '.join(left)}"
    if failure is None and multiprocessing.active_children():
        failure = "leaves a process"
    return failure, is_refused, took_s


def minimized(name: str, data: bytes, *, seconds: float = 60.0) -> bytes:
    """The smallest input found in some time that fails as this one does: parts are left out, ever smaller.

    Each is read in a process of its own, for it may hang or end it.
    """
    until = time.monotonic() + seconds
    wanted = _kind_of_failure(name, data)
    size = len(data) // 2
    while size and wanted is not None:
        place, before = 0, len(data)
        while place < len(data) and time.monotonic() < until:
            without = data[:place] + data[place + size :]
            if _kind_of_failure(name, without) == wanted:
                data = without
            else:
                place += size
        if time.monotonic() >= until:
            break
        size = size if len(data) < before and size > 1 else size // 2
    return data


def _kind_of_failure(name: str, data: bytes) -> str | None:
    """How a reader fails at an input, without what differs from one to another; None if it does not."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(target=_read_once, args=(name, data, theirs))
    worker.start()
    theirs.close()
    try:
        failure = ours.recv() if ours.poll(3 * MOST_S) else "no end"
    except EOFError:
        failure = "the process ended"
    worker.kill()
    worker.join()
    ours.close()
    return None if failure is None else re.sub(r"[\d.,]+", "N", failure.partition(":")[0])


def _read_once(name: str, data: bytes, said: Connection) -> None:
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of whoever forked it
    with tempfile.TemporaryDirectory() as folder:
        failure = check(name, data, Path(folder))
        taken_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        said.send(failure or (None if taken_bytes <= MOST_BYTES else "took memory"))


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
    name = random_.choices(list(TARGETS), [target.weight for target in TARGETS.values()])[0]
    target = TARGETS[name]
    data = seeds[name]
    if b'"deviceProperties"' in data and name in WHOLE and number % 2:
        data = _of_device(data, random_)
    return name, mutated(data, random_, is_text=target.is_text, is_whole=name in WHOLE)


_OPEN_AT_ONCE = 8  # Sessions of one input


class _OneEngine:
    """Databases of one engine in the place of an engine each, which takes longer than what is asked of it."""

    def __init__(self, connect: Callable[..., duckdb.DuckDBPyConnection]) -> None:
        self._connect, self._count = connect, 0

    def __call__(self, database: str, *, config: Any = None, **how: Any) -> duckdb.DuckDBPyConnection:
        if database != ":memory:":
            return self._connect(database, **how)
        if self._count == 0:
            self._whole = self._connect(config={**config, "threads": 1})
        if self._count >= _OPEN_AT_ONCE:
            self._whole.execute(f"DETACH one{self._count - _OPEN_AT_ONCE + 1}")
        self._count += 1
        connection = self._whole.cursor()
        return connection.execute(f"ATTACH ':memory:' AS one{self._count}; USE one{self._count}")


def _work(seeds: dict[str, bytes], seed: int, numbers: range, said: Connection) -> None:
    """Read case after case; what is said of each goes to the process that watches."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        folder = Path(name)
        os.environ["TMPDIR"] = name
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
        duckdb.connect = _OneEngine(duckdb.connect)
        gc.freeze()
        for number in numbers:
            said.send((number, None))
            target, data = case(seeds, seed, number)
            failure, is_refused, took_s = _checked(target, data, folder)
            peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            if failure is None and peak_bytes > MOST_BYTES:
                failure = f"took {peak_bytes >> 20} MiB"
            said.send((number, (target, failure or "", is_refused, took_s, peak_bytes)))
            if peak_bytes > MOST_BYTES:
                return


class Watch:
    """Runs workers and counts what they say.

    Attributes:
        counts: By reader.
        peak_bytes: The most that a worker took, with all it had read before.
        number: Of the next case.
    """

    def __init__(self, seeds: dict[str, bytes], seed: int, first: int) -> None:
        self._seeds, self._seed = seeds, seed
        self.counts = {name: Count() for name in TARGETS}
        self.peak_bytes = 0
        self.number = first

    def failures(self, until: float) -> Iterator[tuple[int, str]]:
        """Every case that failed, and how, until a moment of the monotonic clock."""
        context = multiprocessing.get_context("fork")
        while time.monotonic() < until:
            ours, theirs = context.Pipe(duplex=False)
            numbers = range(self.number, self.number + _CASES_OF_A_WORKER)
            worker = context.Process(target=_work, args=(self._seeds, self._seed, numbers, theirs))
            worker.start()
            theirs.close()
            try:
                while ours.poll(3 * MOST_S):
                    self.number, done = ours.recv()
                    if done is not None:
                        if failure := self._counted(*done):
                            yield self.number, failure
                        self.number += 1
                    if time.monotonic() > until:
                        break
                else:
                    yield self._lost(f"no end after {3 * MOST_S:.0f} s")
            except EOFError:
                worker.join(1)
                if worker.exitcode:
                    yield self._lost(f"the process ended with {worker.exitcode}")
            worker.kill()
            worker.join()
            ours.close()

    def _counted(self, name: str, failure: str, is_refused: bool, took_s: float, peak_bytes: int) -> str:
        count = self.counts[name]
        count.inputs += 1
        count.refused += is_refused
        count.failed += bool(failure)
        count.longest_s = round(max(count.longest_s, took_s), 3)
        self.peak_bytes = max(self.peak_bytes, peak_bytes)
        return failure

    def _lost(self, failure: str) -> tuple[int, str]:
        number, name = self.number, case(self._seeds, self._seed, self.number)[0]
        self._counted(name, failure, False, 0.0, 0)
        self.number += 1
        return number, failure


def main() -> int:
    """Fuzz for some time and tell what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--keep", type=Path, help="folder for inputs that fail")
    parser.add_argument("--results", type=Path, help="file for the counts")
    parser.add_argument("--readers", nargs="*", default=[], choices=TARGETS, help="these alone")
    options = parser.parse_args()
    for name in set(TARGETS) - set(options.readers or TARGETS):
        del TARGETS[name]
    with tempfile.TemporaryDirectory() as folder:
        seeds = _seeds(Path(folder))
    watch, failed, began = Watch(seeds, options.seed, options.first), 0, time.monotonic()
    for number, failure in watch.failures(began + options.seconds):
        failed += 1
        name, data = case(seeds, options.seed, number)
        print(f"{name} {options.seed}-{number}: {failure}", flush=True)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            file = options.keep / f"{name}-{options.seed}-{number}{TARGETS[name].suffix}"
            file.write_bytes(data)
            file.write_bytes(minimized(name, data))
    print(f"{watch.number - options.first:,} inputs of seed {options.seed}, {failed} failed")
    if options.results is not None:
        document = {
            "seed": options.seed,
            "first": options.first,
            "inputs": watch.number - options.first,
            "failed": failed,
            "seconds": round(time.monotonic() - began),
            "peak_bytes_of_a_worker": watch.peak_bytes,
            "readers": {name: asdict(count) for name, count in watch.counts.items()},
        }
        options.results.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
