"""LiDAR pillars: points are grouped on the host, scattered to a bird's-eye view and classified per cell."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

X_RANGE, Y_RANGE, CELL, MAX_PILLARS, MAX_POINTS = (0, 69.12), (-39.68, 39.68), 0.16, 6000, 32
NX, NY = 432, 496


def scan(rng):
    """One sweep of a sensor (synthetic): x, y, z, reflectance."""
    r, angle = rng.gamma(2.0, 12.0, 30000), rng.uniform(-0.5, 0.5, 30000)
    return np.stack([r * np.cos(angle), r * np.sin(angle), rng.normal(-1, 0.5, 30000), rng.random(30000)], 1).astype(np.float32)


def pillarize(points):
    """Group points by cell, at most MAX_POINTS of each."""
    keep = (points[:, 0] >= X_RANGE[0]) & (points[:, 0] < X_RANGE[1]) & (points[:, 1] >= Y_RANGE[0]) & (points[:, 1] < Y_RANGE[1])
    points = points[keep]
    ix = np.minimum((points[:, 0] / CELL).astype(np.int64), NX - 1)
    iy = np.minimum(((points[:, 1] - Y_RANGE[0]) / CELL).astype(np.int64), NY - 1)
    cell = iy * NX + ix
    order = np.argsort(cell, kind="stable")
    cell, points = cell[order], points[order]
    unique, start, count = np.unique(cell, return_index=True, return_counts=True)
    unique, start, count = unique[:MAX_PILLARS], start[:MAX_PILLARS], np.minimum(count[:MAX_PILLARS], MAX_POINTS)
    pillars = np.zeros((MAX_PILLARS, MAX_POINTS, 9), dtype=np.float32)
    cells = np.full(MAX_PILLARS, NX * NY, dtype=np.int64)
    cells[:len(unique)] = unique
    for k in range(len(unique)):
        p = points[start[k]:start[k] + count[k]]
        pillars[k, :count[k], :4] = p
        pillars[k, :count[k], 4:7] = p[:, :3] - p[:, :3].mean(0)
        pillars[k, :count[k], 7] = p[:, 0] - (unique[k] % NX + 0.5) * CELL
        pillars[k, :count[k], 8] = p[:, 1] - (unique[k] // NX + 0.5) * CELL - Y_RANGE[0]
    return pillars, cells


def stage(i, o, n, stride):
    layers = []
    for k in range(n):
        layers += [nn.Conv2d(i if k == 0 else o, o, 3, stride if k == 0 else 1, 1, bias=False), nn.BatchNorm2d(o, eps=1e-3, momentum=0.01), nn.ReLU()]
    return nn.Sequential(*layers)


class PointPillars(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(9, 64, bias=False), nn.BatchNorm1d(64, eps=1e-3, momentum=0.01)
        self.b1, self.b2, self.b3 = stage(64, 64, 4, 2), stage(64, 128, 6, 2), stage(128, 256, 6, 2)
        self.up = nn.ModuleList([nn.ConvTranspose2d(c, 128, s, s) for c, s in ((64, 1), (128, 2), (256, 4))])
        self.head = nn.Conv2d(384, 18, 1)

    def forward(self, pillars, cells):
        b = pillars.shape[0]
        x = self.linear(pillars)
        x = F.relu(self.norm(x.permute(0, 3, 1, 2).reshape(b, 64, -1)))
        x = x.view(b, 64, MAX_PILLARS, MAX_POINTS).max(-1)[0]
        canvas = []
        for i in range(b):
            image = torch.zeros(64, NX * NY + 1, device=x.device, dtype=x.dtype)
            image[:, cells[i]] = x[i]
            canvas.append(image[:, :-1].view(64, NY, NX))
        x1 = self.b1(torch.stack(canvas))
        x2 = self.b2(x1)
        x3 = self.b3(x2)
        return self.head(torch.cat([up(v) for up, v in zip(self.up, (x1, x2, x3))], 1))


rng = np.random.default_rng(0)
scans = [scan(rng) for _ in range(12)]
model = PointPillars().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
for step in range(70):
    grouped = [pillarize(scans[i]) for i in rng.integers(0, 12, 2)]
    pillars = torch.from_numpy(np.stack([g[0] for g in grouped])).cuda()
    cells = torch.from_numpy(np.stack([g[1] for g in grouped])).cuda()
    target = (torch.rand(2, 18, NY // 2, NX // 2) < 0.01).float().cuda()
    out = model(pillars, cells)
    loss = F.binary_cross_entropy_with_logits(out, target)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
