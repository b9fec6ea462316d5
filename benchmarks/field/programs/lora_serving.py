"""Decode loop of a multi-LoRA server: one base model, requests that each name an adapter (S-LoRA without the kernels)."""
import math
import random
import time
from collections import Counter

import torch
import torch.nn.functional as F

DIM, LAYERS, HEADS, FFN, VOCAB = 2048, 16, 16, 5632, 32000
ADAPTERS, RANK, ALPHA = 32, 16, 32
REQUESTS, PROMPT, NEW, WAVES = 32, 128, 96, 3
DTYPE, DEVICE = torch.bfloat16, "cuda"
HEAD = DIM // HEADS


def weight(*shape, std=0.02):
    return (torch.randn(*shape, device=DEVICE) * std).to(DTYPE)


class LoraLinear:
    """y = W x + (alpha / r) B_a A_a x, where a is the adapter of the row."""

    def __init__(self, i, o):
        self.w = weight(o, i)
        self.a, self.b = weight(ADAPTERS, RANK, i), weight(ADAPTERS, o, RANK)

    def __call__(self, x, ids):                     # x: R, S, i     ids: R
        y = F.linear(x, self.w)
        for a in ids.unique().tolist():
            rows = (ids == a).nonzero().squeeze(1)
            h = x[rows] @ self.a[a].t()
            y[rows] = y[rows] + (ALPHA / RANK) * (h @ self.b[a].t())
        return y


def rms_norm(x, w, eps=1e-6):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * w


def rope(x, start):
    s, half = x.shape[2], HEAD // 2
    freq = 1.0 / (10000 ** (torch.arange(0, half).float() / half))
    angle = torch.outer(torch.arange(start, start + s).float(), freq)
    cos, sin = angle.cos().to(x.device, x.dtype), angle.sin().to(x.device, x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Layer:
    def __init__(self):
        self.n1, self.n2 = (torch.ones(DIM, device=DEVICE, dtype=DTYPE) for _ in range(2))
        self.q, self.k, self.v, self.o = (LoraLinear(DIM, DIM) for _ in range(4))
        self.gate, self.up, self.down = weight(FFN, DIM), weight(FFN, DIM), weight(DIM, FFN, std=0.01)

    def __call__(self, x, ids, cache, start):
        r, s, _ = x.shape
        h = rms_norm(x, self.n1)
        q, k, v = (f(h, ids).view(r, s, HEADS, HEAD).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rope(q, start), rope(k, start)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=s > 1).transpose(1, 2).reshape(r, s, DIM)
        x = x + self.o(att, ids)
        h = rms_norm(x, self.n2)
        return x + F.linear(F.silu(F.linear(h, self.gate)) * F.linear(h, self.up), self.down), (k, v)


class Model:
    def __init__(self):
        self.embed, self.head = weight(VOCAB, DIM), weight(VOCAB, DIM)
        self.norm = torch.ones(DIM, device=DEVICE, dtype=DTYPE)
        self.layers = [Layer() for _ in range(LAYERS)]

    def __call__(self, tokens, ids, caches, start):
        x = self.embed[tokens]
        new = []
        for layer, cache in zip(self.layers, caches):
            x, cache = layer(x, ids, cache, start)
            new.append(cache)
        return F.linear(rms_norm(x[:, -1], self.norm), self.head).float(), new


def sample(logits, temperature=0.8, top_k=50):
    v, _ = torch.topk(logits / temperature, top_k)
    logits = torch.where(logits / temperature < v[:, -1:], torch.full_like(logits, -float("inf")), logits / temperature)
    return torch.multinomial(logits.softmax(-1), 1)


@torch.inference_mode()
def serve():
    torch.manual_seed(0)
    random.seed(0)
    model, popularity = Model(), [1 / (i + 1) for i in range(ADAPTERS)]
    served, finished, t0 = 0, Counter(), time.time()
    for wave in range(WAVES):
        ids = torch.tensor(random.choices(range(ADAPTERS), popularity, k=REQUESTS), device=DEVICE)
        tokens = torch.randint(0, VOCAB, (REQUESTS, PROMPT), device=DEVICE)
        logits, caches = model(tokens, ids, [None] * LAYERS, 0)
        done = [False] * REQUESTS
        outputs = [[] for _ in range(REQUESTS)]
        for pos in range(PROMPT, PROMPT + NEW):
            tokens = sample(logits)
            for i, t in enumerate(tokens.squeeze(1).tolist()):
                if not done[i]:
                    outputs[i].append(t)
                    done[i] = t == 2
                    served += 1
            if all(done):
                break
            logits, caches = model(tokens, ids, caches, pos)
        finished.update(ids.tolist())
        print(f"wave {wave}: {len(set(ids.tolist()))} adapters, {served / (time.time() - t0):.0f} tokens/s, longest {max(map(len, outputs))}")
    print("most asked for:", finished.most_common(3), f"perplexity of the last step {math.exp(-logits.log_softmax(-1).max(-1).values.mean().item()):.1f}")


if __name__ == "__main__":
    serve()
