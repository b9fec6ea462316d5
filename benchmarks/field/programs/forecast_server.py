"""Forecast service around a time-series foundation model (patched decoder, quantile heads, in the manner of TimesFM).

The web front end puts JSON requests on a queue; this process takes micro-batches off it, runs the model and
puts JSON answers back. Here a thread plays the front end. Weights are random until the checkpoint is converted.
"""
import argparse
import collections
import json
import math
import queue
import threading
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
p.add_argument("--dim", type=int, default=1024)
p.add_argument("--layers", type=int, default=16)
p.add_argument("--heads", type=int, default=16)
p.add_argument("--context", type=int, default=2048)
p.add_argument("--max-batch", type=int, default=32)
p.add_argument("--requests", type=int, default=9600)
args = p.parse_args()

PATCH_IN, PATCH_OUT = 32, 128
QUANTILES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


# ------------------------------------------------------------------------------------------------ model
class ResidualBlock(nn.Module):
    def __init__(self, n_in, hidden, n_out):
        super().__init__()
        self.hidden = nn.Linear(n_in, hidden)
        self.out = nn.Linear(hidden, n_out)
        self.skip = nn.Linear(n_in, n_out)

    def forward(self, x):
        return self.out(F.silu(self.hidden(x))) + self.skip(x)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def rotary(self, x):
        t, d = x.shape[2], self.head_dim
        inv = 1.0 / 10000 ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
        angle = torch.arange(t, dtype=torch.float32)[:, None] * inv[None]
        cos, sin = angle.cos().to(x.device), angle.sin().to(x.device)
        a, b = x[..., : d // 2], x[..., d // 2:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q), self.rotary(k)
        att = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        att = att.masked_fill(~mask, -1e9).softmax(dim=-1)
        return self.proj((att @ v).transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        x = x + self.attn(self.norm1(x), mask)
        return x + self.ffn(self.norm2(x))


class PatchedDecoder(nn.Module):
    def __init__(self, dim, layers, heads):
        super().__init__()
        self.embed = ResidualBlock(2 * PATCH_IN, dim, dim)
        self.layers = nn.ModuleList([Layer(dim, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = ResidualBlock(dim, dim, PATCH_OUT * (1 + len(QUANTILES)))

    def forward(self, series, pad):
        """series, pad: batch x time, padded on the left (pad is 1 there). Mean and quantiles of the next patch at every patch."""
        b, t = series.shape
        x = series.view(b, t // PATCH_IN, PATCH_IN)
        m = pad.view(b, t // PATCH_IN, PATCH_IN)
        x = self.embed(torch.cat([x * (1 - m), m], dim=-1))
        n = x.shape[1]
        empty = m.min(dim=-1).values > 0.5
        causal = torch.tril(torch.ones(n, n, dtype=torch.bool)).to(x.device)
        mask = causal[None, None] & ~empty[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x)).view(b, n, PATCH_OUT, 1 + len(QUANTILES))


# ------------------------------------------------------------------------------------------------ service
def fill_gaps(values):
    """Linear interpolation of missing values, as the front end sends them (None)."""
    x = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    bad = np.isnan(x)
    if bad.any():
        x[bad] = np.interp(np.flatnonzero(bad), np.flatnonzero(~bad), x[~bad])
    return x


class Forecaster:
    def __init__(self):
        torch.manual_seed(0)
        self.model = PatchedDecoder(args.dim, args.layers, args.heads).to(args.device).eval()

    @torch.no_grad()
    def forecast(self, requests):
        series = torch.zeros(len(requests), args.context, device=args.device)
        pad = torch.ones(len(requests), args.context, device=args.device)
        scales = []
        for i, r in enumerate(requests):
            x = fill_gaps(r["values"])[-args.context:]
            mean, std = x.mean(), x.std() + 1e-6
            scales.append((mean, std))
            x = torch.from_numpy((x - mean) / std).float().to(args.device)
            series[i, -len(x):] = x
            pad[i, -len(x):] = 0
        rounds = math.ceil(max(r["horizon"] for r in requests) / PATCH_OUT)
        outputs = []
        for _ in range(rounds):
            out = self.model(series, pad)[:, -1]
            outputs.append(out)
            series = torch.cat([series, out[..., 0]], dim=1)[:, -args.context:]
            pad = torch.cat([pad, torch.zeros_like(out[..., 0])], dim=1)[:, -args.context:]
        outputs = torch.cat(outputs, dim=1)
        answers = []
        for i, r in enumerate(requests):
            mean, std = scales[i]
            out = outputs[i, :r["horizon"]].cpu().numpy() * std + mean
            quantiles = np.sort(out[:, 1:], axis=1)
            answers.append({
                "id": r["id"],
                "mean": [round(float(v), 4) for v in out[:, 0]],
                "quantiles": {str(q): [round(float(v), 4) for v in quantiles[:, k]] for k, q in enumerate(QUANTILES)},
            })
        return answers


def front_end(inbox, n):
    """A day of traffic in small: 512 different requests, again and again."""
    rng, messages = np.random.default_rng(3), []
    for k in range(512):
        length = int(np.clip(rng.lognormal(5.9, 0.7), 64, 2048))
        t = np.arange(length)
        x = np.sin(2 * np.pi * t / rng.choice([7, 24, 52, 168])) * rng.gamma(2.0) + 0.01 * t * rng.normal() + 0.2 * rng.normal(size=length)
        values = [None if g else round(v, 5) for v, g in zip(x.tolist(), (rng.random(length) < 0.02).tolist())]
        values[0], values[-1] = 0.0, 1.0
        horizon = int(rng.choice([14, 24, 48, 96, 192, 336], p=[0.2, 0.3, 0.2, 0.15, 0.1, 0.05]))
        messages.append(json.dumps({"id": k, "values": values, "horizon": horizon}))
    for k in range(n):
        inbox.put(messages[k % len(messages)])
    inbox.put(None)


def serve():
    inbox, outbox = queue.Queue(maxsize=256), collections.deque(maxlen=1000)
    threading.Thread(target=front_end, args=(inbox, args.requests), daemon=True).start()
    server, served, latency, start, open_ = Forecaster(), 0, [], time.perf_counter(), True
    while open_:
        batch = []
        while len(batch) < args.max_batch:
            message = inbox.get()
            if message is None:
                open_ = False
                break
            batch.append(json.loads(message))
        if not batch:
            break
        tic = time.perf_counter()
        for answer in server.forecast(batch):
            outbox.append(json.dumps(answer))
        latency.append(time.perf_counter() - tic)
        served += len(batch)
        if len(latency) % 20 == 0:
            recent = np.array(latency[-20:]) * 1000
            print(f"{served:5d} served, {served / (time.perf_counter() - start):6.1f}/s, batch {recent.mean():.0f} ms (max {recent.max():.0f}), "
                  f"{len(outbox[-1]) / 1024:.0f} KiB of JSON in the last answer", flush=True)


if __name__ == "__main__":
    serve()
