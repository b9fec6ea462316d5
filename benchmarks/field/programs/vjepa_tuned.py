#!/usr/bin/env python
"""V-JEPA pretraining on short clips: predict the EMA encoder's features of hidden tubes from the visible ones.

Clips stay on the GPU as bytes. Every step has the same shapes (so many visible tubes, so many hidden ones), the encoder
and the predictor are compiled, autocast is bf16, the target encoder holds its own bf16 weights beside the float32 average.
"""
import argparse
import copy
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def take(x, index):
    """Rows of each sample: x (batch, n, d), index (batch, m)."""
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))


class Encoder(nn.Module):
    def __init__(self, dim, depth, heads, frames, size, tubelet=2, patch=16):
        super().__init__()
        self.tubelet, self.patch = tubelet, patch
        self.times, self.places = frames // tubelet, (size // patch) ** 2
        self.embed = nn.Linear(3 * tubelet * patch * patch, dim)
        self.register_buffer("position", sinusoids(self.times * self.places, dim), persistent=False)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def tokens(self, clips):
        """Bytes (batch, 3, frames, height, width) to patches (batch, tokens, values), normalized."""
        b, c, f, h, w = clips.shape
        t, p = self.tubelet, self.patch
        x = clips.view(b, c, f // t, t, h // p, p, w // p, p).permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(b, self.times * self.places, c * t * p * p)
        return x.to(torch.bfloat16) * (1 / 58.0) - 2.1

    def forward(self, patches, index=None):
        x = self.embed(patches) + self.position.to(torch.bfloat16)
        if index is not None:
            x = take(x, index)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Predictor(nn.Module):
    def __init__(self, outer, dim, depth, heads, n):
        super().__init__()
        self.into, self.out = nn.Linear(outer, dim), nn.Linear(dim, outer)
        self.mask_token = nn.Parameter(torch.zeros(dim))
        self.register_buffer("position", sinusoids(n, dim), persistent=False)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, context, visible, hidden):
        position = self.position.to(torch.bfloat16)
        x = torch.cat([self.into(context) + position[visible], self.mask_token.to(torch.bfloat16) + position[hidden]], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x[:, visible.shape[1]:]))


def sinusoids(n, dim):
    angle = torch.arange(n)[:, None] * torch.exp(-math.log(10_000) * torch.arange(0, dim, 2) / dim)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def jepa_loss(predicted, features, hidden):
    target = F.layer_norm(take(features, hidden).float(), features.shape[-1:])
    return (predicted.float() - target).abs().mean()


def tubes(batch, times, places, keep, device):
    """Visible and hidden tokens: the same places in all frames, drawn for each clip, sorted so that reads are ordered."""
    order = torch.rand(batch, places, device=device).argsort(1)
    frames = torch.arange(times, device=device)[None, :, None] * places
    visible, hidden = order[:, :keep].sort(1).values, order[:, keep:].sort(1).values
    return (frames + visible[:, None]).flatten(1), (frames + hidden[:, None]).flatten(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=768)
    p.add_argument("--depth", type=int, default=12)
    p.add_argument("--heads", type=int, default=12)
    p.add_argument("--pred-dim", type=int, default=384)
    p.add_argument("--pred-depth", type=int, default=6)
    p.add_argument("--frames", type=int, default=16)
    p.add_argument("--size", type=int, default=128)
    p.add_argument("--clips", type=int, default=1024)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--visible", type=float, default=0.25)
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--lr", type=float, default=6e-4)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)

    coarse = torch.rand(args.clips, 3, args.frames // 4, 8, 8, device=device)
    clips = torch.empty(args.clips, 3, args.frames, args.size, args.size, dtype=torch.uint8, device=device)
    for some, into in zip(coarse.split(64), clips.split(64)):
        into.copy_(F.interpolate(some, size=into.shape[2:], mode="trilinear") * 255)

    encoder = Encoder(args.dim, args.depth, args.heads, args.frames, args.size).to(device)
    predictor = Predictor(args.dim, args.pred_dim, args.pred_depth, args.heads, encoder.times * encoder.places).to(device)
    average = [w.detach().clone() for w in encoder.parameters()]
    teacher = copy.deepcopy(encoder).bfloat16().requires_grad_(False)
    teacher_weights, weights = list(teacher.parameters()), [w.detach() for w in encoder.parameters()]
    trained = [*encoder.parameters(), *predictor.parameters()]
    optimizer = torch.optim.AdamW([{"params": [w for w in trained if w.dim() > 1], "weight_decay": 0.04},
                                   {"params": [w for w in trained if w.dim() <= 1], "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 40))
    keep = round(args.visible * encoder.places)

    @torch.compile
    def objective(clips):
        patches = encoder.tokens(clips)
        visible, hidden = tubes(clips.shape[0], encoder.times, encoder.places, keep, clips.device)
        with torch.no_grad():
            features = teacher(patches)
        return jepa_loss(predictor(encoder(patches, visible), visible, hidden), features, hidden)

    running, tic = torch.zeros((), device=device), time.perf_counter()
    for step in range(args.steps):
        picked = torch.randint(args.clips, (args.batch,), device=device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = objective(clips[picked])
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 3.0, foreach=True)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        torch._foreach_lerp_(average, weights, 0.002)
        torch._foreach_copy_(teacher_weights, average)
        running.lerp_(loss.detach(), 0.1)
        if step % 50 == 49:
            print(f"step {step + 1} loss {running.item():.4f} {50 * args.batch / (time.perf_counter() - tic):.0f} clips/s", flush=True)
            tic = time.perf_counter()


if __name__ == "__main__":
    main()
