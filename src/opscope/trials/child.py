"""The process that runs a program once with some changes, times its steps and ends it.

`python -m opscope.trials.child REQUEST.json` runs what the request names and writes what it found beside it.
It ends by itself once enough steps are timed, or when the process that started it ends, and then removes the
scratch folder it was given. Nothing here imports torch before the program does. With `--record` it is the
command line of `opscope`, and ends as all of these do.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import isfunction
from pathlib import Path
from runpy import run_module
from types import FrameType
from typing import Any, NoReturn

import msgspec

from opscope.capture.program import ProgramEnd, run_program
from opscope.capture.program_recorder import (
    RecognizedSteps,
    StepSource,
    program_of,
    step_imports,
    step_source,
)
from opscope.capture.step_clock import StepClock
from opscope.model.files import process_of, replacing
from opscope.model.sidecar import StepPlace, UnrecordedStep
from opscope.trials.catalog import CATALOG, ProgramTraits, change_of_file
from opscope.trials.hooks import Hooks
from opscope.trials.observation import Observation, Observer
from opscope.trials.ranks import is_first_rank, is_rank, launch_of, run_ranks
from opscope.workloads.spec import resolve
from opscope.workloads.workload import WorkloadOptions

LEAST_STEPS = 12
_SLOW = 3.0  # times the median of the steps before: something was compiled or loaded
_LAST = 8
_ACCUMULATED, _ACCUMULATED_S = 200, 60.0  # calls of a model with a backward pass that may be one step
_PR_SET_PDEATHSIG = 1  # Source: linux/prctl.h
_PAUSE_S = 0.005
_REMOVE_S = 10.0


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    kind: str  # `script`, `module`, `workload`, or `ranks`: arguments of torchrun
    target: str  # Its name
    arguments: tuple[str, ...] = ()  # Of a script
    steps: str = "auto"  # What ends a step, as `step_source` takes it
    options: dict[str, Any] = {}  # Of a workload
    sizes: tuple[int, int] = (1, 128)  # Batch size and sequence length of a workload
    changes: tuple[str, ...] = ()  # Names in the catalogue
    change_files: tuple[str, ...] = ()  # Changes of the user's own
    seconds: float = 1.0  # Of steps to time after the warm-up
    most_steps: int = 2000  # Steps after which it ends in any case
    seed: int = 0  # Of torch, random and numpy
    scratch: str | None = None  # Folder to remove if the parent dies; None for none
    origin: str = "."  # Folder that a module, or the script of ranks, is looked for in


class TrialRun(msgspec.Struct, kw_only=True):
    """What a run found."""

    samples: tuple[UnrecordedStep, ...] = ()  # Of its steps
    steps: int = 0  # Steps made
    taken: str = "none"  # What ended a step, as `step_source` names it: the request's, or what was recognized
    is_enough: bool = False  # It was ended because enough steps were timed; else the program ended by itself
    observation: Observation = msgspec.field(default_factory=Observation)
    facts: ProgramTraits = msgspec.field(default_factory=ProgramTraits)
    peak_bytes: int | None = None
    first_calls_ns: int = 0  # Time of the first call of each model, compilation included
    not_applied: tuple[str, ...] = ()  # Changes that found nothing to change
    exit_code: int = 0  # Of the program, if it ended by itself
    error: str | None = None  # Last line of what it raised


class _Run:
    """One run, from its request to the file of what it found."""

    def __init__(self, request: TrialRequest, output: Path) -> None:
        self.request, self.output = request, output
        self.facts = TrialRun()
        self.facts.taken = request.steps
        self.source: StepSource | None = None
        self.hooks: Hooks | None = None
        self.observer: Observer | None = None
        self._taken: dict[str, set[str]] = {}
        self._begin()
        self._process = os.getpid()

    def _begin(self) -> None:
        self.facts.steps = 0
        self.clock = StepClock(StepPlace.BEFORE, most=self.request.most_steps)
        self._periods_ns: list[int] = []
        self._last_ns = self._steady_ns = self._samples_before = 0

    def restart(self) -> None:
        """What was timed so far were no steps."""
        self.clock.stop()
        self._begin()
        self.clock.start()

    def torch_imported(self, torch: Any) -> None:
        """Apply the changes; the program has not used torch yet."""
        random.seed(self.request.seed)
        torch.manual_seed(self.request.seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.request.seed)
        self.hooks = hooks = Hooks(torch)
        witness = _Witness(hooks, self.facts.facts)
        changes = [change for change in CATALOG if change.name in self.request.changes]
        changes += [change_of_file(Path(one)) for one in self.request.change_files]
        if not changes:
            witness.watch_attention()
        for change in changes:
            own = hooks.of_one_change()
            change.install(own)
            self._taken[change.name] = own.applied
        self.observer = Observer(hooks)
        hooks.install()
        self.clock.start()

    def stepping(self, function: Any) -> Any:
        """A function whose calls are steps, with what changes make of it where it takes no arguments."""
        made: list[Callable[[], Any]] = []

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.hooks is None or args or kwargs:
                return function(*args, **kwargs)
            self.facts.facts.has_step = True
            if not made:
                made.append(self.hooks.step_in_place_of(function))
            return made[0]()

        return call

    def step(self) -> None:
        """A step has ended; ends the process if there are enough."""
        if os.getpid() != self._process or not is_first_rank():
            return  # of a process that the program forked off, or one that ends with the first
        now_ns = time.perf_counter_ns()
        self.facts.steps += 1
        self.clock.mark(self.facts.steps)
        if self._last_ns:
            period_ns = now_ns - self._last_ns
            usual_ns = sorted(self._periods_ns)[len(self._periods_ns) // 2] if self._periods_ns else 0
            if not usual_ns or period_ns > _SLOW * usual_ns:
                self._steady_ns, self._samples_before = now_ns, self.clock.sample_count
            self._periods_ns = [*self._periods_ns[1 - _LAST :], period_ns]
        self._last_ns = now_ns
        samples = self.clock.sample_count - self._samples_before
        lasted_s = (now_ns - self._steady_ns) / 1e9
        is_timed = samples > LEAST_STEPS and (lasted_s >= self.request.seconds or self.clock.is_full)
        if self.facts.steps >= self.request.most_steps or (is_timed and not self._may_step(lasted_s)):
            self.facts.is_enough = True
            self.end(0)

    def _may_step(self, lasted_s: float) -> bool:
        """Whether an optimizer may come yet: gradients are accumulated over several calls of the model."""
        is_open = isinstance(self.source, RecognizedSteps) and self.source.taken == "forward"
        is_early = self.facts.steps < _ACCUMULATED and lasted_s < _ACCUMULATED_S
        return is_open and self.facts.facts.is_training and is_early

    def end(self, code: int) -> NoReturn:
        """Write what was found and end the process, without what the program would do at its end."""
        try:
            self.clock.stop()
            self.facts.samples = self.clock.read()
            self._conclude()
            # Not JSON, which has no infinite loss.
            if is_first_rank():
                with replacing(self.output) as partial:
                    partial.write_bytes(msgspec.msgpack.encode(self.facts))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _conclude(self) -> None:
        facts, torch = self.facts, sys.modules.get("torch")
        if isinstance(self.source, RecognizedSteps):
            facts.taken = self.source.taken
        if self.observer is not None:
            facts.observation = self.observer.found
        if torch is None or self.hooks is None:
            return
        facts.first_calls_ns = self.hooks.first_calls_ns
        facts.not_applied = tuple(name for name, applied in self._taken.items() if not applied)
        facts.facts.precision = torch.get_float32_matmul_precision()
        facts.facts.threads = torch.get_num_threads()
        if torch.cuda.is_initialized():
            facts.facts.device_name = torch.cuda.get_device_name()
            facts.peak_bytes = torch.cuda.max_memory_allocated()
        else:
            facts.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Witness:
    """Notes what the program is made of, for changes to know whether they apply."""

    def __init__(self, hooks: Hooks, facts: ProgramTraits) -> None:
        self._torch, self._facts = hooks.torch, facts
        self._seen: set[int] = set()
        self._restore: Callable[[], object] = lambda: None
        hooks.called.append(self._called)
        torch = hooks.torch
        for name in ("Adam", "AdamW", "SGD", "Adagrad"):
            hooks.on_making(f"torch.optim:{name}", self._optimizer)
        if "torch.utils.data" in sys.modules:
            hooks.on_making("torch.utils.data:DataLoader", self._loader)
        hooks.wrap_arguments(torch.optim.Optimizer, "zero_grad", self._zeroed)
        hooks.wrap_arguments(torch.Tensor, "backward", self._backward)
        hooks.wrap_arguments(torch, "compile", self._graphed)
        hooks.wrap_arguments(torch.cuda.CUDAGraph, "replay", self._graphed)

    def _optimizer(self, made: Any, arguments: dict[str, Any]) -> None:
        option = next((f"({name})" for name in ("fused", "foreach") if arguments.get(name)), "")
        self._facts.optimizers.append(type(made).__name__ + option)

    def _loader(self, _: Any, arguments: dict[str, Any]) -> None:
        self._facts.loaders += not arguments.get("num_workers")
        self._facts.unpinned_loaders += not arguments.get("pin_memory")
        workers, are_kept = arguments.get("num_workers"), arguments.get("persistent_workers")
        self._facts.forgetful_loaders += bool(workers) and not are_kept

    def _zeroed(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        fills = not kwargs.get("set_to_none", args[1] if len(args) > 1 else True)
        self._facts.filled_gradients += fills
        return args, kwargs

    def _backward(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self._facts.is_training = True
        return args, kwargs

    def _graphed(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self._facts.is_graphed = True
        return args, kwargs

    def watch_attention(self) -> None:
        """Note calls of attention until a model has been called; a compiler would compile twice for it."""
        functional = self._torch.nn.functional
        original, is_compiling = functional.scaled_dot_product_attention, self._torch.compiler.is_compiling

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                self._facts.attends = True
            return original(*args, **kwargs)

        def restore() -> None:
            if functional.scaled_dot_product_attention is call:
                functional.scaled_dot_product_attention = original

        functional.scaled_dot_product_attention, self._restore = call, restore

    def _called(self, model: Any, _: Any) -> None:
        self._restore()
        if id(model) in self._seen:
            return
        self._seen.add(id(model))
        facts, nn = self._facts, self._torch.nn
        parameters = list(model.parameters())
        facts.device = "cuda" if any(one.is_cuda for one in parameters) else facts.device
        names = {str(one.dtype).removeprefix("torch.") for one in parameters}
        facts.dtypes = sorted({*facts.dtypes, *names})
        if self._torch.is_autocast_enabled(facts.device):
            facts.is_autocast = True
            type_name = str(self._torch.get_autocast_dtype(facts.device)).removeprefix("torch.")
            facts.dtypes = sorted({*facts.dtypes, type_name})
        for module in model.modules():
            facts.convolutions += isinstance(module, (nn.Conv2d, nn.Conv3d))
            is_dropout = isinstance(module, nn.modules.dropout._DropoutNd)
            facts.has_dropout = facts.has_dropout or (is_dropout and module.training and module.p > 0)
        attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
        if attention is not None:
            facts.attention.append(str(attention))


def end_with_parent(scratch: str | None) -> None:
    """End when the parent does, however it does; then remove the scratch folder, named after it."""

    def ended(number: int, frame: FrameType | None) -> None:
        leads = os.getsid(0) == os.getpid()
        if leads:  # what the program started ends first: it may still write into the folder
            signal.signal(number, signal.SIG_IGN)
            os.killpg(0, number)
        if scratch is not None:
            remove_folder(scratch)
        if leads:
            os.killpg(0, signal.SIGKILL)
        os._exit(128 + number)

    if sys.platform == "linux":
        # One that programs do not use, and that nothing else sends. A rank that waits for others inside of a
        # library would never come to handle it.
        number = signal.SIGKILL if is_rank() else signal.SIGRTMAX - 1
        if number != signal.SIGKILL:
            signal.signal(number, ended)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() == 1 if scratch is None else os.getppid() != process_of(scratch):
            os.kill(os.getpid(), number)  # it ended before it was asked for


def remove_folder(folder: str | Path) -> None:
    """Remove a folder that processes which are just ending may still write into."""
    deadline = time.monotonic() + _REMOVE_S
    while Path(folder).exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_PAUSE_S)


def run_script(run: _Run, request: TrialRequest) -> ProgramEnd:
    """Run a script or module; its steps are what the request says."""
    source = step_source(request.steps)
    assert source is not None
    if request.kind == "module":
        sys.path.insert(1, request.origin)
    program, found = program_of(request.target, request.arguments, source, is_module=request.kind == "module")
    assert found is not None
    run.source = found
    if program.wrap is not None:
        wrap = program.wrap
        program = replace(program, wrap=lambda one: wrap(run.stepping(one) if isfunction(one) else one))

    def imported(torch: Any) -> None:
        run.torch_imported(torch)
        found.watch(run.step, run.restart)

    with step_imports(found, imported):
        return run_program(program, lambda: None, lambda _: None)


def run_workload(run: _Run, request: TrialRequest) -> ProgramEnd:
    """Build a workload and call its step until there are enough."""
    import torch  # noqa: PLC0415 - the program's process

    run.torch_imported(torch)
    spec = resolve(request.target, WorkloadOptions(**request.options))
    step = run.stepping(spec.build(*request.sizes).step)
    while True:
        step()
        run.step()


def run_launcher(run: _Run, request: TrialRequest) -> NoReturn:
    """Run the ranks of a program, each with the changes of the request."""
    launch, path = launch_of(request.arguments), run.output.with_name("ranks.json")
    script = Path(request.origin, launch.target)
    asked = msgspec.structs.replace(
        request,
        kind="module" if launch.is_module else "script",
        target=str(script) if script.exists() and not launch.is_module else launch.target,
        arguments=launch.arguments,
        scratch=None,  # torchrun ends with this process, and ranks with it
    )
    path.write_bytes(msgspec.json.encode(asked))
    done = path.with_suffix(".result")
    code = run_ranks(launch, path, done)
    if done.exists():
        done.replace(run.output)
    os._exit(code)


def main(arguments: Sequence[str]) -> int:
    """Run what the request says, or record it."""
    if arguments[0] == "--record":
        end_with_parent(arguments[1])
        sys.argv[1:] = arguments[2:]
        run_module("opscope", run_name="__main__", alter_sys=True)
        return 0
    path = Path(arguments[0])
    request = msgspec.json.decode(path.read_bytes(), type=TrialRequest)
    end_with_parent(request.scratch)
    run = _Run(request, path.with_suffix(".result"))
    try:
        if request.kind == "ranks":
            run_launcher(run, request)
        end = run_workload(run, request) if request.kind == "workload" else run_script(run, request)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent tells
        traceback.print_exc()
        end = ProgramEnd(1, error)
    run.facts.exit_code = end.exit_code
    if end.error is not None:
        run.facts.error = "".join(traceback.format_exception_only(end.error)).strip()
    return run.end(0 if is_first_rank() else end.exit_code)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
