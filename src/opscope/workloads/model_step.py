"""One step of a model: a forward in inference mode, or a whole training step with AdamW.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opscope.workloads.runtime import require_torch

__all__ = ["count_parameters", "inference_step", "training_step"]


def count_parameters(model: Any) -> int:
    """Number of parameters of an `nn.Module`, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def inference_step(model: Any, forward: Callable[[], object]) -> Callable[[], object]:
    """A step that runs `forward` in inference mode; `model` is put into eval mode."""
    torch = require_torch()
    model.eval()

    def step() -> object:
        with torch.inference_mode():
            return forward()

    return step


def training_step(model: Any, loss: Callable[[], Any]) -> Callable[[], object]:
    """A step that computes `loss`, runs backward, AdamW, and drops the gradients; returns the loss."""
    torch = require_torch()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> object:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step
