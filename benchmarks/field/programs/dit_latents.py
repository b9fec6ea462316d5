"""Class-conditional DiT-B/2 on precomputed latents (rectified flow), one GPU.

Latents fit on the card, so there is no loader. compile + bf16 + fused AdamW; ~1 print per 50 steps, nothing else is read.
"""
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = os.environ.get("DEVICE", "cuda")
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 12))
BATCH = int(os.environ.get("BATCH", 64))
CLASSES, STEPS, EMA_DECAY = 1000, 700, 0.9995

torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True


def modulate(x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.ada = nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.ada.weight)
        nn.init.zeros_(self.ada.bias)

    def forward(self, x, c):
        s1, k1, g1, s2, k2, g2 = self.ada(c).chunk(6, dim=-1)
        b, n, d = x.shape
        q, k, v = self.qkv(modulate(self.norm1(x), s1, k1)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + g1[:, None] * self.proj(a)
        h = F.gelu(self.up(modulate(self.norm2(x), s2, k2)), approximate="tanh")
        return x + g2[:, None] * self.down(h)


class DiT(nn.Module):
    def __init__(self, dim, depth, channels=4, size=32, patch=2):
        super().__init__()
        self.patch, self.grid = patch, size // patch
        self.inp = nn.Linear(channels * patch * patch, dim)
        self.pos = nn.Parameter(torch.randn(1, self.grid ** 2, dim) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.label = nn.Embedding(CLASSES + 1, dim)
        self.blocks = nn.ModuleList([Block(dim, dim // 64) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.out_ada, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, channels * patch * patch)
        self.register_buffer("freqs", torch.exp(-math.log(10000) * torch.arange(128) / 128), persistent=False)

    def forward(self, x, t, y):
        b, ch = x.shape[:2]
        p, g = self.patch, self.grid
        x = x.view(b, ch, g, p, g, p).permute(0, 2, 4, 1, 3, 5).reshape(b, g * g, ch * p * p)
        angle = 1000 * t[:, None] * self.freqs
        c = F.silu(self.time(torch.cat([angle.cos(), angle.sin()], -1)) + self.label(y))
        x = self.inp(x) + self.pos
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.out_ada(c).chunk(2, dim=-1)
        x = self.out(modulate(self.norm(x), shift, scale))
        return x.view(b, g, g, ch, p, p).permute(0, 3, 1, 4, 2, 5).reshape(b, ch, g * p, g * p)


def main():
    # 20k latents of the VAE, bf16: 160 MB
    n = int(os.environ.get("LATENTS", 20000))
    latents = torch.randn(n, 4, 32, 32, device=device, dtype=torch.bfloat16)
    classes = torch.randint(CLASSES, (n,), device=device)

    model = DiT(WIDTH, DEPTH).to(device)
    params = list(model.parameters())
    ema = [p.detach().clone() for p in params]
    print(f"{sum(p.numel() for p in params) / 1e6:.1f}M parameters")
    optimizer = torch.optim.AdamW(params, lr=2e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    compiled = torch.compile(model)

    losses = torch.zeros(50, device=device)
    tic = time.time()
    for step in range(STEPS):
        index = torch.randint(n, (BATCH,), device=device)
        x1 = latents[index].float()
        y = torch.where(torch.rand(BATCH, device=device) < 0.1, CLASSES, classes[index])
        x0 = torch.randn_like(x1)
        t = torch.sigmoid(torch.randn(BATCH, device=device))
        xt = torch.lerp(x0, x1, t[:, None, None, None])

        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            v = compiled(xt, t, y)
        loss = F.mse_loss(v.float(), x1 - x0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_mul_(ema, EMA_DECAY)
            torch._foreach_add_(ema, params, alpha=1 - EMA_DECAY)

        losses[step % 50] = loss.detach()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {losses.mean().item():.4f} {(step + 1) * BATCH / (time.time() - tic):.0f} img/s", flush=True)
    torch.save({"ema": [e.cpu() for e in ema]}, "/tmp/dit_latents.pt")


if __name__ == "__main__":
    main()
