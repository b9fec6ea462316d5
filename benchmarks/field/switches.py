"""Switches of changes within one running script: blocks of steps with and without each take turns.

Imported by the edited scripts of `trials`. The script calls `STEP()` where one of its steps begins; ON(NAME) is
whether a change is on in this step. Some are switched here: tf32, bf16 (autocast around the whole step), fused
(the form of every optimizer), cudnn_benchmark. Prints `BLOCKS [[arm, seconds of a step], …]` and ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

ARMS: list[str] = json.loads(os.environ["FIELD_ARMS"])
BLOCK, LEAD_IN = int(os.environ["FIELD_BLOCK"]), int(os.environ["FIELD_LEAD_IN"])
# The first round warms up and is thrown away.
FEWEST_ROUNDS, MOST_ROUNDS, ENOUGH_S = 5, 9, 25.0
_OPTIMIZERS: list[torch.optim.Optimizer] = []
_BLOCKS: list[tuple[str, float]] = []
_step, _arm = -1, ""
_block_began = _began = time.perf_counter()
_init = torch.optim.Optimizer.__init__


def _noting_init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    _OPTIMIZERS.append(self)


torch.optim.Optimizer.__init__ = _noting_init  # type: ignore[method-assign]


def ON(name: str) -> bool:
    """Whether a change is on in this step."""
    return _arm == name


def ENDLESS(loader: Iterable[Any], **of_arms: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The batches of a loader again and again; a step begins by asking for the next one.

    Args:
        of_arms: Make the loaders of changes by name (with _ for .), each anew where its block begins.
    """
    own, special, arm = iter(loader), None, ""
    while True:
        STEP()
        make = of_arms.get(_arm.replace(".", "_"))
        if _arm != arm:
            arm, special = _arm, None if make is None else iter(make())
        batch = next(own if special is None else special, None)
        if batch is None and special is None:
            own = iter(loader)
            batch = next(own)
        elif batch is None and make is not None:
            special = iter(make())
            batch = next(special)
        yield batch


def STEP() -> None:
    """Begin a step; at the ends of lead-in and block the device is waited for."""
    global _step, _arm, _block_began
    _step += 1
    at = _step % BLOCK
    if at == LEAD_IN or (at == 0 and _step):
        torch.cuda.synchronize()
        now = time.perf_counter()
        if at == 0:
            _BLOCKS.append((_arm, (now - _block_began) / (BLOCK - LEAD_IN)))
        _block_began = now
    if at == 0:
        _choose(_step // BLOCK)
    if "bf16" in ARMS:
        # Casts of weights are kept until autocast ends, which it does at no step.
        torch.clear_autocast_cache()


def _choose(block: int) -> None:
    """Blocks without a change stand between those with one."""
    global _arm
    rounds = block / (2 * len(ARMS))
    if rounds >= MOST_ROUNDS or (rounds >= FEWEST_ROUNDS and time.perf_counter() - _began > ENOUGH_S):
        if block % 2:
            print("BLOCKS", json.dumps(_BLOCKS), flush=True)
            sys.stdout.flush()
            os._exit(0)
    _arm = ARMS[block // 2 % len(ARMS)] if block % 2 else ""
    if "tf32" in ARMS:
        torch.backends.cuda.matmul.allow_tf32 = ON("tf32")
    if "bf16" in ARMS:
        torch.set_autocast_enabled("cuda", ON("bf16"))
        torch.set_autocast_dtype("cuda", torch.bfloat16)
    if "cudnn_benchmark" in ARMS:
        torch.backends.cudnn.benchmark = ON("cudnn_benchmark")
    if "fused" in ARMS:
        for optimizer in _OPTIMIZERS:
            _fuse(optimizer, ON("fused"))


def _fuse(optimizer: torch.optim.Optimizer, is_fused: bool) -> None:
    """Its next steps are fused or not; the count of steps lies where that form looks for it."""
    for group in optimizer.param_groups:
        if "fused" not in group:
            continue
        own = group.setdefault("field_own", group["fused"])
        group["fused"] = is_fused or own
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(parameter.device if group["fused"] else "cpu")
