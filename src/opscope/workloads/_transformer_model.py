"""A token model around `nn.TransformerEncoder`. Imports torch, so only builders import this module."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from opscope.workloads.transformer import TransformerConfig


class Transformer(nn.Module):  # type: ignore[misc]
    """Token embedding plus sinusoidal positions, encoder, and an output layer tied to the embedding."""

    def __init__(self, config: TransformerConfig, max_positions: int) -> None:
        super().__init__()
        self.scale = math.sqrt(config.hidden)
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        self.register_buffer("positions", _sinusoids(max_positions, config.hidden), persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        layer = nn.TransformerEncoderLayer(
            config.hidden, config.heads, config.feed_forward, config.dropout, batch_first=True
        )
        # Nested tensors only help padded batches; here every sequence is whole.
        self.encoder = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """(batch, seq) token ids to (batch, seq, hidden)."""
        embedded = self.embedding(token_ids) * self.scale + self.positions[: token_ids.shape[1]]
        return self.encoder(self.dropout(embedded))

    def loss(self, token_ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of predicting `targets`, one per token."""
        logits = nn.functional.linear(self(token_ids), self.embedding.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _sinusoids(length: int, hidden: int) -> Tensor:
    """Positions as interleaved sines and cosines, (length, hidden).

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    positions = torch.arange(length, dtype=torch.float32).unsqueeze(1)
    rates = torch.exp(torch.arange(0, hidden, 2, dtype=torch.float32) * (-math.log(10000.0) / hidden))
    angles = positions * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
