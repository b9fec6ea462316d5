"""Sampling images from a diffusion model: a residual U-Net called once per time step."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Res(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, i), nn.Conv2d(i, o, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(32, o), nn.Conv2d(o, o, 3, padding=1)
        self.t = nn.Linear(512, o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(t)[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
        self.inp, self.out = nn.Conv2d(3, 128, 3, padding=1), nn.Conv2d(128, 3, 3, padding=1)
        self.down = nn.ModuleList([Res(128, 128), Res(128, 256), Res(256, 256)])
        self.mid = Res(256, 256)
        self.up = nn.ModuleList([Res(512, 256), Res(512, 128), Res(256, 128)])

    def forward(self, x, t):
        freq = torch.exp(torch.arange(64, device=x.device) * -0.14)
        t = self.time(torch.cat([(t[:, None] * freq).sin(), (t[:, None] * freq).cos()], 1))
        x, skips = self.inp(x), []
        for res in self.down:
            x = res(x, t)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.mid(x, t)
        for res in self.up:
            x = F.interpolate(x, scale_factor=2)
            x = res(torch.cat([x, skips.pop()], 1), t)
        return self.out(x)


model = UNet().cuda().eval()
beta = torch.linspace(1e-4, 0.02, 100, device="cuda")
alpha = (1 - beta).cumprod(0)
images = torch.randn(32, 3, 64, 64, device="cuda")
with torch.no_grad():
    for step in range(100):
        t = 99 - step
        noise = model(images, torch.full((32,), float(t), device="cuda"))
        images = (images - beta[t] / (1 - alpha[t]).sqrt() * noise) / (1 - beta[t]).sqrt()
        if t > 0:
            images = images + beta[t].sqrt() * torch.randn_like(images)
print(images.std().item())
