# Differentiable cloth: mass-spring sheets thrown at a sphere, launch velocities fitted by backpropagation through time
import math
import time

import numpy as np
import torch

N = 48                # particles per side
SHEETS = 24
SUBSTEPS = 80
ITERS = 110
DT = 1 / 240
K = {"structural": 4000.0, "shear": 1500.0, "bend": 600.0}
DAMP, DRAG, MASS = 2.0, 0.4, 0.02
CENTER, RADIUS = (0.0, 0.6, 0.0), 0.35
dev = torch.device("cuda")


def grid_id(i, j):
    return i * N + j


def make_springs():
    """{kind: (a, b, rest length)}"""
    offsets = {"structural": [(0, 1), (1, 0)], "shear": [(1, 1), (1, -1)], "bend": [(0, 2), (2, 0)]}
    h, springs = 1.0 / (N - 1), {}
    for kind, steps in offsets.items():
        a, b, rest = [], [], []
        for di, dj in steps:
            for i in range(N):
                for j in range(N):
                    if i + di < N and 0 <= j + dj < N:
                        a.append(grid_id(i, j))
                        b.append(grid_id(i + di, j + dj))
                        rest.append(h * math.hypot(di, dj))
        springs[kind] = (torch.tensor(a, device=dev), torch.tensor(b, device=dev), torch.tensor(rest, device=dev))
    return springs


class Cloth:
    def __init__(self):
        self.springs = make_springs()

    def spring_force(self, x, v):
        f = torch.zeros_like(x)
        for kind, (a, b, rest) in self.springs.items():
            d = x[:, b] - x[:, a]
            length = d.norm(dim=-1, keepdim=True) + 1e-8
            n = d / length
            rel = ((v[:, b] - v[:, a]) * n).sum(-1, keepdim=True)
            fs = (K[kind] * (length - rest[None, :, None]) * 0.01 + DAMP * 0.01 * rel) * n
            f = f.index_add(1, a, fs)
            f = f.index_add(1, b, -fs)
        return f

    def step(self, x, v):
        gravity = torch.tensor([0.0, -9.81, 0.0]).to(x.device)
        f = self.spring_force(x, v) + MASS * gravity - DRAG * MASS * v
        v = v + DT * f / MASS
        x_new = x + DT * v
        # sphere: push out, take off the inward part of the velocity
        c = torch.tensor(CENTER).to(x.device)
        r = x_new - c
        dist = r.norm(dim=-1, keepdim=True)
        n = r / (dist + 1e-8)
        inside = dist < RADIUS
        vn = (v * n).sum(-1, keepdim=True)
        v = torch.where(inside & (vn < 0), 0.9 * (v - vn * n), v)
        x_new = torch.where(inside, c + n * RADIUS, x_new)
        # ground
        below = x_new[..., 1:2] < 0
        v = torch.where(below, v * torch.tensor([0.5, -0.1, 0.5]).to(x.device), v)
        x_new = torch.cat([x_new[..., :1], x_new[..., 1:2].clamp(min=0), x_new[..., 2:]], -1)
        if torch.isnan(x_new).any():
            raise FloatingPointError("simulation blew up, lower DT")
        return x_new, v

    def rollout(self, x, v):
        energy = []
        for _ in range(SUBSTEPS):
            x, v = self.step(x, v)
            energy.append((0.5 * MASS * v.detach().pow(2).sum((1, 2))).mean().item())
        return x, v, energy


def rest_sheet():
    u = torch.linspace(-0.5, 0.5, N)
    xx, zz = torch.meshgrid(u, u, indexing="ij")
    return torch.stack([xx, torch.full_like(xx, 1.1), zz], -1).reshape(-1, 3)


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    cloth = Cloth()
    sheet = rest_sheet().to(dev)
    launch = torch.zeros(SHEETS, 3, device=dev, requires_grad=True)
    twist = torch.zeros(SHEETS, 3, device=dev, requires_grad=True)
    opt = torch.optim.Adam([launch, twist], lr=0.1)
    target = torch.tensor(rng.uniform([-0.6, 0.3, -0.6], [0.6, 1.0, 0.6], (SHEETS, 3)), dtype=torch.float32, device=dev)
    began = time.time()
    for it in range(ITERS):
        jitter = torch.tensor(rng.normal(0, 0.002, (SHEETS, N * N, 3)), dtype=torch.float32).to(dev)
        x0 = sheet[None] + jitter
        arm = x0 - x0.mean(1, keepdim=True)
        v0 = launch[:, None] + torch.cross(twist[:, None].expand_as(arm), arm, dim=-1)
        x, v, energy = cloth.rollout(x0, v0)
        loss = ((x.mean(1) - target) ** 2).sum(-1)
        total = loss.mean() + 1e-3 * (launch ** 2).mean() + 1e-3 * (twist ** 2).mean()
        opt.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_([launch, twist], 1.0)
        opt.step()
        if it % 20 == 0 or it == ITERS - 1:
            print(f"iter {it:3d} distance {loss.detach().sqrt().mean():.4f} kinetic energy {energy[0]:.3f} -> {energy[-1]:.3f} J  {time.time() - began:.1f} s")
    print("launch velocities", launch.detach()[:3].cpu().numpy().round(2).tolist())


if __name__ == "__main__":
    main()
