"""Cross-encoder for passage re-ranking, pairwise (RankNet) loss, trained on (query, positive, hard negative) triples.

What made it fast, for the record (start of the year: 410 ms a step):
  * token ids live on the GPU as one flat tensor, a batch is one gather
  * batches of like length, padded to a multiple of 64, as many rows as make 32k tokens; so few shapes
  * bf16 autocast, SDPA, blocks compiled (one compilation per shape serves all of them), fused AdamW; nothing is read back but every 50 steps
"""
import argparse
import contextlib
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, CLS, SEP = 0, 1, 2


@dataclass
class Config:
    vocab: int = 30528
    dim: int = 768
    layers: int = 10
    heads: int = 12
    longest: int = 320
    tokens: int = 32768
    triples: int = 60000
    steps: int = 500
    lr: float = 2e-5
    warmup: int = 100
    log_every: int = 50
    compile: bool = True


def parse() -> Config:
    parser, defaults = argparse.ArgumentParser(), Config()
    for name, value in vars(defaults).items():
        parser.add_argument(f"--{name}", type=(lambda v: v == "True") if isinstance(value, bool) else type(value), default=value)
    return Config(**vars(parser.parse_args()))


class Triples:
    """Flat token ids on the device. A triple has two rows: query + positive, query + negative."""

    def __init__(self, cfg: Config, device: torch.device):
        rng = np.random.default_rng(0)
        query = rng.integers(4, 20, cfg.triples)
        lengths = np.minimum(query + np.clip(rng.lognormal(5.0, 0.4, cfg.triples) * rng.uniform(0.85, 1.15, (2, cfg.triples)), 24, 400).astype(np.int64) + 3, cfg.longest)
        self.length = lengths.max(axis=0)
        flat = rng.integers(5, cfg.vocab, int(lengths.sum()), dtype=np.int32)
        start = np.concatenate([[0], lengths.T.ravel().cumsum()[:-1]]).reshape(-1, 2)
        flat[start] = CLS
        flat[start + 1 + query[:, None]] = SEP
        self.flat = torch.from_numpy(flat).to(device)
        self.start = torch.from_numpy(start).to(device)
        self.lengths = torch.from_numpy(lengths.T.copy()).to(device)
        self.query = torch.from_numpy(query).to(device)
        self.cfg, self.device, self.rng = cfg, device, rng
        self.span = torch.arange(cfg.longest, device=device)
        width = -(-self.length // 64) * 64
        self.buckets = {int(w): np.flatnonzero(width == w) for w in np.unique(width)}

    def epoch(self):
        """(ids of triples on the device, width) in random order; one upload for the whole epoch."""
        batches = []
        for width, rows in self.buckets.items():
            rows, per = self.rng.permutation(rows), max(1, self.cfg.tokens // (2 * width))
            batches += [(rows[i:i + per], width) for i in range(0, len(rows) - per + 1, per)]
        order = self.rng.permutation(len(batches))
        joined = torch.from_numpy(np.concatenate([batches[k][0] for k in order])).to(self.device)
        at = 0
        for k in order:
            rows, width = batches[k]
            yield joined[at:at + len(rows)], width
            at += len(rows)

    def gather(self, rows, width):
        start, length = self.start[rows].T.reshape(-1, 1), self.lengths[rows].T.reshape(-1, 1)
        span = self.span[:width]
        real = span < length
        ids = torch.where(real, self.flat[(start + span).clamp(max=len(self.flat) - 1)], PAD)
        passage = span > self.query[rows].repeat(2)[:, None]
        return ids, passage.long(), real


class Block(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.heads = cfg.heads
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.qkv, self.proj = nn.Linear(cfg.dim, 3 * cfg.dim), nn.Linear(cfg.dim, cfg.dim)
        self.up, self.down = nn.Linear(cfg.dim, 4 * cfg.dim), nn.Linear(4 * cfg.dim, cfg.dim)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class CrossEncoder(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.tokens, self.positions, self.kinds = nn.Embedding(cfg.vocab, cfg.dim), nn.Embedding(cfg.longest, cfg.dim), nn.Embedding(2, cfg.dim)
        self.blocks = nn.ModuleList([Block(cfg) for _ in range(cfg.layers)])
        self.norm, self.score = nn.LayerNorm(cfg.dim), nn.Linear(cfg.dim, 1)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, kinds, real):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]] + self.kinds(kinds)
        mask = real[:, None, None]
        for block in self.blocks:
            x = block(x, mask)
        return self.score(self.norm(x[:, 0]))[:, 0]


def loss_of(model, ids, kinds, real):
    better, worse = model(ids, kinds, real).float().chunk(2)
    margin = better - worse
    return F.softplus(-margin).mean(), (margin.detach() > 0).float().mean()


def main():
    cfg = parse()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    data, model = Triples(cfg, device), CrossEncoder(cfg).to(device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], lr=cfg.lr, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / cfg.warmup) * 0.5 * (1 + math.cos(math.pi * min(1, s / cfg.steps))))
    if cfg.compile:
        for block in model.blocks:
            block.compile(dynamic=False)
    autocast = torch.autocast(device.type, dtype=torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()
    parameters = list(model.parameters())
    print(f"{sum(p.numel() for p in parameters) / 1e6:.0f} M parameters, {', '.join(f'{len(r)} triples up to {w}' for w, r in data.buckets.items())}")
    step, sums, tokens, tic = 0, torch.zeros(3, device=device), 0, time.perf_counter()
    while step < cfg.steps:
        for rows, width in data.epoch():
            ids, kinds, real = data.gather(rows, width)
            with autocast:
                loss, right = loss_of(model, ids, kinds, real)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            sums += torch.stack([loss.detach(), right, norm])
            tokens += ids.numel()
            step += 1
            if step % cfg.log_every == 0:
                mean_loss, mean_right, mean_norm = (sums / cfg.log_every).tolist()
                took = time.perf_counter() - tic
                print(f"{step:5d} loss {mean_loss:.4f} right {mean_right:.3f} norm {mean_norm:.2f} {tokens / took / 1e3:.0f}k tokens/s {took / cfg.log_every * 1e3:.1f} ms", flush=True)
                sums.zero_()
                tokens, tic = 0, time.perf_counter()
            if step == cfg.steps:
                break


if __name__ == "__main__":
    main()
