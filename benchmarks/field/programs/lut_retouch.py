"""Image-adaptive 3D LUTs for photo retouching (Zeng et al. 2020), with a Triton kernel for the lookup.

Pairs of (camera, retouched) photos are synthetic; the real FiveK pairs are read the same way once they are decoded.
"""
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from PIL import Image
from torch.utils.data import DataLoader, Dataset

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PHOTOS, HEIGHT, WIDTH, CROP = 24, 1200, 1600, 1024
BATCH, EPOCHS, REPEAT, WORKERS = 4, 6, 20, 8
GRID, N_LUTS = 33, 3
if SMOKE:
    PHOTOS, HEIGHT, WIDTH, CROP, BATCH, EPOCHS, REPEAT, WORKERS = 4, 40, 50, 16, 2, 1, 4, 1


# ---------------------------------------------------------------- trilinear lookup
@triton.jit
def lut_forward(img, lut, out, n_pixels, S: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image = tl.program_id(1)
    inside = pixel < n_pixels
    img += image * 3 * n_pixels
    out += image * 3 * n_pixels
    lut += image * 3 * S * S * S
    r = tl.minimum(tl.maximum(tl.load(img + pixel, mask=inside, other=0.0), 0.0), 1.0) * (S - 1)
    g = tl.minimum(tl.maximum(tl.load(img + n_pixels + pixel, mask=inside, other=0.0), 0.0), 1.0) * (S - 1)
    b = tl.minimum(tl.maximum(tl.load(img + 2 * n_pixels + pixel, mask=inside, other=0.0), 0.0), 1.0) * (S - 1)
    ir = tl.minimum(r.to(tl.int32), S - 2)
    ig = tl.minimum(g.to(tl.int32), S - 2)
    ib = tl.minimum(b.to(tl.int32), S - 2)
    fr, fg, fb = r - ir, g - ig, b - ib
    for c in tl.static_range(3):
        acc = tl.zeros([BLOCK], dtype=tl.float32)
        for corner in tl.static_range(8):
            dr = corner % 2
            dg = (corner // 2) % 2
            db = corner // 4
            w = (dr * fr + (1 - dr) * (1 - fr)) * (dg * fg + (1 - dg) * (1 - fg)) * (db * fb + (1 - db) * (1 - fb))
            at = ((ib + db) * S + ig + dg) * S + ir + dr
            acc += w * tl.load(lut + c * S * S * S + at, mask=inside, other=0.0)
        tl.store(out + c * n_pixels + pixel, acc, mask=inside)


@triton.jit
def lut_backward(img, lut, grad_out, grad_img, grad_lut, n_pixels, S: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image = tl.program_id(1)
    inside = pixel < n_pixels
    img += image * 3 * n_pixels
    grad_out += image * 3 * n_pixels
    grad_img += image * 3 * n_pixels
    lut += image * 3 * S * S * S
    grad_lut += image * 3 * S * S * S
    r = tl.minimum(tl.maximum(tl.load(img + pixel, mask=inside, other=0.0), 0.0), 1.0) * (S - 1)
    g = tl.minimum(tl.maximum(tl.load(img + n_pixels + pixel, mask=inside, other=0.0), 0.0), 1.0) * (S - 1)
    b = tl.minimum(tl.maximum(tl.load(img + 2 * n_pixels + pixel, mask=inside, other=0.0), 0.0), 1.0) * (S - 1)
    ir = tl.minimum(r.to(tl.int32), S - 2)
    ig = tl.minimum(g.to(tl.int32), S - 2)
    ib = tl.minimum(b.to(tl.int32), S - 2)
    fr, fg, fb = r - ir, g - ig, b - ib
    gr = tl.zeros([BLOCK], dtype=tl.float32)
    gg = tl.zeros([BLOCK], dtype=tl.float32)
    gb = tl.zeros([BLOCK], dtype=tl.float32)
    for c in tl.static_range(3):
        go = tl.load(grad_out + c * n_pixels + pixel, mask=inside, other=0.0)
        for corner in tl.static_range(8):
            dr = corner % 2
            dg = (corner // 2) % 2
            db = corner // 4
            wr = dr * fr + (1 - dr) * (1 - fr)
            wg = dg * fg + (1 - dg) * (1 - fg)
            wb = db * fb + (1 - db) * (1 - fb)
            at = c * S * S * S + ((ib + db) * S + ig + dg) * S + ir + dr
            tl.atomic_add(grad_lut + at, wr * wg * wb * go, mask=inside)
            v = tl.load(lut + at, mask=inside, other=0.0) * go * (S - 1)
            gr += (2 * dr - 1) * wg * wb * v
            gg += (2 * dg - 1) * wr * wb * v
            gb += (2 * db - 1) * wr * wg * v
    tl.store(grad_img + pixel, gr, mask=inside)
    tl.store(grad_img + n_pixels + pixel, gg, mask=inside)
    tl.store(grad_img + 2 * n_pixels + pixel, gb, mask=inside)


class Trilinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, img, lut):
        img, lut = img.contiguous(), lut.contiguous()
        out, n = torch.empty_like(img), img.shape[2] * img.shape[3]
        lut_forward[(triton.cdiv(n, 1024), img.shape[0])](img, lut, out, n, S=lut.shape[-1], BLOCK=1024)
        ctx.save_for_backward(img, lut)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        img, lut = ctx.saved_tensors
        grad_out, n = grad_out.contiguous(), img.shape[2] * img.shape[3]
        grad_img, grad_lut = torch.empty_like(img), torch.zeros_like(lut)
        lut_backward[(triton.cdiv(n, 1024), img.shape[0])](img, lut, grad_out, grad_img, grad_lut, n, S=lut.shape[-1], BLOCK=1024)
        return grad_img, grad_lut


# ---------------------------------------------------------------- model
def block(i, o, norm=True):
    layers = [nn.Conv2d(i, o, 3, stride=2, padding=1), nn.LeakyReLU(0.2)]
    return layers + ([nn.InstanceNorm2d(o, affine=True)] if norm else [])


class Retoucher(nn.Module):
    def __init__(self):
        super().__init__()
        self.weigh = nn.Sequential(
            nn.Upsample(size=(256, 256), mode="bilinear"), nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.InstanceNorm2d(16, affine=True),
            *block(16, 32), *block(32, 64), *block(64, 128), *block(128, 128, norm=False), nn.Dropout(0.5), nn.Conv2d(128, N_LUTS, 8))
        axis = torch.linspace(0, 1, GRID)
        b, g, r = torch.meshgrid(axis, axis, axis, indexing="ij")
        luts = torch.zeros(N_LUTS, 3, GRID, GRID, GRID)
        luts[0] = torch.stack([r, g, b])
        self.luts = nn.ParameterList([nn.Parameter(one) for one in luts])
        nn.init.constant_(self.weigh[-1].bias, 1.0)

    def forward(self, img):
        w = self.weigh(img).flatten(1)
        lut = sum(w[:, i].view(-1, 1, 1, 1, 1) * one for i, one in enumerate(self.luts))
        return Trilinear.apply(img, lut), w


def smoothness(lut):
    """Total variation and monotonicity of a LUT, as in the paper."""
    tv, mn = 0, 0
    for axis in (1, 2, 3):
        d = lut.narrow(axis, 0, GRID - 1) - lut.narrow(axis, 1, GRID - 1)
        weight = torch.ones(d.shape, device=lut.device)
        weight.index_fill_(axis, torch.tensor([0, GRID - 2], device=lut.device), 2.0)
        tv = tv + (d ** 2 * weight).mean()
        mn = mn + F.relu(d).mean()
    return tv, mn


def rgb_to_lab(img):
    linear = torch.where(img > 0.04045, ((img.clamp(min=1e-4) + 0.055) / 1.055) ** 2.4, img / 12.92)
    r, g, b = linear.unbind(1)
    x = (0.412453 * r + 0.357580 * g + 0.180423 * b) / 0.950456
    y = 0.212671 * r + 0.715160 * g + 0.072169 * b
    z = (0.019334 * r + 0.119193 * g + 0.950227 * b) / 1.088754
    fx, fy, fz = [torch.where(t > 0.008856, t.clamp(min=0.008856) ** (1 / 3), 7.787 * t + 4 / 29) for t in (x, y, z)]
    return torch.stack([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)], dim=1)


def delta_e(pred, target):
    return torch.sqrt(((rgb_to_lab(pred) - rgb_to_lab(target)) ** 2).sum(1) + 1e-6)


# ---------------------------------------------------------------- data
class Photos(Dataset):
    def __init__(self):
        rng, self.pairs = np.random.default_rng(0), []
        for _ in range(PHOTOS):
            small = Image.fromarray(rng.integers(0, 256, (16, 20, 3), dtype=np.uint8))
            x = np.asarray(small.resize((WIDTH, HEIGHT), Image.BICUBIC)).astype(np.float32)
            x = np.clip(x + rng.normal(0, 6, (HEIGHT, WIDTH, 1)).astype(np.float32), 0, 255) / 255
            y = x ** np.float32(0.8) * np.array([1.05, 1.0, 0.93], np.float32)
            y = y + 0.25 * (y - y.mean(-1, keepdims=True))
            self.pairs.append(tuple((np.clip(a, 0, 1) * 255).astype(np.uint8) for a in (x, y)))

    def __len__(self):
        return PHOTOS * REPEAT

    def __getitem__(self, i):
        x, y = self.pairs[i % PHOTOS]
        top, left = np.random.randint(HEIGHT - CROP + 1), np.random.randint(WIDTH - CROP + 1)
        x, y = (a[top:top + CROP, left:left + CROP] for a in (x, y))
        if np.random.rand() < 0.5:
            x, y = x[:, ::-1], y[:, ::-1]
        x, y = (torch.from_numpy(np.ascontiguousarray(a.transpose(2, 0, 1))).float() / 255 for a in (x, y))
        return (x * np.random.uniform(0.8, 1.2)).clamp(0, 1), y


# ---------------------------------------------------------------- training
def psnr(pred, target):
    total = 0.0
    for p, t in zip(pred, target):
        total += 10 * np.log10(1 / F.mse_loss(p.clamp(0, 1), t).item())
    return total / len(pred)


if __name__ == "__main__":
    torch.manual_seed(0)
    np.random.seed(0)
    loader = DataLoader(Photos(), batch_size=BATCH, shuffle=True, num_workers=WORKERS, drop_last=True)
    model = Retoucher().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    step, tic = 0, time.time()
    for epoch in range(EPOCHS):
        quality, difference = [], []
        for x, y in loader:
            x, y = x.to(DEVICE), y.to(DEVICE)
            pred, w = model(x)
            regular = [smoothness(one) for one in model.luts]
            tv, mn = sum(r[0] for r in regular), sum(r[1] for r in regular)
            loss = F.mse_loss(pred, y) + 0.01 * delta_e(pred, y).mean() + 1e-4 * (tv + w.pow(2).mean()) + 10 * mn
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            quality.append(psnr(pred.detach(), y))
            difference.append(delta_e(pred.detach(), y).mean().item())
            step += 1
            if step % 40 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} PSNR {np.mean(quality[-40:]):.2f} dB "
                      f"dE {np.mean(difference[-40:]):.2f}  {(time.time() - tic) / step * 1000:.0f} ms/step", flush=True)
    torch.save(model.state_dict(), "/tmp/lut_retouch.pt")
