"""Programs held out for the sixth run of `gpu_gains.py`; its misses have been looked at since."""

from __future__ import annotations

import itertools
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

__all__ = ["once_held_out"]


def once_held_out(size: Size) -> dict[str, Program]:
    """Every program by name."""
    import torch

    changed, graph = partial(changed_program, size), partial(graphed_program, size)
    fused, one_by_one = {"fused": size.is_cuda}, {"foreach": False}
    return {
        "seresnet train": of_vision("seresnet50", size, batch=64, train=True),
        "dla infer": of_vision("dla60", size, batch=96, train=False),
        "cait train": of_vision("cait_s24_224", size, batch=48, train=True),
        "hrnet train": of_vision("hrnet_w18", size, batch=48, train=True),
        "poolformer infer": of_vision("poolformer_s24", size, batch=96, train=False),
        "xlm roberta infer": of_language(partial(xlm_roberta, size), size, batch=16, length=384, train=False),
        "falcon train": of_language(partial(falcon, size), size, batch=8, length=768, train=True, layers=8),
        "olmoe train": of_language(partial(olmoe, size), size, batch=8, length=512, train=True, layers=4),
        "helium eager bf16": of_language(partial(helium, size), size, batch=8, length=1024, train=False,
                                         dtype=torch.bfloat16, layers=8),
        "smollm next token": graph(next_token),
        "points train": Program(
            lambda: points(size),
            (
                Remedy(HALF, lambda: points(size, autocast=True)),
                TF32,
                Remedy(FUSED, lambda: points(size, optimizer=fused)),
            ),
        ),
        "set of few small": graph(sets, optimizer={"capturable": True}),
        "pageable volumes": changed("pageable_copy", volumes, {"pinned": False}, {"pinned": True}),
        "cut to longest": changed("host_sync", cut, {"asks": True}, {"asks": False}),
        "windows by hand": changed("eager_attention", windows, {"fused": False}, {"fused": True}),
        "many heads per-tensor": changed(
            "per_tensor_optimizer", heads, {"optimizer": one_by_one}, {"optimizer": fused}
        ),
        "embedding zeros": changed("zero_grad_fill", embedded, {"zeros": True}, {"zeros": False}),
        "box overlaps": changed("unfused_pointwise", overlaps, {"compiled": False}, {"compiled": True}),
        "odd recurrent": changed(
            "unaligned_products", recurrent, {"width": size.of(2047, 13)}, {"width": size.of(2048, 16)}
        ),
    }  # fmt: skip


def xlm_roberta(size: Size, layers: int) -> Any:
    """An encoder whose vocabulary is most of its parameters."""
    import transformers

    return transformers.XLMRobertaConfig(
        vocab_size=size.of(120000, 100), hidden_size=size.of(768, 64), intermediate_size=size.of(3072, 64),
        num_hidden_layers=layers, num_attention_heads=size.of(12, 2), max_position_embeddings=514,
    )  # fmt: skip


def falcon(size: Size, layers: int) -> Any:
    """A decoder whose attention and layers read the same norm, with one head of keys and values."""
    import transformers

    return transformers.FalconConfig(
        vocab_size=size.of(32000, 100), hidden_size=size.of(1280, 64), num_hidden_layers=layers,
        num_attention_heads=size.of(20, 2), multi_query=True, parallel_attn=True, alibi=False, bias=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def olmoe(size: Size, layers: int) -> Any:
    """A decoder of sixteen experts, two of which each token is sent to."""
    import transformers

    return transformers.OlmoeConfig(
        vocab_size=size.of(32000, 100), hidden_size=size.of(1024, 64), intermediate_size=size.of(1024, 32),
        num_hidden_layers=layers, num_attention_heads=size.of(16, 2), num_key_value_heads=size.of(16, 2),
        num_experts=size.of(16, 4), num_experts_per_tok=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def helium(size: Size, layers: int) -> Any:
    """A decoder with rotary positions and grouped heads."""
    import transformers

    return transformers.HeliumConfig(
        vocab_size=size.of(32000, 100), hidden_size=size.of(1536, 64), intermediate_size=size.of(4096, 64),
        num_hidden_layers=layers, num_attention_heads=size.of(12, 2), num_key_value_heads=size.of(4, 1),
        head_dim=size.of(128, 32), pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def next_token(size: Size) -> Step:
    """One more token of two sequences, with a cache of their keys and values, in half precision."""
    import torch
    import transformers

    configuration = transformers.SmolLM3Config(
        vocab_size=size.of(49000, 100), hidden_size=size.of(960, 32), num_hidden_layers=size.of(20, 1),
        num_attention_heads=size.of(15, 2), num_key_value_heads=size.of(5, 1), pad_token_id=0,
        intermediate_size=size.of(2560, 64), bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.SmolLM3ForCausalLM(configuration).to(size.device, torch.float16).eval()
    return next_token_of(model, configuration, size, batch=size.of(2, 1), longest=size.of(1024, 64), place=30)


def points(size: Size, **options: Any) -> Step:
    """Points, each through the same layers, the largest of each feature kept, and classes; trained."""
    import torch
    from torch import nn

    def layers(*widths: int) -> Any:
        pairs = itertools.pairwise(widths)
        return nn.Sequential(
            *(nn.Sequential(nn.Conv1d(one, two, 1), nn.BatchNorm1d(two), nn.ReLU()) for one, two in pairs)
        )

    narrow, wide = size.of(128, 4), size.of(1024, 16)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.each, self.both = layers(3, narrow, narrow, wide), layers(wide + narrow, wide, narrow)
            self.first, self.last = layers(3, narrow), nn.Conv1d(narrow, 40, 1)

        def forward(self, x: Any) -> Any:
            whole = self.each(x).amax(-1, keepdim=True).expand(-1, -1, x.shape[-1])
            return self.last(self.both(torch.cat([whole, self.first(x)], 1)))

    x = torch.randn(size.of(32, 2), 3, size.of(2048, 8), device=size.device)
    target = torch.randint(0, 40, (len(x), x.shape[-1]), device=size.device)
    return training(Model().to(size.device), x, target, size, **options)


def sets(size: Size, **options: Any) -> Step:
    """Attention among the few members of a set, their mean, and what it tells; trained on few sets."""
    import torch
    from torch import nn

    width = size.of(64, 8)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(9, width)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True) for _ in range(3)
            )
            self.last = nn.Linear(width, 5)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
            return self.last(x.mean(1))

    x = torch.randn(size.of(128, 4), size.of(24, 4), 9, device=size.device)
    target = torch.randint(0, 5, (len(x),), device=size.device)
    return training(Model().to(size.device), x, target, size, **options)


def volumes(size: Size, *, pinned: bool) -> Step:
    """Convolutions in three dimensions over volumes that come from host memory."""
    import torch
    from torch import nn

    width = size.of(24, 4)
    layers: list[nn.Module] = [nn.Conv3d(1, width, 3, 2, 1), nn.BatchNorm3d(width), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv3d(width, width, 3, 2, 1), nn.BatchNorm3d(width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(width, 3))
    edge = size.of(128, 16)
    batches = [torch.randn(size.of(8, 1), 1, edge, edge, edge) for _ in range(3)]
    return fed_from_host(model.to(size.device).eval(), batches, size, pinned=pinned)


def cut(size: Size, *, asks: bool) -> Step:
    """Tags of sentences cut to the longest of a batch, whose length the host asks for or knows."""
    import torch
    from torch import nn

    width, longest = size.of(512, 8), size.of(256, 8)
    model = nn.Sequential(nn.Embedding(size.of(20000, 50), width), nn.Linear(width, width), nn.GELU())
    layers = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True),
        size.of(6, 1),
        enable_nested_tensor=False,
    )
    model, layers = model.to(size.device).eval(), layers.to(size.device).eval()
    lengths = torch.randint(longest // 4, longest * 3 // 4, (size.of(64, 3),))
    known = int(lengths.max())
    on_device = lengths.to(size.device)
    tokens = torch.randint(0, 50, (len(lengths), longest), device=size.device)

    def step() -> object:
        total = None
        with torch.inference_mode():
            for _ in range(4):
                end = int(on_device.max().item()) if asks else known
                tags = layers(model(tokens[:, :end])).argmax(-1)
                total = tags if total is None else total + tags
        return total

    return step


def windows(size: Size, *, fused: bool) -> Step:
    """Attention inside of windows of an image with a bias for each distance, written out or one call."""
    import torch
    from torch import nn

    heads, width, members = size.of(8, 2), size.of(256, 16), size.of(196, 9)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.all = nn.LayerNorm(width), nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.bias = nn.Parameter(torch.randn(1, heads, members, members))

        def forward(self, x: Any) -> Any:
            q, k, v = self.all(self.norm(x)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            if fused:
                y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
            else:
                scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
                y = (scores + self.bias).softmax(-1) @ v
            return x + self.out(y.transpose(1, 2).flatten(2))

    model = nn.Sequential(*(Block() for _ in range(size.of(8, 1)))).to(size.device).half()
    x = torch.randn(size.of(512, 2), members, width, device=size.device).half()
    return inference(model, x)


def heads(size: Size, **options: Any) -> Step:
    """One body and many small answers, each of its own layers; trained one tensor at a time, or not."""
    import torch
    from torch import nn

    width = size.of(512, 8)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
            self.answers = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, 1))
                for _ in range(size.of(80, 2))
            )

        def forward(self, x: Any) -> Any:
            x = self.body(x)
            return torch.cat([answer(x) for answer in self.answers], -1)

    x = torch.randn(size.of(4096, 4), width, device=size.device)
    target = torch.rand(len(x), size.of(80, 2), device=size.device)
    loss = nn.functional.binary_cross_entropy_with_logits
    return training(Model().to(size.device), x, target, size, loss=loss, **options)


def embedded(size: Size, *, zeros: bool) -> Step:
    """A large table of embeddings, bags of which are told apart by few layers."""
    import torch
    from torch import nn

    width = size.of(256, 8)
    model = nn.Sequential(
        nn.EmbeddingBag(size.of(400_000, 50), width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 20)
    )
    bags = torch.randint(0, size.of(400_000, 50), (size.of(2048, 4), 40), device=size.device)
    target = torch.randint(0, 20, (len(bags),), device=size.device)
    fused = {"fused": size.is_cuda}
    return training(model.to(size.device), bags, target, size, optimizer=fused, zeros=zeros)


def overlaps(size: Size, *, compiled: bool) -> Step:
    """How far pairs of boxes overlap, with the distance of their centers: a chain of small operators."""
    import torch

    found, wanted = (torch.rand(4, size.of(4_000_000, 16), device=size.device) for _ in range(2))

    def loss(found: Any, wanted: Any) -> Any:
        x, y, w, h = found
        u, v, s, t = wanted
        across = (torch.minimum(x + w, u + s) - torch.maximum(x, u)).clamp(min=0)
        down = (torch.minimum(y + h, v + t) - torch.maximum(y, v)).clamp(min=0)
        both = across * down
        share = both / (w * h + s * t - both + 1e-7)
        apart = (x + w / 2 - u - s / 2).square() + (y + h / 2 - v - t / 2).square()
        return 1 - share + apart / ((w + s).square() + (h + t).square() + 1e-7)

    function = torch.compile(loss) if compiled and size.is_cuda else loss

    def step() -> object:
        with torch.inference_mode():
            return function(found, wanted)

    return step


def recurrent(size: Size, *, width: int) -> Step:
    """A gated state carried through a sequence in bf16, of a width that 16 bytes do not divide, or do."""
    import torch

    rows, inputs = size.of(2048, 4), size.of(512, 8)
    make = partial(torch.randn, device=size.device, dtype=torch.bfloat16)
    first, again = make(inputs, 2 * width), make(width, 2 * width) / width**0.5
    x, state = make(size.of(12, 2), rows, inputs), make(rows, width)

    def step() -> object:
        h = state
        with torch.inference_mode():
            for one in x:
                gate, new = (one @ first + h @ again).chunk(2, -1)
                h = torch.lerp(h, torch.tanh(new), torch.sigmoid(gate))
        return h

    return step
