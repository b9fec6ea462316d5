# Gigapixel image approximation with a multiresolution hash encoding, in plain PyTorch (no tiny-cuda-nn on this box)
import time
import numpy as np
import torch
import torch.nn as nn

L, T, F_ = 16, 2 ** 19, 2          # levels, entries per level, features per entry
N_MIN, N_MAX = 16, 4096
BATCH = 2 ** 18
STEPS = 300
SIDE = 6144
PRIMES = (1, 2654435761)


def make_image(side):
    """Sum of random plane waves and speckle, as uint8."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, side, dtype=np.float32)
    img = np.zeros((side, side, 3), np.float32)
    for _ in range(6):
        fx, fy, ph = rng.uniform(-200, 200), rng.uniform(-200, 200), rng.uniform(0, 6.28)
        wave = np.sin(fx * x[None] + fy * x[:, None] + ph)
        img += wave[..., None] * rng.uniform(0.02, 0.1, 3).astype(np.float32)
    img += rng.integers(0, 2, (side // 8, side // 8, 1)).repeat(8, 0).repeat(8, 1) * 0.2
    return ((img + 0.5).clip(0, 1) * 255).astype(np.uint8)


class HashGrid(nn.Module):
    def __init__(self):
        super().__init__()
        b = np.exp((np.log(N_MAX) - np.log(N_MIN)) / (L - 1))
        self.res = [int(np.floor(N_MIN * b ** i)) for i in range(L)]
        self.table = nn.Parameter(torch.empty(L, T, F_).uniform_(-1e-4, 1e-4))

    def index(self, ix, iy, res):
        if (res + 1) ** 2 <= T:
            return ix + iy * (res + 1)
        return ((ix * PRIMES[0]) ^ (iy * PRIMES[1])) % T

    def forward(self, x):
        feats = []
        for lvl in range(L):
            res = self.res[lvl]
            pos = x * res
            lo = pos.floor()
            w = pos - lo
            lo = lo.long()
            out = 0
            for dx in (0, 1):
                for dy in (0, 1):
                    h = self.index(lo[:, 0] + dx, lo[:, 1] + dy, res)
                    wx = w[:, 0] if dx else 1 - w[:, 0]
                    wy = w[:, 1] if dy else 1 - w[:, 1]
                    out = out + self.table[lvl][h] * (wx * wy).unsqueeze(-1)
            feats.append(out)
        return torch.cat(feats, dim=-1)


class Field(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.enc = HashGrid()
        self.mlp = nn.Sequential(nn.Linear(L * F_, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.mlp(self.enc(x))


def sample(img):
    """Random positions with bilinear colours."""
    xy = torch.rand(BATCH, 2)
    pos = xy * (SIDE - 1)
    i = pos.floor().long().clamp(max=SIDE - 2)
    f = pos - i
    def at(dx, dy):
        return img[i[:, 1] + dy, i[:, 0] + dx].float() / 255
    top = at(0, 0) * (1 - f[:, :1]) + at(1, 0) * f[:, :1]
    bottom = at(0, 1) * (1 - f[:, :1]) + at(1, 1) * f[:, :1]
    return xy, top * (1 - f[:, 1:]) + bottom * f[:, 1:]


torch.manual_seed(1337)
image = torch.from_numpy(make_image(SIDE))
field = Field().to("cuda")
optimizer = torch.optim.Adam([
    {"params": field.enc.parameters()},
    {"params": field.mlp.parameters(), "weight_decay": 1e-6},
], lr=1e-2, betas=(0.9, 0.99), eps=1e-15)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 260], 0.33)
t0, psnrs = time.time(), []
for step in range(STEPS):
    xy, rgb = sample(image)
    xy, rgb = xy.to("cuda"), rgb.to("cuda")
    pred = field(xy)
    loss = ((pred - rgb) ** 2 / (pred.detach() ** 2 + 0.01)).mean()   # relative l2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    mse = ((pred.detach() - rgb) ** 2).mean()
    psnrs.append(-10 * np.log10(mse.item()))
    if step % 50 == 0:
        print(f"{step:4d} psnr {np.mean(psnrs[-50:]):.2f} dB  {time.time() - t0:.1f}s")
print("final psnr", round(float(np.mean(psnrs[-20:])), 2))
