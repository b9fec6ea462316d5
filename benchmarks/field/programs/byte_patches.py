#!/usr/bin/env python3
"""Tokenizer-free LM over bytes: a global transformer over patches of 8 bytes, a local one within each patch.

bf16 autocast, compiled, fused AdamW, flash attention, batches copied ahead from pinned memory.
"""
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PATCH, CTX, BATCH, STEPS = 8, 8192, 12, 280
D, LAYERS, HEADS = 1024, 12, 16
D_LOCAL, LAYERS_LOCAL, HEADS_LOCAL = 512, 4, 8
VOCAB = 256

torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class MegaByte(nn.Module):
    def __init__(self):
        super().__init__()
        self.byte = nn.Embedding(VOCAB, D // PATCH)
        self.pos = nn.Parameter(torch.randn(CTX // PATCH, D) * 0.02)
        self.blocks = nn.ModuleList([Block(D, HEADS) for _ in range(LAYERS)])
        self.to_local = nn.Linear(D, PATCH * D_LOCAL, bias=False)
        self.byte_local = nn.Embedding(VOCAB, D_LOCAL)
        self.local = nn.ModuleList([Block(D_LOCAL, HEADS_LOCAL) for _ in range(LAYERS_LOCAL)])
        self.norm, self.head = nn.RMSNorm(D_LOCAL), nn.Linear(D_LOCAL, VOCAB, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        b, n = ids.shape
        patches = self.byte(ids).view(b, n // PATCH, D)
        h = F.pad(patches, (0, 0, 1, -1)) + self.pos           # patch p sees patches before it
        for block in self.blocks:
            h = block(h)
        h = self.to_local(h).view(b * n // PATCH, PATCH, D_LOCAL)
        before = F.pad(self.byte_local(ids).view(-1, PATCH, D_LOCAL), (0, 0, 1, -1))
        h = h + before
        for block in self.local:
            h = block(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.view(-1, VOCAB).float(), ids.view(-1))


class Bytes:
    """Windows of a corpus, copied while the step before is running."""

    def __init__(self, data):
        self.data = torch.from_numpy(data)
        self.stream = torch.cuda.Stream()
        self.rng = np.random.default_rng(5)
        self.pinned = [torch.empty(BATCH, CTX, dtype=torch.uint8).pin_memory() for _ in range(3)]
        self.turn = 0
        self.load()

    def load(self):
        host = self.pinned[self.turn % 3]
        self.turn += 1
        for row, at in zip(host, self.rng.integers(0, len(self.data) - CTX, BATCH)):
            row.copy_(self.data[at:at + CTX])
        with torch.cuda.stream(self.stream):
            self.ahead = host.to("cuda", non_blocking=True).long()

    def __iter__(self):
        while True:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.ahead
            batch.record_stream(torch.cuda.current_stream())
            self.load()
            yield batch


def corpus(size=1 << 24):
    """Words of a made-up language, Zipf distributed, as bytes."""
    rng = np.random.default_rng(1)
    words = [bytes(rng.integers(97, 123, rng.integers(2, 9)).astype(np.uint8)) + b" " for _ in range(5000)]
    ranks = np.minimum(rng.zipf(1.3, size // 5), 5000) - 1
    return np.frombuffer(b"".join(words[r] for r in ranks)[:size], dtype=np.uint8).copy()


def main():
    torch.manual_seed(0)
    model = MegaByte().to("cuda")
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                            lr=6e-4, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(model)
    losses = torch.zeros(STEPS, device="cuda")
    began = time.perf_counter()
    for step, ids in enumerate(Bytes(corpus())):
        if step == STEPS:
            break
        lr = 6e-4 * min(1, (step + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
        for group in opt.param_groups:
            group["lr"] = lr
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses[step] = loss.detach()
        if step % 50 == 49:
            seen = BATCH * CTX * (step + 1) / (time.perf_counter() - began)
            print(f"step {step + 1}: {losses[step - 49:step + 1].mean().item() / math.log(2):.3f} bits per byte, {seen / 1e3:.0f}k bytes/s")


if __name__ == "__main__":
    main()
