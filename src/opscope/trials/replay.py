"""One step of a program, made again: whether its numbers stay with a change, before that goes live.

A step is kept: its calls of models with their inputs and random numbers, and the gradients that reached their
outputs. It is made again (forward, backward, optimizers) with and without a change, from a snapshot that is
put back bit by bit. How far rounding carries is asked of the program itself: it is made again with each
weight off by one rounding of the change's type. Importing this module does not import torch.
"""

from __future__ import annotations

import copy
import inspect
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from opscope.benchmarking.inputs import copied, map_tensors, tensors_of
from opscope.model.trial import Correctness
from opscope.trials.hooks import Switches

_KEPT_CALLS = 4  # the last of a step
LEAST_ROUNDING = 2.0**-24  # of float32
# What may be apart: roundings of one operation, times what the program is apart from itself, and times what
# it is with weights off by one rounding. Of the scale of all numbers less: a factor of 1.01 is more than two
# roundings of the coarsest type.
_OF_ROUNDING, _OF_SCALE, _OF_AGAIN, _OF_PERTURBED = 8.0, 2.0, 3.0, 4.0
_ELEMENTS, _OF_PARAMETER = 1 << 16, 1 << 14  # of an output, and of each of many parameters
PLAIN = (bool, int, float, str, type(None))

# Arrays, or lists of numbers, by what they are: `outputs`, `gradients`, `updates` of parameters, `losses`.
Numbers = dict[str, list[Any]]


class _Made(NamedTuple):
    model: Any
    inputs: Any
    random: Any
    grad_enabled: bool
    autocast: tuple[str, Any, bool]
    gradients: dict[int, Any]  # by the place of an output
    draws: bool  # random numbers were drawn


def parameters_of(optimizers: Mapping[int, Any]) -> list[Any]:
    groups = (group for each in optimizers.values() for group in each.param_groups)
    return list({id(one): one for group in groups for one in group["params"]}.values())


class KeptStep:
    def __init__(self, switches: Switches) -> None:
        self._switches, self._torch = switches, switches.torch
        self.made: list[_Made] = []
        self.fills_gradients = False  # as the program's zero_grad does

    def keep(self, model: Any, call: Any, args: Any, kwargs: Any) -> Any:
        torch, kind = self._torch, next(model.parameters()).device.type
        before, inputs = _random_state(torch), _apart_from((args, kwargs))
        cast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        output = call(*args, **kwargs)
        after = _random_state(torch)
        draws = not all(map(torch.equal, (before[0], *before[1]), (after[0], *after[1])))
        made = _Made(model, inputs, before, torch.is_grad_enabled(), cast, {}, draws)

        def reached(grad: Any, place: int) -> None:
            if grad is not None:  # of an output that the loss does not use, beside one that it does
                made.gradients[place] = grad.detach().clone()

        for place, one in enumerate(floats_of(output)):
            if one.requires_grad:
                one.register_hook(partial(reached, place=place))
        self.made = [*self.made[1 - _KEPT_CALLS :], made]
        return output

    def again(self, numbers: Numbers, gradients: Sequence[Any] | None, *, calm: bool) -> list[Any]:
        """Make it again, without dropout where `calm`, and fill in what came out; returns the gradients.

        Optimizers take those given instead of their own: Adam makes much of what rounding does to small ones.
        """
        switches, optimizers = self._switches, list(self._switches.optimizers.values())
        with self._alone(optimizers, calm=calm):
            for one in optimizers if self.made else ():
                one.zero_grad(set_to_none=not self.fills_gradients)
            # Call by call: the next one of a graph writes into the same outputs.
            called = (sampled(self._call(made), _ELEMENTS) for made in self.made)
            numbers["outputs"] = [one for outputs in called for one in outputs]
            for told in [told for each in switches.on for told in each.stepping]:
                for one in optimizers:
                    told(one)
            updated = [one for one in parameters_of(switches.optimizers) if one.grad is not None]
            numbers["gradients"] = sampled([one.grad for one in updated], _OF_PARAMETER)
            if gradients is None:
                gradients = [one.grad.detach().clone() for one in updated]
            elif len(gradients) == len(updated):
                for one, given in zip(updated, gradients, strict=True):
                    one.grad.copy_(given)
            before = sampled(updated, _OF_PARAMETER)
            for one in optimizers:
                if inspect.signature(one.step).parameters["closure"].default is None:
                    one.step()  # others call the program
            after = sampled(updated, _OF_PARAMETER)
            numbers["updates"] = [new - old for new, old in zip(after, before, strict=True)]
        return list(gradients)

    @contextmanager
    def _alone(self, optimizers: Sequence[Any], *, calm: bool) -> Iterator[None]:
        """Without the program's own hooks on optimizers, which may count, or average weights."""
        modules = [one for model in list(self._switches.models.values()) for one in model.modules()]
        awake = [one for one in modules if calm and one.training and not hasattr(one, "running_mean")]
        hooks = [(one, one._optimizer_step_pre_hooks, one._optimizer_step_post_hooks) for one in optimizers]
        self._switches.is_replaying = True
        try:
            for one in optimizers:
                one._optimizer_step_pre_hooks, one._optimizer_step_post_hooks = {}, {}
            for one in awake:
                one.training = False
            yield
        finally:
            self._switches.is_replaying = False
            for one, pre, post in hooks:
                one._optimizer_step_pre_hooks, one._optimizer_step_post_hooks = pre, post
            for one in awake:
                one.training = True

    def _call(self, made: _Made) -> list[Any]:
        torch, (device, dtype, is_on) = self._torch, made.autocast
        _set_random(torch, made.random)
        self._switches.calls.watch()
        args, kwargs = _apart_from(made.inputs)
        with torch.set_grad_enabled(made.grad_enabled), torch.autocast(device, dtype, is_on):
            outputs = floats_of(made.model(*args, **kwargs))
        known = [one.shape for one in outputs]
        fits = all(place < len(known) and one.shape == known[place] for place, one in made.gradients.items())
        sent = [(outputs[place] * grad).sum() for place, grad in made.gradients.items() if fits]
        if sent:  # what the loss would send back
            sum(sent[1:], sent[0]).backward()
        return outputs


def sampled(tensors: Sequence[Any], most: int) -> list[Any]:
    """Values of tensors, at most about so many of each, evenly picked.

    All are read at once: each reading waits for the device, a time slice beside another process.
    """
    flat = [one.detach().reshape(-1) for one in tensors]
    picked = [one[:: max(1, len(one) // most)].double() for one in flat]
    if not picked:
        return []
    whole = sys.modules["torch"].cat([one.to(picked[0].device) for one in picked]).cpu().numpy()
    return list(np.split(whole, np.cumsum([len(one) for one in picked])[:-1]))


def _apart_from(inputs: Any) -> Any:
    """Inputs that share no memory with these; so do objects that a call changes, such as caches of keys."""
    try:
        return copy.deepcopy(inputs, {id(one): copied(one) for one in tensors_of(inputs)})
    except Exception:  # noqa: BLE001 - not every object can be copied
        return map_tensors(copied, inputs)


class Snapshot:
    """Parameters, buffers, gradients, states of optimizers, plain attributes of modules, random numbers."""

    def __init__(self, switches: Switches) -> None:
        torch = self._torch = switches.torch
        modules = {id(one): one for model in list(switches.models.values()) for one in model.modules()}
        self._plain = [
            (one, {name: value for name, value in vars(one).items() if isinstance(value, PLAIN)},
             dict(one._buffers))
            for one in modules.values()
        ]  # fmt: skip
        own = [one for module in modules.values() for one in module.parameters(recurse=False)]
        every = {id(one): one for one in (*own, *parameters_of(switches.optimizers))}
        self._gradients = [(one, one.grad) for one in every.values()]
        self._states = [
            (one, [(of, dict(state)) for of, state in one.state.items()],
             [dict(group) for group in one.param_groups])
            for one in switches.optimizers.values()
        ]  # fmt: skip
        tensors = [*every.values(), *(one for _, one in self._gradients)]
        tensors += [one for *_, buffers in self._plain for one in buffers.values()]
        tensors += [one for _, states, _ in self._states for _, state in states for one in state.values()]
        self._copies = [(one, _copy(one)) for one in tensors if isinstance(one, torch.Tensor)]
        self._random = _random_state(torch)

    def restore(self) -> None:
        for one, kept in self._copies:
            one.data.copy_(kept)  # through .data: no version counter moves
        for one, gradient in self._gradients:
            one.grad = gradient
        for module, plain, buffers in self._plain:
            vars(module).update(plain)
            if type(module._buffers) is dict:  # TorchScript's own keeps its tensors
                module._buffers.update(buffers)
        for optimizer, states, groups in self._states:
            optimizer.state.clear()
            optimizer.state.update({of: dict(state) for of, state in states})
            for group, old in zip(optimizer.param_groups, groups, strict=False):
                group.update(old)
        _set_random(self._torch, self._random)


def _copy(one: Any) -> Any:
    try:
        return one.detach().clone()
    except RuntimeError:  # the device has no room for a second one
        return one.detach().cpu()


def perturb(switches: Switches, rounding: float) -> None:
    """Move each weight by one rounding, up or down."""
    torch, models = switches.torch, list(switches.models.values())
    for one in {id(one): one for model in models for one in model.parameters()}.values():
        if one.is_floating_point():
            one.data.mul_(1 + rounding * torch.empty_like(one).bernoulli_().mul_(2).sub_(1))


def compare(
    ours: Numbers, base: Numbers, again: Numbers, perturbed: Numbers, rounding: float
) -> tuple[Correctness, str]:
    """How the numbers with a change lie to those without, and what that rests on."""
    if not any(base.values()):
        return Correctness.UNKNOWN, "no output, gradient or update was seen"
    rounding, worst, words = max(rounding, LEAST_ROUNDING), 0.0, ""
    for kind, theirs in base.items():
        far, scale = _apart(ours.get(kind, []), theirs)
        noise, carried = (_apart(one.get(kind, []), theirs)[0] for one in (again, perturbed))
        allowed = max(_OF_ROUNDING * rounding, _OF_AGAIN * noise, _OF_PERTURBED * carried)
        of_scale = max(_OF_SCALE * rounding, _OF_AGAIN * noise)
        if not far <= allowed:
            return Correctness.CHANGED, f"{kind} differ by {far:.2g}, {allowed:.2g} is rounding"
        if not scale <= of_scale:
            return (
                Correctness.CHANGED,
                f"{kind} are {scale:.2g} larger or smaller, {of_scale:.2g} is rounding",
            )
        if far > worst:
            worst, words = far, f"{kind} differ by {far:.2g} of {allowed:.2g}"
    same = Correctness.IDENTICAL, "all numbers are the same"
    return (Correctness.WITHIN_ROUNDING, words) if worst else same


def _apart(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[float, float]:
    """Relative distance of two lists of arrays, and how far the scale of the first is from the second's."""
    ours, theirs = (list(map(np.atleast_1d, side)) for side in (ours, theirs))
    if [one.shape for one in ours] != [one.shape for one in theirs]:
        return math.inf, math.inf
    finite = [np.isfinite(one) for one in theirs]
    if not all((np.isfinite(one) == mask).all() for one, mask in zip(ours, finite, strict=True)):
        return math.inf, math.inf
    pairs = [(one[mask], other[mask]) for one, other, mask in zip(ours, theirs, finite, strict=True)]
    distance = float(sum(np.dot(a - b, a - b) for a, b in pairs))
    product, size = (float(sum(np.dot(pair[of], pair[1]) for pair in pairs)) for of in (0, 1))
    if not distance:
        return 0.0, 0.0
    return (math.sqrt(distance / size), abs(product / size - 1)) if size else (math.inf, math.inf)


def floats_of(value: Any) -> list[Any]:
    return [one for one in tensors_of(value) if one.is_floating_point()]


def _random_state(torch: Any) -> tuple[Any, ...]:
    on_device = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), on_device, random.getstate(), numpy and numpy.random.get_state()


def _set_random(torch: Any, state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
    random.setstate(state[2])
    if state[3]:
        sys.modules["numpy"].random.set_state(state[3])
