"""Programs held out for the third run of `gpu_gains.py`; its misses have been looked at since."""

from __future__ import annotations

import itertools
from typing import Any

from gpu_programs import (
    FUSED,
    HALF,
    TF32,
    Program,
    Remedy,
    Size,
    inference,
    next_token_of,
    of_vision,
    training,
)
from gpu_setup import Step, captured

__all__ = ["once_held_out"]


def once_held_out(size: Size) -> dict[str, Program]:
    """Every program by name."""
    import torch

    bf16 = torch.bfloat16
    graphs = size.is_cuda

    def graph(build: Any) -> tuple[Remedy, ...]:
        return (Remedy("advice.launch_bound", lambda: captured(build())),) if graphs else ()

    return {
        "darknet train": of_vision("darknet53", size, batch=48, train=True),
        "mobilenetv2 infer": of_vision("mobilenetv2_100", size, batch=128, train=False),
        "deit3 train": of_vision("deit3_medium_patch16_224", size, batch=64, train=True),
        "ernie train": Program(
            lambda: encoder(size),
            (
                Remedy("advice.eager_attention", lambda: encoder(size, attention="sdpa")),
                Remedy(HALF, lambda: encoder(size, autocast=True)),
                TF32,
                Remedy(FUSED, lambda: encoder(size, optimizer={"fused": True})),
            ),
        ),
        "olmo train": Program(
            lambda: decoder(size),
            (
                Remedy(HALF, lambda: decoder(size, autocast=True)),
                TF32,
                Remedy(FUSED, lambda: decoder(size, optimizer={"fused": True})),
            ),
        ),
        "granite eager bf16": Program(
            lambda: granite(size, attention="eager"),
            (Remedy("advice.eager_attention", lambda: granite(size, attention="sdpa")),),
        ),
        "qwen3 next token": Program(lambda: next_token(size), graph(lambda: next_token(size))),
        "diffusion attention": Program(
            lambda: denoiser(size),
            (
                Remedy(HALF, lambda: denoiser(size, dtype=bf16)),
                Remedy("advice.layout_conversion", lambda: denoiser(size, channels_last=True)),
            ),
        ),
        "autoencoder small": Program(
            lambda: autoencoder(size), graph(lambda: autoencoder(size, optimizer={"capturable": True}))
        ),
        "pageable training": Program(
            lambda: fed(size, pinned=False),
            (Remedy("advice.pageable_copy", lambda: fed(size, pinned=True)),),
        ),
        "losses asked": Program(
            lambda: accumulating(size, asks=True),
            (Remedy("advice.host_sync", lambda: accumulating(size, asks=False)),),
        ),
        "clip text eager": Program(
            lambda: text_tower(size, attention="eager"),
            (
                Remedy("advice.eager_attention", lambda: text_tower(size, attention="sdpa")),
                Remedy(HALF, lambda: text_tower(size, attention="eager", dtype=bf16)),
                TF32,
            ),
        ),
        "transformer per-tensor": Program(
            lambda: stack(size, optimizer={"foreach": False}),
            (Remedy("advice.per_tensor_optimizer", lambda: stack(size, optimizer={"fused": True})),),
        ),
        "transformer zeros": Program(
            lambda: stack(size, optimizer={"fused": graphs}, zeros=True),
            (Remedy("advice.zero_grad_fill", lambda: stack(size, optimizer={"fused": graphs})),),
        ),
        "written-out gelu": Program(
            lambda: activations(size, compiled=False),
            (Remedy("advice.unfused_pointwise", lambda: activations(size, compiled=True)),),
        ),
        "odd classes": Program(
            lambda: classifier(size, classes=size.of(21841, 101)),
            (Remedy("advice.unaligned_products", lambda: classifier(size, classes=size.of(21888, 128))),),
        ),
    }


def encoder(size: Size, *, attention: str = "eager", **options: Any) -> Step:
    """An encoder of random weights, trained to fill in words."""
    import torch
    import transformers

    heads, hidden = size.of(8, 2), size.of(512, 32)
    configuration = transformers.ErnieConfig(
        vocab_size=size.of(18000, 100), hidden_size=hidden, num_hidden_layers=size.of(10, 1),
        num_attention_heads=heads, intermediate_size=4 * hidden,
    )  # fmt: skip
    model = transformers.AutoModelForMaskedLM.from_config(configuration, attn_implementation=attention)
    tokens = torch.randint(0, 100, (size.of(24, 2), size.of(384, 8)), device=size.device)
    return training(model.to(size.device), tokens, tokens, size, loss=_of_tokens, **options)


def decoder(size: Size, **options: Any) -> Step:
    """A decoder of random weights, trained, with fused attention."""
    import torch
    import transformers

    configuration = transformers.OlmoConfig(
        vocab_size=size.of(24000, 100), hidden_size=size.of(896, 32), num_hidden_layers=size.of(10, 1),
        num_attention_heads=size.of(14, 2), intermediate_size=size.of(2560, 64), use_cache=False,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="sdpa")
    tokens = torch.randint(0, 100, (size.of(6, 2), size.of(640, 8)), device=size.device)
    return training(model.to(size.device), tokens, tokens, size, loss=_of_tokens, **options)


def granite(size: Size, *, attention: str) -> Step:
    """A decoder in 16 bits over long sequences."""
    import torch
    import transformers

    configuration = transformers.GraniteConfig(
        vocab_size=size.of(16000, 100), hidden_size=size.of(1024, 32), num_hidden_layers=size.of(8, 1),
        num_attention_heads=size.of(16, 2), num_key_value_heads=size.of(16, 2),
        intermediate_size=size.of(2816, 64), use_cache=False,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation=attention)
    tokens = torch.randint(0, 100, (size.of(4, 2), size.of(1536, 8)), device=size.device)
    return inference(model.to(size.device).bfloat16(), tokens)


def next_token(size: Size) -> Step:
    """One more token of several sequences, with a cache of their keys and values."""
    import transformers

    configuration = transformers.Qwen3Config(
        vocab_size=size.of(32000, 100), hidden_size=size.of(1280, 32), num_hidden_layers=size.of(16, 1),
        num_attention_heads=size.of(20, 2), num_key_value_heads=size.of(4, 1), head_dim=size.of(64, 16),
        intermediate_size=size.of(3456, 64),
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(configuration).to(size.device).bfloat16().eval()
    return next_token_of(model, configuration, size, batch=size.of(4, 1), longest=size.of(2048, 64), place=50)


def text_tower(size: Size, *, attention: str, dtype: Any = None) -> Step:
    """The text side of a model of images and texts."""
    import torch
    import transformers

    configuration = transformers.CLIPTextConfig(
        hidden_size=size.of(640, 32), num_hidden_layers=size.of(12, 1),
        num_attention_heads=size.of(10, 2), intermediate_size=size.of(2560, 64),
        vocab_size=size.of(49408, 100), max_position_embeddings=size.of(256, 16), bos_token_id=0,
        eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    configuration._attn_implementation = attention  # the tower alone has no from_config
    model = transformers.CLIPTextModel(configuration).to(size.device)
    tokens = torch.randint(2, 100, (size.of(48, 2), size.of(256, 16)), device=size.device)
    return inference(model if dtype is None else model.to(dtype), tokens)


def denoiser(size: Size, *, channels_last: bool = False, dtype: Any = None) -> Step:
    """Residual blocks with a time embedding around self-attention, down and up again."""
    import torch
    from torch import nn

    width = size.of(192, 16)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.GroupNorm(16, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, 1, 1))
            self.time = nn.Linear(128, outer)
            self.second = nn.Sequential(nn.GroupNorm(16, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, 1, 1))
            self.skip = nn.Conv2d(inner, outer, 1)

        def forward(self, x: Any, time: Any) -> Any:
            y = self.first(x) + self.time(time)[:, :, None, None]
            return self.second(y) + self.skip(x)

    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm, self.qkv = nn.GroupNorm(16, channels), nn.Conv2d(channels, 3 * channels, 1)
            self.out = nn.Conv2d(channels, channels, 1)

        def forward(self, x: Any) -> Any:
            n, c, h, w = x.shape
            q, k, v = self.qkv(self.norm(x)).reshape(n, 3, 4, c // 4, h * w).transpose(-1, -2).unbind(1)
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return x + self.out(y.transpose(-1, -2).reshape(n, c, h, w))

    class Denoiser(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(4, width, 3, padding=1)
            self.down = nn.ModuleList([Block(width, width), Block(width, 2 * width)])
            self.shrink = nn.ModuleList([nn.Conv2d(width * n, width * n, 3, 2, 1) for n in (1, 2)])
            self.middle, self.attention = Block(2 * width, 2 * width), Attention(2 * width)
            self.up = nn.ModuleList([Block(4 * width, width), Block(2 * width, width)])
            self.last = nn.Conv2d(width, 4, 3, padding=1)

        def forward(self, x: Any, time: Any) -> Any:
            x, kept = self.first(x), []
            for block, shrink in zip(self.down, self.shrink, strict=True):
                kept.append(x := block(x, time))
                x = shrink(x)
            x = self.attention(self.middle(x, time))
            for block in self.up:
                x = torch.cat([nn.functional.interpolate(x, scale_factor=2.0), kept.pop()], 1)
                x = block(x, time)
            return self.last(x)

    order = torch.channels_last if channels_last else torch.contiguous_format
    pixels = size.of(64, 16)
    model = Denoiser().to(size.device, dtype).to(memory_format=order)
    images = torch.randn(size.of(12, 1), 4, pixels, pixels, device=size.device, dtype=dtype)
    time = torch.randn(len(images), 128, device=size.device, dtype=dtype)
    return inference(model, images.to(memory_format=order), time)


def autoencoder(size: Size, **options: Any) -> Step:
    """A small dense autoencoder, trained."""
    import torch
    from torch import nn

    widths = (784, 256, 64, 16, 64, 256, 784)
    layers: list[nn.Module] = []
    for one, other in itertools.pairwise(widths):
        layers += [nn.Linear(one, other), nn.LayerNorm(other), nn.Tanh()]
    model = nn.Sequential(*layers).to(size.device)
    x = torch.rand(size.of(256, 4), 784, device=size.device)
    return training(model, x, x, size, loss=nn.functional.mse_loss, **options)


def fed(size: Size, *, pinned: bool) -> Step:
    """Training on images and maps of labels that come from host memory."""
    import timm
    import torch

    model = timm.create_model("resnet26d", num_classes=100).to(size.device).train()
    update = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    pixels = size.of(224, 64)
    batches = [
        (torch.randn(size.of(96, 2), 3, pixels, pixels), torch.randint(0, 100, (size.of(96, 2),)))
        for _ in range(2)
    ]
    if pinned and size.is_cuda:
        batches = [(images.pin_memory(), labels.pin_memory()) for images, labels in batches]
    turn = iter(range(1 << 60))

    def step() -> object:
        images, labels = (x.to(size.device, non_blocking=pinned) for x in batches[next(turn) % len(batches)])
        update.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        update.step()
        return loss

    return step


def accumulating(size: Size, *, asks: bool) -> Step:
    """Gradients of several small batches added up; the loss of each is asked for, or of all at the end."""
    import torch
    from torch import nn

    width = size.of(768, 16)
    layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))]
    model = nn.Sequential(*layers, nn.Linear(width, 2)).to(size.device)
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=size.is_cuda)
    batches = [torch.randn(size.of(256, 4), width, device=size.device) for _ in range(6)]
    kept: list[Any] = [0.0]

    def step() -> object:
        update.zero_grad()
        total: Any = 0.0
        for batch in batches:
            loss = model(batch).square().mean()
            loss.backward()
            total = total + (loss.item() if asks else loss.detach())
        update.step()
        kept[0] = total
        return total

    return step


def stack(size: Size, **options: Any) -> Step:
    """Transformer blocks of torch's own, trained on vectors."""
    import torch
    from torch import nn

    width = size.of(384, 16)
    layer = nn.TransformerEncoderLayer(width, size.of(6, 2), 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, size.of(8, 1), enable_nested_tensor=False).to(size.device)
    x = torch.randn(size.of(8, 2), size.of(96, 8), width, device=size.device)
    return training(model, x, x, size, loss=nn.functional.mse_loss, **options)


def activations(size: Size, *, compiled: bool) -> Step:
    """An activation and a mix of two tensors, written out, in 16 bits."""
    import torch

    x, y = (torch.randn(size.of(12288, 8), size.of(6144, 8), device=size.device).bfloat16() for _ in range(2))

    def layer(x: Any, y: Any) -> Any:
        inner = 0.79788456 * (x + 0.044715 * x * x * x)
        gelu = 0.5 * x * (1.0 + torch.tanh(inner))
        return gelu * 0.9 + y * 0.1

    function = torch.compile(layer) if compiled and size.is_cuda else layer

    def step() -> object:
        with torch.inference_mode():
            return function(x, y)

    return step


def classifier(size: Size, *, classes: int) -> Step:
    """The head of a classifier of many classes, in 16 bits."""
    import torch
    from torch import nn

    width = size.of(1536, 16)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, classes)).to(size.device)
    x = torch.randn(size.of(16384, 8), width, device=size.device).bfloat16()
    return inference(model.bfloat16(), x)


def _of_tokens(output: Any, labels: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
