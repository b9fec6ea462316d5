"""Recording a program that knows nothing of it, by the steps a source recognizes.

The program's start and its first step come before the schedule: models are built, kernels compiled and CUDA
started there, by the program itself and in its own order. Nothing here may end the program: what goes wrong
is kept and told afterwards. A profiler of the program's own always wins. A `StepSource` (an optimizer's step,
a forward, a function) is told once torch is there and then calls back at the end of each step, on the thread
that made it. Importing this module does not import torch.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol

from opscope.capture.cycle import Cycle
from opscope.capture.main_loop import MainLoop
from opscope.capture.outermost_calls import OutermostCalls
from opscope.capture.profiler import Profiler
from opscope.capture.program import Program, ProgramEnd, after_import, run_program
from opscope.capture.recording import attached_profilers, detached_afterwards
from opscope.errors import CaptureError, InputError
from opscope.hardware.driver import driver_cuda_version
from opscope.model.sidecar import graphs_folder, kernels_folder
from opscope.units import counted, format_bytes
from opscope.workloads.runtime import is_of_job, require_torch

_OnStep = Callable[[], object]
_Line = tuple[CodeType, int] | None
# Dropping 100,000 events takes torch some seconds, and they take 70 MB. What CUDA loads takes memory too.
_MOST_OF_WHOLE, _MOST_WITH_CUDA = "100MB", "500MB"


class StepSource(Protocol):
    def watch(self, on_step: _OnStep, restart: _OnStep) -> None:
        """Call `on_step` at the end of every step; `restart` before it, where those told before were none."""

    def stop(self) -> None:
        """Leave no trace in torch; the program may go on."""


class _Hooks:
    def __init__(self) -> None:
        self._ends = ExitStack()

    def stop(self) -> None:
        self._ends.close()


def step_source(name: str) -> StepSource | None:
    """The source a name stands for: a kind of steps, or a function, `MODULE:` before it.

    None for `none`. A function without a module is one of the program itself.
    """
    kinds: dict[str, Callable[[], StepSource]] = {
        "auto": RecognizedSteps, "optimizer": OptimizerSteps, "forward": ForwardSteps,
        "loop": functools.partial(MainLoop, is_asked_for=True),
    }  # fmt: skip
    if name == "none" or name in kinds:
        return kinds[name]() if name in kinds else None
    module, _, function = name.rpartition(":")
    parts = [*module.split("."), *function.split(".")] if module else function.split(".")
    if not all(part.isidentifier() for part in parts) or (":" in name and not module):
        raise InputError(
            f"'{name}' tells no steps",
            hint="Use auto, optimizer, forward, loop, none, FUNCTION or MODULE:FUNCTION",
        )
    return FunctionSteps(module or "__main__", function)


def program_of(
    script: str, arguments: tuple[str, ...], source: StepSource | None, *, is_module: bool
) -> Program:
    """The program, with the function wrapped whose calls are its steps.

    The script's own name stands for `__main__`, which is what it runs as, so the source looks there.
    """
    own = script if is_module else Path(script).stem
    if isinstance(source, FunctionSteps) and source.module in {own, "__main__"}:
        source.module = "__main__"
        return Program(script, arguments, is_module, source.function, source.wrapped)
    loop = source.main_loop if isinstance(source, RecognizedSteps) else source
    return Program(script, arguments, is_module, main_loop=loop if isinstance(loop, MainLoop) else None)


class OptimizerSteps(_Hooks):
    """A step ends when the optimizer has stepped that stepped first of those that are still there."""

    def watch(self, on_step: _OnStep, restart: _OnStep) -> None:
        first: list[weakref.ref[Any]] = []

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not first or first[0]() is None:
                first[:] = [weakref.ref(optimizer)]
            if first[0]() is optimizer:
                _untraced(on_step)

        # A compiled optimizer calls it between its graphs instead of tracing into it.
        stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
        module = importlib.import_module("torch.optim.optimizer")
        self._ends.callback(module.register_optimizer_step_post_hook(stepped).remove)


class ForwardSteps(_Hooks):
    """A step ends when the model returns: of those called from outside of any, the one called most often.

    That is the first one that is called a second time, until another was called twice as often. Where the
    program calls it from several lines in turn, with a condition and without, a step has one call of each.
    """

    calls_per_step = 1
    _is_watching = False

    def watch(self, on_step: _OnStep, restart: _OnStep) -> None:
        calls_of: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # Lines of the first calls, each once, until one comes again: from that one on they are a round.
        lines_of: weakref.WeakKeyDictionary[Any, list[_Line]] = weakref.WeakKeyDictionary()
        round_of: weakref.WeakKeyDictionary[Any, list[_Line]] = weakref.WeakKeyDictionary()
        model: weakref.ref[Any] | None = None
        model_calls = 1  # the second call makes a model

        def tell() -> None:
            if self._is_watching:
                _untraced(on_step)

        def around(module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            nonlocal model, model_calls
            calls = calls_of[module] = calls_of.get(module, 0) + 1
            caller, is_found = sys._getframe(1).f_back, False
            line = caller and (caller.f_code, caller.f_lineno)
            if module not in round_of:
                lines = lines_of.setdefault(module, [])
                if is_found := line in lines:
                    round_of[module] = lines[lines.index(line) :]
                # So many of a model's first calls are looked at.
                elif len(lines) < 8:
                    lines.append(line)
            if model is not None and model() is module:
                model_calls = calls
                if is_found and len(round_of[module]) > 1 and self._is_watching:
                    restart()
            # Twice as many calls as of the model: one more alone would let two models take turns.
            elif calls >= 2 * model_calls:
                if model is not None and self._is_watching:
                    restart()
                model, model_calls = weakref.ref(module), calls
                tell()  # of its earlier calls, now that they turn out to have been steps
            result = call(*args, **kwargs)
            if model is not None and model() is module:
                turns = round_of.get(module, [])
                self.calls_per_step = max(len(turns), 1)
                if self.calls_per_step == 1 or line == turns[-1]:
                    tell()
            return result

        self._is_watching, calls = True, OutermostCalls(around)
        calls.watch()
        self._ends.callback(calls.stop)

    def stop(self) -> None:
        self._is_watching = False  # the call that runs tells no more
        super().stop()


class RecognizedSteps(_Hooks):
    """A step ends when the optimizer has stepped; until the first one does, when the model returns.

    Where the program makes neither, a round of its main loop is a step. `taken` is which of these it is by
    now, as `step_source` names it, or `loop`; `none` before any step.
    """

    taken = "none"

    def __init__(self) -> None:
        super().__init__()
        self.main_loop, self._forwards = MainLoop(), ForwardSteps()

    @property
    def calls_per_step(self) -> int:
        return self._forwards.calls_per_step

    def watch(self, on_step: _OnStep, restart: _OnStep) -> None:
        forwards = self._forwards
        sources: dict[str, StepSource] = {
            "forward": forwards, "optimizer": OptimizerSteps(), "loop": self.main_loop
        }  # fmt: skip

        def take(taken: str) -> None:
            before, self.taken = self.taken, taken
            if taken != "loop":
                self.main_loop.stop()
            if taken == "optimizer" != before:
                forwards.stop()
            if before not in ("none", taken):
                restart()
            on_step()

        for name, source in sources.items():
            source.watch(functools.partial(take, name), restart)
            self._ends.callback(source.stop)


class FunctionSteps:
    """A step ends when a function (with dots, a method) of a module returns.

    `__main__` is the program, whose loader calls `wrapped` itself.
    """

    _on_step: _OnStep | None = None

    def __init__(self, module: str, function: str) -> None:
        self.module, self.function = module, function

    def watch(self, on_step: _OnStep, restart: _OnStep) -> None:
        self._on_step = on_step

    def stop(self) -> None:
        self._on_step = None

    def wrap_in(self, module: Any) -> None:
        """Put the wrapped function in its place in an imported module; nothing where there is none."""
        *owners, name = self.function.split(".")
        owner = functools.reduce(lambda one, part: getattr(one, part, None), owners, module)
        # From the dictionary, because getattr would bind static and class methods.
        if (function := getattr(owner, "__dict__", {}).get(name)) is not None:
            setattr(owner, name, self.wrapped(function))

    def wrapped(self, function: Any) -> Any:
        """The function, telling when it has returned; what cannot be called, as it is."""
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self.wrapped(function.__func__))
        if not callable(function):
            return function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self._on_step is not None:
                _untraced(self._on_step)
            return result

        return call


def step_imports(
    source: StepSource | None, torch_imported: Callable[[ModuleType], None]
) -> AbstractContextManager[None]:
    """Inside the block, an import of torch is told, and a function that ends a step is wrapped on import."""
    callbacks = {"torch": torch_imported}
    if isinstance(source, FunctionSteps) and source.module != "__main__":
        callbacks[source.module] = source.wrap_in
    return after_import(callbacks)


def _untraced(on_step: _OnStep) -> None:
    """Call it so that torch's compiler, if it is at work in the caller, compiles nothing of it."""
    if "torch._dynamo" in sys.modules:
        on_step = _disabled(on_step)
    on_step()


@functools.lru_cache(maxsize=1)
def _disabled(on_step: _OnStep) -> Any:
    # Made once: making it takes longer than all else that is done in a step.
    return require_torch().compiler.disable(on_step)


class SizeWatch:
    """Calls `then`, which must not raise, in the main thread, once, when a condition has come true.

    A program without steps has no ends of them at which one could look, and a profiler can be detached only
    by the thread that attached it. So a thread of its own looks, every tenth of a second, and what is to be
    done then is handed to the interpreter, which does it in the main thread between two of its instructions.
    """

    def __init__(self, is_large: Callable[[], bool], then: Callable[[], object]) -> None:
        ended = threading.Event()

        def called(_: object) -> int:
            if not ended.is_set():
                ended.set()
                then()
            return 0

        def look() -> None:
            while not ended.wait(0.1):
                # The interpreter's list of calls may be full; then again.
                if is_large():
                    ctypes.pythonapi.Py_AddPendingCall(self._called, None)

        # Kept, for the interpreter holds no reference to it.
        self._called = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(called)
        self.start = threading.Thread(target=look, name="opscope-size", daemon=True).start
        self.stop = ended.set  # look no longer, and call nothing


class ProgramRecorder:
    """Runs one program and records it by a Profiler that is not yet entered, made with `keep_on_error`.

    Without a source the whole run is one step. `again` makes another such profiler, which may replace files,
    for steps that turn out to be others: so many of them are one. `whole` makes one that records a program
    that may have no steps, in so much memory; what it recorded is dropped as soon as there is a model or a
    step. `stop` ends the program once its steps are recorded and timed.
    """

    def __init__(
        self,
        profiler: Profiler,
        source: StepSource | None,
        *,
        again: Callable[[int], Profiler] | None = None,
        whole: Callable[[str], Profiler] | None = None,
        stop: bool = False,
    ) -> None:
        self._stop = stop
        self._again = again
        self.is_whole = source is None  # the program is recorded as one step
        self._make_whole = whole
        self._whole: Profiler | None = None
        self.step_count = 0  # recognized before the recording was over
        self.notes: list[str] = []  # what a user should know of the recording, in order
        self._profiler = profiler
        self._source = source
        self._kept: Profiler | None = None  # what has recorded single steps of what come in cycles
        self._until_next, self._per_step = 1, 1  # steps of the source until the next of ours; in one of them
        self._process = os.getpid()
        self._is_entered = self._is_over = False
        self._ends = ExitStack()  # of what watches torch
        self._size_watch = SizeWatch(lambda: (self._whole or self._profiler).is_large, self._end_large)
        profiler.give_way = self._give_way
        profiler.is_last_of_program = True

    @property
    def cycles(self) -> list[Cycle]:
        return self._profiler.cycles or (self._kept.cycles if self._kept is not None else [])

    @property
    def is_child(self) -> bool:
        """Whether this is a process that the program forked off, which has nothing recorded."""
        return os.getpid() != self._process

    def run(self, program: Program) -> ProgramEnd:
        try:
            with step_imports(self._source, self._torch_imported):
                return run_program(program, self._start, self._end)
        finally:
            self._unwatch()

    def require_cycles(self) -> None:
        """Raise a CaptureError that says why, if nothing was recorded."""
        if self.cycles:
            return
        if self.notes:
            raise CaptureError(f"nothing was recorded: {self.notes[-1]}")
        if "torch" not in sys.modules:
            raise CaptureError("nothing was recorded: the program did not import torch")
        schedule = self._profiler.schedule
        before = 1 + schedule.wait + schedule.warmup
        made = "no step was" if not self.step_count else f"{counted(self.step_count, 'step')} only"
        raise CaptureError(
            f"nothing was recorded: {made} recognized, and recording starts after {counted(before, 'step')}",
            hint="Record the whole program with --steps none, or name what ends a step: --steps FUNCTION"
            if not self.step_count
            else "Use fewer --wait steps, or record the whole program with --steps none",
        )

    def _start(self) -> None:
        """Without a source, start with the program's first line; what is in the way ends it before that."""
        if self._source is None:
            require_torch()
            with attached_profilers.own():
                self._enter()
            self._size_watch.start()

    def _enter(self) -> None:
        self._profiler.__enter__()
        self._is_entered = True

    def _torch_imported(self, torch: ModuleType) -> None:
        with self._own():
            self._ends.callback(lambda: self._profiler.forget_graphs())  # noqa: PLW0108 - of the last one
            self._ends.callback(attached_profilers.unwatch, self._give_way)
            attached_profilers.watch(self._give_way)
            self._profiler.note_graphs()
            if self._source is not None:
                self._ends.callback(self._source.stop)
                self._source.watch(self._step, self._restart)
        if not self._may_be_whole():
            return
        module = importlib.import_module("torch.nn.modules.module")
        models = module.register_module_parameter_registration_hook(lambda *_: self._has_steps())
        self._ends.callback(models.remove)
        if torch.version.hip is None and driver_cuda_version() is None:
            self._begin_whole()
            return
        # A process that has asked for devices cannot fork others that use them, so not before it has itself.
        with suppress(Exception):
            torch.cuda._lazy_call(self._begin_whole)

    def _may_be_whole(self) -> bool:
        is_main = threading.current_thread() is threading.main_thread()
        return self._make_whole is not None and not self.is_child and not self._is_over and is_main

    def _begin_whole(self) -> None:
        """Until there is a model or a step, record the program as one; where that fails, go on without."""
        if self._make_whole is None or not self._may_be_whole():
            return
        try:
            os.register_at_fork(after_in_child=self._forked)
            whole = self._make_whole(_MOST_OF_WHOLE if driver_cuda_version() is None else _MOST_WITH_CUDA)
            whole.give_way = self._give_way
            with attached_profilers.own():
                self._whole = whole.__enter__()
            self._size_watch.start()
        except Exception:  # noqa: BLE001 - another profiler runs, say
            self._whole = None

    def _has_steps(self) -> None:
        """There is a step, or a model whose first one comes; steps are timed without CUPTI attached."""
        if self._whole is not None:
            with suppress(Exception), detached_afterwards():
                self._drop_whole()
        self._make_whole = None

    def _forked(self) -> None:
        """In a child, which would record on with nobody to end it."""
        if self._whole is not None:
            require_torch()._C._autograd._enable_record_function(False)

    def _drop_whole(self) -> None:
        """Record the program as a whole no longer: it has a model, steps or a profiler of its own."""
        self._make_whole = None
        is_main = threading.current_thread() is threading.main_thread()
        if self._whole is None or self.is_child or not is_main:
            return
        whole, self._whole = self._whole, None
        self._size_watch.stop()
        with suppress(Exception):  # torch may be walking over its hooks, so nothing of ours is withdrawn here
            if not whole.cycles:
                whole.drop()
            for cycle in whole.cycles:  # written when it grew
                for file in (cycle.trace_path, cycle.sidecar_path):
                    file.unlink(missing_ok=True)
                for folder in (kernels_folder(cycle.trace_path), graphs_folder(cycle.trace_path)):
                    shutil.rmtree(folder, ignore_errors=True)

    def _give_way(self) -> None:
        """End the recording because the program starts one of its own."""
        if self.is_child or self._is_over:
            return
        if len(self.cycles) < self._profiler.schedule.repeat:
            self.notes.append(
                "the program started a profiler of its own, so recording ended there; analyze the trace it "
                "writes"
            )
        self._finish(None)

    def _step(self) -> None:
        if self.is_child or self._is_over:
            return
        self._has_steps()
        self.step_count += 1
        self._until_next -= 1
        if self._until_next:
            return
        self._until_next = self._per_step
        if self._profiler.pass_step():
            return
        with self._own():
            if not self._is_entered:
                self._enter()
                return
            self._profiler.step()
            self._note_growth()
            # Cycles may be steps, where nobody named these; each process of a job would find its own.
            if (
                (found := self._profiler.cycle_of_steps) is not None
                and self._again is not None
                and self._kept is None
                and isinstance(self._source, RecognizedSteps)
                and not is_of_job()
            ):
                self._merge(*found)
        # Leave as soon as enough steps are timed: the program needs to be watched no longer.
        if not self._is_over and self._profiler.needs_no_steps:
            self._finish(None)
            if self._stop:
                raise SystemExit

    def _restart(self) -> None:
        """Begin anew: what was counted were no steps, but what an optimizer or another model does."""
        if self.is_child or self._is_over or not self._is_entered or self._again is None:
            return
        with self._own():
            self._profiler.drop()
            self.step_count, self._kept = 0, None
            self._begin_again(1)

    def _begin_again(self, per_step: int) -> None:
        assert self._again is not None
        self._is_entered, self._per_step, self._until_next = False, per_step, 1
        self._profiler = self._again(per_step)
        self._profiler.give_way = self._give_way
        self._profiler.is_last_of_program = True
        self._profiler.note_graphs()

    def _merge(self, steps: int, until_first: int) -> None:
        """Record again, a cycle of steps as one; what was recorded is kept until that is done."""
        self._profiler.__exit__(None, None, None)
        self._kept = self._profiler
        self._begin_again(steps)
        self._until_next = until_first or steps
        if not until_first:
            self._enter()

    def _end_large(self) -> None:
        """Without steps, end where the program stands."""
        if self._whole is not None:
            try:
                self._whole.__exit__(None, None, None)
            except Exception:  # noqa: BLE001 - the program may have steps yet
                self._whole = None
        elif not (self.is_child or self._is_over) and self._note_growth():
            self._finish(None)

    def _note_growth(self) -> bool:
        if (grown_bytes := self._profiler.grown_bytes) is None:
            return False
        grown = format_bytes(grown_bytes)
        note = (
            f"recording ended before the program: the process had grown by {grown}, more than "
            "--max-trace-size"
            if self.is_whole
            else f"recording ended before its last step: the process had grown by {grown}, more than "
            "--max-trace-size"
        )
        if note not in self.notes:
            self.notes.append(note)
        return True

    def _end(self, end: ProgramEnd) -> None:
        if self.is_child or self._is_over:
            return
        if isinstance(end.error, KeyboardInterrupt | None) and self._whole is not None:
            self._profiler.forget_graphs()
            self._profiler, self._whole, self.is_whole = self._whole, None, True
            self._is_entered = not self.cycles
            self._note_growth()
        self._finish(end.error)
        if self._profiler.lost is not None:
            self.notes.append(f"the open window could not be saved ({self._profiler.lost})")

    def _finish(self, error: BaseException | None) -> None:
        self._drop_whole()
        self._is_over = True
        self._size_watch.stop()
        if self._kept is not None and not self._profiler.cycles:
            self._profiler.drop() if self._is_entered else self._profiler.forget_graphs()
            self._profiler, self._is_entered = self._kept, False
        if self._is_entered:
            with self._own():
                if error is None and not self.cycles and not self._profiler.is_recording:
                    # Having recorded nothing is told by `require_cycles`, with what can be done about it.
                    error = CaptureError("nothing was recorded")
                self._profiler.__exit__(None if error is None else type(error), error, None)
        self._unwatch()

    def _unwatch(self) -> None:
        """Leave torch as it was; what of it fails must not end the program."""
        try:
            self._ends.close()
        except Exception as error:  # noqa: BLE001
            self.notes.append(str(error) or repr(error))

    @contextmanager
    def _own(self) -> Iterator[None]:
        """Inside the block a start of torch's profiler is ours; an error becomes a note and ends it all."""
        try:
            with attached_profilers.own():
                yield
        except Exception as error:  # noqa: BLE001 - it must not end the program it records
            self.notes.append(str(error) or repr(error))
            if not self._is_over:
                self._finish(error)
