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
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from opscope.capture.attached import attached_profilers, is_profiler_recording
from opscope.capture.recording import PROFILER, available_activities, make_engine, quiet_torch_log
from opscope.capture.trace_file import export_trace
from opscope.model.files import scratch_prefix
from opscope.model.origin import Gap
from opscope.model.sidecar import GraphNode, RecordedGraph, RecordedSettings, graphs_folder

# Each takes about as long as its capture again, and its trace has to be kept.
_MOST_GRAPHS = 64
_PART = "CUDA graphs"


class GraphNotes:
    """Notes of all graphs captured between `start` and `stop`, by whichever thread.

    Args:
        step_aside: Detaches a profiler of ours that is attached without recording; tells whether it did.
        step_back: Attaches it again.
    """

    def __init__(
        self, step_aside: Callable[[], bool] = lambda: False, step_back: Callable[[], object] = lambda: None
    ) -> None:
        self.gaps: list[Gap] = []
        self._step_aside, self._step_back = step_aside, step_back
        self._originals: tuple[Any, Any] | None = None
        self._open: _OpenCapture | None = None
        self._graphs: list[RecordedGraph] = []
        self._folder: Path | None = None

    def start(self) -> None:
        """Note every capture from now on; torch is imported. Asks no driver: the program may still fork."""
        if self._originals is not None:
            return
        graph_class = importlib.import_module("torch.cuda.graphs").CUDAGraph
        begin, end = self._originals = (graph_class.capture_begin, graph_class.capture_end)

        @functools.wraps(begin)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._guarded(self._begin)
            try:
                return begin(graph, *args, **kwargs)
            except BaseException:
                self._guarded(self._drop)
                raise

        @functools.wraps(end)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._guarded(self._read_nodes)
            try:
                result = end(graph, *args, **kwargs)
            except BaseException:
                self._guarded(self._drop)
                raise
            self._guarded(self._end)
            return result

        graph_class.capture_begin, graph_class.capture_end = capture_begin, capture_end

    def stop(self) -> None:
        """Leave torch as it was; what was noted is kept."""
        originals, self._originals = self._originals, None
        if originals is not None:
            graph_class = importlib.import_module("torch.cuda.graphs").CUDAGraph
            graph_class.capture_begin, graph_class.capture_end = originals

    def discard(self) -> None:
        """Stop, and remove what was noted."""
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def keep_beside(self, trace_path: Path) -> tuple[RecordedGraph, ...]:
        """Copy the notes into the folder of graphs beside a trace, in place of earlier ones; what they are.

        Raises:
            OSError: They cannot be written.
        """
        target = graphs_folder(trace_path)
        for stale in target.glob("graph_*.json.gz"):
            stale.unlink()
        if self._folder is None or not self._graphs:
            return tuple(self._graphs)
        kept = []
        for graph in self._graphs:
            if graph.file is not None:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._folder / graph.file, target / graph.file)
                graph = msgspec.structs.replace(graph, file=f"{target.name}/{graph.file}")  # noqa: PLW2901
            kept.append(graph)
        return tuple(kept)

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - must not reach the program, whatever a driver or torch does
            self._note_gap(f"{type(error).__name__}: {error}")

    def _note_gap(self, reason: str) -> None:
        gap = Gap(_PART, reason)
        if gap not in self.gaps:
            self.gaps.append(gap)

    def _begin(self) -> None:
        if len(self._graphs) >= _MOST_GRAPHS:
            self._note_gap(f"of more than {_MOST_GRAPHS} captures the first were noted")
            return
        capture = _OpenCapture()
        if not is_profiler_recording():  # else the capture is in the recording that runs
            capture.stepped_aside = self._step_aside()
            self._open = capture
            try:
                with attached_profilers.own(), quiet_torch_log():
                    capture.start()
            except BaseException:
                self._drop()
                raise
        self._open = capture

    def _read_nodes(self) -> None:
        if self._open is not None:
            self._open.nodes = graph_nodes()

    def _drop(self) -> None:
        capture, self._open = self._open, None
        if capture is not None:
            self._close(capture)

    def _end(self) -> None:
        capture, self._open = self._open, None
        if capture is None:
            return
        try:
            with attached_profilers.own(), quiet_torch_log():
                capture.stop()
                file = self._save(capture) if capture.engine is not None and capture.nodes != () else None
        finally:
            self._close(capture)
        if capture.nodes != ():  # an empty graph is never worth a note
            self._graphs.append(RecordedGraph(file, capture.nodes))

    def _save(self, capture: _OpenCapture) -> str:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=scratch_prefix()))
        name = f"graph_{len(self._graphs)}.json.gz"
        export_trace(capture.engine.save, self._folder / name, lambda _: None)
        return name

    def _close(self, capture: _OpenCapture) -> None:
        with attached_profilers.own(), quiet_torch_log():
            capture.stop()
            if capture.stepped_aside:
                self._step_back()


class _OpenCapture:
    """One capture under way, and the profiler that records it, if that is ours."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.nodes: tuple[GraphNode, ...] | None = None
        self.stepped_aside = False
        self._is_running = False

    def start(self) -> None:
        settings = RecordedSettings(
            record_shapes=True,
            with_stack=True,
            with_modules=True,
            profile_memory=False,
            activities=available_activities(),
            engine=PROFILER,
        )
        self.engine = make_engine(settings)
        self.engine.prepare()
        self.engine.start()
        self._is_running = True

    def stop(self) -> None:
        if self._is_running:
            self._is_running = False
            self.engine.stop()


# The driver's interface. Source: CUDA driver API, group "Graph Management" and "Stream Management"; the node
# id is there from CUDA 13.1 on.
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


def graph_nodes(driver: Any = None) -> tuple[GraphNode, ...] | None:
    """The kernels, copies and sets of the graph that the current stream is capturing, in their order.

    Args:
        driver: The driver's library; that of this machine if None.

    Returns:
        The nodes; None if no driver tells them, or the stream captures nothing.
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


def _node(library: Any, node: ctypes.c_void_p) -> GraphNode | None:
    kind = ctypes.c_int()
    if library.cuGraphNodeGetType(node, ctypes.byref(kind)) or kind.value not in _KINDS:
        return None
    number = _node_number(library, node)
    parameters = _KernelParameters()
    if kind.value or library.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(parameters)):
        return GraphNode(_KINDS[kind.value], number=number)
    grid = (parameters.grid_x, parameters.grid_y, parameters.grid_z)
    block = (parameters.block_x, parameters.block_y, parameters.block_z)
    return GraphNode("kernel", _kernel_name(library, parameters), number, grid, block)


def _node_number(library: Any, node: ctypes.c_void_p) -> int | None:
    """The node's id in its graph, which instances of the graph keep; None where the driver tells none."""
    tell = getattr(library, "cuGraphNodeGetToolsId", None)
    identity = ctypes.c_ulonglong()
    if tell is None or tell(node, ctypes.byref(identity)):
        return None
    return identity.value & 0xFFFFFFFF


def _kernel_name(library: Any, parameters: _KernelParameters) -> str | None:
    """The kernel's mangled name; None where the driver (before CUDA 12.3) tells none."""
    for function, handle in (("cuFuncGetName", parameters.func), ("cuKernelGetName", parameters.kern)):
        tell, name = getattr(library, function, None), ctypes.c_char_p()
        if tell is not None and handle and not tell(ctypes.byref(name), ctypes.c_void_p(handle)):
            return None if name.value is None else name.value.decode("utf-8", "replace")
    return None
