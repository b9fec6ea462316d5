"""Programs held out for the fifth run of `gpu_gains.py`; its misses have been looked at since."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpu_programs import (
    Program,
    Remedy,
    Size,
    changed_program,
    fed_from_host,
    graphed_program,
    inference,
    next_token_of,
    of_language,
    of_vision,
    training,
)
from gpu_setup import Step

__all__ = ["once_held_out"]


def once_held_out(size: Size) -> dict[str, Program]:
    """Every program by name."""
    import torch

    changed, graph = partial(changed_program, size), partial(graphed_program, size)
    fused, one_by_one = {"fused": size.is_cuda}, {"foreach": False}
    return {
        "wide resnet train": of_vision("wide_resnet50_2", size, batch=64, train=True),
        "repvgg infer": of_vision("repvgg_b1", size, batch=96, train=False),
        "xcit train": of_vision("xcit_small_12_p16_224", size, batch=64, train=True),
        "pit infer": of_vision("pit_b_224", size, batch=96, train=False),
        "modernbert train": of_language(partial(modernbert, size), size, batch=16, length=512, train=True),
        "phi3 train": of_language(partial(phi3, size), size, batch=8, length=512, train=True, layers=8),
        "nemotron eager bf16": of_language(partial(nemotron, size), size, batch=8, length=1024, train=False,
                                           dtype=torch.bfloat16, layers=8),
        "glm next token": graph(next_token),
        "latent unet": Program(
            lambda: latents(size),
            (
                Remedy("advice.reduced_precision", lambda: latents(size, dtype=torch.bfloat16)),
                Remedy("advice.layout_conversion", lambda: latents(size, channels_last=True)),
            ),
        ),
        "twin networks small": graph(twins, optimizer={"capturable": True}),
        "pageable waves": changed("pageable_copy", waves, {"pinned": False}, {"pinned": True}),
        "stops at end": changed("host_sync", generated, {"asks": True}, {"asks": False}),
        "cross attention by hand": changed("eager_attention", crossed, {"fused": False}, {"fused": True}),
        "convolutions per-tensor": changed(
            "per_tensor_optimizer", convolutions, {"optimizer": one_by_one}, {"optimizer": fused}
        ),
        "wide layers zeros": changed("zero_grad_fill", wide, {"zeros": True}, {"zeros": False}),
        "written-out norm": changed("unfused_pointwise", norm, {"compiled": False}, {"compiled": True}),
        "odd tokens": changed(
            "unaligned_products", mixing, {"tokens": size.of(1021, 13)}, {"tokens": size.of(1024, 16)}
        ),
    }  # fmt: skip


def modernbert(size: Size, layers: int) -> Any:
    """An encoder with rotary positions, gated layers, and windows of attention in two layers of three."""
    import transformers

    return transformers.ModernBertConfig(
        vocab_size=size.of(32000, 100), hidden_size=size.of(768, 64), intermediate_size=size.of(1152, 64),
        num_hidden_layers=layers, num_attention_heads=size.of(12, 2), pad_token_id=0, bos_token_id=1,
        eos_token_id=2, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip


def phi3(size: Size, layers: int) -> Any:
    """A decoder whose three projections are one product, and whose gate and up too."""
    import transformers

    return transformers.Phi3Config(
        vocab_size=size.of(32064, 100), hidden_size=size.of(1280, 64), intermediate_size=size.of(3456, 64),
        num_hidden_layers=layers, num_attention_heads=size.of(20, 2), num_key_value_heads=size.of(20, 2),
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def nemotron(size: Size, layers: int) -> Any:
    """A decoder with squared activations and rotary positions in half of a head."""
    import transformers

    return transformers.NemotronConfig(
        vocab_size=size.of(32000, 100), hidden_size=size.of(1536, 64), intermediate_size=size.of(6144, 64),
        num_hidden_layers=layers, num_attention_heads=size.of(24, 2), num_key_value_heads=size.of(8, 1),
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def next_token(size: Size) -> Step:
    """One more token of several sequences, with a cache of their keys and values."""
    import torch
    import transformers

    configuration = transformers.GlmConfig(
        vocab_size=size.of(30000, 100), hidden_size=size.of(1024, 32), num_hidden_layers=size.of(16, 1),
        num_attention_heads=size.of(16, 2), num_key_value_heads=size.of(4, 1), head_dim=size.of(64, 16),
        intermediate_size=size.of(3072, 64), pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    model = transformers.GlmForCausalLM(configuration).to(size.device, torch.bfloat16).eval()
    return next_token_of(model, configuration, size, batch=size.of(4, 1), longest=size.of(2048, 64), place=40)


def latents(size: Size, *, channels_last: bool = False, dtype: Any = None) -> Step:
    """One denoising step of a U-Net with attention to a text, time added, strided convolutions between."""
    import torch
    from torch import nn

    text_width, time_width = size.of(512, 16), size.of(256, 16)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.one, self.two = nn.GroupNorm(8, inner), nn.GroupNorm(8, outer)
            self.first, self.second = (nn.Conv2d(one, outer, 3, padding=1) for one in (inner, outer))
            self.time, self.skip = nn.Linear(time_width, outer), nn.Conv2d(inner, outer, 1)
            self.query, self.out = nn.Linear(outer, outer), nn.Linear(outer, outer)
            self.both = nn.Linear(text_width, 2 * outer)

        def forward(self, x: Any, time: Any, text: Any) -> Any:
            y = self.first(nn.functional.silu(self.one(x))) + self.time(time)[:, :, None, None]
            x = self.skip(x) + self.second(nn.functional.silu(self.two(y)))
            tokens = x.flatten(2).transpose(1, 2)
            k, v = self.both(text).unflatten(-1, (2, -1, size.of(64, 4))).permute(2, 0, 3, 1, 4)
            q = self.query(tokens).unflatten(-1, (-1, size.of(64, 4))).transpose(1, 2)
            read = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return x + self.out(read).transpose(1, 2).reshape(x.shape)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            widths = [size.of(one, 8) for one in (192, 384, 576)]
            self.first = nn.Conv2d(4, widths[0], 3, padding=1)
            self.down = nn.ModuleList(map(Block, [widths[0], *widths[:2]], widths))
            self.less = nn.ModuleList(nn.Conv2d(one, one, 3, 2, 1) for one in widths)
            self.middle = Block(widths[-1], widths[-1])
            self.more = nn.ModuleList(nn.ConvTranspose2d(one, one, 4, 2, 1) for one in reversed(widths))
            self.up = nn.ModuleList(
                map(Block, (2 * one for one in widths[::-1]), [*widths[1::-1], widths[0]])
            )
            self.last = nn.Conv2d(widths[0], 4, 3, padding=1)

        def forward(self, x: Any, time: Any, text: Any) -> Any:
            x, kept = self.first(x), []
            for block, less in zip(self.down, self.less, strict=True):
                x = block(x, time, text)
                kept.append(x)
                x = less(x)
            x = self.middle(x, time, text)
            for more, block in zip(self.more, self.up, strict=True):
                x = block(torch.cat([more(x), kept.pop()], 1), time, text)
            return self.last(x)

    order = torch.channels_last if channels_last else torch.contiguous_format
    model = Model().to(size.device, dtype).to(memory_format=order)
    batch, pixels = size.of(12, 1), size.of(64, 16)
    shapes = (batch, 4, pixels, pixels), (batch, time_width), (batch, size.of(77, 5), text_width)
    x, time, text = (torch.randn(*shape, device=size.device, dtype=dtype) for shape in shapes)
    return inference(model, x.to(memory_format=order), time, text)


def twins(size: Size, **options: Any) -> Step:
    """One small network on two inputs that are to be told apart; trained."""
    import torch
    from torch import nn

    body = nn.Sequential(
        nn.Linear(96, 192), nn.LayerNorm(192), nn.Tanh(), nn.Linear(192, 192), nn.Tanh(), nn.Linear(192, 32)
    )

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, pair: Any) -> Any:
            one, other = (nn.functional.normalize(self.body(x), dim=-1) for x in pair)
            return one @ other.T * 10.0

    pair = [torch.randn(size.of(256, 4), 96, device=size.device) for _ in range(2)]
    target = torch.arange(len(pair[0]), device=size.device)
    return training(Model().to(size.device), pair, target, size, **options)


def waves(size: Size, *, pinned: bool) -> Step:
    """Dilated convolutions over stereo sound that comes from host memory."""
    import torch
    from torch import nn

    width = size.of(128, 4)
    layers: list[nn.Module] = [nn.Conv1d(2, width, 15, 4, 7), nn.BatchNorm1d(width), nn.SiLU()]
    for power in range(6):
        layers += [
            nn.Conv1d(width, width, 3, padding=2**power, dilation=2**power), nn.BatchNorm1d(width), nn.SiLU()
        ]  # fmt: skip
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 20))
    batches = [torch.randn(size.of(64, 2), 2, size.of(160000, 400)) for _ in range(3)]
    return fed_from_host(model.to(size.device).eval(), batches, size, pinned=pinned)


def generated(size: Size, *, asks: bool) -> Step:
    """Sixteen rounds of a recurrent cell and a vocabulary; then the host asks whether all have ended."""
    import torch
    from torch import nn

    width, words = size.of(2048, 16), size.of(32000, 50)
    cell, last = (one.to(size.device).half() for one in (nn.GRUCell(width, width), nn.Linear(width, words)))
    embedding = nn.Embedding(words, width).to(size.device).half()
    rows = size.of(128, 2)

    def step() -> object:
        token = torch.zeros(rows, dtype=torch.int64, device=size.device)
        state = torch.zeros(rows, width, device=size.device, dtype=torch.float16)
        has_ended = torch.zeros(rows, dtype=torch.bool, device=size.device)
        with torch.inference_mode():
            for _ in range(16):
                state = cell(embedding(token), state)
                token = last(state).argmax(-1)
                has_ended |= token == words
                if asks and has_ended.all():
                    break
        return token

    return step


def crossed(size: Size, *, fused: bool) -> Step:
    """Attention of a decoder to an encoder with a mask of padding, in bf16; written out or one call."""
    import torch
    from torch import nn

    heads, width = size.of(12, 2), size.of(768, 16)
    batch, asking, asked = size.of(16, 1), size.of(512, 4), size.of(1536, 8)
    hidden = torch.zeros(batch, 1, 1, asked, dtype=torch.bool, device=size.device)
    hidden[..., -asked // 8 :] = True

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.query = nn.LayerNorm(width), nn.Linear(width, width)
            self.both, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)

        def forward(self, x: Any, memory: Any) -> Any:
            q = self.query(self.norm(x)).unflatten(-1, (heads, -1)).transpose(1, 2)
            k, v = self.both(memory).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
            if fused:
                y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=~hidden)
            else:
                scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5
                y = torch.softmax(scores.masked_fill(hidden, -1e4), -1) @ v
            return x + self.out(y.transpose(1, 2).flatten(2))

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(size.of(8, 1)))

        def forward(self, x: Any, memory: Any) -> Any:
            for block in self.blocks:
                x = block(x, memory)
            return x

    dtype = torch.bfloat16
    x, memory = (torch.randn(batch, n, width, device=size.device, dtype=dtype) for n in (asking, asked))
    return inference(Model().to(size.device, dtype), x, memory)


def convolutions(size: Size, **options: Any) -> Step:
    """Many narrow convolutions with their norms, trained by momentum one tensor at a time, or not."""
    import torch
    from torch import nn

    width = size.of(64, 4)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(40):
        layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    images = torch.randn(size.of(96, 2), 3, 32, 32, device=size.device)
    target = torch.randint(0, 10, (len(images),), device=size.device)
    return training(model.to(size.device), images, target, size, sgd=True, **options)


def wide(size: Size, *, zeros: bool) -> Step:
    """Wide layers on few rows, so that filling gradients with zeros and adding to them is much of a step."""
    import torch
    from torch import nn

    width = size.of(6144, 16)
    layers = [one for _ in range(6) for one in (nn.Linear(width, width, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 100)).to(size.device)
    x = torch.randn(size.of(64, 4), width, device=size.device)
    target = torch.randint(0, 100, (len(x),), device=size.device)
    return training(model, x, target, size, optimizer={"fused": size.is_cuda}, zeros=zeros)


def norm(size: Size, *, compiled: bool) -> Step:
    """A norm by the root of mean squares, its scale, a residual and a squared activation, written out."""
    import torch

    rows, width = size.of(16384, 8), size.of(4096, 16)
    x, residual = (torch.randn(rows, width, device=size.device).bfloat16() for _ in range(2))
    scale = torch.randn(width, device=size.device).bfloat16()

    def layer(x: Any, residual: Any) -> Any:
        x = (x + residual).float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return torch.relu(x.bfloat16() * scale).square()

    function = torch.compile(layer) if compiled and size.is_cuda else layer

    def step() -> object:
        with torch.inference_mode():
            return function(x, residual)

    return step


def mixing(size: Size, *, tokens: int) -> Step:
    """Layers across tokens, in 16 bits, whose number 16 bytes do not divide, or do."""
    import torch
    from torch import nn

    inner = size.of(2048, 16)
    layers = [
        one for _ in range(4) for one in (nn.Linear(tokens, inner), nn.GELU(), nn.Linear(inner, tokens))
    ]
    model = nn.Sequential(*layers).to(size.device).half()
    return inference(model, torch.randn(size.of(16384, 8), tokens, device=size.device).half())
