"""One window of Kineto: prepared, started, stopped, exported; or abandoned.

The window is clean: every device is idle when it opens and again when it closes. Kineto keeps device
activities by their time, not by their launch, so without the first wait kernels of the warm-up would be
counted, and without the second the last step's would be cut off. A Recording is used once: torch's profiler
objects warn when they are started twice. Importing this module does not import torch.

Inside the window activities can be switched off and on again. Before those of the devices are, all devices
are waited for, so that a kernel belongs to the side it was launched on. (Kineto itself waits since 2025, now
before and now after it switches: libkineto, toggleCollectionDynamic.)

A trace just written is checked, named and moved to its place. The names in it are searched as text, for
Kineto writes every event in one layout (libkineto/src/output_json.cpp): an event's category is followed by
its name. Blanks and line ends differ between releases, so they are looked up first. About 2 ms per megabyte,
in bounded memory.
"""

from __future__ import annotations

import ctypes
import functools
import gzip
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from opscope.capture.process_sources import read_structure
from opscope.errors import CaptureError
from opscope.model.files import replacing
from opscope.model.sidecar import RecordedRegion, RecordedSettings, RecordedStructure
from opscope.workloads.runtime import is_out_of_memory, require_torch, synchronize

T = TypeVar("T")
# Lines below this level are not written; error is 2. Source: pytorch, c10/util/Logging.cpp.
_LEVEL, _ERROR = "FLAGS_caffe2_log_level", 2
# Kineto reads it when a process first records. At 5 it writes two lines about each recording on standard
# error ("USDT: … profiler_start"); errors are at 4.
_KINETO_LEVEL, _ABOVE_STEPS = "KINETO_LOG_LEVEL", "6"
PROFILER, AUTOGRAD = "profiler", "autograd"


@contextmanager
def quiet_torch_log() -> Iterator[None]:
    """Inside the block torch logs errors only; a torch built with another logger goes on as it does."""
    level = _log_level()
    if level is None or level.value >= _ERROR:
        yield
        return
    previous, level.value = level.value, _ERROR
    try:
        yield
    finally:
        level.value = previous


@contextmanager
def detached_afterwards() -> Iterator[None]:
    """A recording that stops in the block leaves the process without CUPTI, where the environment is silent.

    Attached, CUPTI slows every later launch: on H100s steps that the host decides took 1.2 to 2.2 times as
    long. It is detached in the next call of CUDA, so one is made. A recording that begins before that would
    lose its kernels: none may follow at once. Before CUDA 12.6 graphs crashed where CUPTI had been detached.

    Source: libkineto, CuptiActivityApi.cpp; pytorch pull request 146604; kineto pull request 1554.
    """
    version = require_torch().version.cuda
    if version is None or tuple(map(int, version.split("."))) < _DETACHABLE or _TEARDOWN in os.environ:
        yield
        return
    os.environ[_TEARDOWN] = "1"
    try:
        yield
        synchronize()
    finally:
        os.environ.pop(_TEARDOWN, None)


@functools.cache
def _log_level() -> ctypes.c_int | None:
    try:
        # Looked up in everything that torch's extension module was linked with.
        return ctypes.c_int.in_dll(ctypes.CDLL(require_torch()._C.__file__), _LEVEL)
    except (OSError, ValueError, AttributeError):
        return None


_TEARDOWN, _DETACHABLE = "TEARDOWN_CUPTI", (12, 6)


class CaptureEngine:
    """What drives Kineto through one window, by calls in this order, each once but for `toggle`.

    torch.profiler's own object without its schedule, or torch.autograd.profiler entered in the two halves
    that torch.profiler enters it in. Both write the same kind of trace, but only the first notes rank and
    options in it, and only it can be switched off and on while it records.
    """

    def __init__(self, settings: RecordedSettings) -> None:
        torch = require_torch()
        # Modules come with stacks; torch's own `with_modules` is of TorchScript, and 2.15 warns of it.
        options = {
            name: getattr(settings, name) for name in ("record_shapes", "with_stack", "profile_memory")
        }
        self._is_autograd = settings.engine == AUTOGRAD
        if self._is_autograd:
            self._profile = profile = torch.autograd.profiler.profile(
                use_cpu="cpu" in settings.activities,
                use_device="cuda" if "cuda" in settings.activities else None,
                use_kineto=True,
                **options,
            )
            self._prepare, self.start = profile._prepare_trace, profile._start_trace
            self.stop = functools.partial(profile.__exit__, None, None, None)
        else:
            self._profile = profile = torch.profiler._KinetoProfile(
                activities=self._named(settings.activities),
                # Without it torch 2.11 warns that a second cycle clears the first; each has its own object.
                acc_events=True,
                **options,
            )
            self._prepare = profile.prepare_trace
            self.start, self.stop = profile.start_trace, profile.stop_trace
        self.save: Callable[[str], object] = profile.export_chrome_trace

    def prepare(self) -> None:
        """Attach without recording; Kineto does not tell that it starts and stops, unless it was asked to."""
        is_asked = _KINETO_LEVEL in os.environ
        os.environ.setdefault(_KINETO_LEVEL, _ABOVE_STEPS)
        try:
            self._prepare()
        finally:
            if not is_asked:
                os.environ.pop(_KINETO_LEVEL, None)
        if not self._is_autograd and self._profile.profiler is not None:
            # Otherwise every event becomes a Python object when the window closes, which nobody asks for
            # here: 20 times the time of closing it.
            self._profile.profiler.acc_events = False

    def toggle(self, activities: Collection[str], *, is_on: bool) -> None:
        """Switch the recording of some activities off, or on again; never to what it is already."""
        with quiet_torch_log():
            self._profile.toggle_collection_dynamic(is_on, self._named(activities))

    def events(self) -> list[Any]:
        """Roots of torch's own tree of what was recorded, once it is stopped."""
        inner = self._profile if self._is_autograd else self._profile.profiler
        return list(inner.kineto_results.experimental_event_tree())

    def _named(self, activities: Collection[str]) -> list[Any]:
        known = require_torch().profiler.ProfilerActivity.__members__
        return [known[name.upper()] for name in activities]


_END = "_disable_profiler"


class AttachedProfilers:
    """Which torch profiler is attached to this process: ours or anybody's, recording or only warming up.

    torch itself tells of one that records, not of one in its warm-up, which stretches the host already. So
    the functions of torch.autograd.profiler through which every profiler of torch starts and ends are
    replaced while somebody watches, and put back afterwards. One that was in its warm-up before is not seen.
    """

    def __init__(self) -> None:
        self.is_attached = False  # a profiler is prepared or records
        self.changes = 0  # starts and ends so far; if as it was, nothing was attached in between either
        self._watchers: list[Callable[[], object]] = []
        self._is_own = False
        self._originals: dict[str, Any] = {}

    def watch(self, before_start: Callable[[], object]) -> None:
        """Call a function before every start from now on; torch is imported."""
        if not self._watchers:
            self.is_attached = is_profiler_recording()
            module = require_torch().autograd.profiler
            for name in ("_prepare_profiler", "_enable_profiler", _END):
                if hasattr(module, name):
                    self._originals[name] = getattr(module, name)
                    setattr(module, name, self._noting(self._originals[name], is_start=name != _END))
        self._watchers.append(before_start)

    def unwatch(self, before_start: Callable[[], object]) -> None:
        """Call it no longer; the last one to go leaves torch as it was. Nothing if it does not watch."""
        if before_start in self._watchers:
            self._watchers.remove(before_start)
            if not self._watchers:
                originals, self._originals = self._originals, {}
                for name, original in originals.items():
                    setattr(require_torch().autograd.profiler, name, original)

    @contextmanager
    def own(self) -> Iterator[None]:
        """Inside the block no one is told of starts: they are part of a recording that is watched itself."""
        before, self._is_own = self._is_own, True
        try:
            yield
        finally:
            self._is_own = before

    def _noting(self, original: Callable[..., Any], *, is_start: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_start:
                for before_start in () if self._is_own else tuple(self._watchers):
                    before_start()
                self._note(is_attached=True)
            try:
                return original(*args, **kwargs)
            finally:
                if not is_start:
                    self._note(is_attached=False)

        return call

    def _note(self, *, is_attached: bool) -> None:
        self.is_attached = is_attached
        self.changes += 1


attached_profilers = AttachedProfilers()


def is_profiler_recording() -> bool:
    """Whether a torch profiler records: on this thread, or by a flag of torch.autograd.profiler anywhere."""
    autograd = require_torch().autograd
    return bool(autograd._profiler_enabled() or getattr(autograd.profiler, "_is_profiler_enabled", False))


def available_activities() -> tuple[str, ...]:
    """What can be recorded here: `cpu`, and `cuda` where there is a device."""
    return ("cpu", "cuda") if require_torch().cuda.is_available() else ("cpu",)


def require_no_profiler() -> None:
    """Raise a CaptureError if a torch profiler is recording in this process.

    To be asked before anything is prepared: preparing a second session crashes some torch versions.
    """
    if is_profiler_recording():
        raise CaptureError(
            "a torch profiler is already recording in this process",
            hint="End it first: only one profiler can record at a time",
        )


class Recording:
    def __init__(self, settings: RecordedSettings) -> None:
        self._annotate = require_torch().autograd.profiler.record_function
        self._engine: Any = CaptureEngine(settings)
        self._with_stack = settings.with_stack
        self._is_prepared = False
        self.is_started = False  # whether work done now is recorded
        self.regions: list[RecordedRegion] = []  # where not everything was, as far as it has ended
        self._step: Any = None
        self._wall_times_ns: list[int] = []
        self._all = self._on = frozenset(settings.activities)
        self._switched_ns = self._off_since_step = 0

    def prepare(self) -> None:
        """Attach the profiler without recording, so that its start-up cost falls into the warm-up."""
        require_no_profiler()
        with _kineto_errors("prepared"):
            self._engine.prepare()
        self._is_prepared = True

    def start(self, step: int) -> None:
        """Wait for the devices, start recording, and open a step with that number."""
        if not self._is_prepared:
            self.prepare()
        require_no_profiler()
        synchronize()
        with _kineto_errors("started"):
            self._engine.start()
        self.is_started = True
        self._thread = threading.get_ident()
        self._open_step(step)

    def next_step(self, step: int) -> None:
        """Close the open step and open the one with that number, without waiting for the devices."""
        self._wall_times_ns.append(time.perf_counter_ns() - self._step_start_ns)
        self._close_step()
        is_off = "cpu" not in self._on  # steps are in the trace whatever else is not
        if is_off:
            self._switch({"cpu"}, is_on=True)
        self._open_step(step)
        if is_off:
            self._switch({"cpu"}, is_on=False)

    def collect(self, wanted: frozenset[str] | None) -> None:
        """Record only these of the activities from now on, or all of them if None."""
        new = self._all if wanted is None else self._all & wanted
        if self._thread != threading.get_ident():
            raise CaptureError(
                "regions belong to the thread that records", hint="Open them where step() is called"
            )
        if new == self._on:
            return
        if "cuda" in new ^ self._on:
            synchronize()
        before_ns = time.time_ns()
        self._switch(self._on - new, is_on=False)
        self._switch(new - self._on, is_on=True)
        off = tuple(sorted(self._all - self._on))
        if off:
            end_ns = time.time_ns() if new == self._all else before_ns
            self.regions.append(RecordedRegion(self._switched_ns, end_ns, off, self._off_since_step))
        self._on, self._switched_ns, self._off_since_step = new, before_ns, self._step_number

    def stop(self, *, last_step_is_whole: bool) -> tuple[int, ...]:
        """Wait for the devices and stop recording; the wall time of each whole step, in nanoseconds."""
        # Inside the last step, so that the step lasts as long as its work.
        synchronize()
        if last_step_is_whole:
            self._wall_times_ns.append(time.perf_counter_ns() - self._step_start_ns)
        self._close_step()
        if self._on != self._all:
            self.collect(None)  # Kineto of early 2025 keeps the switch for the next window.
        with _kineto_errors("stopped"):
            self._engine.stop()
        self._is_prepared = self.is_started = False
        return tuple(self._wall_times_ns)

    def export(self, target: Path) -> TraceNames:
        """Write the stopped recording as a Kineto trace and free its memory; the names in it."""
        names = export_trace(self._engine.save, target, read_trace_names)
        self._engine = None
        return names

    def structure(self) -> RecordedStructure | None:
        """What the program knows of its Python frames, if they were recorded; between stop and export."""
        return read_structure(self._engine.events()) if self._with_stack else None

    def abandon(self) -> None:
        """Stop without keeping anything; what the devices still have to say about failed work is dropped."""
        was_prepared, was_started = self._is_prepared, self.is_started
        self._is_prepared = self.is_started = False
        try:
            if was_prepared:
                if not was_started:
                    self._engine.start()  # Kineto has no way back from prepared but through started
                self._close_step()
                self._engine.stop()
        except RuntimeError:
            # Torch waits for the device before it stops, and a device after an illegal access only raises.
            autograd = require_torch().autograd
            if autograd._profiler_enabled():
                autograd._disable_profiler()
            autograd.profiler._run_on_profiler_stop()
        self._engine = None

    def _switch(self, activities: Collection[str], *, is_on: bool) -> None:
        if activities:
            with _kineto_errors("switched"):
                self._engine.toggle(sorted(activities), is_on=is_on)

    def _open_step(self, step: int) -> None:
        self._step_number = step
        self._step = self._annotate(f"ProfilerStep#{step}")
        self._step.__enter__()
        self._step_start_ns = time.perf_counter_ns()

    def _close_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)


@contextmanager
def _kineto_errors(action: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise CaptureError(
            f"the torch profiler cannot be {action} ({reason})",
            hint="End any other profiler in this process or attached to it",
        ) from error


_TRACE_NAME = re.compile(rb'"traceName": "(?:[^"\\]|\\.)*"')
_STRING_END = re.compile(rb'([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_CHUNK_BYTES = 16 << 20
# A kernel's name may take 8 KB (Kineto demangles up to that), a path 4 KB.
_OVERLAP_BYTES = 1 << 16
# What stands between the parts of an event; within the first bytes of each chunk.
_LAYOUT = re.compile(rb'"cat"(\s*:\s*)"[^"]*"(\s*,\s*)"name"\s*:')
_LAYOUT_BYTES = 1 << 20
# What stands before names of each kind, between colons and commas of a layout.
_BEFORE = {
    "kernels": b'"cat"%(colon)s"kernel"%(comma)s"name"%(colon)s"',
    "operators": b'"cat"%(colon)s"cpu_op"%(comma)s"name"%(colon)s"',
    "kernel_files": b'"kernel_file"%(colon)s"',
    "graph_keys": b'"name"%(colon)s"## Call CompiledFxGraph ',
}


def export_trace(save: Callable[[str], object], target: Path, read: Callable[[Path], T]) -> T:
    """Have `save` write an uncompressed trace to a temporary file, check it, and move it to `target`.

    The trace's own `traceName` becomes the target's file name: Kineto writes the temporary path there. A
    target that ends in `.gz` is compressed; an existing file is replaced. `read` is given the whole trace
    while it is uncompressed and still in the system's memory; what it returns is returned.
    """
    with replacing(target, "the trace", error=CaptureError) as partial:
        plain = partial.with_name(f"{partial.name}.json")  # torch would compress a `.gz` itself
        save(str(plain))
        _finish(plain, target.name)
        result = read(plain)
        if target.name.endswith(".gz"):
            with plain.open("rb") as written, gzip.open(partial, "wb", compresslevel=6) as packed:
                shutil.copyfileobj(written, packed)
        else:
            plain.replace(partial)
    return result


def _finish(file: Path, name: str) -> None:
    """Check that a trace ends as JSON does, and set its `traceName`.

    Kineto only logs what goes wrong while it writes (a full disk), so the end of the file is the proof.
    """
    with file.open("r+b") as trace:
        # Kineto ends a trace with the name of the file it wrote, within this many bytes of the end.
        tail_start = max(0, trace.seek(0, os.SEEK_END) - 16_384)
        trace.seek(tail_start)
        tail = trace.read()
        if not tail.rstrip().endswith(b"}"):
            raise CaptureError(
                "the profiler wrote an incomplete trace", source=name, hint="Is the disk full?"
            )
        found = list(_TRACE_NAME.finditer(tail))
        if not found:
            return
        start, end = found[-1].span()
        trace.seek(tail_start + start)
        trace.write(b'"traceName": ' + json.dumps(name).encode() + tail[end:])
        trace.truncate()


class TraceNames(NamedTuple):
    kernels: frozenset[str] = frozenset()  # as the trace writes them
    operators: frozenset[str] = frozenset()  # and other ranges of category cpu_op
    kernel_files: frozenset[str] = frozenset()  # generated source files that launches name
    graph_keys: frozenset[str] = frozenset()  # of compiled graphs that ran; "None" if caches were off


def read_trace_names(path: Path) -> TraceNames:
    found: dict[str, set[bytes]] = {kind: set() for kind in _BEFORE}
    layouts: set[tuple[bytes, ...]] = set()
    chunk = b""
    with path.open("rb") as file:
        while block := file.read(_CHUNK_BYTES):
            # Each chunk begins with the end of the one before, so that no name is cut in both.
            chunk = chunk[-_OVERLAP_BYTES:] + block
            layouts.update(match.groups() for match in _LAYOUT.finditer(chunk, 0, _LAYOUT_BYTES))
            for colon, comma in layouts:
                for kind, before in _BEFORE.items():
                    key = before % {b"colon": colon, b"comma": comma}
                    ends = map(_STRING_END.match, chunk.split(key)[1:])
                    found[kind].update(one[1] for one in ends if one is not None)
    names = TraceNames(**{kind: _decoded(values) for kind, values in found.items()})
    return names._replace(graph_keys=frozenset(one.removesuffix(" ##") for one in names.graph_keys))


def _decoded(values: set[bytes]) -> frozenset[str]:
    """JSON strings without their quotes, as text; what is none is left out."""
    names = set()
    for value in values:
        with suppress(ValueError):
            names.add(json.loads(b'"' + value + b'"'))
    return frozenset(names)
