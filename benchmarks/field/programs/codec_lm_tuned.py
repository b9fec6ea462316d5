"""Text-free music LM over the tokens of a neural codec (4 codebooks, delay pattern, as MusicGen), trained from scratch.

Everything that the H200 likes: bf16 autocast, flash attention through SDPA, compiled blocks, fused AdamW,
tokens of all clips on the GPU, one lookup for all codebooks, one matmul for all heads.
"""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-5)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_m = RMSNorm(dim), RMSNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_a(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm_m(x)), approximate="tanh"))


class CodecLM(nn.Module):
    def __init__(self, codebooks, codes, dim, depth, heads, length):
        super().__init__()
        self.codebooks, self.codes = codebooks, codes
        # code `codes` of each codebook stands for "nothing yet"
        self.embed = nn.Embedding(codebooks * (codes + 1), dim)
        self.register_buffer("offsets", torch.arange(codebooks) * (codes + 1), persistent=False)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = RMSNorm(dim)
        self.heads = nn.Linear(dim, codebooks * codes, bias=False)
        half = dim // heads // 2
        angle = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        for block in self.blocks:
            nn.init.normal_(block.proj.weight, std=0.02 / math.sqrt(2 * depth))
            nn.init.normal_(block.down.weight, std=0.02 / math.sqrt(2 * depth))

    def forward(self, tokens):
        """tokens: batch x time x codebooks, already delayed."""
        x = self.embed(tokens + self.offsets).sum(2).bfloat16()
        cos, sin = self.cos[:x.shape[1]].to(x.dtype), self.sin[:x.shape[1]].to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.heads(self.norm(x)).unflatten(-1, (self.codebooks, self.codes))


def lm_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 2).float(), targets.flatten(), ignore_index=-100)


def delayed(clips, codes):
    """Codebook k is k steps late: done once for all clips, not for each batch."""
    n, t, k = clips.shape
    out = torch.full((n, t + k - 1, k), codes, dtype=clips.dtype, device=clips.device)
    for i in range(k):
        out[:, i:i + t, i] = clips[:, :, i]
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--codebooks", type=int, default=4)
    p.add_argument("--codes", type=int, default=2048)
    p.add_argument("--dim", type=int, default=1024)
    p.add_argument("--depth", type=int, default=12)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--frames", type=int, default=1021)
    p.add_argument("--clips", type=int, default=512)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--warmup", type=int, default=50)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    torch.manual_seed(0)
    device = args.device

    clips = torch.randint(args.codes, (args.clips, args.frames // 4 + 1, args.codebooks), device=device)
    clips = delayed(clips.repeat_interleave(4, 1)[:, :args.frames], args.codes)
    model = CodecLM(args.codebooks, args.codes, args.dim, args.depth, args.heads, args.frames + args.codebooks).to(device)
    for block in model.blocks:
        block.compile()
    loss_of = torch.compile(lm_loss)
    decay = [w for w in model.parameters() if w.dim() > 1]
    rest = [w for w in model.parameters() if w.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / args.warmup))
    average, start = torch.zeros((), device=device), time.perf_counter()
    for step in range(args.steps):
        batch = clips[torch.randint(args.clips, (args.batch,), device=device)]
        inputs, targets = batch[:, :-1], batch[:, 1:]
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            logits = model(inputs)
        loss = loss_of(logits, targets.masked_fill(targets == args.codes, -100))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        average.lerp_(loss.detach(), 0.1)
        if step % 25 == 24:
            rate = 25 * args.batch * inputs.shape[1] / (time.perf_counter() - start)
            print(f"step {step + 1} loss {average.item():.3f} {rate:,.0f} frames/s")
            start = time.perf_counter()


if __name__ == "__main__":
    main()
