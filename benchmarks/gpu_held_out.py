"""Programs whose gains nothing was fitted on: each first ran after the models of gains had been made.

Other architectures than those of `gpu_programs.py`, `gpu_once_held_out.py` and the runs before them, one or
more of each kind: convolutional networks, networks of patches, encoders, decoders, generation, sets and
signals, batches from pageable memory, numbers asked for, attention written out, an optimizer of one tensor at
a time, gradients filled with zeros.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gpu_programs import (
    FUSED,
    HALF,
    TF32,
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

__all__ = ["held_out_programs"]


def held_out_programs(size: Size) -> dict[str, Program]:
    """Every program by name."""
    import torch

    changed, graph = partial(changed_program, size), partial(graphed_program, size)
    fused, one_by_one = {"fused": size.is_cuda}, {"foreach": False}
    return {
        "resnetv2 train": of_vision("resnetv2_50", size, batch=64, train=True),
        "vovnet infer": of_vision("ese_vovnet39b", size, batch=96, train=False),
        "convmixer train": of_vision("convmixer_768_32", size, batch=24, train=True),
        "cspresnet train": of_vision("cspresnet50", size, batch=64, train=True),
        "gcvit infer": of_vision("gcvit_tiny", size, batch=64, train=False),
        "granite train": of_language(partial(granite, size), size, batch=8, length=768, train=True, layers=8),
        "protein infer": of_language(partial(esm, size), size, batch=16, length=640, train=False),
        "stablelm eager bf16": of_language(partial(stablelm, size), size, batch=8, length=1024, train=False,
                                           dtype=torch.bfloat16, layers=8),
        "cohere train": of_language(partial(cohere, size), size, batch=4, length=1024, train=True, layers=6),
        "qwen3 next token": graph(next_token),
        "waves train": Program(
            lambda: waves(size),
            (
                Remedy(HALF, lambda: waves(size, autocast=True)),
                TF32,
                Remedy(FUSED, lambda: waves(size, optimizer=fused)),
            ),
        ),
        "critics small": graph(critics, optimizer={"capturable": True}),
        "pageable spectra": changed("pageable_copy", spectra, {"pinned": False}, {"pinned": True}),
        "stops when near": changed("host_sync", refined, {"asks": True}, {"asks": False}),
        "pooling by hand": changed("eager_attention", pooled, {"fused": False}, {"fused": True}),
        "many filters per-tensor": changed(
            "per_tensor_optimizer", filters, {"optimizer": one_by_one}, {"optimizer": fused}
        ),
        "factors zeros": changed("zero_grad_fill", factors, {"zeros": True}, {"zeros": False}),
        "color jitter": changed("unfused_pointwise", colors, {"compiled": False}, {"compiled": True}),
        "odd classes": changed(
            "unaligned_products", classes, {"count": size.of(10007, 13)}, {"count": size.of(10048, 16)}
        ),
    }  # fmt: skip


def granite(size: Size, layers: int) -> Any:
    """A decoder with scaled embeddings, residuals and scores, and grouped heads in its keys."""
    import transformers

    return transformers.GraniteConfig(
        vocab_size=size.of(30000, 100), hidden_size=size.of(1024, 64), intermediate_size=size.of(4096, 64),
        num_hidden_layers=layers, num_attention_heads=size.of(16, 2), num_key_value_heads=size.of(16, 2),
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def esm(size: Size, layers: int) -> Any:
    """An encoder of proteins: rotary positions, the norms before its layers, few tokens."""
    import transformers

    return transformers.EsmConfig(
        vocab_size=33, mask_token_id=32, pad_token_id=1, hidden_size=size.of(1024, 64),
        intermediate_size=size.of(4096, 64), num_hidden_layers=layers, num_attention_heads=size.of(16, 2),
        position_embedding_type="rotary", token_dropout=False,
    )  # fmt: skip


def stablelm(size: Size, layers: int) -> Any:
    """A decoder with layer norms, and rotary positions in a quarter of a head."""
    import transformers

    return transformers.StableLmConfig(
        vocab_size=size.of(50304, 100), hidden_size=size.of(1280, 64), intermediate_size=size.of(3456, 64),
        num_hidden_layers=layers, num_attention_heads=size.of(20, 2), num_key_value_heads=size.of(20, 2),
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def cohere(size: Size, layers: int) -> Any:
    """A decoder whose attention and layers read the same norm, with wide layers and tied embeddings."""
    import transformers

    return transformers.CohereConfig(
        vocab_size=size.of(40000, 100), hidden_size=size.of(1024, 64), intermediate_size=size.of(5632, 64),
        num_hidden_layers=layers, num_attention_heads=size.of(8, 2), num_key_value_heads=size.of(8, 2),
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def next_token(size: Size) -> Step:
    """One more token of eight sequences, with a cache of their keys and values."""
    import torch
    import transformers

    configuration = transformers.Qwen3Config(
        vocab_size=size.of(50000, 100), hidden_size=size.of(1024, 32), num_hidden_layers=size.of(18, 1),
        num_attention_heads=size.of(16, 2), num_key_value_heads=size.of(8, 1), head_dim=size.of(128, 16),
        intermediate_size=size.of(3072, 64), pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(configuration).to(size.device, torch.bfloat16).eval()
    return next_token_of(model, configuration, size, batch=size.of(8, 1), longest=size.of(1024, 64), place=50)


def waves(size: Size, **options: Any) -> Step:
    """Convolutions over sound with growing holes, gated and added up; trained to tell the next sample."""
    import torch
    from torch import nn

    width, classes = size.of(128, 4), size.of(256, 8)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, hole: int) -> None:
            super().__init__()
            self.both = nn.Conv1d(width, 2 * width, 3, padding=hole, dilation=hole)
            self.norm, self.out = nn.BatchNorm1d(2 * width), nn.Conv1d(width, width, 1)

        def forward(self, x: Any) -> Any:
            signal, gate = self.norm(self.both(x)).chunk(2, 1)
            return x + self.out(torch.tanh(signal) * torch.sigmoid(gate))

    blocks = [Block(2**place) for place in range(size.of(8, 2))]
    model = nn.Sequential(nn.Conv1d(1, width, 1), *blocks, nn.ReLU(), nn.Conv1d(width, classes, 1))
    x = torch.randn(size.of(16, 2), 1, size.of(8192, 32), device=size.device)
    target = torch.randint(0, classes, (len(x), x.shape[-1]), device=size.device)
    return training(model.to(size.device), x, target, size, **options)


def critics(size: Size, **options: Any) -> Step:
    """Five small networks that judge the same states, each trained to the least that all say."""
    import torch
    from torch import nn

    width = size.of(128, 8)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.members = nn.ModuleList(
                nn.Sequential(
                    nn.Linear(24, width), nn.LayerNorm(width), nn.ELU(), nn.Linear(width, width), nn.ELU(),
                    nn.Linear(width, 1),
                )
                for _ in range(5)
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return torch.cat([member(x) for member in self.members], -1)

    def loss(said: Any, reward: Any) -> Any:
        least = said.detach().min(-1, keepdim=True).values
        return (said - reward - 0.99 * least).square().mean()

    x = torch.randn(size.of(256, 4), 24, device=size.device)
    reward = torch.randn(len(x), 1, device=size.device)
    return training(Model().to(size.device), x, reward, size, loss=loss, **options)


def spectra(size: Size, *, pinned: bool) -> Step:
    """Wave forms that come from host memory, their spectra, and convolutions over those."""
    import torch
    from torch import nn

    width, window = size.of(32, 4), size.of(512, 16)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("window", torch.hann_window(window))
            self.layers = nn.Sequential(
                nn.Conv2d(1, width, 5, 2, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU(),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 11),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            found = torch.stft(x, window, window // 2, window=self.window, return_complex=True)
            return self.layers(found.abs().add(1e-3).log()[:, None])

    batches = [torch.randn(size.of(96, 2), size.of(160_000, 256)) for _ in range(3)]
    return fed_from_host(Model().to(size.device).eval(), batches, size, pinned=pinned)


def refined(size: Size, *, asks: bool) -> Step:
    """A guess made better in rounds; the host asks after each whether it is near enough, or does not."""
    import torch

    width = size.of(3072, 8)
    weight = torch.randn(width, width, device=size.device) / width
    target = torch.randn(width, size.of(96, 2), device=size.device)

    def step() -> object:
        x = torch.zeros_like(target)
        with torch.inference_mode():
            for _ in range(12):
                left = target - x - weight @ x
                if asks and (left.norm() < 1e-9).item():
                    break
                x = x + 0.5 * left
        return x

    return step


def pooled(size: Size, *, fused: bool) -> Step:
    """Few learned questions to a long sequence, in several layers, written out or one call."""
    import torch
    from torch import nn

    heads, width = size.of(12, 2), size.of(768, 16)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.ask, self.told, self.out = (nn.Linear(width, many * width) for many in (1, 2, 1))

        def forward(self, x: Any, source: Any) -> Any:
            q = self.ask(x).unflatten(-1, (heads, -1)).transpose(1, 2)
            k, v = self.told(source).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
            if fused:
                y = nn.functional.scaled_dot_product_attention(q, k, v)
            else:
                y = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v
            return x + self.out(y.transpose(1, 2).flatten(2))

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(size.of(4, 1)))

        def forward(self, x: Any, source: Any) -> Any:
            for block in self.blocks:
                x = block(x, source)
            return x

    model = Model().to(size.device).bfloat16()
    x, source = (
        torch.randn(size.of(16, 2), length, width, device=size.device).bfloat16()
        for length in (size.of(512, 4), size.of(2048, 8))
    )
    return inference(model, x, source)


def filters(size: Size, **options: Any) -> Step:
    """A bank of small filters, each of its own layers, over one signal; trained tensor by tensor, or not."""
    import torch
    from torch import nn

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bank = nn.ModuleList(
                nn.Sequential(nn.Conv1d(8, 16, 9, padding=4), nn.PReLU(), nn.Conv1d(16, 4, 1))
                for _ in range(size.of(60, 2))
            )
            self.last = nn.Linear(4 * len(self.bank), 10)

        def forward(self, x: Any) -> Any:
            return self.last(torch.cat([one(x).mean(-1) for one in self.bank], -1))

    x = torch.randn(size.of(64, 2), 8, size.of(1024, 16), device=size.device)
    target = torch.randint(0, 10, (len(x),), device=size.device)
    return training(Model().to(size.device), x, target, size, **options)


def factors(size: Size, *, zeros: bool) -> Step:
    """Users and things as vectors with a bias each, and how well pairs fit; large tables, little work."""
    import torch
    from torch import nn

    users, things, width = size.of(300_000, 40), size.of(100_000, 30), size.of(192, 8)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.user, self.thing = nn.Embedding(users, width), nn.Embedding(things, width)
            self.bias = nn.Embedding(things, 1)

        def forward(self, pairs: Any) -> Any:
            user, thing = pairs.unbind(-1)
            return (self.user(user) * self.thing(thing)).sum(-1) + self.bias(thing).squeeze(-1)

    least = torch.tensor([users, things])
    pairs = (torch.rand(size.of(16384, 8), 2) * least).long().to(size.device)
    target = torch.rand(len(pairs), device=size.device)
    loss = nn.functional.mse_loss
    fused = {"fused": size.is_cuda}
    return training(Model().to(size.device), pairs, target, size, optimizer=fused, zeros=zeros, loss=loss)


def colors(size: Size, *, compiled: bool) -> Step:
    """Brightness, contrast, saturation and gamma of images, one small operator after the other."""
    import torch

    images = torch.rand(size.of(32, 2), 3, size.of(512, 8), size.of(512, 8), device=size.device)

    def jitter(x: Any) -> Any:
        x = (x * 1.1).clamp(0, 1)
        red, green, blue = x.unbind(1)
        gray = (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)
        x = (gray + 1.2 * (x - gray)).clamp(0, 1)
        x = (0.5 + 0.9 * (x - 0.5)).clamp(0, 1)
        return (x + 1e-6).pow(0.8) * 2 - 1

    function = torch.compile(jitter) if compiled and size.is_cuda else jitter

    def step() -> object:
        with torch.inference_mode():
            return function(images)

    return step


def classes(size: Size, *, count: int) -> Step:
    """Half-precision layers before very many classes, whose number 16 bytes do not divide, or do."""
    import torch
    from torch import nn

    width = size.of(1536, 16)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, count), nn.Softmax(-1)).to(
        size.device
    )
    return inference(model.half(), torch.randn(size.of(8192, 4), width, device=size.device).half())
