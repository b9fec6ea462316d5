#!/usr/bin/env python
"""Masked language model of DNA, one token a base, pretrained on windows of a genome (synthetic repeats and motifs here).

The genome lies on the GPU as bytes; windows, reverse complements and masks are made there, inside of the compiled step.
As many bases are masked in each window, so that shapes never change and only those are sent through the head.
"""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MASK, TOKENS = 4, 5     # A C G T mask


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x, cos, sin):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class DNAModel(nn.Module):
    def __init__(self, dim, depth, heads, window):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim, bias=False), nn.Linear(dim, 4)
        half = dim // heads // 2
        angle = torch.arange(window)[:, None] * torch.exp(-math.log(10_000) * torch.arange(half) / half)
        self.register_buffer("cos", angle.cos().bfloat16(), persistent=False)
        self.register_buffer("sin", angle.sin().bfloat16(), persistent=False)
        for name, w in self.named_parameters():
            if w.dim() > 1:
                nn.init.normal_(w, std=0.02 / math.sqrt(2 * depth) if name.endswith(("proj.weight", "down.weight")) else 0.02)

    def forward(self, tokens, where):
        x = self.embed(tokens).bfloat16()
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        x = x.gather(1, where[:, :, None].expand(-1, -1, x.shape[2]))
        return self.head(self.norm(x))


def synthetic_genome(length, device):
    """Random bases in which 4096 motifs of 32 bases come again and again."""
    genome = torch.randint(4, (length // 32, 32), device=device, dtype=torch.uint8)
    motifs = torch.randint(4, (4096, 32), device=device, dtype=torch.uint8)
    which = torch.randint(4096, (length // 32,), device=device)
    repeated = torch.rand(length // 32, 1, device=device) < 0.5
    return torch.where(repeated, motifs[which], genome).flatten()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=512)
    p.add_argument("--depth", type=int, default=12)
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--window", type=int, default=1024)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--masked", type=float, default=0.15)
    p.add_argument("--genome", type=int, default=1 << 26)
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--warmup", type=int, default=50)
    p.add_argument("--lr", type=float, default=6e-4)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)

    genome = synthetic_genome(args.genome, device)
    model = DNAModel(args.dim, args.depth, args.heads, args.window).to(device)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [w for w in weights if w.dim() > 1], "weight_decay": 0.1},
                                   {"params": [w for w in weights if w.dim() <= 1], "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.98), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / args.warmup, 0.5 + 0.5 * math.cos(math.pi * min(s / args.steps, 1))))
    count = round(args.masked * args.window)

    def objective(genome):
        start = torch.randint(args.genome - args.window, (args.batch, 1), device=device)
        bases = genome[start + torch.arange(args.window, device=device)].long()
        turned = torch.rand(args.batch, 1, device=device) < 0.5
        bases = torch.where(turned, 3 - bases.flip(1), bases)       # A-T and C-G
        where = torch.rand(args.batch, args.window, device=device).topk(count, dim=1, sorted=False).indices
        logits = model(bases.scatter(1, where, MASK), where)
        return F.cross_entropy(logits.float().flatten(0, 1), bases.gather(1, where).flatten())

    step_loss = torch.compile(objective)
    running, tic = torch.full((), math.log(4), device=device), time.perf_counter()
    for step in range(args.steps):
        with torch.autocast(device.type, torch.bfloat16):
            loss = step_loss(genome)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        running.lerp_(loss.detach(), 0.05)
        if step % 50 == 49:
            rate = 50 * args.batch * args.window / (time.perf_counter() - tic)
            print(f"step {step + 1} loss {running.item():.4f} {rate / 1e6:.2f} Mb/s", flush=True)
            tic = time.perf_counter()


if __name__ == "__main__":
    main()
