"""Switches of changes within one running script: blocks of steps with and without each take turns.

Imported by the edited scripts of `trials`, which call `step` where one of their steps begins. Switched here
are tf32, bf16 (autocast around the whole step) and fused (the form of every optimizer); others ask `is_on`.
Prints `BLOCKS [[change, seconds of a step], …]` and ends the process when it has measured enough.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

CHANGES: list[str] = json.loads(os.environ["FIELD_CHANGES"])
BLOCK, LEAD_IN = int(os.environ["FIELD_BLOCK"]), int(os.environ["FIELD_LEAD_IN"])
# Not counting the first, which warms up and is thrown away; FIELD_ROUNDS are fewer, for slow hosts.
FEWEST_ROUNDS, MOST_ROUNDS, ENOUGH_S = int(os.environ.get("FIELD_ROUNDS", "9")), 25, 25.0


class _State:
    """Where the script stands; `change` is the one that is on, or empty."""

    step, change = -1, ""
    began = block_began = time.perf_counter()


_blocks: list[tuple[str, float]] = []
_optimizers: list[torch.optim.Optimizer] = []
_init = torch.optim.Optimizer.__init__


def _noting_init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    _optimizers.append(self)


torch.optim.Optimizer.__init__ = _noting_init  # type: ignore[method-assign]


def is_on(change: str) -> bool:
    """Whether a change is on in this step."""
    return _State.change == change


def endless(loader: Iterable[Any], **of_changes: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The batches of a loader again and again; a step begins by asking for the next one.

    Args:
        loader: That of the script.
        of_changes: Make the loaders of changes by name (with _ for .), each anew where its block begins.
    """
    own, special, change = iter(loader), None, ""
    while True:
        step()
        make = of_changes.get(_State.change.replace(".", "_"))
        if _State.change != change:
            change, special = _State.change, None if make is None else iter(make())
        batch = next(own if special is None else special, None)
        if batch is None and special is None:
            own = iter(loader)
            batch = next(own)
        elif batch is None and make is not None:
            special = iter(make())
            batch = next(special)
        yield batch


def step() -> None:
    """Begin a step; at the ends of lead-in and block the device is waited for."""
    _State.step += 1
    at = _State.step % BLOCK
    if at == LEAD_IN or (at == 0 and _State.step):
        torch.cuda.synchronize()
        now = time.perf_counter()
        if at == 0:
            _blocks.append((_State.change, (now - _State.block_began) / (BLOCK - LEAD_IN)))
        _State.block_began = now
    if at == 0:
        _choose(_State.step // BLOCK)
    if "bf16" in CHANGES:
        # Casts of weights are kept until autocast ends, which it does at no step.
        torch.clear_autocast_cache()


def _choose(block: int) -> None:
    """Blocks without a change stand between those with one."""
    rounds = block / (2 * len(CHANGES)) - 1
    is_enough = rounds >= FEWEST_ROUNDS and time.perf_counter() - _State.began > ENOUGH_S
    if block % 2 and (is_enough or rounds >= MOST_ROUNDS):
        print("BLOCKS", json.dumps(_blocks), flush=True)
        os._exit(0)
    _State.change = CHANGES[block // 2 % len(CHANGES)] if block % 2 else ""
    if "tf32" in CHANGES:
        torch.backends.cuda.matmul.allow_tf32 = is_on("tf32")
    if "bf16" in CHANGES:
        torch.set_autocast_enabled("cuda", is_on("bf16"))
        torch.set_autocast_dtype("cuda", torch.bfloat16)
    if "fused" in CHANGES:
        for optimizer in _optimizers:
            _fuse(optimizer, is_on("fused"))


def _fuse(optimizer: torch.optim.Optimizer, is_fused: bool) -> None:
    """Its next steps are fused, or as the script has them; the count of steps lies where that form looks."""
    for group in optimizer.param_groups:
        if "fused" not in group:
            continue
        group["fused"] = is_fused or group.setdefault("field_own", group["fused"])
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(parameter.device if group["fused"] else "cpu")
