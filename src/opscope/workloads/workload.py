"""A workload: a thing with one `step()`, what is asked of it, and what builds it. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opscope.errors import InputError
from opscope.workloads.runtime import require_torch


@dataclass(frozen=True)
class WorkloadOptions:
    # Of parameters and floating-point inputs; float16 or bfloat16, also fp32, fp16, bf16
    dtype: str = "float32"
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    attn_implementation: str = "sdpa"  # the fused operator, or "eager": matmul, softmax, matmul
    train: bool = False  # a step is forward, loss, backward and AdamW; else a forward in inference mode
    layers: int | None = None  # None: the workload's own
    hidden: int | None = None
    use_real_bert: bool = False  # `bert` is transformers' BertModel instead of the plain one
    weights: str | None = None  # checkpoint of the real BERT, a hub name or a local folder; None: random
    seed: int = 0  # of parameters and inputs

    def described(self, batch_size: int, seq_len: int) -> dict[str, Any]:
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
    step: Callable[[], object]  # does one step and does not wait for the device
    device: str  # where its work runs: "cpu" or "cuda:N"
    parameter_count: int | None = None  # None where there is no model to ask
    description: dict[str, Any] = field(default_factory=dict)  # in JSON types, for the recording's sidecar


Builder = Callable[[WorkloadOptions, int, int], Workload]


@dataclass(frozen=True)
class WorkloadSpec:
    """A workload whose options are settled (concrete device, full dtype name) and whose batch is not."""

    name: str
    options: WorkloadOptions
    builder: Builder

    def build(self, batch_size: int, seq_len: int) -> Workload:
        if batch_size < 1 or seq_len < 1:
            raise InputError(
                f"batch size {batch_size} with sequence length {seq_len} is not a batch",
                hint="Both start at 1",
            )
        return self.builder(self.options, batch_size, seq_len)


def model_workload(
    model: Any, run: Callable[[], Any], options: WorkloadOptions, description: dict[str, Any]
) -> Workload:
    """A model's steps: `run` in inference mode; when training, `run` is its loss, which AdamW then lowers."""
    torch = require_torch()
    if options.train:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        model.eval()

    def infer() -> object:
        with torch.inference_mode():
            return run()

    def train() -> object:
        loss = run()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    count = sum(parameter.numel() for parameter in model.parameters())  # tied ones once
    step = train if options.train else infer
    return Workload(step, options.device, count, {**description, "parameters": count})
