"""`transformer`: torch's own `nn.TransformerEncoder` with the sizes of the original base model.

In inference its layers run as one fused operator each (`aten::_transformer_encoder_layer_fwd`), the path most
users of that module get. Training predicts every token of the vocabulary. Importing this module does not
import torch.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from opscope.errors import InputError
from opscope.workloads.runtime import require_torch, seeded
from opscope.workloads.workload import (
    Workload,
    WorkloadOptions,
    count_parameters,
    head_count,
    inference_step,
    training_step,
)


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of the encoder; the defaults are the base model.

    Source: Vaswani et al. 2017, arXiv:1706.03762, table 3 and section 5.1 (37,000 tokens).
    """

    layers: int = 6
    hidden: int = 512
    heads: int = 8
    feed_forward: int = 2048
    vocabulary: int = 37000
    dropout: float = 0.1


def build_transformer(options: WorkloadOptions, batch_size: int, seq_len: int) -> Workload:
    """The encoder on a batch of random token ids.

    Raises:
        InputError: The hidden size has no whole number of heads, or eager attention was asked for.
    """
    torch = require_torch()
    config = _config(options)
    with seeded(options.seed, options.device):
        model = importlib.import_module("opscope.workloads._transformer_model").Transformer(config, seq_len)
        model.to(device=options.device, dtype=getattr(torch, options.dtype))
        shape = (batch_size, seq_len)
        token_ids = torch.randint(config.vocabulary, shape, device=options.device)
        if options.train:
            targets = torch.randint(config.vocabulary, shape, device=options.device)
            step = training_step(model, lambda: model.loss(token_ids, targets))
        else:
            step = inference_step(model, lambda: model(token_ids))
    parameter_count = count_parameters(model)
    description = {
        "workload": "transformer",
        **options.described(batch_size, seq_len),
        "layers": config.layers,
        "hidden": config.hidden,
        "parameters": parameter_count,
    }
    return Workload(step, options.device, parameter_count, description)


def _config(options: WorkloadOptions) -> TransformerConfig:
    if options.attn_implementation != "sdpa":
        raise InputError(
            "nn.TransformerEncoder has no eager attention",
            hint="Use sdpa, or profile 'bert' with eager attention",
        )
    hidden = options.hidden or TransformerConfig.hidden
    return TransformerConfig(
        layers=options.layers or TransformerConfig.layers,
        hidden=hidden,
        heads=head_count(hidden, multiple=2),  # positions are pairs of a sine and a cosine
        feed_forward=4 * hidden,
    )
