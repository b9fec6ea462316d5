"""What happens between the steps of a running program: changes are checked, then switched in rounds.

A round has every arm once and the program as it is twice or more, in random order; the next one mirrors it,
so that neither drift nor the neighbor before counts. After each switch some steps lead in and do not count.
Arms are admitted in the order they are given, as many at once as can be told apart in the time there is; what
is decided makes room. The best of them are combined into sets, which are arms as well.

The order was drawn, so the sign of each difference is a fair coin if both are equal: the interval of one
process is exact, but needs eight rounds, and many programs end before. Rounds of all arms of a program differ
by about as much, so processes are pooled with the noise that all arms show. Between processes a ratio differs
by more than that (addresses, clocks, what the compiler chose): the pooled interval holds the scatter of both.
Importing this module does not import torch.
"""

from __future__ import annotations

import math
import random
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise, product, takewhile
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from opscope.benchmarking.statistics import student_quantile
from opscope.capture.profiler import Profiler
from opscope.model.benchmark import Interval
from opscope.model.trial import Correctness, TrialVerdict
from opscope.trials.catalog import ProgramTraits, TriedChange, addable, rounding_of
from opscope.trials.hooks import Hooks, Switches
from opscope.trials.replay import KeptStep, Numbers, Snapshot, compare, parameters_of, perturb

_SLOW = 3.0  # times the median of the steps so far: something was compiled or loaded
_STEADY_STEPS, _MOST_UNSTEADY, _MOST_UNSTEADY_S = 5, 60, 20.0
_BLOCK_S, _LEAD_IN_S = 0.03, 0.02
_GIVEN_UP = 3.0  # times the expected time
_LEAST_LIMIT_S = 0.5  # a neighbor may hold up everything for a while
_FIRST_S = 60.0  # the first steps after a switch: another form may be compiled
_MOST_AT_ONCE = 50  # steps between two looks at the clock
_LEAST_BASE = 2  # blocks of a round without a change
_FIRST_LEAD_IN = 4  # steps more before the first block of all: memory is taken, kernels are chosen
_TIMED_STEPS = 4
RECORDED_STEPS = _TIMED_STEPS + 5  # with those for warm-up and for what is timed afterwards
NO_RECORDING = "failed.txt"  # why there is none
_HOPELESS = math.log(1.1)
_COSTLY_AFTER = 0.35  # of the time: what compiles waits for the rest
_LATE = 0.3  # of the time, beyond it, for what was compiled last
_HELPS = math.log(0.99)
_LEAST_LOSS = 0.005
_LEAST_OF_FIRST = 0.1


# Rounds at which a process looks whether an arm is decided, and the error of each look, both sides together:
# of equal arms at most one in twenty is called apart at any of the five.
LOOKS, LOOK_ERROR = (8, 16, 32, 64, 128), 0.01
# A loss that falls by orders of magnitude scatters, and a change that is refused for it is not tried again.
_LOSS_ERROR = 0.001
# Several changes are tried at once: of equal ones at most one in a hundred is called faster.
_SURELY_APART = 0.98
# What is called the same: within a process, and of processes together, whose ratios differ by more.
_SAME_WITHIN, _SAME_POOLED = 0.02, 0.06
# Ratios of one change differ by so much between processes of one program (standard deviation: 1.4 to 5.3 % of
# 7 programs on CPUs; 0 to 2 % on an H200 where a change does nothing, more where it does much). It counts
# like so many processes seen before.
_SCATTER, _SCATTER_OF_GAIN, _SEEN_BEFORE = 0.016, 0.05, 4
# Of the step itself, between processes started anew: 5 to 30 % on H100s.
APART = 0.05
ALONE_APART = 0.1  # of one that was started once
LEAST_STEPS = 6  # of a program as it is, or with changes that stay on
FEW_ROUNDS = 3  # with fewer, nothing is said of a change
# What rounds of all arms differ by counts like so many rounds of each; how far out of it a round may lie.
_SHARED_ROUNDS, _OUTLIER = 8, 4.0
_NORMAL_DEVIATION = 1.4826  # standard deviation of a normal variable over the median of its distance


class Middle(NamedTuple):
    """A logarithm of a ratio and the ends of its interval."""

    value: float
    low: float
    high: float


@lru_cache(maxsize=512)
def _excluded(count: int, error: float) -> int:
    """How many of the ordered Walsh averages of so many differences lie outside of the interval, each side.

    Source: M. Hollander, D. Wolfe, E. Chicken, Nonparametric Statistical Methods, 3rd edition, §3.3.
    """
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, count + 1):  # the distribution of the signed rank sum
        ways = (ways + np.concatenate([np.zeros(rank), ways[:-rank]])) / 2
    return int(np.searchsorted(np.cumsum(ways), error / 2, side="right"))


def signed_rank_interval(differences: Sequence[float], error: float = LOOK_ERROR) -> Middle:
    """The median of the Walsh averages and its exact interval; unbounded where too few tell."""
    values = np.asarray(differences)
    count = len(values)
    walsh = np.sort(((values[:, None] + values[None, :]) / 2)[np.triu_indices(count)])
    excluded = _excluded(count, error)
    bounds = (float(walsh[excluded - 1]), float(walsh[-excluded])) if excluded else (-math.inf, math.inf)
    return Middle(float(np.median(walsh)), *bounds)


def is_decided(differences: Sequence[float]) -> bool:
    """Whether a look at these rounds tells an arm from the baseline, or that it is the same."""
    if len(differences) not in LOOKS:
        return len(differences) > LOOKS[-1]
    _, low, high = signed_rank_interval(differences)
    band = math.log1p(_SAME_WITHIN)
    return high < 0 or low > 0 or (-band <= low and high <= band)


class Pooled(NamedTuple):
    ratio: float
    interval: Interval  # 95 %
    verdict: TrialVerdict
    reason: str
    by_process: tuple[float, ...]


class RoundNoise(NamedTuple):
    deviation: float = 0.0
    freedom: int = 0


def noise_of(processes: Iterable[Sequence[float]]) -> RoundNoise:
    """The noise of rounds, from all arms of all processes; robust, for a neighbor may hold up any of them."""
    several = [one for one in processes if len(one) > 1]
    if not several:
        return RoundNoise()
    away = [np.asarray(one) - signed_rank_interval(one).value for one in several]
    spread = [math.sqrt(len(one) / (len(one) - 1)) * abs(one) for one in away]
    freedom = sum(map(len, several)) - len(several)
    return RoundNoise(_NORMAL_DEVIATION * float(np.median(np.concatenate(spread))), freedom)


def pooled(
    processes: Sequence[Sequence[float]], noise: RoundNoise | None = None, scatter: float = _SCATTER
) -> Pooled:
    """Pool log-ratios by process and round.

    `noise` is what rounds of the program differ by, that of these if None; `scatter` what processes differ by
    as far as is known.

    Source: A. Gelman et al., Bayesian Data Analysis, 3rd edition, §2.6 and §3.2 (scaled inverse χ² priors of
    variances; the posterior interval is Student's); F. E. Satterthwaite, Biometrics Bulletin 2, 1946 (the
    degrees of freedom of a sum of two).
    """
    noise = noise_of(processes) if noise is None else noise
    centers = np.array([signed_rank_interval(one).value for one in processes])
    rounds, count = np.array([len(one) for one in processes]), len(processes)
    shared, most = min(_SHARED_ROUNDS, noise.freedom), (_OUTLIER * noise.deviation) ** 2
    own = sum(
        float(np.minimum((np.asarray(one) - center) ** 2, most).sum())
        for one, center in zip(processes, centers, strict=True)
    )
    freedom_within = max(1, shared + int(rounds.sum()) - count)
    within = (shared * noise.deviation**2 + own) / freedom_within / rounds  # by process
    scatter = math.hypot(scatter, _SCATTER_OF_GAIN * float(centers.mean()))
    seen = max(0.0, float(((centers - centers.mean()) ** 2).sum() - within.sum() * (count - 1) / count))
    freedom_between = _SEEN_BEFORE + count - 1
    between = (_SEEN_BEFORE * scatter**2 + seen) / freedom_between
    if count <= 2:  # that two agree does not make the third agree
        between = max(between, scatter**2)
    weights = 1 / (between + within)
    value, variance = float(np.average(centers, weights=weights)), float(1 / weights.sum())
    parts = between / count, max(0.0, variance - between / count)
    freedom = variance**2 / (parts[0] ** 2 / freedom_between + parts[1] ** 2 / freedom_within)
    error, whole = math.sqrt(variance), max(1, int(freedom))
    half, band = student_quantile(whole) * error, math.log1p(_SAME_POOLED)
    low, high = value - half, value + half
    if abs(value) > student_quantile(whole, _SURELY_APART) * error:
        verdict = TrialVerdict.FASTER if value < 0 else TrialVerdict.SLOWER
    elif -band <= low and high <= band:
        verdict = TrialVerdict.SAME
    else:
        verdict = TrialVerdict.INCONCLUSIVE
    by_process = tuple(np.exp(centers).tolist())
    told = ", ".join(f"{100 * one:.1f} %" for one in by_process)
    where = "one process" if count == 1 else f"{count} processes"
    reason = f"{told} of the time in {where}, ± {100 * math.sqrt(float(within.max())):.1f} % within"
    return Pooled(math.exp(value), (math.exp(low), math.exp(high)), verdict, reason, by_process)


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
    # The first arm, or the program as it is, stays on to the end: there are too few steps for rounds.
    is_constant: bool = False
    change_files: dict[str, str] = {}  # Changes of the user's own by name
    seconds: float = 20.0  # Of rounds; of steps where one arm stays
    most_steps: int | None = None  # That the program makes, where that is known
    compiles_ahead: bool = False  # Have a second process compile while this one times the rest
    is_ahead: bool = False  # It is that process: nothing is timed
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
    is_enough: bool = False  # It was ended because enough is known; else the program ended
    startup_s: float = 0.0  # Until its first step ended
    rounds_s: float = 0.0  # That rounds lasted, checks included
    first_steps: Numbers = {}
    facts: ProgramTraits = msgspec.field(default_factory=ProgramTraits)
    peak_bytes: int | None = None  # Without changes, or with those installed
    not_ahead: str | None = None  # Why nothing was compiled ahead, where that could have helped
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
        self.strikes = 0  # blocks that took three times as long as expected
        self.losses: list[float] = []  # apart from the program's, relative to it, by round
        self.found = ArmRun(names=tuple(one.name for one in changes))

    @property
    def middle(self) -> float:
        return signed_rank_interval(self.found.logarithms).value

    @property
    def is_right(self) -> bool:
        """Whether it was timed, and its numbers are right."""
        is_right = self.found.correctness in {Correctness.IDENTICAL, Correctness.WITHIN_ROUNDING}
        return is_right and self.found.error is None and len(self.found.logarithms) >= FEW_ROUNDS

    def is_settled(self, noise: float) -> bool:
        """Whether more rounds tell nothing; `noise` is what the program is apart from itself in a round."""
        found, logs = self.found, self.found.logarithms
        if found.error is not None or found.correctness is Correctness.CHANGED:
            return True
        is_hopeless = len(logs) >= FEW_ROUNDS and min(logs) > _HOPELESS + noise
        return is_hopeless or is_decided(logs)


class Rounds:
    """The rounds of one process; `ended` is to be called at the end of each of the program's steps.

    Args:
        found: Takes what is found; its facts are asked when the program's steps are steady.
        is_early: Whether an optimizer may come yet, so that what ended was no step.
        start_ahead: Has a process compile these sets, or not.
    """

    def __init__(
        self,
        switches: Switches,
        request: TrialRequest,
        found: TrialRun,
        arms: Iterable[Sequence[TriedChange]],
        *,
        is_early: Callable[[], bool],
        start_ahead: Callable[[Sequence[tuple[str, ...]]], subprocess.Popen[bytes] | None],
        save: Callable[[], object],
        end: Callable[[int], object],
    ) -> None:
        self._switches, self._torch, self._found, self._facts = switches, switches.torch, found, found.facts
        self._request, self._random, self._is_early = request, random.Random(request.seed), is_early
        self._start_ahead, self._save, self._end = start_ahead, save, end
        self._arms: list[Arm] = []
        for one in arms:
            self._add(Arm(one, switches))
        # What compiles waits for the rest, unless it is asked for before something that does not.
        self._costly = list(takewhile(lambda arm: arm.is_costly, reversed(self._arms)))
        self._is_compiling = False
        self._ahead: subprocess.Popen[bytes] | None = None
        self._active: Arm | None = None
        self._base_made: dict[int, Callable[..., Any]] = {}
        self._sides: dict[Any, Any] = {}
        self._is_finite_alone, self._usual_ns, self._first_loss = True, math.inf, 0.0
        switches.gave_up = self._gave_up
        self._mirrored: list[Arm | None] = []  # the order of the next round
        self._timed: set[Arm | None] = set()  # what has had a block
        self.restart()

    def _add(self, arm: Arm) -> Arm:
        self._arms.append(arm)
        self._found.arms.append(arm.found)
        return arm

    def restart(self) -> None:
        self._end_ahead()
        self._switches.keep = None
        self.turn(None)
        found = self._found
        found.steps, found.step_ns, found.base_ns, found.base_logarithms = 0, [], [], []
        self._steps = self._run()
        next(self._steps)

    def ended(self) -> bool:
        """A step has ended; whether enough is known."""
        if self._switches.is_replaying or self._switches.is_inside:
            return False
        self._switches.calls.watch()
        return next(self._steps, True) is True

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
        arm.found.error = f"{type(error).__name__}: {error}"[:2000]
        self.turn(None)
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
        for arm in self._arms:
            reasons = (one.applies(self._facts) for one in arm.changes)
            arm.found.not_tried = next((one for one in reasons if one is not None), None)
        self._waiting = [arm for arm in self._arms if arm.found.not_tried is None]
        if self._waiting:
            self._kept_state = Snapshot(switches)
        if self._request.is_ahead:
            for arm in self._waiting:
                self._check(arm)
                self._drop(arm)
            return
        self._compile_ahead()
        yield from (self._stay() if self._request.is_constant else self._compare())
        self._end_ahead()
        if self._request.recording is not None:
            yield from self._record(Path(self._request.recording))

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
            if not arm.is_settled(self._noise) and arm.found.not_tried is None:
                self.turn(arm)
        for _ in range(2):  # lead in
            yield
        found, block = self._found, 1
        while sum(found.step_ns) < self._request.seconds * 1e9 or len(found.step_ns) < LEAST_STEPS:
            found.step_ns += yield from self._times(block)
            block = max(1, min(_MOST_AT_ONCE, round(_BLOCK_S * 1e9 / median(found.step_ns))))
            found.base_ns = [] if found.arms else found.step_ns

    def _compare(self) -> _Steps:
        yield
        segments = self._segments()
        self._usual_ns = median((yield from self._times(_STEADY_STEPS)))
        self._facts.allocates = self._segments() > segments
        step_s, seconds = self._usual_ns / 1e9, self._request.seconds
        self._lead_in = 1 if step_s > _LEAD_IN_S else 3
        self._block = max(2 * self._lead_in + 1, math.ceil(_BLOCK_S / step_s))
        began, end = time.monotonic(), time.monotonic() + seconds
        live: list[Arm] = []
        in_rounds_s = 0.0
        while time.monotonic() < end and self._has_steps_for(live):
            left_s = min(end - time.monotonic(), self._steps_left * step_s)
            round_s = (self._block + self._lead_in) * step_s
            slots = max(2, int(left_s / (LOOKS[0] * round_s)) - _LEAST_BASE)
            self._waiting += self._sets(live)
            while len(live) < slots and time.monotonic() < end:
                others = live or any(one not in self._costly for one in self._waiting)
                is_early = others and in_rounds_s < _COSTLY_AFTER * seconds
                if not is_early and not self._is_compiling:
                    self._waiting = self._compiling()
                    self._is_compiling = True
                # What compiles takes half as long as what has, or longer.
                took_s = max((one.found.check_ns / 2e9 for one in self._costly), default=0.0)
                is_late = is_early or took_s > end - time.monotonic()
                arm = next((one for one in self._waiting if not (is_late and one in self._costly)), None)
                if arm is None:
                    break
                checking = time.monotonic()
                self._waiting.remove(arm)
                self._check(arm)
                end += min(time.monotonic() - checking, max(0.0, began + 1.5 * seconds - end))
                if not arm.is_settled(self._noise) and arm.found.not_tried is None:
                    live.append(arm)
            if not live:
                break
            if any(one.is_costly for one in live):
                self._end_ahead()
            round_began = time.monotonic()
            yield from self._round(live)
            in_rounds_s += time.monotonic() - round_began
            for arm in [arm for arm in live if arm.is_settled(self._noise)]:
                live.remove(arm)
                self._drop(arm)
            self._found.rounds_s = time.monotonic() - began
            self._save()

        # What was compiled last is timed all the same, and a program that no change fits.
        latest = time.monotonic() + _LATE * seconds
        while self._has_steps_for(live):
            live = [arm for arm in live if arm.found.error is None and len(arm.found.logarithms) < FEW_ROUNDS]
            is_over = not live or time.monotonic() > latest
            if is_over and len(self._found.base_logarithms) >= FEW_ROUNDS:
                break
            yield from self._round(live)

    def _compile_ahead(self) -> None:
        compiling = [one for one in self._waiting if one in self._costly]
        if not compiling or compiling == self._waiting:
            return
        # This process begins with fewer digits, that one with what is compiled here after that.
        compiling.sort(key=lambda one: not one.changes[0].replays)
        arms = [one.found.names for one in compiling]
        coarser = [one.changes[0] for one in reversed(self._waiting) if one.is_coarser]
        if coarser:  # of those as coarse the last, which leaves nothing to cast
            arms.append((max(coarser, key=lambda one: one.rounding).name, *arms[0]))
        self._ahead = self._start_ahead(arms)

    def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.kill()
            self._ahead.wait()

    @property
    def _steps_left(self) -> float:
        """Steps that rounds may take, so that some are left to be recorded."""
        most = math.inf if self._request.most_steps is None else self._request.most_steps
        return most - self._found.steps - (RECORDED_STEPS if self._request.recording else 0)

    def _has_steps_for(self, live: Sequence[Arm]) -> bool:
        return self._steps_left > (len(live) + _LEAST_BASE) * (self._block + self._lead_in)

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

    def _segments(self) -> int:
        return int(self._torch.cuda.memory_stats().get("num_device_alloc", 0))

    @property
    def _noise(self) -> float:
        return max(map(abs, self._found.base_logarithms), default=0.0)

    def _round(self, live: Sequence[Arm]) -> _Steps:
        order, self._mirrored = self._mirrored, []
        if {*order} != {None, *live}:
            order = [None] * max(_LEAST_BASE, round(math.sqrt(len(live)))) + list(live)
            self._random.shuffle(order)
            self._mirrored = order[::-1]
        times: dict[Arm | None, list[float]] = {arm: [] for arm in order}
        losses: dict[Arm | None, list[float]] = {arm: [] for arm in order}
        for arm in order:
            if arm is not None and arm.found.error is not None:
                continue
            self.turn(arm)
            is_first = arm not in self._timed
            self._timed.add(arm)
            block = yield from self._times(self._block, self._lead_in + (_FIRST_LEAD_IN if is_first else 0))
            if arm is not None and not all(one.applied for one in arm.hooks):
                arm.found.error = arm.found.error or "it no longer takes hold of the program's steps"
            self.turn(None)
            if block and (arm is None or arm.found.error is None):
                if self._switches.losses:
                    losses[arm].append(fmean(float(one) for one in self._switches.losses))
                times[arm].append(math.log(median(block)))
                self._require_finite(arm)
        base = times.pop(None)
        self._found.base_ns += [math.exp(one) for one in base]
        self._found.base_logarithms.append(base[-1] - base[0])
        loss = losses.pop(None)
        for arm in live:
            if times[arm] and arm.found.error is None:
                arm.found.logarithms.append(times[arm][0] - fmean(base))
                if losses[arm] and loss and math.isfinite(fmean(loss)) and fmean(loss):
                    # A loss that has fallen to nothing is rounding itself.
                    self._first_loss = self._first_loss or abs(fmean(loss))
                    scale = max(abs(fmean(loss)), _LEAST_OF_FIRST * self._first_loss)
                    arm.losses.append((losses[arm][0] - fmean(loss)) / scale)
                self._compare_losses(arm)

    def _times(self, count: int, lead_in: int = 0) -> Generator[None, None, list[float]]:
        """Nanoseconds of so many steps, by the slower one of host and device."""
        torch, arm, marks, limit_s = self._torch, self._active, [], _FIRST_S
        for number in range(lead_in + count + 1):
            if number == lead_in:
                self._switches.losses, began = [], time.monotonic()
                if lead_in:
                    limit_s = max(_LEAST_LIMIT_S, _GIVEN_UP * count * self._usual_ns / 1e9)
            event = None
            if number >= lead_in:
                reached_ns = time.perf_counter_ns()
                if torch.cuda.is_initialized():
                    event = torch.cuda.Event(enable_timing=True)
                    event.record()
                marks.append((reached_ns, event))
            else:
                began = time.monotonic()
            if number < lead_in + count:
                yield
                if arm is not None and lead_in and time.monotonic() - began > limit_s:
                    arm.strikes, marks = arm.strikes + 1, []
                    if arm.strikes > 1:
                        arm.found.error = "given up: twice it took three times as long as the program"
                    break
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return [
            float(max(after[0] - before[0], before[1].elapsed_time(after[1]) * 1e6 if before[1] else 0))
            for before, after in pairwise(marks)
        ]

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
            found.error = f"{type(error).__name__}: {error}"[:2000]
            self._drop(arm)
            self._require_sound()
        finally:
            before.restore()
        if found.error is None and not all(one.applied for one in arm.hooks):
            found.not_tried = "it found nothing to change in the program"
        found.check_ns = time.perf_counter_ns() - began_ns

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

    def _right(self, *, takes_coarser: bool) -> list[Arm]:
        """What a set may hold of what does not compile, the best first."""
        right = (one for one in self._arms if one.is_right and not one.is_costly)
        fit = (one for one in right if takes_coarser or not one.is_coarser)
        return sorted(fit, key=lambda one: one.middle)

    def _compiling(self) -> list[Arm]:
        """All that waits, what compiles last: beside the best of what does not, with fewer digits first.

        There is time for one or two. The mode that replays graphs is tried where the model's own graph is
        right; in training, where gradients become the graph's, only if that helps.
        """
        singles = [one for one in self._waiting if one in self._costly and len(one.changes) == 1]
        known, found = {frozenset(one.found.names): one for one in self._arms}, []
        is_replayed = any(
            one.is_right
            and any(change.replays for change in one.changes)
            and (one.middle < _HELPS or not self._facts.is_training)
            for one in self._arms
        )
        is_asked = any(one.is_costly and len(one.changes) > 1 for one in self._arms)  # for such sets
        of_mode = sorted(singles, key=lambda one: one.changes[0].replays is not is_replayed)[:1]
        for arm, takes_coarser in product(() if is_asked else of_mode, (True, False)):
            right = self._right(takes_coarser=takes_coarser)
            best = [change for one in right[:1] if one.middle < _HELPS for change in one.changes]
            best += [one.changes[0] for one in right if one.middle < _HELPS and len(one.changes) == 1]
            coarser = [one for one in addable(arm.changes, _alone(right)) if one.group == "precision"]
            if takes_coarser and not coarser:
                continue
            beside: dict[str, TriedChange] = {}  # by group
            for change in (*coarser[:1], *best):
                if change.group != "capture":
                    beside.setdefault(change.group or change.name, change)
            changes = (*beside.values(), *arm.changes)
            names = frozenset(one.name for one in changes)
            found.append(known.get(names) or self._add(Arm(changes, self._switches)))
        self._costly += found
        first = [one for one in found if one in self._waiting or not one.found.check_ns]
        others = [one for one in self._waiting if one not in (*first, *singles)]
        return [*others, *first, *(one for one in singles if one not in first)]

    def _sets(self, live: Sequence[Arm]) -> list[Arm]:
        """The next sets to try: the best one grown by one, with the same numerics and with fewer digits.

        With fewer digits what is captured grows too, though it is not the best yet: on the host's time alone
        neither helps. What compiles is in sets of its own.
        """
        if self._request.is_constant or any(len(one.changes) > 1 for one in (*live, *self._waiting)):
            return []
        known, found = {frozenset(one.found.names) for one in self._arms}, []
        for takes_coarser in (False, True):
            right = self._right(takes_coarser=takes_coarser)
            captured = [arm for arm in right if takes_coarser and any(one.replays for one in arm.changes)]
            best = [arm for arm in right[:1] if arm.middle < _HELPS]
            for arm in dict.fromkeys((*captured[:1], *best)):
                for change in addable(arm.changes, _alone(right)):
                    names = frozenset((*arm.found.names, change.name))
                    if names not in known:
                        found.append(self._add(Arm((*arm.changes, change), self._switches)))
                        known.add(names)
                        break
        return found


def _alone(arms: Iterable[Arm]) -> list[tuple[TriedChange, float]]:
    """The changes that were timed alone, with the logarithm of what each takes."""
    return [(one.changes[0], one.middle) for one in arms if len(one.changes) == 1]
