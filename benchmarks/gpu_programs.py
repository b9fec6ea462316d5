"""Programs to advise on, and the changes that advice names, each made by hand: what `gpu_gains.py` times."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_setup import Step, as_it_is, captured, tf32

# timm models of products, of a fixed size
_OF_PATCHES = ("vit", "deit", "swin", "mixer_s", "beit", "resmlp", "xcit", "pit_", "cait")
_MASKED = (
    "bert",
    "roberta",
    "electra",
    "distilbert",
    "albert",
    "data2vec-text",
    "modernbert",
    "xlm-roberta",
    "esm",
)
Settings = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Remedy:
    """One change: the advice that suggests it, and the step with it (built when it is its turn)."""

    code: str
    build: Callable[[], Step] | None = None
    settings: Settings = as_it_is


HALF, FUSED = "advice.reduced_precision", "advice.foreach_optimizer"
TF32 = Remedy("advice.tf32_off", settings=tf32)


@dataclass(frozen=True)
class Program:
    """A step to advise on, and the changes that can be made to it."""

    build: Callable[[], Step]
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True)
class Size:
    """Where, and whether small."""

    device: str

    @property
    def is_cuda(self) -> bool:
        """Whether there is anything to advise on."""
        return self.device.startswith("cuda")

    def of(self, large: int, small: int) -> int:
        """A size on the GPU, and in a rehearsal."""
        return large if self.is_cuda else small


def changed_program(
    size: Size, code: str, build: Callable[..., Step], before: dict[str, Any], after: dict[str, Any]
) -> Program:
    """A program of `build` as it is and as advice has it."""
    remedy = Remedy(f"advice.{code}", lambda: build(size, **after))
    return Program(lambda: build(size, **before), (remedy,))


def graphed_program(size: Size, build: Callable[..., Step], **capturable: Any) -> Program:
    """A program of `build` as it is, and captured in a CUDA graph where there is a GPU."""
    remedies = (Remedy("advice.launch_bound", lambda: captured(build(size, **capturable))),)
    return Program(lambda: build(size), remedies if size.is_cuda else ())


def training(
    model: Any, batch: Any, target: Any, size: Size, *, optimizer: dict[str, Any] | None = None,
    autocast: bool = False, sgd: bool = False, item: bool = False, zeros: bool = False,
    loss: Callable[[Any, Any], Any] | None = None,
) -> Step:  # fmt: skip
    """A training step; options as the changes need them."""
    import torch
    from torch import nn

    model.train()
    make = torch.optim.SGD if sgd else torch.optim.AdamW
    update = make(model.parameters(), lr=1e-4, **(optimizer or {}))
    criterion = loss or nn.functional.cross_entropy

    def step() -> object:
        update.zero_grad(set_to_none=not zeros)
        with torch.autocast(size.device.split(":")[0], dtype=torch.bfloat16, enabled=autocast):
            value = criterion(model(batch), target)
        value.backward()
        update.step()
        return value.item() if item else value

    return step


def inference(model: Any, *inputs: Any) -> Step:
    """A forward pass without gradients."""
    import torch

    model.eval()

    def step() -> object:
        with torch.inference_mode():
            return model(*inputs)

    return step


def next_token_of(
    model: Any, configuration: Any, size: Size, *, batch: int, longest: int, place: int
) -> Step:
    """One more token of each sequence, with a cache of their keys and values."""
    import torch
    import transformers

    cache = transformers.StaticCache(config=configuration, max_cache_len=longest)
    token = torch.zeros(batch, 1, dtype=torch.int64, device=size.device)
    at = torch.tensor([place], device=size.device)

    def step() -> object:
        with torch.inference_mode():
            return model(
                token, past_key_values=cache, cache_position=at, position_ids=at.expand(batch, 1)
            ).logits

    step()
    return step


def fed_from_host(model: Any, batches: list[Any], size: Size, *, pinned: bool) -> Step:
    """A forward pass on one batch after the other, each copied from host memory first."""
    import torch

    if pinned and size.is_cuda:
        batches = [batch.pin_memory() for batch in batches]
    turn = itertools.cycle(batches)

    def step() -> object:
        batch = next(turn).to(size.device, non_blocking=pinned)
        with torch.inference_mode():
            return model(batch)

    return step


def vision(name: str, size: Size, *, batch: int, train: bool, channels_last: bool = False, dtype: Any = None,
           **options: Any) -> Step:  # fmt: skip
    """A timm model on images."""
    import timm
    import torch

    layout = torch.channels_last if channels_last else torch.contiguous_format
    pixels = 224 if size.is_cuda else 64
    arguments = {"img_size": pixels} if any(one in name for one in _OF_PATCHES) else {}
    model = timm.create_model(name, num_classes=1000, **arguments).to(size.device).to(memory_format=layout)
    images = torch.randn(size.of(batch, 2), 3, pixels, pixels, device=size.device).to(memory_format=layout)
    if dtype is not None:
        model, images = model.to(dtype), images.to(dtype)
    if not train:
        return inference(model, images)
    return training(
        model, images, torch.randint(0, 1000, (len(images),), device=size.device), size, **options
    )


def language(
    kind: str | Callable[[int], Any], size: Size, *, batch: int, length: int, train: bool,
    attention: str = "sdpa", dtype: Any = None, vocabulary: int | None = None, layers: int = 12,
    **options: Any,
) -> Step:  # fmt: skip
    """A transformers model of random weights on random tokens; its kind, or its configuration by layers."""
    import torch
    import transformers

    layers, hidden = size.of(layers, 2), size.of(768, 64)
    configurations = {
        "gpt2": lambda: transformers.GPT2Config(n_layer=layers, n_embd=hidden, n_head=hidden // 64),
        "llama": lambda: transformers.LlamaConfig(
            num_hidden_layers=layers, hidden_size=size.of(1024, 64), num_attention_heads=size.of(16, 1),
            num_key_value_heads=size.of(16, 1), intermediate_size=size.of(2816, 128),
            vocab_size=size.of(32000, 100),
        ),
        "bert": lambda: transformers.BertConfig(num_hidden_layers=layers, hidden_size=hidden,
                                                num_attention_heads=hidden // 64, intermediate_size=4 *
                                                hidden),
        "roberta": lambda: transformers.RobertaConfig(max_position_embeddings=514, num_hidden_layers=layers,
                                                      hidden_size=hidden,
                                                      num_attention_heads=hidden // 64, intermediate_size=4 *
                                                      hidden),
        "electra": lambda: transformers.ElectraConfig(
            num_hidden_layers=layers, hidden_size=hidden, embedding_size=hidden,
            num_attention_heads=hidden // 64, intermediate_size=4 * hidden,
        ),
        "mistral": lambda: transformers.MistralConfig(
            num_hidden_layers=layers, hidden_size=size.of(1024, 64), num_attention_heads=size.of(16, 1),
            num_key_value_heads=size.of(4, 1), intermediate_size=size.of(3584, 128),
            vocab_size=size.of(16000, 100), sliding_window=None,
        ),
        "gpt_neox": lambda: transformers.GPTNeoXConfig(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
            intermediate_size=4 * hidden, vocab_size=size.of(50304, 100),
        ),
        "distilbert": lambda: transformers.DistilBertConfig(n_layers=layers // 2, dim=hidden,
                                                            n_heads=hidden // 64, hidden_dim=4 * hidden),
        "albert": lambda: transformers.AlbertConfig(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
            intermediate_size=4 * hidden,
        ),
        "phi": lambda: transformers.PhiConfig(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
            intermediate_size=4 * hidden, vocab_size=size.of(51200, 100),
        ),
        "gemma": lambda: transformers.GemmaConfig(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
            num_key_value_heads=1, head_dim=64, intermediate_size=4 * hidden, vocab_size=size.of(32000, 100),
        ),
        "opt": lambda: transformers.OPTConfig(num_hidden_layers=layers, hidden_size=hidden,
                                              word_embed_proj_dim=hidden,
                                              num_attention_heads=hidden // 64, ffn_dim=4 * hidden),
        "qwen2": lambda: transformers.Qwen2Config(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 64, intermediate_size=4 * hidden, vocab_size=size.of(32000, 100),
        ),
        "data2vec": lambda: transformers.Data2VecTextConfig(
            max_position_embeddings=514, num_hidden_layers=layers, hidden_size=hidden,
            num_attention_heads=hidden // 64, intermediate_size=4 * hidden, vocab_size=size.of(30000, 100),
        ),
        "starcoder2": lambda: transformers.Starcoder2Config(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 64, intermediate_size=4 * hidden, vocab_size=size.of(24000, 100),
            sliding_window=None,
        ),
        "stablelm": lambda: transformers.StableLmConfig(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 64, intermediate_size=size.of(2048, 64),
            vocab_size=size.of(32000, 100),
        ),
        "cohere": lambda: transformers.CohereConfig(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 64, intermediate_size=size.of(2048, 64),
            vocab_size=size.of(40000, 100), pad_token_id=0, bos_token_id=1, eos_token_id=2,
        ),
    }  # fmt: skip
    configuration = configurations[kind]() if isinstance(kind, str) else kind(layers)
    configuration.update({"use_cache": False} | ({} if vocabulary is None else {"vocab_size": vocabulary}))
    if not train:
        for name in list(configuration.to_dict()):
            if "drop" in name and isinstance(getattr(configuration, name, None), float):
                setattr(configuration, name, 0.0)
    masked = configuration.model_type in _MASKED
    maker = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    model = maker.from_config(configuration, attn_implementation=attention).to(size.device)
    if dtype is not None:
        model = model.to(dtype)
    tokens = torch.randint(
        0, min(configuration.vocab_size, 1000), (size.of(batch, 2), size.of(length, 16)), device=size.device
    )
    if not train:
        return inference(model, tokens)

    def loss(output: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())

    return training(model, tokens, tokens, size, loss=loss, **options)


def perceptron(size: Size, *, width: int, depth: int, batch: int, **options: Any) -> Step:
    """A small dense network, trained."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(size.device)
    x = torch.randn(batch, width, device=size.device)
    return training(model, x, torch.randint(0, 10, (batch,), device=size.device), size, **options)


def loading(size: Size, *, pinned: bool) -> Step:
    """A step that copies its batch from host memory."""
    import torch
    from torch import nn

    width = size.of(4096, 64)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(size.device)
    batches = [torch.randn(size.of(4096, 16), width) for _ in range(4)]
    return fed_from_host(model, batches, size, pinned=pinned)


def translation(size: Size, **options: Any) -> Step:
    """An encoder-decoder of random weights, trained."""
    import torch
    import transformers

    configuration = transformers.T5Config(
        d_model=size.of(512, 64), d_kv=size.of(64, 16), num_layers=size.of(6, 1), num_heads=size.of(8, 2),
        d_ff=size.of(2048, 64), vocab_size=size.of(32128, 100),
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(configuration).to(size.device)
    tokens = torch.randint(0, 100, (size.of(16, 2), size.of(256, 8)), device=size.device)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, batch: Any) -> Any:
            return self.inner(input_ids=batch, decoder_input_ids=batch, labels=batch).loss

    return training(Model(), tokens, None, size, loss=lambda value, _: value, **options)


def decoding(size: Size) -> Step:
    """One more token of a sequence, with a cache of its keys and values."""
    import torch
    import transformers

    configuration = transformers.LlamaConfig(
        num_hidden_layers=size.of(12, 2), hidden_size=size.of(1024, 64), num_attention_heads=size.of(16, 1),
        num_key_value_heads=size.of(16, 1), intermediate_size=size.of(2816, 128),
        vocab_size=size.of(32000, 100),
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(configuration).to(size.device).to(torch.float16).eval()
    return next_token_of(model, configuration, size, batch=1, longest=size.of(8192, 1024), place=100)


def summarizing(size: Size, **options: Any) -> Step:
    """A BART of random weights, trained."""
    import torch
    import transformers

    layers, heads = size.of(6, 1), size.of(12, 2)
    configuration = transformers.BartConfig(
        d_model=size.of(768, 64), encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=size.of(3072, 64), decoder_ffn_dim=size.of(3072, 64),
    )  # fmt: skip
    configuration.vocab_size = size.of(50265, 100)
    model = transformers.BartForConditionalGeneration(configuration).to(size.device)
    tokens = torch.randint(3, 100, (size.of(32, 2), size.of(256, 8)), device=size.device)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, batch: Any) -> Any:
            return self.inner(input_ids=batch, labels=batch).loss

    return training(Model(), tokens, None, size, loss=lambda value, _: value, **options)


def listening(size: Size, *, dtype: Any = None) -> Step:
    """One-dimensional convolutions over a waveform, then a transformer's encoder, as speech models have."""
    import torch
    from torch import nn

    width = size.of(512, 16)
    kernels = ((10, 5), (3, 2), (3, 2), (3, 2), (2, 2))
    convolutions: list[nn.Module] = []
    for number, (length, stride) in enumerate(kernels):
        convolutions += [nn.Conv1d(width if number else 1, width, length, stride), nn.GELU()]
    encoder = nn.TransformerEncoderLayer(width, size.of(8, 2), 4 * width, batch_first=True)
    front, back = nn.Sequential(*convolutions), nn.TransformerEncoder(encoder, 6)
    wave = torch.randn(size.of(32, 2), 1, size.of(80000, 2000), device=size.device)
    front, back = front.to(size.device), back.to(size.device)
    if dtype is not None:
        front, back, wave = front.to(dtype), back.to(dtype), wave.to(dtype)
    front.eval(), back.eval()

    def step() -> object:
        with torch.inference_mode():
            return back(front(wave).transpose(1, 2))

    return step


def ranking(size: Size, **options: Any) -> Step:
    """A recommendation model: bags of embeddings, products of pairs, dense layers; trained."""
    import torch
    from torch import nn

    tables, rows, width = size.of(26, 3), size.of(200_000, 50), size.of(64, 8)
    batch = size.of(4096, 4)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
            self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
            pairs = tables * (tables + 1) // 2
            self.top = nn.Sequential(nn.Linear(pairs + width, 1024), nn.ReLU(), nn.Linear(1024, 512),
                                     nn.ReLU(), nn.Linear(512, 2))  # fmt: skip
            self.register_buffer("places", torch.tril_indices(tables + 1, tables + 1, -1))

        def forward(self, batch: Any) -> Any:
            dense, sparse = batch
            bottom = self.bottom(dense)
            vectors = torch.stack(
                [bottom, *(bag(ids) for bag, ids in zip(self.bags, sparse, strict=True))], 1
            )
            products = vectors @ vectors.transpose(1, 2)
            return self.top(torch.cat([bottom, products[:, self.places[0], self.places[1]]], 1))

    dense = torch.randn(batch, 13, device=size.device)
    sparse = [torch.randint(0, rows, (batch, 8), device=size.device) for _ in range(tables)]
    target = torch.randint(0, 2, (batch,), device=size.device)
    return training(Model().to(size.device), (dense, sparse), target, size, sgd=True, **options)


def clipped(size: Size, *, asks: bool) -> Step:
    """A training step of a small transformer that prints its gradient's norm, or keeps it on the device."""
    import torch
    from torch import nn

    width = size.of(512, 16)
    layer = nn.TransformerEncoderLayer(width, size.of(8, 2), 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(size.device)
    x = torch.randn(size.of(16, 2), size.of(128, 8), width, device=size.device)
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=size.is_cuda)
    kept: list[Any] = [0.0]

    def step() -> object:
        update.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        norms = [one.grad.norm() for one in model.parameters()]
        kept[0] = [one.item() for one in norms] if asks else norms
        update.step()
        return loss

    return step


def looked_up(size: Size, *, pinned: bool) -> Step:
    """A feed-forward network on features of host memory, two copies a step."""
    import torch
    from torch import nn

    width = size.of(2048, 32)
    model = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width)).to(size.device)
    pairs = [[torch.randn(size.of(16384, 8), width) for _ in range(2)] for _ in range(2)]
    if pinned and size.is_cuda:
        pairs = [[one.pin_memory() for one in pair] for pair in pairs]
    turn = iter(range(1 << 60))

    def step() -> object:
        one, other = (x.to(size.device, non_blocking=pinned) for x in pairs[next(turn) % len(pairs)])
        with torch.inference_mode():
            return model(torch.cat([one, other], 1))

    return step


def normalized(size: Size, *, compiled: bool) -> Step:
    """Root-mean-square normalization written out, and a rotation of its result, in 16 bits."""
    import torch

    x = torch.randn(size.of(16384, 8), size.of(4096, 8), device=size.device).bfloat16()
    cos, sin = torch.rand_like(x), torch.rand_like(x)
    weight = torch.ones(x.shape[-1], device=size.device).bfloat16()

    def layer(x: Any) -> Any:
        wide = x.float()
        y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16() * weight
        one, other = y.chunk(2, -1)
        return y * cos + torch.cat([-other, one], -1) * sin

    function = torch.compile(layer) if compiled and size.is_cuda else layer

    def step() -> object:
        with torch.inference_mode():
            return function(x)

    return step


def cleared(size: Size, *, zeros: bool) -> Step:
    """A small convolutional network, trained with gradients that are set to zero or dropped."""
    import torch
    from torch import nn

    width = size.of(64, 8)
    blocks: list[nn.Module] = []
    for number in range(12):
        blocks += [nn.Conv2d(width if number else 3, width, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    images = torch.randn(size.of(32, 2), 3, 32, 32, device=size.device)
    target = torch.randint(0, 10, (len(images),), device=size.device)
    return training(model.to(size.device), images, target, size, sgd=True, zeros=zeros)


def counting(size: Size, *, item: bool) -> Step:
    """Evaluation that asks for its hits after each batch, or at the end."""
    import timm
    import torch

    model = timm.create_model("resnet18", num_classes=1000).to(size.device).eval()
    pixels = size.of(224, 64)
    images = torch.randn(size.of(4, 1), 3, pixels, pixels, device=size.device)
    labels = torch.randint(0, 1000, (len(images),), device=size.device)
    hits: list[Any] = [0]

    def step() -> object:
        with torch.inference_mode():
            right = (model(images).argmax(-1) == labels).sum()
        hits[0] = (0 if item else hits[0]) + (right.item() if item else right)
        return hits[0]

    return step


def loaded_images(size: Size, *, pinned: bool) -> Step:
    """Inference on images that come from host memory."""
    import timm
    import torch

    model = timm.create_model("resnet34", num_classes=1000).to(size.device).eval()
    pixels = size.of(224, 64)
    batches = [torch.randn(size.of(192, 1), 3, pixels, pixels) for _ in range(2)]
    return fed_from_host(model, batches, size, pinned=pinned)


def gated(size: Size, *, compiled: bool) -> Step:
    """The pointwise part of a gated layer with a residual, in 16 bits."""
    import torch

    shape = size.of(8192, 8), size.of(8192, 8)
    a, b, residual = (torch.randn(*shape, device=size.device).bfloat16() for _ in range(3))

    def layer(a: Any, b: Any, residual: Any) -> Any:
        gate = torch.nn.functional.silu(a) * b
        return torch.clamp(gate * 0.5 + residual, -8.0, 8.0)

    function = torch.compile(layer) if compiled and size.is_cuda else layer

    def step() -> object:
        with torch.inference_mode():
            return function(a, b, residual)

    return step


def unet(
    size: Size, *, width: int = 128, batch: int = 8, channels_last: bool = False, autocast: bool = False
) -> Step:
    """A small U-Net of a diffusion model, one denoising step."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.GroupNorm(8, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1),
                nn.GroupNorm(8, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1),
            )  # fmt: skip
            self.skip = nn.Conv2d(inner, outer, 1)

        def forward(self, x: Any) -> Any:
            return self.body(x) + self.skip(x)

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(4, width, 3, padding=1)
            self.down = nn.ModuleList(
                [Block(width, width), Block(width, 2 * width), Block(2 * width, 4 * width)]
            )
            self.middle = Block(4 * width, 4 * width)
            self.up = nn.ModuleList(
                [Block(8 * width, 2 * width), Block(4 * width, width), Block(2 * width, width)]
            )
            self.last = nn.Conv2d(width, 4, 3, padding=1)

        def forward(self, x: Any) -> Any:
            x, kept = self.first(x), []
            for block in self.down:
                x = block(x)
                kept.append(x)
                x = nn.functional.avg_pool2d(x, 2)
            x = self.middle(x)
            for block in self.up:
                x = nn.functional.interpolate(x, scale_factor=2.0)
                x = block(torch.cat([x, kept.pop()], dim=1))
            return self.last(x)

    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = UNet(size.of(width, 8)).to(size.device).to(memory_format=layout).eval()
    x = torch.randn(size.of(batch, 1), 4, size.of(64, 16), size.of(64, 16), device=size.device).to(
        memory_format=layout
    )

    def step() -> object:
        with (
            torch.inference_mode(),
            torch.autocast(size.device.split(":")[0], torch.bfloat16, enabled=autocast),
        ):
            return model(x)

    return step


def recurrent(size: Size, *, item: bool) -> Step:
    """A loop of small products that asks the device for a number in each round, or does not."""
    import torch

    width = size.of(2048, 16)
    weight = torch.randn(width, width, device=size.device) / width**0.5
    x = torch.randn(64, width, device=size.device)

    def step() -> object:
        y, total = x, 0.0
        with torch.inference_mode():
            for _ in range(20):
                y = torch.tanh(y @ weight)
                total = total + (y.sum().item() if item else y.sum())
        return total

    return step


def pointwise(size: Size, *, compiled: bool) -> Step:
    """A chain of pointwise operators on a large tensor."""
    import torch

    x = torch.randn(size.of(1 << 25, 1 << 10), device=size.device)

    def chain(x: Any) -> Any:
        y = x * 2.0 + 1.0
        y = torch.sigmoid(y) * torch.tanh(x)
        return (y - 0.5).abs() * x

    function = torch.compile(chain) if compiled and size.is_cuda else chain

    def step() -> object:
        with torch.inference_mode():
            return function(x)

    return step


def of_vision(name: str, size: Size, *, batch: int, train: bool) -> Program:
    """A timm model with the changes that such models can take."""
    import torch

    def build(**options: Any) -> Callable[[], Step]:
        return lambda: vision(name, size, batch=batch, train=train, **options)

    half = {"autocast": True} if train else {"dtype": torch.bfloat16}
    remedies = [Remedy(HALF, build(**half))]
    if any(one in name for one in _OF_PATCHES):
        remedies.append(TF32)
    else:
        remedies.append(Remedy("advice.layout_conversion", build(channels_last=True)))
    if train:
        remedies.append(Remedy(FUSED, build(optimizer={"fused": True})))
    return Program(build(), tuple(remedies))


def of_language(
    kind: str | Callable[[int], Any], size: Size, *, batch: int, length: int, train: bool,
    attention: str = "eager",
    dtype: Any = None, graph: bool = False, layers: int = 12,
) -> Program:  # fmt: skip
    """A transformers model with the changes that such models can take."""
    import torch

    base = {"attention": attention, "dtype": dtype, "layers": layers}

    def build(**options: Any) -> Callable[[], Step]:
        return lambda: language(kind, size, batch=batch, length=length, train=train, **{**base, **options})

    remedies = []
    if attention == "eager":
        remedies.append(Remedy("advice.eager_attention", build(attention="sdpa")))
    if dtype is None:
        half = {"autocast": True} if train else {"dtype": torch.bfloat16}
        remedies += [
            Remedy(HALF, build(**half)),
            TF32,
        ]
    if train:
        remedies.append(Remedy(FUSED, build(optimizer={"fused": True})))
    if graph and size.is_cuda:
        remedies.append(Remedy("advice.launch_bound", lambda: captured(build()())))
    return Program(build(), tuple(remedies))


def programs(size: Size) -> dict[str, Program]:
    """Every program by name."""
    import torch

    bf16 = torch.bfloat16

    def of_images(name: str, batch: int, *, train: bool) -> Program:
        return of_vision(name, size, batch=batch, train=train)

    def language_of(kind: str, batch: int, length: int, **options: Any) -> Program:
        return of_language(kind, size, batch=batch, length=length, **options)

    small = {"width": size.of(512, 16), "depth": 8, "batch": 64}
    return {
        "resnet50 train": of_images("resnet50", 64, train=True),
        "vit train": of_images("vit_base_patch16_224", 64, train=True),
        "llama train": language_of("llama", 8, 512, train=True),
        "gpt2 forward bs1": language_of("gpt2", 1, 128, train=False, attention="sdpa", dtype=torch.float16,
                                        graph=True),
        "convnext train": of_images("convnext_tiny", 64, train=True),
        "efficientnet infer": of_images("efficientnet_b0", 128, train=False),
        "regnet train": of_images("regnety_032", 64, train=True),
        "deit train": of_images("deit_small_patch16_224.fb_in1k", 64, train=True),
        "bert train": language_of("bert", 16, 256, train=True),
        "roberta infer": language_of("roberta", 16, 512, train=False),
        "opt train": language_of("opt", 8, 512, train=True),
        "qwen2 forward bs1": language_of("qwen2", 1, 64, train=False, attention="sdpa", dtype=bf16,
                                         graph=True),
        "gpt2 train": language_of("gpt2", 8, 512, train=True, attention="sdpa"),
        "unet denoise": Program(
            lambda: unet(size),
            (
                Remedy(HALF, lambda: unet(size, autocast=True)),
                Remedy("advice.layout_conversion", lambda: unet(size, channels_last=True)),
            ),
        ),
        "mlp train per-tensor": Program(
            lambda: perceptron(size, optimizer={"foreach": False}, **small),
            (
                Remedy("advice.per_tensor_optimizer",
                       lambda: perceptron(size, optimizer={"fused": True}, **small)),
                *(
                    [Remedy("advice.launch_bound", lambda: captured(
                        perceptron(size, optimizer={"foreach": False, "capturable": True}, **small)))]
                    if size.is_cuda else []
                ),
            ),
        ),
        "mlp train item": Program(
            lambda: perceptron(size, sgd=True, item=True, width=size.of(4096, 16), depth=8, batch=size.of(512,
                4)), ( Remedy("advice.host_sync", lambda: perceptron( size, sgd=True, width=size.of(4096, 16),
                depth=8, batch=size.of(512, 4))), TF32,
            ),
        ),
        "item in loop": Program(
            lambda: recurrent(size, item=True),
            (Remedy("advice.host_sync", lambda: recurrent(size, item=False)),),
        ),
        "pageable loader": Program(
            lambda: loading(size, pinned=False),
            (Remedy("advice.pageable_copy", lambda: loading(size, pinned=True)),),
        ),
        "pointwise chain": Program(
            lambda: pointwise(size, compiled=False),
            (Remedy("advice.unfused_pointwise", lambda: pointwise(size, compiled=True)),),
        ),
        "decoder train": language_of("llama", 8, 512, train=True, layers=8),
    } | _once_held_out(size, of_images, language_of)  # fmt: skip


def _once_held_out(
    size: Size, of_images: Callable[..., Program], language_of: Callable[..., Program]
) -> dict[str, Program]:
    """Programs that were held out once; since their first run they have been looked at."""
    return _first_on_h100(size, of_images, language_of) | _first_on_h200(size, of_images, language_of)


def _first_on_h100(
    size: Size, of_images: Callable[..., Program], language_of: Callable[..., Program]
) -> dict[str, Program]:
    """Those that first ran on an H100."""
    import torch

    wide = {"width": size.of(1024, 16), "depth": 16, "batch": 128}
    half = {"batch": 8, "length": 512, "train": False, "dtype": torch.bfloat16}
    graph = [Remedy("advice.launch_bound", lambda: captured(decoding(size)))] if size.is_cuda else []
    diffusion: dict[str, Any] = {"width": 256, "batch": 16}
    return {
        "mobilenet train": of_images("mobilenetv3_large_100", 128, train=True),
        "densenet infer": of_images("densenet121", 64, train=False),
        "swin train": of_images("swin_tiny_patch4_window7_224", 64, train=True),
        "vit-s infer": of_images("vit_small_patch16_224", 128, train=False),
        "electra train": language_of("electra", 16, 256, train=True),
        "mistral train": language_of("mistral", 4, 512, train=True),
        "neox forward bs1": language_of("gpt_neox", 1, 64, train=False, attention="sdpa",
                                        dtype=torch.float16, graph=True),
        "t5 train": Program(
            lambda: translation(size),
            (
                TF32,
                Remedy(HALF, lambda: translation(size, autocast=True)),
                Remedy(FUSED, lambda: translation(size, optimizer={"fused": True})),
            ),
        ),
        "llama decode": Program(lambda: decoding(size), tuple(graph)),
        "gpt2 odd vocabulary": Program(
            lambda: language("gpt2", size, **half, vocabulary=size.of(50257, 101)),
            (Remedy("advice.unaligned_products",
                    lambda: language("gpt2", size, **half, vocabulary=size.of(50304, 128))),),
        ),
        "unet large": Program(
            lambda: unet(size, **diffusion),
            (
                Remedy(HALF, lambda: unet(size, **diffusion, autocast=True)),
                Remedy("advice.layout_conversion", lambda: unet(size, **diffusion, channels_last=True)),
            ),
        ),
        "wide mlp per-tensor": Program(
            lambda: perceptron(size, optimizer={"foreach": False}, **wide),
            (
                Remedy("advice.per_tensor_optimizer",
                       lambda: perceptron(size, optimizer={"fused": True}, **wide)),
                TF32,
            ),
        ),
        "mlp zeros": Program(
            lambda: perceptron(size, optimizer={"fused": True}, zeros=True, **wide),
            (Remedy("advice.zero_grad_fill", lambda: perceptron(size, optimizer={"fused": True}, **wide)),),
        ),
        "hits per batch": Program(
            lambda: counting(size, item=True),
            (Remedy("advice.host_sync", lambda: counting(size, item=False)),),
        ),
        "pageable images": Program(
            lambda: loaded_images(size, pinned=False),
            (Remedy("advice.pageable_copy", lambda: loaded_images(size, pinned=True)),),
        ),
        "gated layer": Program(
            lambda: gated(size, compiled=False),
            (Remedy("advice.unfused_pointwise", lambda: gated(size, compiled=True)),),
        ),
    }  # fmt: skip


def _first_on_h200(
    size: Size, of_images: Callable[..., Program], language_of: Callable[..., Program]
) -> dict[str, Program]:
    """Those that first ran on an H200."""
    import torch

    return {
        "mixer train": of_images("mixer_s16_224", 64, train=True),
        "resnext train": of_images("resnext50_32x4d", 64, train=True),
        "vgg infer": of_images("vgg16_bn", 64, train=False),
        "distilbert train": language_of("distilbert", 32, 128, train=True),
        "albert infer": language_of("albert", 16, 384, train=False),
        "gemma infer": language_of("gemma", 4, 512, train=False),
        "phi forward bs1": language_of("phi", 1, 64, train=False, attention="sdpa", dtype=torch.bfloat16,
                                       graph=True),
        "bart train": Program(
            lambda: summarizing(size),
            (
                TF32,
                Remedy(HALF, lambda: summarizing(size, autocast=True)),
                Remedy(FUSED, lambda: summarizing(size, optimizer={"fused": True})),
            ),
        ),
        "speech infer": Program(
            lambda: listening(size),
            (TF32, Remedy(HALF, lambda: listening(size, dtype=torch.bfloat16))),
        ),
        "ranking train": Program(
            lambda: ranking(size),
            (TF32, Remedy(FUSED, lambda: ranking(size, optimizer={"fused": True}))),
        ),
        "norms asked": Program(
            lambda: clipped(size, asks=True), (Remedy("advice.host_sync", lambda: clipped(size, asks=False)),)
        ),
        "pageable features": Program(
            lambda: looked_up(size, pinned=False),
            (Remedy("advice.pageable_copy", lambda: looked_up(size, pinned=True)), TF32),
        ),
        "norm and rotation": Program(
            lambda: normalized(size, compiled=False),
            (Remedy("advice.unfused_pointwise", lambda: normalized(size, compiled=True)),),
        ),
        "small images zeros": Program(
            lambda: cleared(size, zeros=True),
            (Remedy("advice.zero_grad_fill", lambda: cleared(size, zeros=False)),),
        ),
    }  # fmt: skip
