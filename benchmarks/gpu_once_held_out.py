"""Programs held out for the fourth run of `gpu_gains.py`; its misses have been looked at since."""

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
    fed_from_host,
    inference,
    next_token_of,
    of_language,
    of_vision,
    training,
)
from gpu_setup import Step, captured

__all__ = ["once_held_out"]


def once_held_out(size: Size) -> dict[str, Program]:
    """Every program by name."""
    import torch

    bf16 = torch.bfloat16

    def changed(code: str, before: Any, after: Any) -> Program:
        return Program(before, (Remedy(f"advice.{code}", after),))

    def graph(build: Any, capturable: Any) -> Program:
        remedies = (Remedy("advice.launch_bound", lambda: captured(capturable())),) if size.is_cuda else ()
        return Program(build, remedies)

    decode = partial(continued, size)
    policy = partial(actor_critic, size)
    return {
        "efficientnetv2 train": of_vision("efficientnetv2_rw_t", size, batch=48, train=True),
        "inception infer": of_vision("inception_v3", size, batch=96, train=False),
        "res2net train": of_vision("res2net50_26w_4s", size, batch=48, train=True),
        "beit train": of_vision("beit_base_patch16_224", size, batch=40, train=True),
        "resmlp infer": of_vision("resmlp_24_224", size, batch=96, train=False),
        "data2vec train": of_language("data2vec", size, batch=12, length=320, train=True),
        "starcoder2 train": of_language("starcoder2", size, batch=4, length=768, train=True, layers=10),
        "stablelm eager bf16": of_language("stablelm", size, batch=4, length=1024, train=False, dtype=bf16),
        "cohere forward bs1": of_language("cohere", size, batch=1, length=96, train=False, attention="sdpa",
                                          dtype=torch.float16, graph=True),
        "olmo2 next token": graph(decode, decode),
        "dit train": Program(
            lambda: diffusion_transformer(size),
            (
                Remedy(HALF, lambda: diffusion_transformer(size, autocast=True)),
                TF32,
                Remedy(FUSED, lambda: diffusion_transformer(size, optimizer={"fused": True})),
            ),
        ),
        "image decoder infer": Program(
            lambda: image_decoder(size),
            (
                Remedy(HALF, lambda: image_decoder(size, dtype=bf16)),
                Remedy("advice.layout_conversion", lambda: image_decoder(size, channels_last=True)),
            ),
        ),
        "policy small": graph(policy, lambda: policy(optimizer={"capturable": True})),
        "pageable video": changed(
            "pageable_copy", lambda: clips(size, pinned=False), lambda: clips(size, pinned=True)
        ),
        "stops on nan": changed(
            "host_sync", lambda: guarded(size, asks=True), lambda: guarded(size, asks=False)
        ),
        "attention by hand": changed(
            "eager_attention", lambda: attention(size, fused=False), lambda: attention(size, fused=True)
        ),
        "lstm per-tensor": changed(
            "per_tensor_optimizer",
            lambda: recurrent_language(size, optimizer={"foreach": False}),
            lambda: recurrent_language(size, optimizer={"fused": True}),
        ),
        "graph network zeros": changed(
            "zero_grad_fill", lambda: message_passing(size, zeros=True), lambda: message_passing(size)
        ),
        "written-out swiglu": changed(
            "unfused_pointwise", lambda: gate(size, compiled=False), lambda: gate(size, compiled=True)
        ),
        "odd width": changed(
            "unaligned_products",
            lambda: feed_forward(size, inner=size.of(8189, 61)),
            lambda: feed_forward(size, inner=size.of(8192, 64)),
        ),
    }  # fmt: skip


def continued(size: Size) -> Step:
    """One more token of several sequences, with a cache of their keys and values."""
    import transformers

    configuration = transformers.Olmo2Config(
        vocab_size=size.of(30000, 100), hidden_size=size.of(1536, 32), num_hidden_layers=size.of(14, 1),
        num_attention_heads=size.of(24, 2), num_key_value_heads=size.of(24, 2),
        intermediate_size=size.of(4096, 64),
    )  # fmt: skip
    model = transformers.Olmo2ForCausalLM(configuration).to(size.device).half().eval()
    return next_token_of(model, configuration, size, batch=size.of(8, 1), longest=size.of(1024, 64), place=60)


def diffusion_transformer(size: Size, **options: Any) -> Step:
    """Blocks of attention whose norms are shifted and scaled by the time of a diffusion; trained."""
    import torch
    from torch import nn

    width, heads = size.of(640, 16), size.of(10, 2)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.modulation = nn.Linear(width, 6 * width)

        def forward(self, x: Any, time: Any) -> Any:
            a, b, c, d, e, f = self.modulation(nn.functional.silu(time)).unsqueeze(1).chunk(6, -1)
            y = self.qkv(self.one(x) * (1 + a) + b)
            q, k, v = y.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + c * self.out(y)
            y = nn.functional.gelu(self.up(self.two(x) * (1 + d) + e), approximate="tanh")
            return x + f * self.down(y)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.time = nn.Linear(64, width), nn.Linear(256, width)
            self.blocks = nn.ModuleList(Block() for _ in range(size.of(12, 1)))
            self.last = nn.Linear(width, 64)

        def forward(self, batch: Any) -> Any:
            x, time = batch
            x, time = self.patches(x), self.time(time)
            for block in self.blocks:
                x = block(x, time)
            return self.last(x)

    noise = torch.randn(size.of(24, 2), size.of(256, 8), 64, device=size.device)
    time = torch.randn(len(noise), 256, device=size.device)
    loss = nn.functional.mse_loss
    return training(Model().to(size.device), (noise, time), noise, size, loss=loss, **options)


def image_decoder(size: Size, *, channels_last: bool = False, dtype: Any = None) -> Step:
    """What makes an image of a diffusion's latents: residual convolutions and upsampling."""
    import torch
    from torch import nn

    order = torch.channels_last if channels_last else torch.contiguous_format

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.GroupNorm(8, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1),
                nn.GroupNorm(8, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1),
            )  # fmt: skip
            self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

        def forward(self, x: Any) -> Any:
            return self.skip(x) + self.body(x)

    widths = [size.of(one, 8) for one in (384, 256, 128)]
    layers: list[nn.Module] = [nn.Conv2d(4, widths[0], 3, padding=1)]
    for inner, outer in zip(widths, [*widths[1:], widths[-1]], strict=True):
        layers += [Block(inner, inner), Block(inner, outer), nn.Upsample(scale_factor=2.0, mode="nearest")]
        layers += [nn.Conv2d(outer, outer, 3, padding=1)]
    layers += [nn.GroupNorm(8, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], 3, 3, padding=1)]
    model = nn.Sequential(*layers).to(size.device, dtype).to(memory_format=order)
    pixels = size.of(32, 8)
    latents = torch.randn(size.of(8, 1), 4, pixels, pixels, device=size.device, dtype=dtype)
    return inference(model, latents.to(memory_format=order))


def actor_critic(size: Size, **options: Any) -> Step:
    """A small policy with a value beside it, trained on one batch of experience."""
    import torch
    from torch import nn

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(48, 256), nn.ELU(), nn.Linear(256, 256), nn.ELU())
            self.policy, self.value = nn.Linear(256, 12), nn.Linear(256, 1)

        def forward(self, seen: Any) -> Any:
            hidden = self.body(seen)
            return self.policy(hidden).log_softmax(-1), self.value(hidden).squeeze(-1)

    seen = torch.randn(size.of(512, 4), 48, device=size.device)
    action = torch.randint(0, 12, (len(seen),), device=size.device)
    reward = torch.randn(len(seen), device=size.device)

    def loss(output: Any, _: Any) -> Any:
        policy, value = output
        advantage = reward - value
        chosen = policy.gather(1, action[:, None]).squeeze(1)
        entropy = -(policy.exp() * policy).sum(-1).mean()
        return advantage.square().mean() - (chosen * advantage.detach()).mean() - 0.01 * entropy

    return training(Model().to(size.device), seen, None, size, loss=loss, **options)


def clips(size: Size, *, pinned: bool) -> Step:
    """A network of convolutions over time and space, on clips that come from host memory."""
    import torch
    from torch import nn

    width, pixels = size.of(48, 4), size.of(112, 16)
    layers: list[nn.Module] = []
    for inner, outer, stride in ((3, width, 2), (width, 2 * width, 2), (2 * width, 4 * width, 2)):
        layers += [nn.Conv3d(inner, outer, 3, stride, 1), nn.BatchNorm3d(outer), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4 * width, 50))
    model = model.to(size.device).eval()
    batches = [torch.randn(size.of(24, 1), 3, size.of(16, 8), pixels, pixels) for _ in range(3)]
    return fed_from_host(model, batches, size, pinned=pinned)


def guarded(size: Size, *, asks: bool) -> Step:
    """Training that looks at each gradient for what is not finite, on the host or on the device."""
    import torch
    from torch import nn

    width = size.of(512, 16)
    layers = [one for _ in range(12) for one in (nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 4)).to(size.device)
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=size.is_cuda)
    x = torch.randn(size.of(2048, 4), width, device=size.device)
    kept: list[Any] = [None]

    def step() -> object:
        update.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        finite = [one.grad.isfinite().all() for one in model.parameters()]
        kept[0] = all(bool(one) for one in finite) if asks else torch.stack(finite).all()
        update.step()
        return loss

    return step


def attention(size: Size, *, fused: bool) -> Step:
    """Causal attention between two projections, in 16 bits: product, mask, softmax, product; or one call."""
    import torch
    from torch import nn

    heads, width, length = size.of(16, 2), size.of(1024, 16), size.of(1024, 8)
    layers = size.of(6, 1)
    hidden = torch.triu(torch.ones(length, length, dtype=torch.bool, device=size.device), 1)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            if fused:
                y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
                y = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
            return x + self.out(y.transpose(1, 2).flatten(2))

    model = nn.Sequential(*(Block() for _ in range(layers))).to(size.device).half()
    return inference(model, torch.randn(size.of(8, 1), length, width, device=size.device).half())


def recurrent_language(size: Size, **options: Any) -> Step:
    """A language model of LSTM layers beside small dense ones, trained."""
    import torch
    from torch import nn

    width, words = size.of(512, 16), size.of(8000, 50)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, 3, batch_first=True)
            self.mixing = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(16)
            )
            self.last = nn.Linear(width, words)

        def forward(self, tokens: Any) -> Any:
            x, _ = self.lstm(self.words(tokens))
            for one in self.mixing:
                x = x + one(x)
            return self.last(x).flatten(0, 1)

    tokens = torch.randint(0, words, (size.of(16, 2), size.of(48, 6)), device=size.device)
    return training(Model().to(size.device), tokens, tokens.flatten(), size, **options)


def message_passing(size: Size, *, zeros: bool = False) -> Step:
    """A network over a graph's edges: gather, dense layer, add at the nodes; trained."""
    import torch
    from torch import nn

    width, nodes, edges = size.of(256, 8), size.of(20000, 20), size.of(80000, 40)
    ends = torch.randint(0, nodes, (2, edges), device=size.device)

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.message, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

        def forward(self, x: Any) -> Any:
            message = self.message(torch.cat([x[ends[0]], x[ends[1]]], 1)).relu()
            gathered = torch.zeros_like(x).index_add_(0, ends[1], message)
            return x + self.update(torch.cat([x, gathered], 1)).relu()

    model = nn.Sequential(*(Layer() for _ in range(size.of(6, 1))), nn.Linear(width, 8)).to(size.device)
    x = torch.randn(nodes, width, device=size.device)
    target = torch.randint(0, 8, (nodes,), device=size.device)
    return training(model, x, target, size, optimizer={"fused": size.is_cuda}, zeros=zeros)


def gate(size: Size, *, compiled: bool) -> Step:
    """A gated unit, a residual with a scale and a clamp, written out, in 16 bits."""
    import torch

    shape = size.of(8192, 8), size.of(8192, 8)
    x, y, z = (torch.randn(*shape, device=size.device).half() for _ in range(3))

    def layer(x: Any, y: Any, z: Any) -> Any:
        gated = x * torch.sigmoid(x) * y
        return torch.clamp(z + gated * 0.5, -8.0, 8.0) - z.abs() * 0.01

    function = torch.compile(layer) if compiled and size.is_cuda else layer

    def step() -> object:
        with torch.inference_mode():
            return function(x, y, z)

    return step


def feed_forward(size: Size, *, inner: int) -> Step:
    """Feed-forward layers of a width that 16 bytes do not divide, or do; in 16 bits."""
    import torch
    from torch import nn

    width = size.of(2048, 16)
    layers = [one for _ in range(3) for one in (nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))]
    model = nn.Sequential(*layers).to(size.device).bfloat16()
    return inference(model, torch.randn(size.of(8192, 8), width, device=size.device).bfloat16())
