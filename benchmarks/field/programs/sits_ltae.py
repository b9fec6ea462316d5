"""
Crop type segmentation from satellite image time series, after U-TAE (Garnot & Landrieu 2021) but smaller.

python sits_ltae.py --epochs 7
Synthetic parcels for now: PASTIS is on the cluster, the Dataset below has the same interface (and the same dtype on disk, int16).
"""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--patches", type=int, default=160)
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--max_dates", type=int, default=48)
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--epochs", type=int, default=7)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--widths", default="64,64,128")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
cfg = parser.parse_args()

N_CLASSES, N_BANDS = 18, 10
IGNORE = 0     # background / void
np.random.seed(0)
torch.manual_seed(0)


class ParcelSeries(Dataset):
    """Patches of (dates, bands, h, w); the number of cloud-free dates differs from patch to patch."""

    def __init__(self, n, size, max_dates, train=True):
        rng = np.random.default_rng(1 if train else 2)
        self.max_dates, self.train = max_dates, train
        phase, rate = rng.uniform(60, 250, (N_CLASSES, 1)), rng.uniform(20, 60, (N_CLASSES, 1))
        base, amplitude = rng.uniform(400, 2500, (N_CLASSES, N_BANDS)), rng.uniform(-400, 1500, (N_CLASSES, N_BANDS))
        self.images, self.days, self.labels = [], [], []
        for _ in range(n):
            t = rng.integers(max_dates // 3, max_dates + 1)
            days = np.sort(rng.choice(np.arange(365), t, replace=False))
            cells = rng.integers(0, N_CLASSES, (8, 8))
            label = np.kron(cells, np.ones((size // 8, size // 8), dtype=np.int64))
            curve = np.exp(-(((days[None] - phase) / rate) ** 2))                       # classes x dates
            look = base[:, None] + curve[:, :, None] * amplitude[:, None]               # classes x dates x bands
            image = look[label].transpose(2, 3, 0, 1) + rng.normal(0, 250, (t, N_BANDS, size, size))
            self.images.append(image.astype(np.int16))
            self.days.append(days)
            self.labels.append(label)
        some = np.concatenate([x.transpose(1, 0, 2, 3).reshape(N_BANDS, -1)[:, ::97] for x in self.images], axis=1)
        self.mean, self.std = some.mean(1), some.std(1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        x, y = self.images[i], self.labels[i]
        if self.train:
            k = np.random.randint(4)
            x, y = np.rot90(x, k, axes=(2, 3)), np.rot90(y, k)
            if np.random.rand() < 0.5:
                x, y = x[..., ::-1], y[..., ::-1]
        x = (x - self.mean[None, :, None, None]) / self.std[None, :, None, None]
        x = torch.from_numpy(x.copy()).float()
        days = torch.from_numpy(self.days[i].copy())
        missing = self.max_dates - len(x)
        x = F.pad(x, (0, 0, 0, 0, 0, 0, 0, missing))
        pad = torch.arange(self.max_dates) >= len(days)
        days = F.pad(days, (0, missing))
        return x, days, pad, torch.from_numpy(y.copy())


# ---------------------------------------------------------------------------------------------- model
def conv_block(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1, padding_mode="reflect"), nn.GroupNorm(4, c_out), nn.ReLU(),
        nn.Conv2d(c_out, c_out, 3, padding=1, padding_mode="reflect"), nn.GroupNorm(4, c_out), nn.ReLU(),
    )


class Encoder(nn.Module):
    """Applied to one date."""

    def __init__(self, widths):
        super().__init__()
        self.stages, self.down = nn.ModuleList(), nn.ModuleList()
        c = N_BANDS
        for i, w in enumerate(widths):
            self.down.append(nn.Conv2d(c, c, 4, stride=2, padding=1) if i else nn.Identity())
            self.stages.append(conv_block(c, w))
            c = w

    def forward(self, x):
        out = []
        for down, stage in zip(self.down, self.stages):
            x = stage(down(x))
            out.append(x)
        return out


class LTAE(nn.Module):
    """Lightweight temporal attention: the query of a head is learned, channels are shared out among heads."""

    def __init__(self, c_in, heads=16, d_model=256, d_k=4):
        super().__init__()
        self.heads, self.d_k = heads, d_k
        self.norm_in = nn.GroupNorm(heads, c_in)
        self.lift = nn.Conv1d(c_in, d_model, 1)
        self.query = nn.Parameter(torch.randn(heads, d_k) * (2 / d_k) ** 0.5)
        self.key = nn.Linear(d_model, heads * d_k)
        self.mlp = nn.Sequential(nn.Linear(d_model, c_in), nn.BatchNorm1d(c_in), nn.ReLU())
        self.norm_out = nn.GroupNorm(heads, c_in)
        self.d_model = d_model

    def positions(self, days):
        d = self.d_model // self.heads
        i = torch.arange(d).float()
        angle = days.cpu().float()[:, :, None] / torch.pow(1000, 2 * torch.div(i, 2, rounding_mode="floor") / d)
        table = torch.where(i.long() % 2 == 0, angle.sin(), angle.cos())
        return table.repeat(1, 1, self.heads).to(days.device)

    def forward(self, x, days, pad):
        b, t, c, h, w = x.shape
        n = b * h * w
        x = x.permute(0, 3, 4, 2, 1).reshape(n, c, t)
        x = self.lift(self.norm_in(x)).transpose(1, 2)
        x = x + self.positions(days)[:, None].expand(b, h * w, t, -1).reshape(n, t, -1)
        k = self.key(x).view(n, t, self.heads, self.d_k)
        score = torch.einsum("hd,nthd->hnt", self.query, k) / self.d_k ** 0.5
        hidden = pad[:, None].expand(b, h * w, t).reshape(1, n, t)
        att = score.masked_fill(hidden, -1e3).softmax(-1)
        v = torch.stack(x.chunk(self.heads, dim=-1))                   # heads x n x t x d
        out = torch.matmul(att[:, :, None], v)[:, :, 0]
        out = out.permute(1, 0, 2).reshape(n, -1)
        out = self.norm_out(self.mlp(out))
        return out.view(b, h, w, c).permute(0, 3, 1, 2), att.view(self.heads, b, h, w, t).permute(0, 1, 4, 2, 3)


class UTAE(nn.Module):
    def __init__(self, widths, heads=16):
        super().__init__()
        self.encoder = Encoder(widths)
        self.temporal = LTAE(widths[-1], heads)
        self.heads = heads
        self.up, self.dec = nn.ModuleList(), nn.ModuleList()
        for low, high in zip(widths[::-1][:-1], widths[::-1][1:]):
            self.up.append(nn.ConvTranspose2d(low, high, 4, stride=2, padding=1))
            self.dec.append(conv_block(2 * high, high))
        self.head = nn.Conv2d(widths[0], N_CLASSES, 1)

    def collapse(self, skip, att):
        """Sum over dates with the attention of the coarsest level, upsampled."""
        h, b, t = att.shape[:3]
        att = F.interpolate(att.reshape(h * b, t, *att.shape[3:]), size=skip.shape[-2:], mode="bilinear", align_corners=False)
        att = att.view(h, b, t, *skip.shape[-2:])
        groups = torch.stack(skip.chunk(h, dim=2))                     # heads x b x t x c/heads x h x w
        out = (att[:, :, :, None] * groups).sum(dim=2)
        return torch.cat([g for g in out], dim=1)

    def forward(self, x, days, pad):
        features = [self.encoder(x[:, i]) for i in range(x.shape[1])]  # date by date, one encoder
        features = [torch.stack(level, dim=1) for level in zip(*features)]
        out, att = self.temporal(features[-1], days, pad)
        for up, dec, skip in zip(self.up, self.dec, features[::-1][1:]):
            out = dec(torch.cat([up(out), self.collapse(skip, att)], dim=1))
        return self.head(out)


# ---------------------------------------------------------------------------------------------- training
class Confusion:
    def __init__(self):
        self.m = np.zeros((N_CLASSES, N_CLASSES), dtype=np.int64)

    def add(self, pred, true):
        self.m += np.bincount(N_CLASSES * true.ravel() + pred.ravel(), minlength=N_CLASSES ** 2).reshape(N_CLASSES, N_CLASSES)

    def miou(self):
        inter = np.diag(self.m)
        return (inter / np.maximum(self.m.sum(0) + self.m.sum(1) - inter, 1))[1:].mean()


train_set = ParcelSeries(cfg.patches, cfg.size, cfg.max_dates)
loader = DataLoader(train_set, batch_size=cfg.batch_size, shuffle=True, drop_last=True)
model = UTAE([int(w) for w in cfg.widths.split(",")]).to(cfg.device)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")
optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
criterion = nn.CrossEntropyLoss(ignore_index=IGNORE)

for epoch in range(cfg.epochs):
    model.train()
    confusion, losses, tic = Confusion(), [], time.time()
    for i, (x, days, pad, y) in enumerate(loader):
        x, days, pad, y = x.to(cfg.device), days.to(cfg.device), pad.to(cfg.device), y.to(cfg.device)
        optimizer.zero_grad()
        out = model(x, days, pad)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        pred = out.argmax(dim=1)
        confusion.add(pred.cpu().numpy(), y.cpu().numpy())
        if (i + 1) % 10 == 0:
            print(f"  step {i + 1}/{len(loader)} loss {np.mean(losses[-10:]):.4f} mIoU {confusion.miou():.3f}")
    print(f"epoch {epoch} loss {np.mean(losses):.4f} mIoU {confusion.miou():.3f} in {time.time() - tic:.1f} s", flush=True)
