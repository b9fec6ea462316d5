"""The process that runs a program once, has its changes switched on and off between its steps, and ends it.

`python -m opscope.trials.child REQUEST.json` runs what the request names and writes what it found beside it,
after each round and at its end. It ends by itself once enough is known, or when the process that started it
ends, and then removes the scratch folder it was given. Nothing here imports torch before the program does.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
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
from opscope.errors import InputError
from opscope.model.files import process_of, replacing
from opscope.trials import catalog, replay, rounds
from opscope.trials.hooks import Hooks, Switches
from opscope.workloads.target import resolve
from opscope.workloads.workload import WorkloadOptions

_ACCUMULATED, _ACCUMULATED_S = 200, 60.0  # calls of a model with a backward pass that may be one step
_PR_SET_PDEATHSIG = 1  # Source: linux/prctl.h
_PAUSE_S = 0.005
_ORDERED, _MOST_MISSED = 3, 50  # steps after which the order of optimizers is known; without the last of them
_REMOVE_S = 10.0
# A second process needs cores of its own, and twice what the program took of the device's memory: checks
# keep a copy.
_FEWEST_CORES, _AGAIN = 4, 2
_FIRST_LOSSES, _FIRST_MODELS, _FIRST_ELEMENTS = 3, 8, 4096


LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_POLL_S, _END_S = 0.02, 10.0
_MODULE_OPTIONS = ("-m", "--module")


def is_rank() -> bool:
    """Whether this process is one of several that torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1") or "1") > 1


def is_first_rank() -> bool:
    """Whether this process speaks for the program."""
    return os.environ.get("RANK", "0") == "0"


class _Run:
    def __init__(self, path: Path) -> None:
        self._path, self.output = path, path.with_suffix(".result")
        self.request = msgspec.json.decode(path.read_bytes(), type=rounds.TrialRequest)
        self.found = rounds.TrialRun(taken=self.request.steps)
        self.source: StepSource | None = None
        self.switches: Switches | None = None  # until torch is imported
        self._process, self._began = os.getpid(), time.monotonic()
        self._first_step = 0.0
        self._optimizer_steps = Counter[int]()  # by optimizer, in the order of a step
        self._last: int | None = None  # the optimizer that steps last in a step
        self._missed = 0  # steps since it did

    def read(self) -> rounds.TrialRequest:
        """The request as it is now; the time that has passed since it was written is none of its own."""
        request = msgspec.json.decode(self._path.read_bytes(), type=rounds.TrialRequest)
        return msgspec.structs.replace(
            request, seconds=request.seconds - (time.time() - self._path.stat().st_mtime)
        )

    def torch_imported(self, torch: Any) -> None:
        """Take hold of the program, which has not used torch yet."""
        random.seed(self.request.seed)
        torch.manual_seed(self.request.seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.request.seed)
        self.switches = switches = Switches(torch)
        self._witness = _Witness(switches, self.found)
        for name in self.request.installed:
            hooks = Hooks(switches)
            self._change(name).on(hooks)
            switches.installed.append(hooks)
        self.rounds = rounds.Rounds(
            switches, self.request, self.found, change=self._change, read=self.read, is_early=self._is_early,
            save=self.save, end=self.end,
        )  # fmt: skip
        switches.has_stepped = self._stepped
        switches.install()

    def _change(self, name: str) -> catalog.TriedChange:
        file = self.request.change_files.get(name)
        if file is not None:
            return catalog.change_of_file(Path(file))
        return next(change for change in catalog.CATALOG if change.name == name)

    def step(self) -> None:
        """A step has ended; ends the process if enough is known."""
        if os.getpid() != self._process or (self.switches and self.switches.is_replaying):
            return  # of a process that the program forked off, or one of ours
        if not self.found.steps:
            self._first_step = time.monotonic()
            self.found.startup_s = self._first_step - self._began
        self.found.steps += 1
        if self.found.steps == _ORDERED:
            counts = self._optimizer_steps
            self._last = min(reversed(counts), key=counts.__getitem__) if len(counts) > 1 else None
        self._missed += 1
        if self.found.steps >= _ORDERED and (self._last is None or self._missed > _MOST_MISSED):
            self._between_steps()

    def _stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped: after the last one of a step, no graph of their weights is open."""
        self._optimizer_steps[id(optimizer)] += 1
        if self._last == id(optimizer) and os.getpid() == self._process:
            self._missed = 0
            self._between_steps()

    def _between_steps(self) -> None:
        if self.rounds.ended() and is_first_rank():  # all ranks run until the first one ends
            self.found.is_enough = True
            self.end(0)

    def _is_early(self) -> bool:
        """Whether an optimizer may come yet: gradients are accumulated over several calls of the model."""
        is_open = isinstance(self.source, RecognizedSteps) and self.source.taken == "forward"
        is_early = self.found.steps < _ACCUMULATED and time.monotonic() - self._first_step < _ACCUMULATED_S
        is_waiting = is_open and self.found.facts.is_training and is_early
        if not is_waiting and not self._witness.is_done:  # what only the program as it is shows
            self._witness.is_done = True
            torch, facts = sys.modules["torch"], self.found.facts
            self.found.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            facts.precision = torch.get_float32_matmul_precision()
            if torch.cuda.is_initialized():
                facts.device_name = torch.cuda.get_device_name()
                self.found.peak_bytes = torch.cuda.max_memory_allocated()
                free_bytes, total_bytes = torch.cuda.mem_get_info()
                if free_bytes < _AGAIN * (total_bytes - free_bytes):
                    self.found.no_room = "the device's memory would not hold the program twice"
                elif len(os.sched_getaffinity(0)) < _FEWEST_CORES:
                    self.found.no_room = "there is no core to spare"
        return is_waiting

    def end(self, code: int) -> NoReturn:
        """Write what was found and end the process, without what the program would do at its end."""
        try:
            self.save(is_end=True)
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def save(self, *, is_end: bool = False) -> None:
        """Write what is found so far, so that nothing is lost if the process is."""
        found = self.found
        if isinstance(self.source, RecognizedSteps):
            found.taken = self.source.taken
        if self.switches is not None:
            named = zip(self.request.installed, self.switches.installed, strict=False)
            found.not_applied = tuple(name for name, hooks in named if not hooks.applied)
        # Torchrun ends once it is there. Not JSON, which has no infinite loss.
        if is_first_rank() and (is_end or not is_rank()):
            with replacing(self.output) as partial:
                partial.write_bytes(msgspec.msgpack.encode(found))


class _Witness:
    """Notes what the program is made of, for changes to know whether they apply, and its first numbers.

    Losses of the first steps, and first outputs, are what two processes can be compared by.
    """

    def __init__(self, switches: Switches, found: rounds.TrialRun) -> None:
        self._torch, self._switches, self._facts = switches.torch, switches, found.facts
        self._outputs: list[Any] = found.first_steps.setdefault("outputs", [])
        self._losses: list[Any] = found.first_steps.setdefault("losses", [])
        self._seen: set[int] = set()
        self.is_done = False  # what comes now may be of a change
        switches.called.append(self._called)
        torch, hooks = switches.torch, Hooks(switches)  # never off
        for name in catalog.FUSED:
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

    def _zeroed(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self._facts.filled_gradients += not kwargs.get("set_to_none", args[1] if len(args) > 1 else True)
        return args, kwargs

    def _backward(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self._facts.is_training = True
        if not self._switches.is_replaying and args:
            if len(self._losses) < _FIRST_LOSSES:
                self._losses.append(float(args[0].detach().double().mean()))
            if self._switches.losses is not None and args[0].numel() == 1:
                self._switches.losses.append(args[0].detach())
        return args, kwargs

    def _graphed(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self._facts.is_graphed = self._facts.is_graphed or not self.is_done
        return args, kwargs

    def _called(self, model: Any, output: Any) -> None:
        if id(model) in self._seen:
            return
        self._seen.add(id(model))
        if len(self._seen) <= _FIRST_MODELS:
            floats = replay.sampled(replay.floats_of(output), _FIRST_ELEMENTS)
            self._outputs.extend(one.tolist() for one in floats)
        if self.is_done:
            return
        facts, nn = self._facts, self._torch.nn
        parameters = list(model.parameters())
        facts.device = "cuda" if any(one.is_cuda for one in parameters) else facts.device
        names = {str(one.dtype).removeprefix("torch.") for one in parameters}
        if self._torch.is_autocast_enabled(facts.device):
            facts.is_autocast = True
            names.add(str(self._torch.get_autocast_dtype(facts.device)).removeprefix("torch."))
        facts.dtypes = sorted({*facts.dtypes, *names})
        facts.convolutions += sum(isinstance(one, (nn.Conv2d, nn.Conv3d)) for one in model.modules())
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


def run_script(run: _Run, request: rounds.TrialRequest) -> ProgramEnd:
    source = step_source(request.steps)
    assert source is not None
    run.source = source
    if request.kind == "module":
        sys.path.insert(1, request.origin)
    program = program_of(request.target, request.arguments, source, is_module=request.kind == "module")

    def imported(torch: Any) -> None:
        run.torch_imported(torch)
        source.watch(run.step, run.rounds.restart)

    with step_imports(source, imported):
        return run_program(program, lambda: None, lambda _: None)


def run_workload(run: _Run, request: rounds.TrialRequest) -> ProgramEnd:
    import torch  # noqa: PLC0415 - the program's process

    run.torch_imported(torch)
    spec = resolve(request.target, WorkloadOptions(**request.options))
    step = spec.build(*request.sizes).step
    while True:
        step()
        run.step()


def run_launcher(run: _Run, request: rounds.TrialRequest) -> NoReturn:
    """Have torchrun run a process like this one for each rank, until the first has written what it found."""
    from torch.distributed.run import get_args_parser  # noqa: PLC0415 - the process that starts ranks

    asked = get_args_parser().parse_args(list(request.arguments))
    if asked.no_python:
        raise InputError("torchrun --no-python starts no Python script", hint="Leave it out")
    options = request.arguments[: -1 - len(asked.training_script_args)]
    script, path = Path(request.origin, asked.training_script), run.output.with_name("ranks.json")
    of_rank = msgspec.structs.replace(
        request,
        kind="module" if asked.module else "script",
        target=str(script) if script.exists() and not asked.module else asked.training_script,
        arguments=tuple(asked.training_script_args),
        scratch=None,  # torchrun ends with this process, and ranks with it
    )
    path.write_bytes(msgspec.json.encode(of_rank))
    done = path.with_suffix(".result")
    launch = [sys.executable, "-m", "torch.distributed.run"]
    launch += [one for one in options if one not in _MODULE_OPTIONS]
    process = subprocess.Popen([*launch, "-m", "opscope.trials.child", str(path)])
    try:
        while process.poll() is None and not done.exists():
            time.sleep(_POLL_S)
    finally:
        for end in (process.terminate, process.kill):
            if process.poll() is None:
                end()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
    if not done.exists():
        os._exit(process.returncode)
    done.replace(run.output)
    os._exit(0)


def main(arguments: Sequence[str]) -> int:
    run = _Run(Path(arguments[0]))
    request = run.request
    end_with_parent(request.scratch)
    try:
        if request.kind == "ranks":
            run_launcher(run, request)
        end = run_workload(run, request) if request.kind == "workload" else run_script(run, request)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent tells
        traceback.print_exc()
        end = ProgramEnd(1, error)
    run.found.exit_code = end.exit_code
    if end.error is not None:
        run.found.error = "".join(traceback.format_exception_only(end.error)).strip()
    return run.end(0 if is_first_rank() else end.exit_code)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
