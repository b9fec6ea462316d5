"""What processes say of their first steps, for changes that are on from the start: losses, and first outputs.

Importing this module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from opscope.benchmarking.inputs import tensors_of
from opscope.model.trial import Correctness
from opscope.trials.hooks import Switches
from opscope.trials.replay import LEAST_ROUNDING

_STEPS, _ELEMENTS, _TENSORS = 3, 4096, 8  # losses kept; elements of a tensor of outputs; such tensors
# What the operations of a model may add up to, in roundings of one, and times what two processes of the
# program as it is are apart. A factor of 1.01 on a loss is more than two roundings of the coarsest type.
_OF_ROUNDING, _OF_FIRST_LOSS, _OF_SCATTER = 8.0, 2.0, 3.0


class Observation(msgspec.Struct):
    """The numbers of a process."""

    losses: list[float] = []  # Tensors that backward was called on, in the first steps
    outputs: list[list[float]] = []  # Elements of those of each model's first call, evenly picked


class Observer:
    """Keeps the numbers of the first steps; afterwards it costs a comparison a step."""

    def __init__(self, switches: Switches) -> None:
        self.found = Observation()
        self._seen: set[int] = set()
        switches.called.append(self._called)

    def sent_back(self, loss: Any) -> None:
        """Backward is called on a tensor."""
        if len(self.found.losses) < _STEPS:
            self.found.losses.append(float(loss.detach().double().mean()))

    def _called(self, model: Any, output: Any) -> None:
        if id(model) in self._seen or len(self.found.outputs) >= _TENSORS:
            return
        self._seen.add(id(model))
        tensors = (one for one in tensors_of(output) if one.is_floating_point() and one.numel())
        for tensor in islice(tensors, _TENSORS - len(self.found.outputs)):
            flat = tensor.detach().reshape(-1)
            chosen = flat[:: max(1, len(flat) // _ELEMENTS)][:_ELEMENTS]
            self.found.outputs.append(chosen.double().cpu().tolist())


def compare_first_steps(
    baseline: Observation, again: Observation, variant: Observation, rounding: float
) -> tuple[Correctness, str]:
    """How the variant's numbers lie to those of two processes of the baseline, and what that rests on.

    `rounding` is what one operation of the change may alter, relative to its result.
    """
    rounding, worst = max(rounding, LEAST_ROUNDING), 0.0
    for name in ("outputs", "losses"):
        ours, theirs, others = (getattr(one, name) for one in (variant, baseline, again))
        if len(ours) != len(theirs):
            return Correctness.CHANGED, f"{len(ours)} {name} instead of {len(theirs)}"
        scatter = max(map(_apart, others, theirs), default=0.0)
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            apart, of_rounding = _apart(one, other), _OF_ROUNDING
            if name == "losses" and not place:
                of_rounding = _OF_FIRST_LOSS
            allowed = max(of_rounding * rounding, _OF_SCATTER * scatter)
            if not apart <= allowed:
                return Correctness.CHANGED, f"{name} differ by {apart:.2g}, {allowed:.2g} is rounding"
            worst = max(worst, apart)
    if not baseline.outputs and not baseline.losses:
        return Correctness.UNKNOWN, "no loss or output was seen"
    if worst:
        return Correctness.WITHIN_ROUNDING, f"losses and outputs of the first steps differ by {worst:.2g}"
    return Correctness.IDENTICAL, "losses and outputs of the first steps are the same"


def _apart(one: float | Sequence[float], other: float | Sequence[float]) -> float:
    """The norm of the difference over that of the second; infinite where only one is finite."""
    ours, theirs = np.atleast_1d(np.asarray(one)), np.atleast_1d(np.asarray(other))
    if ours.shape != theirs.shape or not (np.isfinite(ours) == np.isfinite(theirs)).all():
        return math.inf
    is_finite = np.isfinite(theirs)
    ours, theirs = ours[is_finite], theirs[is_finite]
    difference, size = float(np.linalg.norm(ours - theirs)), float(np.linalg.norm(theirs))
    if not difference:
        return 0.0
    return difference / size if size else math.inf
