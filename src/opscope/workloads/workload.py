"""What a workload is: options, a spec that builds one, the built thing with its `step()`, steps of models.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opscope.errors import InputError
from opscope.workloads.runtime import require_torch

_HEAD_SIZE = 64


@dataclass(frozen=True)
class WorkloadOptions:
    """How to build a workload.

    Args:
        dtype: float32, float16 or bfloat16 (also fp32, fp16, bf16): of parameters and of floating-point
            inputs.
        device: auto, cpu, cuda or cuda:N.
        attn_implementation: `"eager"` (matmul, softmax, matmul) or `"sdpa"` (the fused operator).
        train: A step is forward, loss, backward and an AdamW step; otherwise a forward in inference mode.
        layers: Number of layers; the workload's own if None.
        hidden: Hidden size; the workload's own if None.
        use_real_bert: `bert` is transformers' BertModel instead of the plain one.
        weights: Checkpoint of the real BERT, a hub name or a local folder; randomly initialized if None.
        seed: Of parameters and inputs.
    """

    dtype: str = "float32"
    device: str = "auto"
    attn_implementation: str = "sdpa"
    train: bool = False
    layers: int | None = None
    hidden: int | None = None
    use_real_bert: bool = False
    weights: str | None = None
    seed: int = 0

    def described(self, batch_size: int, seq_len: int) -> dict[str, Any]:
        """What these options say of a workload, as part of its description."""
        return {
            "batch_size": batch_size,
            "seq_len": seq_len,
            "dtype": self.dtype,
            "device": self.device,
            "attn_implementation": self.attn_implementation,
            "train": self.train,
        }


@dataclass(frozen=True)
class Workload:
    """A program to profile.

    Args:
        step: Does one step and does not wait for the device.
        device: Where its work runs: `"cpu"` or `"cuda:N"`.
        parameter_count: Of the model; None where there is no model to ask.
        description: What it is, in JSON types; goes into the recording's sidecar.
    """

    step: Callable[[], object]
    device: str
    parameter_count: int | None = None
    description: dict[str, Any] = field(default_factory=dict)


Builder = Callable[[WorkloadOptions, int, int], Workload]


@dataclass(frozen=True)
class WorkloadSpec:
    """A workload whose options are settled and whose batch is not.

    Args:
        name: As the user wrote it.
        options: With the concrete device and the full dtype name.
        builder: Builds it for a batch size and a sequence length.
    """

    name: str
    options: WorkloadOptions
    builder: Builder

    def build(self, batch_size: int, seq_len: int) -> Workload:
        """The workload for a batch of sequences.

        Raises:
            InputError: It cannot be built with these options.
            DependencyError: It needs a package that is not installed.
        """
        if batch_size < 1 or seq_len < 1:
            raise InputError(
                f"batch size {batch_size} with sequence length {seq_len} is not a batch",
                hint="Both start at 1",
            )
        return self.builder(self.options, batch_size, seq_len)


def count_parameters(model: Any) -> int:
    """Number of parameters of an `nn.Module`, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def head_count(hidden: int, *, multiple: int = 1) -> int:
    """Heads of a hidden size, which has to be a multiple of so many times their number.

    Raises:
        InputError: It is not.
    """
    heads = max(1, hidden // _HEAD_SIZE)
    if hidden % (multiple * heads):
        raise InputError(
            f"a hidden size of {hidden} does not split into heads of {_HEAD_SIZE}",
            hint=f"Use a multiple of {_HEAD_SIZE}",
        )
    return heads


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
