"""GraphCast-like forecaster at 1 degree: grid -> mesh -> grid, residual message passing, trained on two-step rollouts.

Fields are made up (78 channels); the real thing would read ERA5 from zarr.
"""
import sys

import numpy as np
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

NLAT, NLON, CH = 181, 360, 78
MESH, LATENT, ROUNDS = 5120, 256, 8
ROLLOUT, STEPS, LR = 2, 110, 1e-3
device = "cuda"


def sphere(lat, lon):
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1).astype(np.float32)


def fibonacci(n):
    i = np.arange(n) + 0.5
    return sphere(np.arcsin(1 - 2 * i / n), np.pi * (1 + 5 ** 0.5) * i)


def nearest(a, b, k):
    """Indices (len(a), k) of the points of b nearest to each of a."""
    out = []
    for part in torch.from_numpy(a).split(8192):
        out.append(torch.cdist(part, torch.from_numpy(b)).topk(k, largest=False).indices)
    return torch.cat(out)


def features(src, dst, s, r):
    d = src[s] - dst[r]
    return torch.from_numpy(np.concatenate([d, np.linalg.norm(d, axis=1, keepdims=True)], 1)) * 10


def build_graphs():
    lat, lon = np.meshgrid(np.deg2rad(np.linspace(90, -90, NLAT)), np.deg2rad(np.arange(NLON)), indexing="ij")
    grid, mesh = sphere(lat.ravel(), lon.ravel()), fibonacci(MESH)
    graphs = {}
    near = nearest(grid, mesh, 2)
    s, r = torch.arange(len(grid)).repeat_interleave(2), near.reshape(-1)
    graphs["g2m"] = (s, r, features(grid, mesh, s.numpy(), r.numpy()))
    near = nearest(grid, mesh, 3)
    s, r = near.reshape(-1), torch.arange(len(grid)).repeat_interleave(3)
    graphs["m2g"] = (s, r, features(mesh, grid, s.numpy(), r.numpy()))
    ss, rr = [], []
    for every in (1, 4, 16, 64):                 # coarser meshes bring long edges
        nodes = np.arange(0, MESH, every)
        near = nearest(mesh[nodes], mesh[nodes], 7)[:, 1:]
        ss.append(torch.from_numpy(nodes)[near.reshape(-1)])
        rr.append(torch.from_numpy(nodes).repeat_interleave(6))
    s, r = torch.cat(ss), torch.cat(rr)
    graphs["mesh"] = (s, r, features(mesh, mesh, s.numpy(), r.numpy()))
    return {k: tuple(x.to(device) for x in v) for k, v in graphs.items()}, torch.from_numpy(grid).to(device), torch.from_numpy(mesh).to(device)


def mlp(i, o=LATENT, norm=True):
    layers = [nn.Linear(i, LATENT), nn.SiLU(), nn.Linear(LATENT, o)]
    return nn.Sequential(*layers, nn.LayerNorm(o)) if norm else nn.Sequential(*layers)


class Interaction(nn.Module):
    """Edges from both ends and themselves, then nodes from the sum of their edges."""

    def __init__(self):
        super().__init__()
        self.edge, self.node = mlp(3 * LATENT), mlp(2 * LATENT)

    def forward(self, src, dst, e, s, r):
        m = self.edge(torch.cat([e, src[s], dst[r]], dim=-1))
        total = torch.zeros(dst.shape[0], LATENT, device=dst.device, dtype=m.dtype).index_add(0, r, m)
        return dst + self.node(torch.cat([dst, total], dim=-1)), e + m


class GraphCast(nn.Module):
    def __init__(self):
        super().__init__()
        self.graphs, grid, mesh = build_graphs()
        self.grid_pos, self.mesh_pos = grid, mesh
        self.embed_grid, self.embed_mesh = mlp(2 * CH + 3), mlp(3)
        self.embed_edge = nn.ModuleDict({k: mlp(4) for k in self.graphs})
        self.g2m, self.m2g = Interaction(), Interaction()
        self.process = nn.ModuleList([Interaction() for _ in range(ROUNDS)])
        self.out = mlp(LATENT, CH, norm=False)

    def forward(self, before, now):
        grid = self.embed_grid(torch.cat([before, now, self.grid_pos], dim=-1))
        mesh = self.embed_mesh(self.mesh_pos)
        edges = {k: self.embed_edge[k](g[2]) for k, g in self.graphs.items()}
        s, r, _ = self.graphs["g2m"]
        mesh, _ = checkpoint(self.g2m, grid, mesh, edges["g2m"], s, r, use_reentrant=False)
        s, r, _ = self.graphs["mesh"]
        e = edges["mesh"]
        for block in self.process:
            mesh, e = checkpoint(block, mesh, mesh, e, s, r, use_reentrant=False)
        s, r, _ = self.graphs["m2g"]
        grid, _ = checkpoint(self.m2g, mesh, grid, edges["m2g"], s, r, use_reentrant=False)
        return now + 0.1 * self.out(grid)


class Weather:
    """Travelling waves in physical units, an hour apart."""

    def __init__(self, hours=24):
        rng = np.random.default_rng(2)
        self.mean, self.std = rng.normal(200, 80, CH).astype(np.float32), rng.uniform(1, 30, CH).astype(np.float32)
        lat, lon = np.meshgrid(np.linspace(-1, 1, NLAT), np.linspace(0, 2 * np.pi, NLON, endpoint=False), indexing="ij")
        k, c, ph = rng.integers(1, 9, CH), rng.uniform(-0.2, 0.2, CH), rng.uniform(0, 6, CH)
        self.fields = np.empty((hours, NLAT * NLON, CH), dtype=np.float32)
        for t in range(hours):
            for i in range(CH):
                wave = np.sin(k[i] * lon + c[i] * t + ph[i]) * np.exp(-4 * lat ** 2)
                self.fields[t, :, i] = (self.mean[i] + self.std[i] * wave).ravel()
        self.fields[:, rng.random(NLAT * NLON) < 0.3, CH - 1] = np.nan

    def window(self, rng):
        t = rng.integers(0, len(self.fields) - ROLLOUT - 1)
        x = self.fields[t:t + ROLLOUT + 2]
        x = (x - self.mean) / self.std
        return torch.from_numpy(np.nan_to_num(x))          # SST is missing over land


def area_weights():
    lat = np.deg2rad(np.linspace(90, -90, NLAT))
    w = np.cos(lat).clip(1e-3)
    return torch.from_numpy(np.repeat(w / w.mean(), NLON).astype(np.float32))


torch.manual_seed(0)
rng = np.random.default_rng(0)
weather, model = Weather(), GraphCast().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, edges", {k: len(v[0]) for k, v in model.graphs.items()})
for step in range(STEPS):
    states = weather.window(rng).to(device)
    before, now, loss, errors = states[0], states[1], 0.0, []
    for lead in range(ROLLOUT):
        pred = model(before, now)
        weights = area_weights().to(device)
        err = ((pred - states[lead + 2]) ** 2 * weights[:, None]).mean()
        loss = loss + err / ROLLOUT
        errors.append(err.item() ** 0.5)
        before, now = now, pred
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 32.0)
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f} rmse by lead {['%.3f' % e for e in errors]}")
        sys.stdout.flush()
