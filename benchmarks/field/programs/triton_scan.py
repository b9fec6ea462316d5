"""Language model of gated linear recurrences; h[t] = a[t] * h[t-1] + b[t] is a Triton kernel, forward and backward."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def scan_forward(A, B, H, T, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < D
    at = row * T * D + cols
    h = tl.zeros([BLOCK], dtype=tl.float32)
    for i in range(T):
        a = tl.load(A + at, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(B + at, mask=mask, other=0.0).to(tl.float32)
        h = a * h + b
        tl.store(H + at, h, mask=mask)
        at += D


@triton.jit
def scan_backward(A, H, DH, DA, DB, T, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < D
    at = row * T * D + (T - 1) * D + cols
    g = tl.zeros([BLOCK], dtype=tl.float32)
    left = tl.zeros([BLOCK], dtype=tl.int32) + T
    for i in range(T):
        left -= 1
        g += tl.load(DH + at, mask=mask, other=0.0).to(tl.float32)
        before = tl.load(H + at - D, mask=mask & (left > 0), other=0.0).to(tl.float32)
        tl.store(DA + at, g * before, mask=mask)
        tl.store(DB + at, g, mask=mask)
        g = g * tl.load(A + at, mask=mask, other=0.0).to(tl.float32)
        at -= D


BLOCK = 32


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        a, b = a.contiguous(), b.contiguous()
        batch, length, d = a.shape
        h = torch.empty(batch, length, d, device=a.device, dtype=torch.float32)
        grid = (batch, triton.cdiv(d, BLOCK))
        scan_forward[grid](a, b, h, length, d, BLOCK=BLOCK, num_warps=1)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx, dh):
        a, h = ctx.saved_tensors
        dh = dh.contiguous()
        batch, length, d = a.shape
        da, db = torch.empty_like(h), torch.empty_like(h)
        grid = (batch, triton.cdiv(d, BLOCK))
        scan_backward[grid](a, h, dh, da, db, length, d, BLOCK=BLOCK, num_warps=1)
        return da, db


class RecurrentBlock(nn.Module):
    def __init__(self, d, width=4):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.inp, self.gate = nn.Linear(d, d), nn.Linear(d, d)
        self.conv = nn.Conv1d(d, d, width, groups=d, padding=width - 1)
        self.rec_gate, self.in_gate = nn.Linear(d, d), nn.Linear(d, d)
        self.decay = nn.Parameter(torch.empty(d).uniform_(0.5, 3.0))
        self.out = nn.Linear(d, d)

    def forward(self, x):
        y = self.norm(x)
        g = F.gelu(self.gate(y))
        u = self.inp(y)
        u = self.conv(u.transpose(1, 2))[..., :x.shape[1]].transpose(1, 2)
        log_a = -8.0 * F.softplus(self.decay) * torch.sigmoid(self.rec_gate(u))
        a = torch.exp(log_a)
        b = torch.sqrt(1 - torch.exp(2 * log_a) + 1e-6) * torch.sigmoid(self.in_gate(u)) * u
        h = Scan.apply(a, b)
        return x + self.out(h * g)


class GatedMLP(nn.Module):
    def __init__(self, d, expand=3):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.gate, self.down = nn.Linear(d, expand * d), nn.Linear(d, expand * d), nn.Linear(expand * d, d)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.gelu(self.gate(y)) * self.up(y))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=640)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--iters", type=int, default=100)
    args = parser.parse_args()

    torch.manual_seed(0)
    layers = []
    for _ in range(args.depth):
        layers += [RecurrentBlock(args.dim), GatedMLP(args.dim)]
    model = nn.Sequential(nn.Embedding(args.vocab, args.dim), *layers, nn.LayerNorm(args.dim), nn.Linear(args.dim, args.vocab)).to("cuda")
    print(sum(p.numel() for p in model.parameters()) / 1e6, "M parameters")
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.98))
    corpus = torch.randint(0, args.vocab, (500_000,))
    average = None
    for it in range(args.iters):
        at = torch.randint(0, len(corpus) - args.seq - 1, (args.batch,)).tolist()
        x = torch.stack([corpus[i:i + args.seq] for i in at]).to("cuda")
        y = torch.stack([corpus[i + 1:i + 1 + args.seq] for i in at]).to("cuda")
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        average = value if average is None else 0.95 * average + 0.05 * value
        if it % 25 == 0:
            print(f"{it:4d} | {value:.4f} | {average:.4f}")


if __name__ == "__main__":
    main()
