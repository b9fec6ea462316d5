"""Text generation with a small Llama of one's own: grouped queries, rotary positions, a cache that grows, top-p sampling."""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, LAYERS, HEADS, KV_HEADS, FFN = 32000, 1024, 16, 16, 4, 2816
PROMPT, NEW, BATCH, TOP_P, TEMPERATURE, EOS = 128, 64, 8, 0.9, 0.8, 2
HEAD = DIM // HEADS


def rope(positions, device):
    inv_freq = 1.0 / (10000 ** (torch.arange(0, HEAD, 2).float() / HEAD))
    angles = torch.outer(positions.float().cpu(), inv_freq)
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(device), angles.sin().to(device)


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


class Norm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk = nn.Linear(DIM, HEADS * HEAD, bias=False), nn.Linear(DIM, KV_HEADS * HEAD, bias=False)
        self.wv, self.wo = nn.Linear(DIM, KV_HEADS * HEAD, bias=False), nn.Linear(HEADS * HEAD, DIM, bias=False)

    def forward(self, x, positions, cache):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, HEADS, HEAD).transpose(1, 2)
        k = self.wk(x).view(b, t, KV_HEADS, HEAD).transpose(1, 2)
        v = self.wv(x).view(b, t, KV_HEADS, HEAD).transpose(1, 2)
        cos, sin = rope(positions, x.device)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        if cache:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        cache["k"], cache["v"] = k, v
        k, v = k.repeat_interleave(HEADS // KV_HEADS, 1), v.repeat_interleave(HEADS // KV_HEADS, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.wo(out.transpose(1, 2).reshape(b, t, -1))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.n1, self.n2 = Attention(), Norm(DIM), Norm(DIM)
        self.gate, self.up, self.down = nn.Linear(DIM, FFN, bias=False), nn.Linear(DIM, FFN, bias=False), nn.Linear(FFN, DIM, bias=False)

    def forward(self, x, positions, cache):
        x = x + self.attn(self.n1(x), positions, cache)
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.norm = nn.Embedding(VOCAB, DIM), nn.ModuleList([Layer() for _ in range(LAYERS)]), Norm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, start, caches):
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.embed(ids)
        for layer, cache in zip(self.layers, caches):
            x = layer(x, positions, cache)
        return self.head(self.norm(x[:, -1:]))[:, 0]


def top_p(logits):
    tokens = []
    for row in logits.float() / TEMPERATURE:
        probs, order = torch.sort(F.softmax(row, -1), descending=True)
        allowed = probs.cumsum(0) - probs < TOP_P
        probs = probs[allowed]
        pick = torch.multinomial(probs / probs.sum(), 1).item()
        tokens.append(order[pick].item())
    return torch.tensor(tokens, device=logits.device)


@torch.inference_mode()
def generate(model, prompt):
    caches = [{} for _ in range(LAYERS)]
    finished = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    ids, out, start = prompt, [], 0
    for _ in range(NEW):
        logits = model(ids, start, caches)
        start += ids.shape[1]
        token = top_p(logits)
        token = torch.where(finished, EOS, token)
        finished |= token == EOS
        out.append(token)
        if finished.all():
            break
        ids = token[:, None]
    return torch.stack(out, 1)


torch.manual_seed(0)
model = Llama().to(torch.bfloat16).cuda().eval()
began, count = time.time(), 0
for request in range(6):
    prompt = torch.randint(3, VOCAB, (BATCH, PROMPT), device="cuda")
    answer = generate(model, prompt)
    count += answer.numel()
print(f"{count / (time.time() - began):.0f} tokens/s")
