"""The built-in models: BERT-base, plain or transformers' BertModel, and torch's own Transformer encoder.

Both read random token ids without padding; nothing is downloaded unless `weights` asks for it. BERT has
109,482,240 parameters at its own size either way, and training it fits a two-class classifier on the pooled
output. The Transformer's layers run as one fused operator each in inference
(`aten::_transformer_encoder_layer_fwd`); its training predicts every token of the vocabulary. Imports torch,
so it is imported where one is built.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from opscope.errors import DependencyError, InputError
from opscope.workloads.runtime import seeded
from opscope.workloads.workload import Workload, WorkloadOptions, model_workload

_CLASS_COUNT = 2
_HEAD_SIZE = 64
# BERT-base, uncased. Source: Devlin et al. 2019, arXiv:1810.04805, section 3; google-bert/bert-base-uncased,
# config.json.
_LAYERS, _HIDDEN, _VOCABULARY, _POSITIONS, _TOKEN_TYPES = 12, 768, 30522, 512, 2
_DROPOUT, _NORM_EPS = 0.1, 1e-12


class BertEmbeddings(nn.Module):  # type: ignore[misc]
    def __init__(self, hidden: int, max_positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, hidden, padding_idx=0)
        self.positions = nn.Embedding(max_positions, hidden)
        self.token_types = nn.Embedding(_TOKEN_TYPES, hidden)
        self.norm = nn.LayerNorm(hidden, eps=_NORM_EPS)
        self.dropout = nn.Dropout(_DROPOUT)
        self.register_buffer("position_ids", torch.arange(max_positions), persistent=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        position_ids = self.position_ids[: token_ids.shape[1]]
        segments = self.token_types(torch.zeros_like(token_ids))
        return self.dropout(self.norm(self.tokens(token_ids) + segments + self.positions(position_ids)))


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Multi-head attention; "eager" shows its matmul, softmax and dropout as operators."""

    def __init__(self, hidden: int, heads: int, *, eager: bool) -> None:
        super().__init__()
        self.heads, self.head_size, self.eager = heads, hidden // heads, eager
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (
            part(hidden).unflatten(-1, (self.heads, self.head_size)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if self.eager:
            scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.head_size)
            weights = nn.functional.softmax(scores, dim=-1)
            weights = nn.functional.dropout(weights, _DROPOUT, self.training)
            attended = torch.matmul(weights, value)
        else:
            dropout_p = _DROPOUT if self.training else 0.0
            attended = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p)
        return attended.transpose(1, 2).reshape(hidden.shape)


class BertLayer(nn.Module):  # type: ignore[misc]
    def __init__(self, hidden: int, heads: int, *, eager: bool) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden, heads, eager=eager)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=_NORM_EPS)
        self.feed_forward = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )
        self.output_norm = nn.LayerNorm(hidden, eps=_NORM_EPS)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden + self.dropout(self.attention_output(self.attention(hidden))))
        return self.output_norm(hidden + self.dropout(self.feed_forward(hidden)))


class Bert(nn.Module):  # type: ignore[misc]
    """(batch, seq) token ids to last hidden state (batch, seq, hidden) and pooled (batch, hidden).

    With a number of classes, to a linear classifier's output on the pooled state. Layer order and parameter
    shapes are those of transformers' BertModel.
    """

    def __init__(
        self,
        layers: int = _LAYERS,
        hidden: int = _HIDDEN,
        max_positions: int = _POSITIONS,
        attn_implementation: str = "sdpa",
        class_count: int | None = None,
    ) -> None:
        super().__init__()
        heads, eager = _head_count(hidden), attn_implementation == "eager"
        self.embeddings = BertEmbeddings(hidden, max_positions)
        self.encoder = nn.ModuleList(BertLayer(hidden, heads, eager=eager) for _ in range(layers))
        self.pooler = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh())
        self.classifier: Any = None
        self.apply(_initialize)
        if class_count is not None:
            self.classifier = nn.Sequential(nn.Dropout(_DROPOUT), nn.Linear(hidden, class_count))

    def forward(self, token_ids: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        hidden = self.embeddings(token_ids)
        for layer in self.encoder:
            hidden = layer(hidden)
        pooled = self.pooler(hidden[:, 0])
        return (hidden, pooled) if self.classifier is None else self.classifier(pooled)


def _initialize(module: nn.Module) -> None:
    """BERT's normal(0, 0.02), so that activations stay finite in every dtype."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class Transformer(nn.Module):  # type: ignore[misc]
    """Token embedding plus sinusoidal positions, `nn.TransformerEncoder`, an output tied to the embedding.

    Source: Vaswani et al. 2017, arXiv:1706.03762, table 3 (the default sizes), sections 3.5 and 5.1 (37,000
    tokens).
    """

    vocabulary = 37000

    def __init__(self, layers: int, hidden: int, heads: int, max_positions: int) -> None:
        super().__init__()
        self.scale = math.sqrt(hidden)
        self.embedding = nn.Embedding(self.vocabulary, hidden)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        positions = torch.arange(max_positions, dtype=torch.float32).unsqueeze(1)
        rates = torch.exp(torch.arange(0, hidden, 2, dtype=torch.float32) * (-math.log(10000.0) / hidden))
        angles = positions * rates
        sinusoids = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        self.register_buffer("positions", sinusoids, persistent=False)
        self.dropout = nn.Dropout(_DROPOUT)
        layer = nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, _DROPOUT, batch_first=True)
        # Nested tensors only help padded batches; here every sequence is whole.
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        embedded = self.embedding(token_ids) * self.scale + self.positions[: token_ids.shape[1]]
        return self.encoder(self.dropout(embedded))

    def loss(self, token_ids: Tensor, targets: Tensor) -> Tensor:
        logits = nn.functional.linear(self(token_ids), self.embedding.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build_bert(options: WorkloadOptions, batch_size: int, seq_len: int) -> Workload:
    is_real = options.use_real_bert or options.weights is not None
    layers, hidden = options.layers or _LAYERS, options.hidden or _HIDDEN
    # A longer sequence needs a longer position table; its parameters show in the description.
    sizes = (layers, hidden, max(_POSITIONS, seq_len))
    with seeded(options.seed, options.device):
        if is_real:
            model = _real_bert(*sizes, options, seq_len)
        else:
            model = Bert(*sizes, options.attn_implementation, _CLASS_COUNT if options.train else None)
        vocabulary = model.config.vocab_size if is_real else _VOCABULARY
        model.to(device=options.device, dtype=getattr(torch, options.dtype))
        token_ids = torch.randint(vocabulary, (batch_size, seq_len), device=options.device)
        labels = torch.randint(_CLASS_COUNT, (batch_size,), device=options.device) if options.train else None

        def run() -> Any:
            if labels is None:
                return model(token_ids)
            if is_real:
                return model(token_ids, labels=labels).loss
            return nn.functional.cross_entropy(model(token_ids), labels)

        description = {
            "workload": "bert",
            "implementation": "transformers" if is_real else "plain",
            "weights": options.weights,
            **options.described(batch_size, seq_len),
            "layers": model.config.num_hidden_layers if is_real else layers,
            "hidden": model.config.hidden_size if is_real else hidden,
        }
        return model_workload(model, run, options, description)


def _real_bert(layers: int, hidden: int, max_positions: int, options: WorkloadOptions, seq_len: int) -> Any:
    try:
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise DependencyError(
            "The real BERT needs transformers", hint="pip install 'opscope[transformers]'"
        ) from error
    kind = transformers.BertForSequenceClassification if options.train else transformers.BertModel
    weights = options.weights
    if weights is None:
        config = transformers.BertConfig(
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=_head_count(hidden),
            intermediate_size=4 * hidden,
            max_position_embeddings=max_positions,
            attn_implementation=options.attn_implementation,
        )
        return kind(config)
    if options.layers is not None or options.hidden is not None:
        raise InputError(f"the checkpoint '{weights}' has its own size", hint="Leave out layers and hidden")
    try:
        model = kind.from_pretrained(weights, attn_implementation=options.attn_implementation)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the checkpoint '{weights}' cannot be loaded ({reason})",
            hint="Check the name and the connection, give a local folder, or leave out --weights",
        ) from error
    available = model.config.max_position_embeddings
    if seq_len > available:
        raise InputError(
            f"the checkpoint '{weights}' reads at most {available} tokens", hint="Shorten the sequence"
        )
    return model


def build_transformer(options: WorkloadOptions, batch_size: int, seq_len: int) -> Workload:
    if options.attn_implementation != "sdpa":
        raise InputError(
            "nn.TransformerEncoder has no eager attention",
            hint="Use sdpa, or profile 'bert' with eager attention",
        )
    layers, hidden = options.layers or 6, options.hidden or 512
    heads = _head_count(hidden, multiple=2)  # positions are pairs of a sine and a cosine
    with seeded(options.seed, options.device):
        model = Transformer(layers, hidden, heads, seq_len)
        model.to(device=options.device, dtype=getattr(torch, options.dtype))
        shape = (batch_size, seq_len)
        token_ids = torch.randint(model.vocabulary, shape, device=options.device)
        targets = torch.randint(model.vocabulary, shape, device=options.device) if options.train else None
    description = {
        "workload": "transformer",
        **options.described(batch_size, seq_len),
        "layers": layers,
        "hidden": hidden,
    }

    def run() -> Any:
        return model(token_ids) if targets is None else model.loss(token_ids, targets)

    return model_workload(model, run, options, description)


def _head_count(hidden: int, *, multiple: int = 1) -> int:
    """Heads of a hidden size, which has to be a multiple of so many times their number."""
    heads = max(1, hidden // _HEAD_SIZE)
    if hidden % (multiple * heads):
        raise InputError(
            f"a hidden size of {hidden} does not split into heads of {_HEAD_SIZE}",
            hint=f"Use a multiple of {_HEAD_SIZE}",
        )
    return heads
