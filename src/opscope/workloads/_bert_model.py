"""The BERT encoder in plain torch. Imports torch, so only builders import this module.

Post-layer-norm encoder without an attention mask: every sequence is as long as the batch. The two attention
paths compute the same function; "eager" shows its matmul, softmax and dropout as operators of their own.

Source: Devlin et al. 2019, arXiv:1810.04805; layer order and parameter shapes as in transformers' BertModel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from opscope.workloads.bert import BertConfig


class BertEmbeddings(nn.Module):  # type: ignore[misc]
    """Token, position and segment embeddings, summed and normalized."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden, padding_idx=0)
        self.positions = nn.Embedding(config.max_positions, config.hidden)
        self.token_types = nn.Embedding(config.token_types, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("position_ids", torch.arange(config.max_positions), persistent=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """(batch, seq) token ids to (batch, seq, hidden)."""
        position_ids = self.position_ids[: token_ids.shape[1]]
        segments = self.token_types(torch.zeros_like(token_ids))
        return self.dropout(self.norm(self.tokens(token_ids) + segments + self.positions(position_ids)))


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Multi-head attention, composed or fused."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_size = config.hidden // config.heads
        self.dropout_p = config.dropout
        self.eager = config.attn_implementation == "eager"
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same shape."""
        query, key, value = (self._split(part(hidden)) for part in (self.query, self.key, self.value))
        attend = self._composed if self.eager else self._fused
        return attend(query, key, value).transpose(1, 2).reshape(hidden.shape)

    def _split(self, projected: Tensor) -> Tensor:
        """(batch, seq, hidden) to (batch, heads, seq, head_size)."""
        return projected.unflatten(-1, (self.heads, self.head_size)).transpose(1, 2)

    def _composed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.head_size)
        weights = nn.functional.softmax(scores, dim=-1)
        weights = nn.functional.dropout(weights, self.dropout_p, self.training)
        return torch.matmul(weights, value)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        dropout_p = self.dropout_p if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p)


class BertLayer(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward, each with dropout, residual and layer norm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_output = nn.Linear(config.hidden, config.hidden)
        self.attention_norm = nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden, config.intermediate)
        self.activation = nn.GELU()
        self.output = nn.Linear(config.intermediate, config.hidden)
        self.output_norm = nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same shape."""
        attended = self.dropout(self.attention_output(self.attention(hidden)))
        hidden = self.attention_norm(hidden + attended)
        fed = self.dropout(self.output(self.activation(self.intermediate(hidden))))
        return self.output_norm(hidden + fed)


class BertPooler(nn.Module):  # type: ignore[misc]
    """A dense layer on the first token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden, config.hidden)
        self.activation = nn.Tanh()

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, seq, hidden) to (batch, hidden)."""
        return self.activation(self.dense(hidden[:, 0]))


class Bert(nn.Module):  # type: ignore[misc]
    """Embeddings, encoder layers, pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.encoder = nn.ModuleList(BertLayer(config) for _ in range(config.layers))
        self.pooler = BertPooler(config)
        self.apply(_initialize)

    def forward(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, seq) token ids to last hidden state (batch, seq, hidden) and pooled (batch, hidden)."""
        hidden = self.embeddings(token_ids)
        for layer in self.encoder:
            hidden = layer(hidden)
        return hidden, self.pooler(hidden)


class BertClassifier(nn.Module):  # type: ignore[misc]
    """A linear classifier on BERT's pooled output."""

    def __init__(self, config: BertConfig, class_count: int) -> None:
        super().__init__()
        self.bert = Bert(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden, class_count)

    def forward(self, token_ids: Tensor) -> Tensor:
        """(batch, seq) token ids to logits (batch, class_count)."""
        _, pooled = self.bert(token_ids)
        return self.classifier(self.dropout(pooled))


def _initialize(module: nn.Module) -> None:
    """BERT's normal(0, 0.02), so that activations stay finite in every dtype."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
