"""Sampling from a diffusion transformer with classifier-free guidance, DDIM steps."""
import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d, elementwise_affine=False), nn.LayerNorm(d, elementwise_affine=False)
        self.qkv, self.proj, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), heads
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d))

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c)[:, None].chunk(6, -1)
        h = self.n1(x) * (1 + s1) + b1
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + g1 * self.proj(a)
        return x + g2 * self.mlp(self.n2(x) * (1 + s2) + b2)


class DiT(nn.Module):
    def __init__(self, d=768, depth=12, patch=2, classes=1000):
        super().__init__()
        self.d, self.patch = d, patch
        self.embed = nn.Conv2d(4, d, patch, patch)
        self.pos = nn.Parameter(torch.randn(1, 256, d) * 0.02)
        self.label = nn.Embedding(classes + 1, d)
        self.time = nn.Sequential(nn.Linear(256, d), nn.SiLU(), nn.Linear(d, d))
        self.blocks = nn.ModuleList(Block(d, 12) for _ in range(depth))
        self.out = nn.Linear(d, patch * patch * 4)

    def forward(self, x, t, y):
        f = torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
        e = t[:, None].float() * f
        c = self.time(torch.cat([e.cos(), e.sin()], -1)) + self.label(y)
        h = self.embed(x).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            h = block(h, c)
        h = self.out(h).unflatten(1, (16, 16)).unflatten(-1, (2, 2, 4))
        return h.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)


model = DiT().cuda().eval()
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0).cuda()
times = torch.linspace(999, 0, 50).long().cuda()
x = torch.randn(8, 4, 32, 32, device="cuda")
labels = torch.randint(0, 1000, (8,), device="cuda")
y = torch.cat([labels, torch.full_like(labels, 1000)])
with torch.no_grad():
    for i in range(50):
        t = times[i]
        eps = model(torch.cat([x, x]), t.expand(16), y)
        cond, uncond = eps.chunk(2)
        eps = uncond + 4.0 * (cond - uncond)
        a, prev = alphas[t], alphas[times[i + 1]] if i < 49 else torch.tensor(1.0)
        x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
        x = prev.sqrt() * x0 + (1 - prev).sqrt() * eps
print(x.mean().item())
