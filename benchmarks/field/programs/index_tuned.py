"""Embeds a corpus of passages with a BERT-sized bi-encoder into an index on the GPU, then searches it exactly with batches of queries."""
import argparse
import queue
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--passages", type=int, default=600_000)
    p.add_argument("--queries", type=int, default=8192)
    p.add_argument("--max-len", type=int, default=256)
    p.add_argument("--tokens", type=int, default=65536, help="of a batch")
    p.add_argument("--vocab", type=int, default=30522)
    p.add_argument("--top-k", type=int, default=100)
    return p.parse_args()


class Corpus:
    """Token ids of all passages in one flat array, as memory-mapped by a tokenizing job before."""

    def __init__(self, n, max_len, vocab, seed):
        rng = np.random.default_rng(seed)
        self.lengths = np.clip(rng.lognormal(4.5, 0.5, n), 12, max_len).astype(np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        self.ids = rng.integers(5, vocab, self.lengths.sum(), dtype=np.int32)

    def batches(self, tokens):
        """Indices of passages of exactly the same length (nothing is padded), so many that they have about `tokens` tokens."""
        order = np.argsort(self.lengths, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(self.lengths[order])) + 1)
        for part in parts:
            size = max(1, tokens // int(self.lengths[part[0]]))
            yield from np.array_split(part, -(-len(part) // size))

    def gather(self, chosen):
        return self.ids[self.starts[chosen][:, None] + np.arange(self.lengths[chosen[0]])]


def prefetched(corpus, batches, depth=6):
    """Batches in pinned memory from a thread; copies do not wait."""
    ready = queue.Queue(depth)

    def work():
        for chosen in batches:
            ids = torch.from_numpy(corpus.gather(chosen)).pin_memory()
            ready.put((ids, torch.from_numpy(chosen).pin_memory()))
        ready.put(None)

    threading.Thread(target=work, daemon=True).start()
    while (item := ready.get()) is not None:
        yield tuple(t.cuda(non_blocking=True) for t in item)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.out(y.transpose(1, 2).reshape(b, n, d)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self, vocab, max_len, dim=768, depth=12, heads=12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))

    def forward(self, ids):
        x = self.norm(self.tokens(ids) + self.positions.weight[:ids.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return F.normalize(x.mean(1, dtype=torch.float32), dim=-1)


def encode(model, corpus, tokens, out, report=0):
    start, done = time.time(), 0
    for step, (ids, where) in enumerate(prefetched(corpus, corpus.batches(tokens))):
        out[where] = model(ids).to(out.dtype)
        done += len(ids)
        if report and step % report == 0:
            print(f"batch {step} length {ids.shape[1]} {done}/{len(out)} passages {done / (time.time() - start):.0f}/s", flush=True)
    return out


def search(index, queries, k, block=1024, shard=131072):
    """The k best of each query; scores of one shard at a time, merged."""
    scores, found = [], []
    for q in queries.split(block):
        best, at = torch.empty(len(q), 0, device=q.device, dtype=q.dtype), torch.empty(len(q), 0, device=q.device, dtype=torch.long)
        for first in range(0, len(index), shard):
            s, i = (q @ index[first:first + shard].T).topk(min(k, len(index) - first), dim=1)
            best, at = torch.cat([best, s], 1), torch.cat([at, i + first], 1)
            best, order = best.topk(k, dim=1)
            at = at.gather(1, order)
        scores.append(best)
        found.append(at)
    return torch.cat(scores), torch.cat(found)


def main():
    args = get_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    corpus = Corpus(args.passages, args.max_len, args.vocab, seed=0)
    questions = Corpus(args.queries, 40, args.vocab, seed=1)
    model = Encoder(args.vocab, args.max_len).cuda().to(torch.bfloat16).eval().requires_grad_(False)
    for layer in model.layers:
        layer.compile(dynamic=True)        # one graph serves all layers and lengths
    print(f"{args.passages} passages, {corpus.lengths.sum() / 1e6:.1f} M tokens")
    with torch.inference_mode():
        index = torch.empty(args.passages, 768, device="cuda", dtype=torch.float16)
        start = time.time()
        encode(model, corpus, args.tokens, index, report=50)
        torch.cuda.synchronize()
        print(f"index built in {time.time() - start:.1f} s")
        queries = torch.empty(args.queries, 768, device="cuda", dtype=torch.float16)
        encode(model, questions, args.tokens, queries)
        start = time.time()
        scores, found = search(index, queries, args.top_k)
        print(f"best score {scores[:, 0].float().mean().item():.4f}, {len(found.unique())} passages found, {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
