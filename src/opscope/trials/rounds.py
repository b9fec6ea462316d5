"""What happens between the steps of a running program: changes are checked, then switched in rounds.

A round has every arm once and the program as it is twice or more, in random order; the next one mirrors it,
so that neither drift nor the neighbor before counts. After each switch some steps lead in and do not count.
Arms are admitted in the order they are given, as many at once as can be told apart in the time there is; what
is decided makes room. The best of them are combined into sets, which are arms as well. What compiles is
compiled by the next process while this one is timed, and timed there. Importing this module does not import
torch.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec

from opscope.capture.profiler import Profiler
from opscope.model.trial import Correctness
from opscope.trials.catalog import ProgramTraits, TriedChange, addable, rounding_of
from opscope.trials.hooks import Hooks, Switches
from opscope.trials.pooling import LOOKS, is_decided, signed_rank_interval
from opscope.trials.replay import KeptStep, Numbers, Snapshot, compare, parameters_of, perturb

_SLOW = 3.0  # times the median of the steps so far: something was compiled or loaded
_STEADY_STEPS, _MOST_UNSTEADY, _MOST_UNSTEADY_S = 5, 60, 20.0
# A block and what leads in to it, by the pace of the arm: after a switch the first hundredths of a second are
# slower, a step of 0.1 ms by half.
_BLOCK_S, _LEAD_IN_S, _MOST_STEPS = 0.03, 0.015, 50
_GIVEN_UP = 3.0  # times the expected time
_LEAST_LIMIT_S = 0.5  # a neighbor may hold up everything for a while
_FIRST_S = 60.0  # the first steps after a switch: another form may be compiled
_LEAST_BASE = 2  # blocks of a round without a change
_FIRST_LEAD_IN = 4  # steps more before the first block of all: memory is taken, kernels are chosen
_TIMED_STEPS = 4
RECORDED_STEPS = _TIMED_STEPS + 5  # with those for warm-up and for what is timed afterwards
NO_RECORDING = "failed.txt"  # why there is none
_HOPELESS = math.log(1.1)
_LATE, _LEAST_LATE_S = 0.3, 2.0  # of the time, beyond it, for what was compiled last
HELPS = math.log(0.99)
_LEAST_LOSS = 0.005
_LEAST_OF_FIRST = 0.1
# A loss that falls by orders of magnitude scatters, and a change that is refused for it is not tried again.
_LOSS_ERROR = 0.001
_POLL_S = 0.05
LEAST_STEPS = 6  # of a program as it is, or with changes that stay on
FEW_ROUNDS = 3  # with fewer, nothing is said of a change

RIGHT = (Correctness.IDENTICAL, Correctness.WITHIN_ROUNDING)
_Steps = Generator[None, None, Any]


class ArmRun(msgspec.Struct, kw_only=True):
    names: tuple[str, ...]
    logarithms: list[float] = []  # of its time over the program's, by round
    correctness: Correctness = Correctness.UNKNOWN
    numbers: str = ""  # what that rests on
    error: str | None = None
    not_tried: str | None = None  # why it does not apply
    check_ns: int = 0  # compilation included


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # `script`, `module`, `workload`, or `ranks`: arguments of torchrun
    target: str  # Its name
    arguments: tuple[str, ...] = ()  # Of a script
    steps: str = "auto"  # What ends a step, as `step_source` takes it
    options: dict[str, Any] = {}  # Of a workload
    sizes: tuple[int, int] = (1, 128)  # Batch size and sequence length of a workload
    installed: tuple[str, ...] = ()  # Changes that are on from the start
    arms: tuple[tuple[str, ...], ...] = ()  # Sets of changes to switch, the most promising first
    # Another process is timed: these are checked alone, and the request is read anew until this is no more
    is_waiting: bool = False
    # The first arm, or the program as it is, stays on to the end: there are too few steps for rounds.
    is_constant: bool = False
    change_files: dict[str, str] = {}  # Changes of the user's own by name
    seconds: float = 20.0  # Of rounds; of steps where one arm stays
    most_steps: int | None = None  # That the program makes, where that is known
    recording: str | None = None  # Folder for a recording of the program as it is, after the rounds
    seed: int = 0  # Of torch, random and numpy
    scratch: str | None = None  # Folder to remove if the parent dies; None for none
    origin: str = "."  # Folder that a module, or the script of ranks, is looked for in


class TrialRun(msgspec.Struct, kw_only=True):
    arms: list[ArmRun] = []
    active: tuple[str, ...] = ()  # What was on, or was being checked, when this was written
    base_ns: list[float] = []  # The program as it is: the median step of each block, or each step
    base_logarithms: list[float] = []  # Of its second block over its first, by round
    step_ns: list[float] = []  # Steps where one arm stayed
    steps: int = 0  # Steps made
    taken: str = "none"  # What ended a step, as `step_source` names it: the request's, or what was recognized
    is_steady: bool = False  # The facts below are known
    is_enough: bool = False  # It was ended because enough is known; else the program ended
    startup_s: float = 0.0  # Until its first step ended
    rounds_s: float = 0.0  # That rounds lasted, checks included
    first_steps: Numbers = {}
    facts: ProgramTraits = msgspec.field(default_factory=ProgramTraits)
    peak_bytes: int | None = None  # Without changes, or with those installed
    no_room: str | None = None  # Why no second process of it can run at the same time, on a GPU
    not_applied: tuple[str, ...] = ()  # Installed changes that found nothing to change
    exit_code: int | None = None  # Of the program, if it ended by itself
    error: str | None = None  # Last line of what it raised


class Arm:
    def __init__(self, changes: Sequence[TriedChange], switches: Switches) -> None:
        self.changes = tuple(changes)
        self.hooks = [Hooks(switches) for _ in changes]
        self.is_coarser = any(one.group == "precision" for one in changes)
        self.is_costly = any(one.is_costly for one in changes)
        self.made: dict[int, Callable[..., Any]] = {}
        self.step_ns: float | None = None  # its median step, once it had a block
        self.strikes = 0  # blocks that took three times as long as expected
        self.losses: list[float] = []  # apart from the program's, relative to it, by round
        self.found = ArmRun(names=tuple(one.name for one in changes))

    @property
    def middle(self) -> float:
        return signed_rank_interval(self.found.logarithms).value

    @property
    def is_open(self) -> bool:
        """Whether it may be switched on: nothing speaks against it."""
        found = self.found
        return not (found.error or found.not_tried or found.correctness is Correctness.CHANGED)

    @property
    def is_right(self) -> bool:
        """Whether it was timed, and its numbers are right."""
        return self.is_open and self.found.correctness in RIGHT and len(self.found.logarithms) >= FEW_ROUNDS

    def is_settled(self, noise: float) -> bool:
        """Whether more rounds tell nothing; `noise` is what the program is apart from itself in a round."""
        logs = self.found.logarithms
        is_hopeless = len(logs) >= FEW_ROUNDS and min(logs) > _HOPELESS + noise
        return not self.is_open or is_hopeless or is_decided(logs)


class Rounds:
    """The rounds of one process; `ended` is to be called at the end of each of the program's steps.

    Args:
        found: Takes what is found; its facts are asked when the program's steps are steady.
        change: Of a name.
        read: The request as it is now.
        is_early: Whether an optimizer may come yet, so that what ended was no step.
    """

    def __init__(
        self,
        switches: Switches,
        request: TrialRequest,
        found: TrialRun,
        *,
        change: Callable[[str], TriedChange],
        read: Callable[[], TrialRequest],
        is_early: Callable[[], bool],
        save: Callable[[], object],
        end: Callable[[int], object],
    ) -> None:
        self._switches, self._torch, self._found, self._facts = switches, switches.torch, found, found.facts
        self._request, self._random = request, random.Random(request.seed)
        self._change, self._read, self._is_early, self._save, self._end = change, read, is_early, save, end
        self._active: Arm | None = None
        self._base_made: dict[int, Callable[..., Any]] = {}
        self._sides: dict[Any, Any] = {}
        self._is_finite_alone, self._usual_ns, self._first_loss = True, math.inf, 0.0
        self._mirrored: list[Arm | None] = []  # the order of the next round
        switches.gave_up = self._gave_up
        self.restart()

    def restart(self) -> None:
        self._switches.keep = None
        self.turn(None)
        found = self._found
        self._arms: list[Arm] = []
        found.arms, found.steps, found.step_ns, found.base_ns, found.base_logarithms = [], 0, [], [], []
        self._steps = self._run()
        next(self._steps)

    def ended(self) -> bool:
        """A step has ended; whether enough is known."""
        if self._switches.is_replaying or self._switches.is_inside:
            return False
        self._switches.calls.watch()
        return next(self._steps, True) is True

    def arm(self, changes: Iterable[TriedChange]) -> Arm:
        """The arm of these changes, a new one if there is none yet; why it does not apply is noted."""
        arm = Arm(list(changes), self._switches)
        known = next((one for one in self._arms if {*one.found.names} == {*arm.found.names}), None)
        if known is not None:
            return known
        reasons = (one.applies(self._facts) for one in arm.changes)
        arm.found.not_tried = next((one for one in reasons if one is not None), None)
        self._arms.append(arm)
        self._found.arms.append(arm.found)
        return arm

    def turn(self, arm: Arm | None) -> None:
        """Have this arm on and no other; one that cannot be switched on has an error."""
        switches = self._switches
        for hooks in reversed(switches.on):
            hooks.off()
        switches.on, switches.made, self._active = [], self._base_made, arm
        self._found.active = () if arm is None else arm.found.names
        if arm is None:
            return
        switches.on, switches.made = arm.hooks, arm.made
        try:
            for change, hooks in zip(arm.changes, arm.hooks, strict=True):
                hooks.applied.clear()
                change.on(hooks)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            self._gave_up(error)

    def _gave_up(self, error: Exception) -> None:
        arm = self._active
        assert arm is not None
        self.turn(None)
        self._fail(arm, error)

    def _fail(self, arm: Arm, error: Exception) -> None:
        arm.found.error = f"{type(error).__name__}: {error}"[:2000]
        self._drop(arm)
        self._require_sound()

    def _drop(self, arm: Arm) -> None:
        """Give the memory back that an arm holds: pools of its graphs, its copies of weights."""
        kept = [arm.made, *(hooks.made for hooks in arm.hooks)]
        holds = any(kept) or arm.found.error is not None
        for one in kept:
            one.clear()
        if holds and self._torch.cuda.is_initialized():
            self._torch.cuda.empty_cache()  # the next blocks pay for that

    def _require_sound(self) -> None:
        """End the process if nothing runs on the device any more, as after a failed capture."""
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return
        try:
            cuda.synchronize()
            with self._torch.random.fork_rng([cuda.current_device()]):
                self._torch.rand(1, device="cuda")
        except RuntimeError:
            self._end(1)

    def _run(self) -> _Steps:
        yield
        yield from self._until_steady()
        switches = self._switches
        self._kept = KeptStep(switches)
        switches.keep = self._kept.keep
        yield
        switches.keep = None
        switches.prepared = {id(one.model) for one in self._kept.made}
        self._kept.fills_gradients = bool(self._facts.filled_gradients)
        self._found.is_steady = True
        self._save()
        if self._request.arms or self._request.is_waiting:
            self._kept_state = Snapshot(switches)
        self._wait()
        arms = self._asked()
        self._waiting = [arm for arm in arms if not arm.found.check_ns]
        self._live = [arm for arm in arms if arm.found.check_ns]
        yield from (self._stay() if self._request.is_constant else self._compare())
        if self._request.recording is not None:
            yield from self._record(Path(self._request.recording))

    def _asked(self) -> list[Arm]:
        arms = (self.arm(map(self._change, names)) for names in self._request.arms)
        return [arm for arm in arms if arm.is_open]

    def _wait(self) -> None:
        """Compile what is asked for, on a few of the cores, until the process that is timed has ended."""
        every = os.sched_getaffinity(0) if self._request.is_waiting else set()
        while self._request.is_waiting:
            # Processes that a compiler starts stay on these; the program's threads have begun on all.
            os.sched_setaffinity(0, sorted(every)[len(every) // 2 :])
            self._request = self._read()
            unchecked = [arm for arm in self._asked() if not arm.found.check_ns]
            if unchecked and self._request.is_waiting:
                self._check(unchecked[0])
            else:
                time.sleep(_POLL_S)
        for thread in Path("/proc/self/task").iterdir() if every else ():
            with suppress(OSError):
                os.sched_setaffinity(int(thread.name), every)

    def _until_steady(self) -> _Steps:
        """Two steps where all processes have to agree, else until none of the last few was slow."""
        periods, began, last = [], time.monotonic(), time.monotonic()
        while True:
            yield
            now = time.monotonic()
            periods.append(now - last)
            last = now
            is_steady = len(periods) >= _STEADY_STEPS and max(periods[-3:]) <= _SLOW * median(periods)
            is_late = len(periods) >= _MOST_UNSTEADY or now - began > _MOST_UNSTEADY_S
            is_ready = len(periods) >= 2 if self._request.is_constant else is_steady or is_late
            if is_ready and not self._is_early():
                return

    def _stay(self) -> _Steps:
        for arm in self._waiting[:1]:
            self._check(arm)
            if arm.is_open:
                self.turn(arm)
        for _ in range(2):  # lead in
            yield
        found, block = self._found, 1
        while sum(found.step_ns) < self._request.seconds * 1e9 or len(found.step_ns) < LEAST_STEPS:
            found.step_ns += yield from self._times(block)
            block = max(1, min(_MOST_STEPS, round(_BLOCK_S * 1e9 / median(found.step_ns))))
            found.base_ns = [] if found.arms else found.step_ns

    def _compare(self) -> _Steps:
        yield
        began, live, seconds = time.monotonic(), self._live, self._request.seconds
        self._usual_ns = median((yield from self._times(_STEADY_STEPS)))
        while self._steps_left > sum(sum(self._counts(arm)) for arm in [*[None] * _LEAST_BASE, *live]):
            left_s = began + seconds - time.monotonic()
            if left_s > 0:
                self._waiting += self._sets()
                self._admit(left_s)
            else:  # what was compiled last is timed all the same
                live[:] = [arm for arm in live if len(arm.found.logarithms) < FEW_ROUNDS]
            is_over = not live or left_s < -max(_LATE * seconds, _LEAST_LATE_S)
            if is_over and len(self._found.base_logarithms) >= FEW_ROUNDS:
                break
            yield from self._round(live)
            for arm in [arm for arm in live if arm.is_settled(self._noise)]:
                live.remove(arm)
                self._drop(arm)
            self._found.rounds_s = time.monotonic() - began
            self._save()

    def _admit(self, left_s: float) -> None:
        """Check what waits, as much as can be told apart in the time left; of what compiles one at a time."""
        step_s, end, live = self._usual_ns / 1e9, time.monotonic() + left_s, self._live
        round_s = sum(self._counts(None)) * step_s
        # What a program that ends soon does not tell, several processes do.
        rounds = LOOKS[0] if self._request.most_steps is None else FEW_ROUNDS + 1
        slots = max(2, int(min(left_s, self._steps_left * step_s) / (rounds * round_s)) - _LEAST_BASE)
        for arm in [*self._waiting]:
            # What is compiled next takes half as long as what has been, or longer.
            took_s = max((one.found.check_ns / 2e9 for one in self._arms if one.is_costly), default=0.0)
            if len(live) >= slots or time.monotonic() > end:
                break
            if arm.is_costly and took_s > end - time.monotonic():
                continue
            self._waiting.remove(arm)
            self._check(arm)
            if arm.is_open:
                live.append(arm)
            if live and arm.is_costly:
                break

    def _counts(self, arm: Arm | None) -> tuple[int, int]:
        """Steps that lead in to a block, and steps of it."""
        step_s = ((arm and arm.step_ns) or self._usual_ns) / 1e9
        lead_in = 1 if step_s > _LEAD_IN_S else max(3, min(_MOST_STEPS, round(_LEAD_IN_S / step_s)))
        return lead_in, max(2 * min(lead_in, 3) + 1, min(_MOST_STEPS, math.ceil(_BLOCK_S / step_s)))

    @property
    def _steps_left(self) -> float:
        """Steps that rounds may take, so that some are left to be recorded."""
        most = math.inf if self._request.most_steps is None else self._request.most_steps
        return most - self._found.steps - (RECORDED_STEPS if self._request.recording else 0)

    def _record(self, folder: Path) -> _Steps:
        """Record the program as it is, for what advice says of it; the device is timed no more."""
        profiler = Profiler(folder, wait=_TIMED_STEPS, warmup=1, active=2)
        try:
            with profiler:
                for _ in range(profiler.total_steps):
                    yield
                    profiler.step()
        except Exception as error:  # noqa: BLE001 - the rounds count all the same
            (folder / NO_RECORDING).write_text(str(error), encoding="utf-8")

    @property
    def _noise(self) -> float:
        return max(map(abs, self._found.base_logarithms), default=0.0)

    def _round(self, live: Sequence[Arm]) -> _Steps:
        order, self._mirrored = self._mirrored, []
        if {*order} != {None, *live}:
            order = [None] * max(_LEAST_BASE, round(math.sqrt(len(live)))) + list(live)
            self._random.shuffle(order)
            self._mirrored = order[::-1]
        times, losses = defaultdict[Arm | None, list[float]](list), defaultdict[Arm | None, list[float]](list)
        for arm in order:
            if arm is not None and arm.found.error is not None:
                continue
            self.turn(arm)
            lead_in, count = self._counts(arm)
            is_first = arm.step_ns is None if arm else not self._found.base_ns and None not in times
            block = yield from self._times(count, lead_in + (_FIRST_LEAD_IN if is_first else 0))
            if arm is not None and not all(one.applied for one in arm.hooks):
                arm.found.error = arm.found.error or "it no longer takes hold of the program's steps"
            self.turn(None)
            if block and (arm is None or arm.found.error is None):
                if self._switches.losses:
                    losses[arm].append(fmean(float(one) for one in self._switches.losses))
                times[arm].append(math.log(median(block)))
                if arm is not None:
                    arm.step_ns = median(block)
                self._require_finite(arm)
        base = times[None]
        self._found.base_ns += [math.exp(one) for one in base]
        self._found.base_logarithms.append(base[-1] - base[0])
        loss = fmean(losses[None]) if losses[None] else math.nan
        for arm in live:
            if times[arm] and arm.found.error is None:
                arm.found.logarithms.append(times[arm][0] - fmean(base))
                if losses[arm] and loss and math.isfinite(loss):
                    # A loss that has fallen to nothing is rounding itself.
                    self._first_loss = self._first_loss or abs(loss)
                    scale = max(abs(loss), _LEAST_OF_FIRST * self._first_loss)
                    arm.losses.append((losses[arm][0] - loss) / scale)
                self._compare_losses(arm)

    def _times(self, count: int, lead_in: int = 0) -> Generator[None, None, list[float]]:
        """Nanoseconds of so many steps; by the device, if there is one: it waits for a slower host."""
        torch, arm, limit_s = self._torch, self._active, _FIRST_S
        has_events, began, marks = torch.cuda.is_initialized(), time.monotonic(), list[Any]()
        for number in range(lead_in + count + 1):
            if number == lead_in:
                self._switches.losses, began = [], time.monotonic()
                if lead_in:
                    limit_s = max(_LEAST_LIMIT_S, _GIVEN_UP * count * self._usual_ns / 1e9)
            if number >= lead_in:
                marks.append(torch.cuda.Event(enable_timing=True) if has_events else time.perf_counter_ns())
                if has_events:
                    marks[-1].record()
            else:
                began = time.monotonic()
            if number < lead_in + count:
                yield
                if arm is not None and lead_in and time.monotonic() - began > limit_s:
                    arm.strikes, marks = arm.strikes + 1, []
                    if arm.strikes > 1:
                        arm.found.error = "given up: twice it took three times as long as the program"
                    break
        if has_events:
            torch.cuda.synchronize()
            return [before.elapsed_time(after) * 1e6 for before, after in pairwise(marks)]
        return [float(after - before) for before, after in pairwise(marks)]

    def _require_finite(self, arm: Arm | None) -> None:
        """Give up an arm after which parameters are no longer finite, and put them back."""
        sums = [one.detach().sum().float() for one in parameters_of(self._switches.optimizers)]
        here = [one.to(sums[0].device) for one in sums]
        is_finite = not here or bool(self._torch.stack(here).isfinite().all())
        if arm is None:
            self._is_finite_alone = is_finite
        elif not is_finite and self._is_finite_alone:
            arm.found.error = "parameters are no longer finite"  # training goes on from the kept step
            self._kept_state.restore()

    def _compare_losses(self, arm: Arm) -> None:
        """Hold the program's own losses with an arm against those without, over all rounds."""
        if len(arm.losses) not in LOOKS:
            return
        value, low, high = signed_rank_interval(arm.losses, _LOSS_ERROR)
        allowed = max(_LEAST_LOSS, 8 * rounding_of(arm.changes, self._facts.dtypes))
        if (low > 0 or high < 0) and abs(value) > allowed:
            arm.found.correctness = Correctness.CHANGED
            arm.found.numbers = f"losses differ by {value:.2g}, {allowed:.2g} is rounding"

    def _check(self, arm: Arm) -> None:
        """Make the kept step with an arm, and compare; everything is as before afterwards."""
        found, began_ns = arm.found, time.perf_counter_ns()
        self._found.active = found.names
        self._save()
        before = Snapshot(self._switches)
        try:
            self._kept_state.restore()
            found.correctness, found.numbers = self._replayed(arm)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            self._fail(arm, error)
        finally:
            before.restore()
        if found.error is None and not all(one.applied for one in arm.hooks):
            found.not_tried = "it found nothing to change in the program"
        found.check_ns = time.perf_counter_ns() - began_ns
        self._save()

    def _replayed(self, arm: Arm) -> tuple[Correctness, str]:
        calm = any(one.draws for one in self._kept.made) and any(one.redraws for one in arm.changes)
        rounding, sides = rounding_of(arm.changes, self._facts.dtypes), self._sides
        if ("base", calm) not in sides:
            gradients, base = self._again(None, calm, None)
            sides["base", calm] = gradients, base, self._again(None, calm, gradients)[1]
        gradients, base, again = sides["base", calm]
        if ("off", calm, rounding) not in sides:
            perturb(self._switches, rounding)
            sides["off", calm, rounding] = self._again(None, calm, gradients)[1]
        _, ours = self._again(arm, calm, gradients)
        if arm.found.error is None and calm:  # what the program runs is compiled here, not in a round
            self._again(arm, False, gradients)
        if arm.found.error is not None:
            return Correctness.UNKNOWN, ""
        return compare(ours, base, again, sides["off", calm, rounding], rounding)

    def _again(self, arm: Arm | None, calm: bool, gradients: Any) -> tuple[Any, Numbers]:
        numbers: Numbers = {}
        try:
            self.turn(arm)
            if arm is None or arm.found.error is None:
                gradients = self._kept.again(numbers, gradients, calm=calm)
        finally:
            self.turn(None)
            self._kept_state.restore()
        return gradients, numbers

    def _sets(self) -> list[Arm]:
        """The next sets to try: the best one grown by one, with the same numerics and with fewer digits.

        With fewer digits what is captured grows too, though it is not the best yet: on the host's time alone
        neither helps. What compiles is in sets that are asked for.
        """
        if any(len(one.changes) > 1 and not one.is_costly for one in (*self._live, *self._waiting)):
            return []
        known, found = [{*one.found.names} for one in self._arms], []
        right = sorted(
            (one for one in self._arms if one.is_right and not one.is_costly), key=lambda one: one.middle
        )
        for takes_coarser in (False, True):
            fit = [one for one in right if takes_coarser or not one.is_coarser]
            alone = [(one.changes[0], one.middle) for one in fit if len(one.changes) == 1]
            captured = [arm for arm in fit if takes_coarser and any(one.replays for one in arm.changes)]
            best = [arm for arm in fit[:1] if arm.middle < HELPS]
            for arm in dict.fromkeys((*captured[:1], *best)):
                for change in addable(arm.changes, alone):
                    if (names := {*arm.found.names, change.name}) not in known:
                        known.append(names)
                        found.append(self.arm((*arm.changes, change)))
                        break
        return found
