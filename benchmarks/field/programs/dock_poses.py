#!/usr/bin/env python
"""Refine docking poses with the learned score.

For every ligand of the library: start POSES random poses in the pocket, descend the score for STEPS steps (translation, rotation
vector and torsions are the variables), keep each pose at its best, write the best few. The score network is the one from training
(pairnet.py), here with its random initialisation if --weights is not given.
"""
import argparse
import math
import time

import numpy as np
import torch
from torch import nn

ELEMENTS = ["C", "N", "O", "S", "F", "Cl", "H", "metal"]
N_RBF, CUTOFF = 24, 8.0


def mlp(*dims):
    layers = []
    for a, b in zip(dims, dims[1:]):
        layers += [nn.Linear(a, b), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


class AtomEncoder(nn.Module):
    """Embedding and a few rounds of message passing over a dense adjacency."""

    def __init__(self, dim, rounds=3):
        super().__init__()
        self.embed = nn.Embedding(len(ELEMENTS), dim)
        self.message = nn.ModuleList([mlp(2 * dim, dim, dim) for _ in range(rounds)])

    def forward(self, types, adjacency):
        h = self.embed(types)
        degree = adjacency.sum(-1, keepdim=True).clamp(min=1)
        for layer in self.message:
            h = h + layer(torch.cat([h, adjacency @ h / degree], dim=-1))
        return h


class PairNet(nn.Module):
    """Sum over ligand-pocket atom pairs of a small MLP on (distance, both atoms)."""

    def __init__(self, dim=32, hidden=64):
        super().__init__()
        self.ligand, self.pocket = AtomEncoder(dim), AtomEncoder(dim)
        self.pair = mlp(2 * dim + N_RBF, hidden, hidden, 1)
        self.register_buffer("centers", torch.linspace(0.5, CUTOFF, N_RBF))
        self.clash = nn.Parameter(torch.tensor(2.5))

    def forward(self, xyz, types, bonds, pocket_xyz, pocket_types, pocket_bonds):
        """xyz: poses x atoms x 3. Scores of poses, lower is better."""
        hl = self.ligand(types, bonds)
        hp = self.pocket(pocket_types, pocket_bonds)
        n, a, p = xyz.shape[0], xyz.shape[1], pocket_xyz.shape[0]
        delta = xyz[:, :, None] - pocket_xyz[None, None]
        d = (delta ** 2).sum(-1).add(1e-6).sqrt()
        rbf = torch.exp(-8.0 * (d[..., None] - self.centers) ** 2)
        feats = torch.cat([rbf, hl[None, :, None].expand(n, a, p, -1), hp[None, None].expand(n, a, p, -1)], dim=-1)
        e = self.pair(feats)[..., 0]
        envelope = 0.5 * (torch.cos(math.pi * d / CUTOFF) + 1) * (d < CUTOFF)
        steric = (self.clash - d).clamp(min=0) ** 2
        return (e * envelope + steric).sum(dim=(1, 2))


# -------------------------------------------------------------------------------------- molecules
def random_ligand(rng):
    """A branched chain with some rotatable bonds. Each torsion turns the atoms that come after its bond."""
    n = int(rng.integers(18, 42))
    parent = np.array([-1] + [int(max(0, i - 1 - rng.integers(0, 3))) for i in range(1, n)])
    xyz = np.zeros((n, 3))
    for i in range(1, n):
        v = rng.normal(size=3)
        xyz[i] = xyz[parent[i]] + 1.5 * v / np.linalg.norm(v)
    bonds = np.zeros((n, n), dtype=np.float32)
    for i in range(1, n):
        bonds[i, parent[i]] = bonds[parent[i], i] = 1
    torsions = []
    for i in rng.permutation(np.arange(2, n))[: rng.integers(3, 10)]:
        below = [i]
        for j in range(i + 1, n):
            if parent[j] in below:
                below.append(j)
        if len(below) > 1:
            torsions.append((int(parent[i]), int(i), below[1:]))
    return {"xyz": xyz - xyz.mean(0), "types": rng.choice(6, n, p=[0.6, 0.13, 0.15, 0.05, 0.04, 0.03]), "bonds": bonds, "torsions": torsions}


def random_pocket(rng, n):
    """A bowl of atoms around the origin."""
    v = rng.normal(size=(n, 3))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    xyz = v * (5.5 + 7.0 * rng.random((n, 1)) ** 0.7)
    d = np.linalg.norm(xyz[:, None] - xyz[None], axis=-1)
    return xyz, rng.choice(8, n, p=[0.45, 0.17, 0.18, 0.02, 0, 0, 0.17, 0.01]), ((d < 2.0) & (d > 0)).astype(np.float32)


# -------------------------------------------------------------------------------------- geometry
def rotation(axis_angle):
    """Rodrigues, ... x 3 -> ... x 3 x 3."""
    angle = (axis_angle ** 2).sum(-1, keepdim=True).add(1e-12).sqrt()
    k = axis_angle / angle
    x, y, z = k.unbind(-1)
    zero = torch.zeros_like(x)
    K = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).view(*x.shape, 3, 3)
    s, c = torch.sin(angle)[..., None], torch.cos(angle)[..., None]
    return torch.eye(3, device=x.device) + s * K + (1 - c) * (K @ K)


def place(ligand, shift, turn, torsion):
    """Coordinates of all poses."""
    xyz = ligand["xyz"][None].repeat(len(shift), 1, 1)
    for t, (a, b, atoms) in enumerate(ligand["torsions"]):
        index = torch.tensor(atoms, device=xyz.device)
        origin = xyz[:, b:b + 1]
        axis = xyz[:, b] - xyz[:, a]
        axis = axis / axis.norm(dim=-1, keepdim=True)
        R = rotation(axis * torsion[:, t:t + 1])
        moved = (xyz[:, index] - origin) @ R.transpose(1, 2) + origin
        xyz = xyz.clone()
        xyz[:, index] = moved
    return xyz @ rotation(turn).transpose(1, 2) + shift[:, None]


# -------------------------------------------------------------------------------------- search
def dock(model, ligand, pocket, args, device):
    n = args.poses
    shift = (torch.randn(n, 3, device=device) * 2.0).requires_grad_()
    turn = (torch.randn(n, 3, device=device)).requires_grad_()
    torsion = (torch.rand(n, len(ligand["torsions"]), device=device) * 2 * math.pi - math.pi).requires_grad_()
    optimizer = torch.optim.Adam([{"params": [shift], "lr": 0.1}, {"params": [turn, torsion], "lr": 0.05}])
    best = [float("inf")] * n
    best_xyz = [None] * n
    for _ in range(args.steps):
        xyz = place(ligand, shift, turn, torsion)
        scores = model(xyz, ligand["types"], ligand["bonds"], *pocket)
        optimizer.zero_grad()
        scores.sum().backward()
        optimizer.step()
        for k in range(n):
            s = scores[k].item()
            if s < best[k]:
                best[k] = s
                best_xyz[k] = xyz[k].detach().clone()
    order = np.argsort(best)
    return [(best[k], best_xyz[k].cpu().numpy()) for k in order[: args.keep]]


def write_pose(ligand, score, xyz):
    lines = [f"REMARK score {score:.3f}"]
    for i, (t, (x, y, z)) in enumerate(zip(ligand["types"].tolist(), xyz)):
        lines.append(f"HETATM{i + 1:5d} {ELEMENTS[t]:>2s}   LIG A   1    {x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00          {ELEMENTS[t]:>2s}")
    return "\n".join(lines + ["END"])


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--ligands", type=int, default=24)
    ap.add_argument("--poses", type=int, default=96)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--pocket_atoms", type=int, default=800)
    ap.add_argument("--keep", type=int, default=5)
    ap.add_argument("--weights")
    ap.add_argument("--seed", type=int, default=11)
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    model = PairNet().to(device)
    if args.weights:
        model.load_state_dict(torch.load(args.weights, map_location=device))
    model.eval()
    xyz, types, bonds = random_pocket(rng, args.pocket_atoms)
    pocket = torch.tensor(xyz, dtype=torch.float32, device=device), torch.tensor(types, device=device), torch.tensor(bonds, device=device)
    results, start = [], time.time()
    for i in range(args.ligands):
        ligand = random_ligand(rng)
        ligand = {"xyz": torch.tensor(ligand["xyz"], dtype=torch.float32, device=device), "types": torch.tensor(ligand["types"], device=device),
                  "bonds": torch.tensor(ligand["bonds"], device=device), "torsions": ligand["torsions"]}
        poses = dock(model, ligand, pocket, args, device)
        results.append((poses[0][0], i, [write_pose(ligand, s, x) for s, x in poses]))
        print(f"ligand {i:3d}: {len(ligand['types'])} atoms, {len(ligand['torsions'])} torsions, best {poses[0][0]:.3f}, "
              f"{(time.time() - start) / (i + 1):.2f} s per ligand", flush=True)
    results.sort(key=lambda r: r[0])
    print("top hits:", ", ".join(f"{i} ({s:.2f})" for s, i, _ in results[:5]))


if __name__ == "__main__":
    main()
