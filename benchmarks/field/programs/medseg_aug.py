"""2-D segmentation of CT-like slices: a plain U-Net, Dice + cross entropy, augmentation on the GPU (affine, elastic, gamma, blur, noise)."""
import math
import random
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    size: int = 256
    slices: int = 1280
    classes: int = 4
    base: int = 32
    batch_size: int = 16
    epochs: int = 5
    lr: float = 1e-3
    weight_decay: float = 1e-5
    elastic_sigma: float = 8.0
    elastic_alpha: float = 40.0
    seed: int = 1


cfg = Config()
CLASS_NAMES = ["background", "organ", "vessel", "lesion"]


def make_slices(n, size):
    """A body with an organ, some vessels and lesions, each with its intensity and texture."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[-1:1:size * 1j, -1:1:size * 1j].astype(np.float32)
    images, masks = np.zeros((n, 1, size, size), np.float32), np.zeros((n, size, size), np.uint8)
    for i in range(n):
        img = rng.standard_normal((size, size), dtype=np.float32) * 0.1
        img[x ** 2 / 0.8 + y ** 2 / 0.6 < 1] += 0.4
        cx, cy, a, b = rng.uniform(-0.3, 0.3), rng.uniform(-0.3, 0.3), rng.uniform(0.25, 0.4), rng.uniform(0.2, 0.4)
        organ = ((x - cx) / a) ** 2 + ((y - cy) / b) ** 2 < 1
        img[organ] += 0.25
        masks[i][organ] = 1
        for label, count, low, high, value in (2, 5, 0.02, 0.05, 0.35), (3, 3, 0.03, 0.1, -0.2):
            for _ in range(rng.integers(1, count + 1)):
                u, v, r = cx + rng.uniform(-a, a) * 0.7, cy + rng.uniform(-b, b) * 0.7, rng.uniform(low, high)
                spot = (x - u) ** 2 + (y - v) ** 2 < r ** 2
                img[spot] += value
                masks[i][spot] = label
        images[i, 0] = img
    return torch.from_numpy(images), torch.from_numpy(masks)


def gaussian_kernel(sigma, device):
    radius = int(3 * sigma)
    t = torch.arange(-radius, radius + 1, dtype=torch.float32)
    g = torch.exp(-t ** 2 / (2 * sigma ** 2))
    g = g / g.sum()
    return (g[:, None] * g[None, :]).to(device)


def smooth(x, sigma):
    """Gaussian blur of each channel."""
    kernel = gaussian_kernel(sigma, x.device)
    channels, k = x.shape[1], kernel.shape[0]
    return F.conv2d(x, kernel.expand(channels, 1, k, k), padding=k // 2, groups=channels)


def augment(img, mask):
    """One slice (1, H, W) with its mask (H, W)."""
    h, w = img.shape[-2:]
    img, mask = img.unsqueeze(0), mask[None, None].float()
    if random.random() < 0.8:
        angle = random.uniform(-15, 15) * math.pi / 180
        scale = random.uniform(0.85, 1.15)
        tx, ty = random.uniform(-0.1, 0.1), random.uniform(-0.1, 0.1)
        c, s = math.cos(angle) / scale, math.sin(angle) / scale
        theta = torch.tensor([[[c, -s, tx], [s, c, ty]]]).to(img.device)
        grid = F.affine_grid(theta, (1, 1, h, w), align_corners=False)
        if random.random() < 0.5:
            noise = torch.rand(1, 2, h, w, device=img.device) * 2 - 1
            field = smooth(noise, cfg.elastic_sigma) * cfg.elastic_alpha / h
            grid = grid + field.permute(0, 2, 3, 1)
        img = F.grid_sample(img, grid, mode="bilinear", align_corners=False)
        mask = F.grid_sample(mask, grid, mode="nearest", align_corners=False)
    if random.random() < 0.5:
        img, mask = img.flip(-1), mask.flip(-1)
    if random.random() < 0.3:
        gamma = random.uniform(0.7, 1.5)
        low, high = img.min(), img.max()
        img = ((img - low) / (high - low + 1e-6)) ** gamma * (high - low) + low
    if random.random() < 0.2:
        img = smooth(img, 1.0)
    if random.random() < 0.3:
        img = img + torch.randn_like(img) * random.uniform(0, 0.1)
    img = img * random.uniform(0.9, 1.1)
    return img[0], mask[0, 0].long()


def conv_block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                         nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, classes, base, depth=5):
        super().__init__()
        widths = [base * 2 ** i for i in range(depth)]
        self.down = nn.ModuleList(conv_block(i, o) for i, o in zip([1] + widths[:-1], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[-2::-1])
        self.fuse = nn.ModuleList(conv_block(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for up, fuse, skip in zip(self.up, self.fuse, skips[-2::-1]):
            x = fuse(torch.cat([skip, up(x)], dim=1))
        return self.head(x)


def dice_loss(logits, target, eps=1e-5):
    probs = torch.softmax(logits, dim=1)
    one_hot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).float()
    inter = (probs * one_hot).sum((0, 2, 3))
    total = probs.sum((0, 2, 3)) + one_hot.sum((0, 2, 3))
    return 1 - ((2 * inter + eps) / (total + eps))[1:].mean()


def dice_scores(logits, target):
    """Dice of each class but the background, averaged over the slices where it occurs."""
    pred, scores = logits.argmax(1), []
    for c in range(1, cfg.classes):
        values = []
        for p, t in zip(pred, target):
            denom = ((p == c).sum() + (t == c).sum()).item()
            if denom > 0:
                values.append(2 * ((p == c) & (t == c)).sum().item() / denom)
        scores.append(float(np.mean(values)) if values else float("nan"))
    return scores


def main():
    torch.manual_seed(cfg.seed)
    random.seed(cfg.seed)
    images, masks = make_slices(cfg.slices, cfg.size)
    loader = DataLoader(TensorDataset(images, masks), batch_size=cfg.batch_size, shuffle=True, drop_last=True, num_workers=4)
    model = UNet(cfg.classes, cfg.base).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
    weights = torch.tensor([0.3, 1.0, 2.0, 2.0]).cuda()
    for epoch in range(cfg.epochs):
        model.train()
        start, losses, dices = time.time(), [], []
        for step, (x, y) in enumerate(loader):
            x, y = x.cuda(), y.cuda()
            pairs = [augment(a, b) for a, b in zip(x, y)]
            x, y = torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])
            logits = model(x)
            loss = F.cross_entropy(logits, y, weight=weights) + dice_loss(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            dices.append(dice_scores(logits.detach(), y))
            if step % 20 == 0:
                scores = " ".join(f"{n} {d:.3f}" for n, d in zip(CLASS_NAMES[1:], np.nanmean(dices, axis=0)))
                print(f"epoch {epoch} {step}/{len(loader)} loss {np.mean(losses):.4f} dice: {scores}", flush=True)
        print(f"epoch {epoch}: {(time.time() - start) / len(loader) * 1000:.1f} ms a step", flush=True)


if __name__ == "__main__":
    main()
