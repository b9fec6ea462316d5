"""Jet tagging with dynamic EdgeConv (ParticleNet-like). Jets have between 18 and 90 particles, batches are concatenated."""
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device(os.environ.get("DEVICE", "cuda"))
CLASSES = ["qcd", "top", "w", "z", "higgs"]
K = 12
BATCH = int(os.environ.get("BATCH", 64))
STEPS = 900

np.random.seed(1)
torch.manual_seed(1)


# ------------------------------------------------------------------ data
def make_jet(label):
    """Toy shower: one to three prongs, falling pt."""
    n = int(np.clip(np.random.normal(45, 14), 18, 90))
    prongs = [1, 3, 2, 2, 2][label]
    axes = np.random.randn(prongs, 2) * (0.1 + 0.05 * label)
    which = np.random.randint(prongs, size=n)
    pt = np.sort(np.random.exponential(12.0, n) + 0.5)[::-1]
    xy = axes[which] + np.random.randn(n, 2) * 0.08
    charge = np.random.choice([-1, 0, 1], n)
    return np.column_stack([pt, xy, charge])


labels = np.random.randint(len(CLASSES), size=6000)
jets = [make_jet(y) for y in labels]


def features(jet, angle):
    """(n, 7) features; the jet is turned by a random angle around its axis."""
    pt, eta, phi, charge = jet[:, 0], jet[:, 1], jet[:, 2], jet[:, 3]
    total = pt.sum()
    eta = eta - (pt * eta).sum() / total
    phi = phi - (pt * phi).sum() / total
    c, s = np.cos(angle), np.sin(angle)
    eta, phi = c * eta - s * phi, s * eta + c * phi
    dr = np.sqrt(eta ** 2 + phi ** 2)
    return np.stack([eta, phi, np.log(pt), np.log(pt / total), dr, charge, np.abs(charge)], axis=1)


def make_batch(index):
    feats, sizes = [], []
    for i in index:
        f = features(jets[i], np.random.uniform(0, 2 * np.pi))
        feats.append(torch.tensor(f, dtype=torch.float32))
        sizes.append(len(f))
    x = torch.cat(feats).to(device)
    y = torch.tensor(labels[index]).to(device)
    return x, sizes, y


# ------------------------------------------------------------------ model
@torch.no_grad()
def knn(x, sizes):
    """Edges to the K nearest particles of the same jet."""
    src, dst, start = [], [], 0
    for n in sizes:
        points = x[start:start + n]
        near = torch.cdist(points, points).topk(K + 1, largest=False).indices[:, 1:]
        src.append((near + start).reshape(-1))
        dst.append(torch.arange(start, start + n, device=x.device).repeat_interleave(K))
        start += n
    return torch.cat(src), torch.cat(dst)


class EdgeConv(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        layers, c = [], 2 * c_in
        for _ in range(3):
            layers += [nn.Linear(c, c_out, bias=False), nn.BatchNorm1d(c_out), nn.ReLU()]
            c = c_out
        self.mlp = nn.Sequential(*layers)
        self.skip = nn.Sequential(nn.Linear(c_in, c_out, bias=False), nn.BatchNorm1d(c_out))

    def forward(self, x, src, dst):
        message = self.mlp(torch.cat([x[dst], x[src] - x[dst]], dim=1))
        out = message.new_zeros(x.shape[0], message.shape[1]).index_add_(0, dst, message)
        degree = message.new_zeros(x.shape[0]).index_add_(0, dst, torch.ones_like(message[:, 0]))
        return F.relu(out / degree.clamp(min=1)[:, None] + self.skip(x))


class ParticleNet(nn.Module):
    def __init__(self, c_in=7, widths=(64, 128, 256)):
        super().__init__()
        self.bn = nn.BatchNorm1d(c_in)
        self.convs = nn.ModuleList()
        for w in widths:
            self.convs.append(EdgeConv(c_in, w))
            c_in = w
        self.head = nn.Sequential(nn.Linear(c_in, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, len(CLASSES)))

    def forward(self, x, sizes):
        coords, h = x[:, :2], self.bn(x)
        for conv in self.convs:
            src, dst = knn(coords, sizes)
            h = conv(h, src, dst)
            coords = h          # dynamic graph: neighbours in feature space
        pooled = torch.stack([part.mean(dim=0) for part in h.split(sizes)])
        return self.head(pooled)


# ------------------------------------------------------------------ training
model = ParticleNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
confusion = torch.zeros(len(CLASSES), len(CLASSES), dtype=torch.long)

order, at = np.random.permutation(len(jets)), 0
losses, tic = [], time.time()
for step in range(STEPS):
    if at + BATCH > len(order):
        order, at = np.random.permutation(len(jets)), 0
    index = order[at:at + BATCH]
    at += BATCH
    x, sizes, y = make_batch(index)

    logits = model(x, sizes)
    weight = torch.tensor([0.5, 1.0, 1.0, 1.0, 1.5]).to(device)      # qcd is cheap, higgs is rare
    loss = F.cross_entropy(logits, y, weight=weight)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()

    losses.append(loss.item())
    for t, p in zip(y.cpu(), logits.argmax(1).cpu()):
        confusion[t, p] += 1
    if (step + 1) % 100 == 0:
        acc = confusion.diag().sum().item() / confusion.sum().item()
        print(f"step {step + 1} loss {np.mean(losses[-100:]):.3f} acc {acc:.3f} "
              f"higgs eff {confusion[4, 4].item() / max(1, confusion[4].sum().item()):.3f} {time.time() - tic:.1f} s")
        confusion.zero_()
