"""What a run says of its numbers, and how far those of a variant are from the baseline's.

Losses and gradients of the first steps and the outputs of each model's first call are observed. A variant is
held against the baseline, and against how far two runs of the baseline are apart: atomics and other
randomness of the program itself. Importing this module does not import torch.
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
from opscope.trials.hooks import Hooks

_STEPS = 3  # whose losses and gradients are kept
_ELEMENTS = 4096  # of a tensor of outputs
_TENSORS = 8
# What the operations of a model may add up to, in roundings of one. A factor of 1.01 on a loss is more than
# two roundings of the coarsest type.
_OF_OUTPUTS, _OF_FIRST_LOSS, _OF_LATER = 8.0, 2.0, 8.0
_LEAST_ROUNDING = 2.0**-24  # of float32: two runs of the baseline may agree by chance
_OF_SCATTER = 3.0  # times as far apart as two runs of the baseline


class Observation(msgspec.Struct):
    """The numbers of a run."""

    losses: list[float] = []  # Tensors that backward was called on, in the first steps
    gradients: list[float] = []  # Norms of all gradients when an optimizer stepped
    outputs: list[list[float]] = []  # Elements of those of each model's first call, evenly picked


class Observer:
    """Keeps the numbers of the first steps; afterwards it costs a comparison a step."""

    def __init__(self, hooks: Hooks) -> None:
        self.found = Observation()
        self._torch = hooks.torch
        self._seen: set[int] = set()
        hooks.called.append(self._called)
        hooks.optimizers.register_optimizer_step_pre_hook(self._stepping)
        backward = self._torch.Tensor.backward

        def call(loss: Any, *args: Any, **kwargs: Any) -> Any:
            if len(self.found.losses) < _STEPS:
                self.found.losses.append(float(loss.detach().double().mean()))
            return backward(loss, *args, **kwargs)

        self._torch.Tensor.backward = call

    def _stepping(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if len(self.found.gradients) >= _STEPS:
            return
        every = (one.grad for group in optimizer.param_groups for one in group["params"])
        squares = [float(one.detach().double().square().sum()) for one in every if one is not None]
        self.found.gradients.append(math.sqrt(sum(squares)))

    def _called(self, model: Any, output: Any) -> None:
        if id(model) in self._seen or len(self.found.outputs) >= _TENSORS:
            return
        self._seen.add(id(model))
        tensors = (one for one in tensors_of(output) if one.is_floating_point() and one.numel())
        for tensor in islice(tensors, _TENSORS - len(self.found.outputs)):
            flat = tensor.detach().reshape(-1)
            chosen = flat[:: max(1, len(flat) // _ELEMENTS)][:_ELEMENTS]
            self.found.outputs.append(chosen.double().cpu().tolist())


def compare(
    baseline: Observation, again: Observation, variant: Observation, rounding: float
) -> tuple[Correctness, str]:
    """How the variant's numbers lie to the baseline's, of which there are two runs, and what that rests on.

    `rounding` is what one operation of the change may alter, relative to its result.
    """
    kinds = (("outputs", [_OF_OUTPUTS]), ("losses", [_OF_FIRST_LOSS, _OF_LATER]), ("gradients", [_OF_LATER]))
    worst, words = Correctness.UNKNOWN, "no loss, gradient or output was seen"
    for name, limits in kinds:
        ours, theirs = getattr(variant, name), getattr(baseline, name)
        if not theirs:
            continue
        if len(ours) != len(theirs):
            return Correctness.CHANGED, f"{len(ours)} {name} instead of {len(theirs)}"
        scatter = max(map(_apart, getattr(again, name), theirs), default=0.0)
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            apart = _apart(one, other)
            allowed = max(
                limits[min(place, len(limits) - 1)] * max(rounding, _LEAST_ROUNDING), _OF_SCATTER * scatter
            )
            if not apart <= allowed:
                reason = f"{name} differ by {apart:.2g}, {allowed:.2g} is rounding"
                return Correctness.CHANGED, reason
            if apart > 0:
                worst, words = Correctness.WITHIN_ROUNDING, f"{name} differ by {apart:.2g} of {allowed:.2g}"
            elif worst is Correctness.UNKNOWN:
                worst, words = Correctness.IDENTICAL, "losses, gradients and outputs are the same"
    return worst, words


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
