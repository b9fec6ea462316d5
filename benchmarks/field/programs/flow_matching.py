"""Conditional flow matching on 32x32 images: U-Net with attention, bf16, exponential moving average."""
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(32, cin), nn.GroupNorm(32, cout)
        self.c1, self.c2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.film = nn.Linear(emb, 2 * cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        scale, shift = self.film(F.silu(e))[..., None, None].chunk(2, 1)
        h = self.c1(F.silu(self.n1(x)))
        return self.skip(x) + self.c2(F.silu(self.n2(h) * (1 + scale) + shift))


class Attention(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.heads, self.norm, self.qkv, self.proj = heads, nn.GroupNorm(32, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        a = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj(a.transpose(-1, -2).reshape(b, c, h, w))


class VelocityNet(nn.Module):
    def __init__(self, ch=128, emb=512):
        super().__init__()
        self.ch = ch
        self.emb = nn.Sequential(nn.Linear(ch, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.d1, self.d2, self.d3 = ResBlock(ch, ch, emb), ResBlock(ch, 2 * ch, emb), ResBlock(2 * ch, 2 * ch, emb)
        self.a2, self.mid, self.am = Attention(2 * ch), ResBlock(2 * ch, 2 * ch, emb), Attention(2 * ch)
        self.u3, self.u2, self.u1 = ResBlock(4 * ch, 2 * ch, emb), ResBlock(4 * ch, ch, emb), ResBlock(2 * ch, ch, emb)
        self.out = nn.Sequential(nn.GroupNorm(32, ch), nn.SiLU(), nn.Conv2d(ch, 3, 3, padding=1))

    def forward(self, x, t):
        f = torch.exp(-math.log(1e4) * torch.arange(self.ch // 2, device=x.device) / (self.ch // 2)) * t[:, None] * 1000
        e = self.emb(torch.cat([f.sin(), f.cos()], 1))
        h1 = self.d1(self.inp(x), e)
        h2 = self.a2(self.d2(F.avg_pool2d(h1, 2), e))
        h3 = self.d3(F.avg_pool2d(h2, 2), e)
        h = self.am(self.mid(h3, e))
        h = F.interpolate(self.u3(torch.cat([h, h3], 1), e), scale_factor=2)
        h = F.interpolate(self.u2(torch.cat([h, h2], 1), e), scale_factor=2)
        return self.out(self.u1(torch.cat([h, h1], 1), e))


@torch.no_grad()
def update_ema(ema, net, decay=0.9999):
    for e, p in zip(ema.parameters(), net.parameters()):
        e.mul_(decay).add_(p, alpha=1 - decay)


torch.manual_seed(0)
net = VelocityNet().cuda()
ema = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.AdamW(net.parameters(), lr=2e-4, weight_decay=0)
images = torch.randint(0, 256, (10000, 3, 32, 32), dtype=torch.uint8, device="cuda")
for step in range(60):
    x1 = images[torch.randint(0, len(images), (128,), device="cuda")].float() / 127.5 - 1
    x0, t = torch.randn_like(x1), torch.rand(128, device="cuda")
    xt = torch.lerp(x0, x1, t[:, None, None, None])
    with torch.autocast("cuda", dtype=torch.bfloat16):
        v = net(xt, t)
    loss = F.mse_loss(v.float(), x1 - x0)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    update_ema(ema, net)
    if step % 20 == 0:
        print(step, loss.item())
