"""Trains a reward model on preference pairs (Bradley-Terry): a LLaMA-like decoder whose last token is scored."""
import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--pairs", type=int, default=16000)
    p.add_argument("--buckets", type=int, nargs="+", default=[256, 384, 512])
    p.add_argument("--tokens-per-batch", type=int, default=24576)
    p.add_argument("--dim", type=int, default=1024)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=2e-5)
    p.add_argument("--warmup", type=int, default=50)
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--log-every", type=int, default=50)
    return p.parse_args()


class Preferences(Dataset):
    """Prompts with a chosen and a rejected answer, tokens in one flat array; an answer is good by how many of its tokens are even."""

    def __init__(self, n, longest, vocab):
        rng = np.random.default_rng(0)
        self.lengths = np.clip(rng.lognormal(5.75, 0.35, (n, 2)), 60, longest).astype(np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths.ravel())[:-1]]).reshape(n, 2)
        self.tokens = rng.integers(3, vocab, self.lengths.sum()).astype(np.int32)
        chosen = np.zeros(len(self.tokens), bool)
        for start, length in zip(self.starts[:, 0], self.lengths[:, 0]):
            chosen[start:start + length] = True
        even = chosen & (rng.random(len(self.tokens)) < 0.2)
        self.tokens[even] = self.tokens[even] // 2 * 2

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return [self.tokens[s:s + n] for s, n in zip(self.starts[i], self.lengths[i])]


class BucketBatches:
    """Batches of pairs that fit the same bucket, all of the same number of tokens; only as many shapes as buckets."""

    def __init__(self, lengths, buckets, tokens, seed=0):
        self.buckets, self.tokens, self.seed = buckets, tokens, seed
        self.bucket = np.searchsorted(buckets, lengths.max(1))

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        self.seed += 1
        batches = []
        for b, length in enumerate(self.buckets):
            members, size = rng.permutation(np.flatnonzero(self.bucket == b)), self.tokens // (2 * length)
            batches += [members[i:i + size].tolist() for i in range(0, len(members) - size + 1, size)]
        yield from (batches[i] for i in rng.permutation(len(batches)))

    def __len__(self):
        return sum(int((self.bucket == b).sum()) // (self.tokens // (2 * n)) for b, n in enumerate(self.buckets))


class Collate:
    """Chosen answers first, then the rejected ones, padded on the right to the bucket."""

    def __init__(self, buckets):
        self.buckets = buckets

    def __call__(self, pairs):
        rows = [a for a, _ in pairs] + [b for _, b in pairs]
        lengths = np.array([len(r) for r in rows])
        ids = np.zeros((len(rows), self.buckets[np.searchsorted(self.buckets, lengths.max())]), np.int64)
        for row, tokens in zip(ids, rows):
            row[:len(tokens)] = tokens
        return torch.from_numpy(ids), torch.from_numpy(lengths - 1)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        hidden = (8 * dim // 3 + 255) // 256 * 256
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate_up, self.down = nn.Linear(dim, 2 * hidden, bias=False), nn.Linear(hidden, dim, bias=False)

    def forward(self, x, cos, sin):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        # padding is on the right, so a causal mask is all that is needed
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class RewardModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.dim)
        self.blocks = nn.ModuleList(Block(args.dim, args.heads) for _ in range(args.layers))
        self.norm, self.score = nn.RMSNorm(args.dim, eps=1e-5), nn.Linear(args.dim, 1, bias=False)
        half = args.dim // args.heads // 2
        angles = torch.outer(torch.arange(max(args.buckets)), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos().bfloat16(), persistent=False)
        self.register_buffer("sin", angles.sin().bfloat16(), persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02 / (2 * args.layers) ** 0.5 if "out" in name or "down" in name else 0.02)

    def forward(self, ids, last):
        x, n = self.embed(ids).bfloat16(), ids.shape[1]
        cos, sin = self.cos[:n], self.sin[:n]
        for block in self.blocks:
            x = block(x, cos, sin)
        x = x[torch.arange(len(x), device=x.device), last]
        return self.score(self.norm(x)).float().squeeze(-1)


def main():
    args = get_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    dataset = Preferences(args.pairs, max(args.buckets), args.vocab)
    sampler = BucketBatches(dataset.lengths, args.buckets, args.tokens_per_batch)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=Collate(args.buckets), num_workers=args.workers,
                        pin_memory=True, persistent_workers=True, prefetch_factor=4)
    model = RewardModel(args).cuda()
    for block in model.blocks:
        block.compile(dynamic=False)       # one graph for all layers, one for each bucket
    decay = [p for p in model.parameters() if p.ndim > 1]
    other = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}], lr=args.lr, betas=(0.9, 0.95), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / args.warmup))
    sums = torch.zeros(3, device="cuda")
    start, step = time.time(), 0
    for epoch in range(args.epochs):
        for ids, last in loader:
            ids, last = ids.cuda(non_blocking=True), last.cuda(non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                chosen, rejected = model(ids, last).chunk(2)
            margin = chosen - rejected
            loss = -F.logsigmoid(margin).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()
            with torch.no_grad():
                sums += torch.stack([loss, (margin > 0).float().mean(), margin.mean()])
            step += 1
            if step % args.log_every == 0:
                loss_avg, acc, mean = (sums / args.log_every).tolist()
                sums.zero_()
                seconds, start = time.time() - start, time.time()
                print(f"step {step}/{args.epochs * len(loader)} loss {loss_avg:.4f} acc {acc:.3f} margin {mean:.3f} "
                      f"{args.log_every * args.tokens_per_batch / seconds:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
