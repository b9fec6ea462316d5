"""Small traces written event by event, and timers that report what they are told."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from opscope.capture.dataflow import DataflowWatch
from opscope.errors import MeasurementError
from opscope.model.benchmark import BenchmarkOptions, BenchmarkResult, CacheState, Clock
from opscope.model.sidecar import Environment, RecordedSchedule, RecordedSettings, Sidecar


def benchmark_result(*rows, **fields):
    """A result of a suite on a CPU; fields of it that are other ones."""
    known = {
        "suite": "gelu", "shape": (8,), "dtype": "float32", "device": "cpu", "reference": "torch",
        "clock": Clock.WALL, "cache_state": CacheState.UNCONTROLLED, "options": BenchmarkOptions(),
        "environment": Environment(python="3.12", platform="Linux", opscope="0"), "created": "",
    }  # fmt: skip
    return BenchmarkResult(**{**known, **fields}, rows=rows)


def watched(step):
    """What is seen of two steps."""
    watch = DataflowWatch()
    watch.start()
    step()
    watch.next_step()
    step()
    found = watch.stop()
    assert found is not None, watch.why_not
    return found


# Where a result was measured on a GPU.
ON_A_GPU = {"device": "cuda:0", "clock": Clock.CUDA_EVENT, "cache_state": CacheState.COLD}


def scripted(states):
    """Reads these states of a device, the last one again and again."""
    waiting = list(states)
    return lambda: waiting.pop(0) if len(waiting) > 1 else waiting[0]


class FakeTimer:
    """A `Timer` that calls the function and reports scripted durations; warm-up calls take from them too.

    Each is drawn after its call, so a generator may depend on what the function did.
    """

    def __init__(self, samples_ns, clock=Clock.WALL, *, resolution_ns=1.0):
        self.clock = clock
        self.resolution_ns = resolution_ns
        self.calls = 0
        self._samples_ns = iter(samples_ns)

    def measure(self, fn):
        fn()
        self.calls += 1
        try:
            return next(self._samples_ns)
        except StopIteration:
            raise MeasurementError(f"the scripted samples ran out at call {self.calls}") from None


# As Kineto records an H200.
H200 = {
    "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_109_880_320, "computeMajor": 9, "computeMinor": 0,
    "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65_536, "warpSize": 32,
    "sharedMemPerBlock": 49_152, "numSms": 132, "regsPerMultiprocessor": 65_536,
    "sharedMemPerBlockOptin": 232_448, "sharedMemPerMultiprocessor": 233_472,
}  # fmt: skip


class TraceBuilder:
    """Writes small Kineto traces, one call per event.

        TraceBuilder().operator("aten::mm", 0, 10).launch(2).kernel("gemm", 20, 5).write(path)

    Times are microseconds (three decimals), as in the format. `launch` and `kernel` refer to the last
    operator and launch unless told otherwise; ids count up by themselves. Properties are further top-level
    keys of the file.
    """

    def __init__(self, **properties):
        self.properties: dict[str, Any] = {"schemaVersion": 1, **properties}
        self.events: list[dict[str, Any]] = []
        self._external_id = 0
        self._correlation = 100
        self._python_id = 0
        self._flow_id = 0

    def operator(self, name, start, duration, *, thread=1, external_id=None, **args):
        self._external_id = self._external_id + 1 if external_id is None else external_id
        return self.event("cpu_op", name, start, duration, thread, {"External id": self._external_id, **args})

    def launch(
        self, start, duration=1, *, name="cudaLaunchKernel", thread=1, correlation=None, external_id=None
    ):
        """A runtime call; carries an external id only if given one."""
        self._correlation = self._correlation + 1 if correlation is None else correlation
        args = {"correlation": self._correlation}
        if external_id is not None:
            args["External id"] = external_id
        return self.event("cuda_runtime", name, start, duration, thread, args)

    def kernel(
        self, name, start, duration, *, device=0, stream=7, correlation=None, category="kernel", **args
    ):
        """A device activity; belongs to the last launch unless given a correlation id."""
        arguments = {
            "device": device,
            "stream": stream,
            "correlation": self._correlation if correlation is None else correlation,
            "grid": [4, 1, 1],
            "block": [128, 1, 1],
            **args,
        }
        return self.event(category, name, start, duration, stream, arguments, process=device)

    def step(self, number, start, duration, *, thread=1):
        return self.event("user_annotation", f"ProfilerStep#{number}", start, duration, thread, {})

    def frame(self, name, start, duration, *, thread=1, parent=None, module=None):
        """A call of a Python function, `file(line): function`, or of a module, `nn.Module: Linear_0`.

        Its `Python id` counts up from 1; `parent` is the caller's, `module` the recorder's id of the module.
        """
        self._python_id += 1
        args = {"Python id": self._python_id, "Python parent id": parent}
        if module is not None:
            args["Python module id"] = module
        return self.event("python_function", name, start, duration, thread, args)

    def differentiates(self, forward_start, backward_start, *, thread=1, backward_thread=2):
        """An arrow from the forward operator that starts then to the backward one that starts then.

        Both need a `Sequence number`, as recorders write it.
        """
        self._flow_id += 1
        for phase, start, where in (("s", forward_start, thread), ("f", backward_start, backward_thread)):
            self.events.append(
                {
                    "ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": self._flow_id, "pid": 1,
                    "tid": where, "ts": start, **({"bp": "e"} if phase == "f" else {}),
                }
            )  # fmt: skip
        return self

    def event(  # noqa: PLR0917 - the fields of an event
        self, category, name, start, duration, thread, args, *, process=1
    ):
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": process,
                "tid": thread,
                "ts": start,
                "dur": duration,
                "args": args,
            }
        )
        return self

    def text(self):
        """The file's text, laid out as Kineto lays it out."""
        head = json.dumps(self.properties, indent=2)[:-2]
        events = ",\n".join("  " + json.dumps(event) for event in self.events)
        return f'{head},\n  "traceEvents": [\n{events}\n  ]\n}}\n'

    def write(self, path):
        target = Path(path)
        target.write_text(self.text(), encoding="utf-8")
        return target


_PLACE = "start, end, deviceId, contextId, streamId, correlationId, globalPid"
_EXPORT_TABLES = {
    "StringIds": "id, value",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_PLACE}, demangledName, shortName, mangledName, registersPerThread, "
    "gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, graphId, "
    "graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_PLACE}, bytes, copyKind, srcKind, dstKind, graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_PLACE}, bytes, memKind, graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_PLACE}, graphId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_PLACE}, syncType, eventId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
    "NVTX_EVENTS": "start, end, eventType, globalTid, endGlobalTid, text, textId, domainId",
    "PROFILER_OVERHEAD": "start, end, globalTid, nameId, overheadType",
    "PROCESSES": "globalPid, pid, name",
    "ThreadNames": "nameId, globalTid",
    "META_DATA_EXPORT": "name, value",
    "META_DATA_CAPTURE": "name, value",
    "TARGET_INFO_SYSTEM_ENV": "name, value",
    "DIAGNOSTIC_EVENT": "severity, text",
}


class ExportBuilder:
    """Writes small exports of Nsight Systems, one call per row.

        ExportBuilder().range("step", 0, 90).launch(10).kernel("gemm", 20, 5).write(path)

    Times are nanoseconds. `kernel`, `copy` and their like belong to the last launch unless told otherwise.
    `tables` takes what nsys writes beside the events: rows (id, name) of its ENUM tables, by table. The
    process is that of every row that names no other.
    """

    def __init__(self, process=10):
        self.process = process
        self.tables: dict[str, list[tuple[int, str]]] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _EXPORT_TABLES}
        self._strings: dict[str, int] = {}
        self._correlation = 100

    def launch(self, start, duration=1, *, name="cudaLaunchKernel_v7000", **columns):
        """A CUDA call; `thread` and `process` among the columns say where."""
        self._correlation += 1
        return self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start,
            duration,
            **{"eventClass": 0, "correlationId": self._correlation, "nameId": name, **columns},
        )

    def kernel(self, name, start, duration, **columns):
        """A kernel, by nsys' demangled name; `mangledName` gives the mangled one."""
        launch = dict.fromkeys(("gridX", "gridY", "gridZ", "blockY", "blockZ"), 1)
        launch |= {"blockX": 128, "registersPerThread": 16, "staticSharedMemory": 0, "dynamicSharedMemory": 0}
        names = {"demangledName": name, "shortName": name, "mangledName": name}
        return self._work("CUPTI_ACTIVITY_KIND_KERNEL", start, duration, **{**launch, **names, **columns})

    def copy(self, start, duration, **columns):
        """A copy, from pageable host memory to the device by default."""
        return self._work(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start,
            duration,
            **{"bytes": 4, "copyKind": 1, "srcKind": 0, "dstKind": 2, **columns},
        )

    def memset(self, start, duration, **columns):
        return self._work(
            "CUPTI_ACTIVITY_KIND_MEMSET", start, duration, **{"bytes": 4, "memKind": 2, **columns}
        )

    def graph(self, graph, start, duration, **columns):
        """A launch of a CUDA graph, recorded as a whole."""
        return self._work("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start, duration, **{"graphId": graph, **columns})

    def range(self, text, start, duration, **columns):
        """An NVTX range, pushed and popped; `eventType` makes it another event, `textId` registers a text."""
        return self.row(
            "NVTX_EVENTS", start, duration, **{"eventType": 59, "text": text, "domainId": 0, **columns}
        )

    def row(self, table, start, duration, **columns):
        """Any row with a start and an end; texts of id columns become ids."""
        values = {"start": start}
        values["end"] = None if start is None or duration is None else start + duration
        process, thread = columns.pop("process", self.process), columns.pop("thread", self.process)
        values["globalPid"] = process << 24
        values["globalTid"] = process << 24 | thread
        return self.plain_row(table, **{**values, **columns})

    def plain_row(self, table, **columns):
        """Any row as it is; texts of id columns become ids."""
        ids = {"demangledName", "shortName", "mangledName", "nameId", "textId", "filenameId", "contentId"}
        self.rows[table].append(
            {
                name: self._string(value) if name in ids and isinstance(value, str) else value
                for name, value in columns.items()
            }
        )
        return self

    def _work(self, table, start, duration, **columns):
        place = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": self._correlation}
        return self.row(table, start, duration, **{**place, **columns})

    def _string(self, text):
        return self._strings.setdefault(text, len(self._strings) + 1)

    def write(self, path, *, without=()):
        """Write the file, which must not be there, without some tables and columns (`TABLE.column`)."""
        absent = set(without)
        rows = {**self.rows, "StringIds": [{"id": one, "value": text} for text, one in self._strings.items()]}
        with closing(sqlite3.connect(Path(path))) as connection:
            for table, declared in _EXPORT_TABLES.items():
                columns = [one for one in declared.split(", ") if f"{table}.{one}" not in absent]
                if table in absent:
                    continue
                quoted = ", ".join(f'"{column}"' for column in columns)
                connection.execute(f"CREATE TABLE {table} ({quoted})")
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})",
                    [[row.get(column) for column in columns] for row in rows[table]],
                )
            for table, named in self.tables.items():
                connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT)")
                connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", named)
            connection.commit()
        return Path(path)


def sidecar(**fields):
    environment = Environment(
        "3.12.1", "Linux x86_64", "0.1.0", torch="2.11.0+cu130", torch_git_version="70d99e9",
        cuda_runtime="13.0", cuda_driver="13.1",
    )  # fmt: skip
    known = {
        "trace": "t.json", "created": "2026-01-02T03:04:05+00:00", "environment": environment,
        "schedule": RecordedSchedule(0, 1, 3, 1, cycle=0),
        "settings": RecordedSettings(True, False, False, False, ("cpu", "cuda")),
        "steps": 3, "partial": False, "clean_window": True, "wall_time_ns_per_step": (5, 6, 7),
    }  # fmt: skip
    return Sidecar(**{**known, **fields})
