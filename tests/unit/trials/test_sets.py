"""Which sets are tried, of programs whose times are planted: a step is what host or device needs."""

import math
from types import SimpleNamespace

from opscope.model.trial import Correctness
from opscope.trials.catalog import ProgramTraits, changes_named
from opscope.trials.hooks import Switches
from opscope.trials.rounds import Rounds, TrialRequest, TrialRun

TORCH = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
# Of the host's and of the device's time, by change: what casts needs the host, and a graph takes it away.
FACTORS = {
    "tf32": (1.0, 0.7), "bf16_autocast": (1.5, 0.45), "fp16_autocast": (1.45, 0.45),
    "bf16_weights": (1.05, 0.35), "inference_mode": (0.9, 1.0), "sdpa": (1.02, 0.95),
    "cuda_graph": (0.02, 1.0),
}  # fmt: skip


class Planted:
    """Rounds of a program that has run its arms, `host_ms` and `device_ms` of a step."""

    def __init__(self, host_ms, device_ms, is_training=False, **factors):
        self.host_ms, self.device_ms, self.factors = host_ms, device_ms, FACTORS | factors
        facts = ProgramTraits(device="cuda", dtypes=["float32"], is_training=is_training, attention=["eager"])
        switches, found = Switches(TORCH), TrialRun(facts=facts)
        calls = lambda *_: None  # noqa: E731
        changes = [one for one in changes_named(list(self.factors)) if one.applies(facts) is None]
        self.rounds = Rounds(
            switches, TrialRequest(kind="script", target=""), found, change=calls, read=calls,
            is_early=lambda: False, save=calls, end=calls,
        )  # fmt: skip
        self.rounds._live, self.rounds._waiting = [], []
        self.time([self.rounds.arm([one]) for one in changes])

    def ratio(self, changes):
        host, device = self.host_ms, self.device_ms
        for change in changes:
            host, device = host * self.factors[change.name][0], device * self.factors[change.name][1]
        if any(change.replays for change in changes):
            host = self.host_ms * 0.05
        return max(host, device) / max(self.host_ms, self.device_ms)

    def time(self, arms):
        for arm in arms:
            groups = [change.group for change in arm.changes if change.group]
            assert len(groups) == len(set(groups)), arm.found.names
            arm.found.correctness = Correctness.WITHIN_ROUNDING
            # Much slower, it is left out after three rounds.
            ratio = self.ratio(arm.changes)
            arm.found.logarithms = [math.log(ratio)] * (3 if ratio > 1.1 else 8)

    def grow(self):
        """The sets that are tried, in their order."""
        tried = []
        while arms := self.rounds._sets():
            self.time(arms)
            tried += [{*arm.found.names} for arm in arms]
        return tried

    def best(self):
        arms = (arm for arm in self.rounds._arms if arm.is_right)
        return {*min(arms, key=lambda arm: arm.middle).found.names}


def test_what_was_no_faster_alone_is_tried_once_a_graph_has_taken_the_hosts_part_away():
    launch_bound = Planted(host_ms=5.0, device_ms=1.7)
    tried = launch_bound.grow()
    assert tried[0] == {"cuda_graph", "inference_mode"}  # the same numerics
    assert tried[1] == {"cuda_graph", "bf16_weights"}  # of as few digits what was least slow alone
    assert {"cuda_graph", "bf16_weights"} <= launch_bound.best()
    assert not {"tf32", "fp16_autocast"} & set().union(*tried)


def test_fewer_digits_that_are_wrong_leave_the_next_ones_to_be_tried():
    program = Planted(host_ms=5.0, device_ms=1.7)
    for arm in program.rounds._arms:
        if arm.found.names in {("bf16_weights",), ("bf16_autocast",)}:
            arm.found.correctness = Correctness.CHANGED
    assert {"cuda_graph", "tf32"} in program.grow()


def test_what_is_decided_gives_its_copies_of_weights_back():
    rounds = Planted(host_ms=5.0, device_ms=1.7).rounds
    arm = next(one for one in rounds._arms if one.found.names == ("bf16_weights",))
    arm.hooks[0].made[0] = object()
    rounds._drop(arm)
    assert not arm.hooks[0].made


def test_casts_that_the_host_pays_for_are_tried_under_a_graph_in_training():
    training = Planted(host_ms=5.0, device_ms=3.0, is_training=True)
    training.grow()
    assert training.best() == {"cuda_graph", "bf16_autocast", "sdpa"}


def test_a_graph_that_was_no_faster_alone_is_tried_once_the_device_is_faster_than_the_host():
    device_bound = Planted(4.9, 6.6, cuda_graph=(0.02, 1.15), sdpa=(1.02, 1.0))
    assert device_bound.best() == {"tf32"}
    assert {"bf16_weights", "cuda_graph"} in device_bound.grow()
    assert device_bound.best() == {"bf16_weights", "cuda_graph"}
