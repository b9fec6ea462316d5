"""Denoising diffusion training in the style of the small educational U-Nets: hand-written attention, EMA, accumulation."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

T, SIZE, BATCH, ACCUMULATE = 1000, 64, 32, 2


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        half = self.dim // 2
        freq = torch.exp(torch.arange(half, device=t.device) * -(math.log(10000) / (half - 1)))
        emb = t[:, None] * freq[None]
        return torch.cat((emb.sin(), emb.cos()), -1)


class ResnetBlock(nn.Module):
    def __init__(self, i, o, t):
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(t, 2 * o))
        self.c1, self.n1, self.c2, self.n2 = nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(8, o)
        self.res = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        scale, shift = self.mlp(t)[..., None, None].chunk(2, 1)
        h = F.silu(self.n1(self.c1(x)) * (scale + 1) + shift)
        return F.silu(self.n2(self.c2(h))) + self.res(x)


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(1, dim)
        self.to_qkv, self.to_out = nn.Conv2d(dim, 3 * dim, 1, bias=False), nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.to_qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        q = q * (c // self.heads) ** -0.5
        sim = torch.einsum("bhdi,bhdj->bhij", q, k)
        attn = (sim - sim.amax(dim=-1, keepdim=True).detach()).softmax(dim=-1)
        out = torch.einsum("bhij,bhdj->bhid", attn, v)
        return x + self.to_out(out.permute(0, 1, 3, 2).reshape(b, c, h, w))


class Unet(nn.Module):
    def __init__(self, dim=96, mults=(1, 2, 4)):
        super().__init__()
        t, dims = dim * 4, [dim * m for m in mults]
        self.time = nn.Sequential(TimeEmbedding(dim), nn.Linear(dim, t), nn.GELU(), nn.Linear(t, t))
        self.init = nn.Conv2d(3, dim, 7, padding=3)
        self.downs, self.ups, i = nn.ModuleList(), nn.ModuleList(), dim
        for k, o in enumerate(dims):
            self.downs.append(nn.ModuleList([ResnetBlock(i, o, t), Attention(o) if k else nn.Identity(), nn.Conv2d(o, o, 4, 2, 1)]))
            i = o
        self.mid1, self.mid_attn, self.mid2 = ResnetBlock(i, i, t), Attention(i), ResnetBlock(i, i, t)
        for k, o in reversed(list(enumerate(dims))):
            self.ups.append(nn.ModuleList([nn.ConvTranspose2d(i, o, 4, 2, 1), ResnetBlock(2 * o, o, t), Attention(o) if k else nn.Identity()]))
            i = o
        self.final = nn.Conv2d(i, 3, 1)

    def forward(self, x, t):
        t, x, skips = self.time(t), self.init(x), []
        for block, attn, down in self.downs:
            x = attn(block(x, t))
            skips.append(x)
            x = down(x)
        x = self.mid2(self.mid_attn(self.mid1(x, t)), t)
        for up, block, attn in self.ups:
            x = attn(block(torch.cat((up(x), skips.pop()), 1), t))
        return self.final(x)


class EMA:
    def __init__(self, beta):
        self.beta = beta

    def update(self, ma_model, model):
        for current, ma in zip(model.parameters(), ma_model.parameters()):
            ma.data = ma.data * self.beta + (1 - self.beta) * current.data


alphas_cumprod = torch.cumprod(1 - torch.linspace(1e-4, 0.02, T), 0).cuda()
model = Unet().cuda()
ema, ema_model = EMA(0.995), copy.deepcopy(model)
opt = torch.optim.Adam(model.parameters(), lr=8e-5)
images = torch.randint(0, 256, (1000, 3, SIZE, SIZE), dtype=torch.uint8)
for step in range(60):
    for _ in range(ACCUMULATE):
        x = (images[torch.randint(0, 1000, (BATCH,))].float() / 127.5 - 1).cuda()
        t = torch.randint(0, T, (BATCH,)).cuda()
        noise = torch.randn_like(x)
        a = alphas_cumprod[t].view(-1, 1, 1, 1)
        pred = model(a.sqrt() * x + (1 - a).sqrt() * noise, t)
        loss = F.l1_loss(pred, noise) / ACCUMULATE
        print(f"{step}: {loss.item():.4f}")
        loss.backward()
    opt.step()
    opt.zero_grad()
    ema.update(ema_model, model)
