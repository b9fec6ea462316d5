"""`bert`: BERT-base in plain torch, or transformers' BertModel.

Both have 109,482,240 parameters at their own size and read random token ids without padding; nothing is
downloaded unless `weights` asks for it. Training fits a two-class classifier on the pooled output, the usual
fine-tuning task. Importing this module does not import torch.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from opscope.errors import DependencyError, InputError
from opscope.workloads.runtime import require_torch, seeded
from opscope.workloads.workload import (
    Workload,
    WorkloadOptions,
    count_parameters,
    head_count,
    inference_step,
    training_step,
)

_CLASS_COUNT = 2


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT encoder; the defaults are BERT-base, uncased.

    Source: Devlin et al. 2019, arXiv:1810.04805, section 3; google-bert/bert-base-uncased, config.json.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    vocabulary: int = 30522
    max_positions: int = 512
    token_types: int = 2
    dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    attn_implementation: str = "sdpa"


def build_bert(options: WorkloadOptions, batch_size: int, seq_len: int) -> Workload:
    """BERT on a batch of random token ids.

    Raises:
        InputError: The hidden size has no whole number of heads, or the checkpoint cannot be loaded.
        DependencyError: The real BERT needs transformers.
    """
    real = options.use_real_bert or options.weights is not None
    config = _config(options, seq_len)
    with seeded(options.seed, options.device):
        model = _real_bert(config, options, seq_len) if real else _plain_bert(config, train=options.train)
        vocabulary = model.config.vocab_size if real else config.vocabulary
        workload_step = _step(model, options, (batch_size, seq_len), vocabulary, real=real)
    parameter_count = count_parameters(model)
    description = {
        "workload": "bert",
        "implementation": "transformers" if real else "plain",
        "weights": options.weights,
        **options.described(batch_size, seq_len),
        "layers": model.config.num_hidden_layers if real else config.layers,
        "hidden": model.config.hidden_size if real else config.hidden,
        "parameters": parameter_count,
    }
    return Workload(workload_step, options.device, parameter_count, description)


def _config(options: WorkloadOptions, seq_len: int) -> BertConfig:
    hidden = options.hidden or BertConfig.hidden
    return BertConfig(
        layers=options.layers or BertConfig.layers,
        hidden=hidden,
        heads=head_count(hidden),
        intermediate=4 * hidden,
        # A longer sequence needs a longer position table; its parameters show in the description.
        max_positions=max(BertConfig.max_positions, seq_len),
        attn_implementation=options.attn_implementation,
    )


def _plain_bert(config: BertConfig, *, train: bool) -> Any:
    module = importlib.import_module("opscope.workloads._bert_model")
    return module.BertClassifier(config, _CLASS_COUNT) if train else module.Bert(config)


def _step(
    model: Any, options: WorkloadOptions, shape: tuple[int, int], vocabulary: int, *, real: bool
) -> Any:
    torch = require_torch()
    model.to(device=options.device, dtype=getattr(torch, options.dtype))
    token_ids = torch.randint(vocabulary, shape, device=options.device)
    if not options.train:
        return inference_step(model, lambda: model(token_ids))
    labels = torch.randint(_CLASS_COUNT, shape[:1], device=options.device)
    if real:
        return training_step(model, lambda: model(token_ids, labels=labels).loss)
    return training_step(model, lambda: torch.nn.functional.cross_entropy(model(token_ids), labels))


def _real_bert(config: BertConfig, options: WorkloadOptions, seq_len: int) -> Any:
    try:
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise DependencyError(
            "The real BERT needs transformers", hint="pip install 'opscope[transformers]'"
        ) from error
    kind = transformers.BertForSequenceClassification if options.train else transformers.BertModel
    if options.weights is not None:
        return _checkpoint(kind, options.weights, options, seq_len)
    real_config = transformers.BertConfig(
        num_hidden_layers=config.layers,
        hidden_size=config.hidden,
        num_attention_heads=config.heads,
        intermediate_size=config.intermediate,
        max_position_embeddings=config.max_positions,
        attn_implementation=options.attn_implementation,
    )
    return kind(real_config)


def _checkpoint(kind: Any, weights: str, options: WorkloadOptions, seq_len: int) -> Any:
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
