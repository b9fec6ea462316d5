"""What goes into CUDA graphs, noted while they are captured, so that their replays can be told apart.

A replay is one launch call: which operator asked for each of its kernels was known only when the graph was
captured, usually long before anything is recorded. So `torch.cuda.CUDAGraph`'s two capture methods are
replaced while notes are taken: the capture itself is recorded by torch's profiler (launch calls in order,
each inside its operator), and just before it ends the driver is asked for the graph's nodes: kind, kernel,
grid and, where it tells, the node's id, whose lower 32 bits a replayed activity carries too.

Nothing here may break the program: a capture that cannot be noted is a Gap. Importing this module does not
import torch.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from opscope.capture.recording import (
    CaptureEngine,
    attached_profilers,
    available_activities,
    export_trace,
    is_profiler_recording,
    quiet_torch_log,
)
from opscope.model import files, origin, sidecar

# Each takes about as long as its capture again, and its trace has to be kept.
_MOST_GRAPHS = 64


class _Capture(msgspec.Struct):
    """One capture under way, and the profiler that records it, if that is ours."""

    engine: Any = None
    is_running: bool = False
    stepped_aside: bool = False
    nodes: tuple[sidecar.GraphNode, ...] | None = None

    def stop(self) -> None:
        if self.is_running:
            self.is_running = False
            self.engine.stop()


_Action = Callable[[int], object]


class GraphNotes:
    """Notes of all graphs captured between `start` and `stop`, by whichever threads.

    `step_aside` detaches a profiler of ours that is attached without recording, and tells whether it did;
    `step_back` attaches it again.
    """

    def __init__(
        self, step_aside: Callable[[], bool] = lambda: False, step_back: Callable[[], object] = lambda: None
    ) -> None:
        self.gaps: list[origin.Gap] = []
        self.has_seen = False  # whether any graph was captured
        self._step_aside, self._step_back = step_aside, step_back
        self._originals: tuple[Any, Any] | None = None
        self._open: dict[int, _Capture] = {}  # by the identity of torch's graph: threads capture side by side
        self._graphs: list[sidecar.RecordedGraph] = []
        self._numbers = itertools.count()
        self._folder: Path | None = None

    def start(self) -> None:
        """Note every capture from now on; torch is imported. Asks no driver: the program may still fork."""
        if self._originals is not None:
            return
        graph_class = importlib.import_module("torch.cuda.graphs").CUDAGraph
        begin, end = self._originals = (graph_class.capture_begin, graph_class.capture_end)

        def noted(original: Any, before: _Action, after: _Action) -> Any:
            @functools.wraps(original)
            def call(graph: Any, *args: Any, **kwargs: Any) -> Any:
                self._guarded(before, graph)
                try:
                    result = original(graph, *args, **kwargs)
                except BaseException:
                    self._guarded(self._drop, graph)
                    raise
                self._guarded(after, graph)
                return result

            return call

        graph_class.capture_begin = noted(begin, self._begin, lambda _: None)
        graph_class.capture_end = noted(end, self._read_nodes, self._end)

    def stop(self) -> None:
        """Leave torch as it was; what was noted is kept."""
        originals, self._originals = self._originals, None
        if originals is not None:
            graph_class = importlib.import_module("torch.cuda.graphs").CUDAGraph
            graph_class.capture_begin, graph_class.capture_end = originals

    def discard(self) -> None:
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def keep_beside(self, trace_path: Path) -> tuple[sidecar.RecordedGraph, ...]:
        """Copy the notes into the folder of graphs beside a trace, in place of earlier ones."""
        target = sidecar.graphs_folder(trace_path)
        for stale in target.glob("graph_*.json.gz"):
            stale.unlink()
        kept = []
        for graph in tuple(self._graphs):
            file = graph.file
            if file is not None and self._folder is not None:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._folder / file, target / file)
                file = f"{target.name}/{file}"
            kept.append(msgspec.structs.replace(graph, file=file))
        return tuple(kept)

    def _guarded(self, action: _Action, graph: Any) -> None:
        try:
            action(id(graph))
        except Exception as error:  # noqa: BLE001 - must not reach the program, whatever a driver or torch does
            self._note_gap(f"{type(error).__name__}: {error}")

    def _note_gap(self, reason: str) -> None:
        if (gap := origin.Gap("CUDA graphs", reason)) not in self.gaps:
            self.gaps.append(gap)

    def _begin(self, graph: int) -> None:
        self.has_seen = True
        if len(self._graphs) >= _MOST_GRAPHS:
            self._note_gap(f"of more than {_MOST_GRAPHS} captures the first were noted")
            return
        if any(one.is_running for one in tuple(self._open.values())):
            self._note_gap("of graphs captured at once, by several threads, the first was noted")
            return
        capture = self._open[graph] = _Capture()
        if is_profiler_recording():
            return  # the capture is in the recording that runs
        try:
            capture.stepped_aside = self._step_aside()
            with attached_profilers.own(), quiet_torch_log():
                settings = sidecar.RecordedSettings(True, True, True, False, available_activities())
                capture.engine = CaptureEngine(settings)
                capture.engine.prepare()
                capture.engine.start()
                capture.is_running = True
        except BaseException:
            self._drop(graph)
            raise

    def _read_nodes(self, graph: int) -> None:
        if graph in self._open:
            self._open[graph].nodes = graph_nodes()

    def _end(self, graph: int) -> None:
        if (capture := self._open.get(graph)) is None:
            return
        file = None
        try:
            with attached_profilers.own(), quiet_torch_log():
                capture.stop()
                if capture.nodes == ():  # an empty graph is never worth a note
                    return
                number = next(self._numbers)
                if capture.engine is not None:
                    self._folder = self._folder or Path(tempfile.mkdtemp(prefix=files.scratch_prefix()))
                    file = f"graph_{number}.json.gz"
                    export_trace(capture.engine.save, self._folder / file, lambda _: None)
        finally:
            self._drop(graph)
        self._graphs.append(sidecar.RecordedGraph(file, capture.nodes))

    def _drop(self, graph: int) -> None:
        if (capture := self._open.pop(graph, None)) is not None:
            with attached_profilers.own(), quiet_torch_log():
                capture.stop()
                if capture.stepped_aside:
                    self._step_back()


# The driver's interface. Source: CUDA driver API, group "Graph Management" and "Stream Management"; the node
# id is there from CUDA 13.1 on, names of kernels from 12.3.
_KINDS = {0: "kernel", 1: "memcpy", 2: "memset"}
_MOST_NODES = 1 << 20


class _KernelParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def graph_nodes(driver: Any = None) -> tuple[sidecar.GraphNode, ...] | None:
    """The kernels, copies and sets of the graph that the current stream is capturing, in their order.

    None if no driver tells them, or the stream captures nothing.
    """
    try:
        library = driver or ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    stream = importlib.import_module("torch").cuda.current_stream().cuda_stream
    status, identity, graph = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_void_p()
    dependencies, count = ctypes.c_void_p(), ctypes.c_size_t()
    told = (ctypes.byref(one) for one in (status, identity, graph, dependencies, count))
    if library.cuStreamGetCaptureInfo_v2(ctypes.c_void_p(stream), *told) or not graph.value:
        return None
    if library.cuGraphGetNodes(graph, None, ctypes.byref(count)) or count.value > _MOST_NODES:
        return None
    nodes = (ctypes.c_void_p * count.value)()
    if count.value and library.cuGraphGetNodes(graph, nodes, ctypes.byref(count)):
        return None
    read = [_node(library, ctypes.c_void_p(node)) for node in nodes]
    return tuple(node for node in read if node is not None)


def _node(library: Any, node: ctypes.c_void_p) -> sidecar.GraphNode | None:
    kind, number, identity = ctypes.c_int(), None, ctypes.c_ulonglong()
    if library.cuGraphNodeGetType(node, ctypes.byref(kind)) or kind.value not in _KINDS:
        return None
    tell = getattr(library, "cuGraphNodeGetToolsId", None)
    if tell is not None and not tell(node, ctypes.byref(identity)):
        number = identity.value & 0xFFFFFFFF  # instances of the graph keep it
    one = _KernelParameters()
    if kind.value or library.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(one)):
        return sidecar.GraphNode(_KINDS[kind.value], number=number)
    name = None
    for function, handle in (("cuFuncGetName", one.func), ("cuKernelGetName", one.kern)):
        tell, text = getattr(library, function, None), ctypes.c_char_p()
        if tell is not None and handle and not tell(ctypes.byref(text), ctypes.c_void_p(handle)):
            name = None if text.value is None else text.value.decode("utf-8", "replace")
            break
    grid, block = (one.grid_x, one.grid_y, one.grid_z), (one.block_x, one.block_y, one.block_z)
    return sidecar.GraphNode("kernel", name, number, grid, block)
