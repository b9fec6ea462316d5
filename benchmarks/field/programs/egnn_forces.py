"""Force field for small organic molecules: EGNN layers, energies and forces (forces by differentiating the energy)."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--hidden", type=int, default=128)
parser.add_argument("--layers", type=int, default=5)
parser.add_argument("--cutoff", type=float, default=4.5)
parser.add_argument("--steps", type=int, default=120)
args = parser.parse_args()


class Conformers(Dataset):
    """Atoms on a jittered lattice, about as dense as in an organic molecule."""

    def __init__(self, n, seed=0):
        rng = np.random.default_rng(seed)
        grid = np.stack(np.meshgrid(*[np.arange(4)] * 3), -1).reshape(-1, 3) * 1.5
        self.items = []
        for _ in range(n):
            atoms = rng.integers(14, 30)
            pos = grid[rng.choice(len(grid), atoms, replace=False)] + rng.normal(0, 0.15, (atoms, 3))
            self.items.append((rng.choice([1, 6, 7, 8], atoms), pos, rng.normal(), rng.normal(0, 1, (atoms, 3))))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def neighbor_list(pos, cutoff):
    src, dst = [], []
    for i in range(len(pos)):
        d = np.linalg.norm(pos - pos[i], axis=1)
        for j in np.where(d < cutoff)[0]:
            if i != j:
                src.append(j)
                dst.append(i)
    return np.array([src, dst], dtype=np.int64)


def collate(items):
    z, pos, energy, forces, edges, graph, offset = [], [], [], [], [], [], 0
    for k, (numbers, xyz, e, f) in enumerate(items):
        z.append(torch.tensor(numbers))
        pos.append(torch.tensor(xyz, dtype=torch.float32))
        forces.append(torch.tensor(f, dtype=torch.float32))
        energy.append(e)
        edges.append(torch.from_numpy(neighbor_list(xyz, args.cutoff) + offset))
        graph.append(torch.full((len(numbers),), k))
        offset += len(numbers)
    return (torch.cat(z), torch.cat(pos), torch.tensor(energy, dtype=torch.float32), torch.cat(forces),
            torch.cat(edges, 1), torch.cat(graph))


def scatter_sum(values, index, size):
    out = values.new_zeros(size, values.shape[1])
    return out.index_add_(0, index, values)


class EGNNLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * d + 1, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU())
        self.gate = nn.Sequential(nn.Linear(d, 1), nn.Sigmoid())
        self.node = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, d))
        self.coord = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1, bias=False))

    def forward(self, h, x, src, dst):
        diff = x[dst] - x[src]
        dist2 = (diff ** 2).sum(1, keepdim=True)
        m = self.edge(torch.cat([h[dst], h[src], dist2], 1))
        m = m * self.gate(m)
        x = x + scatter_sum(diff / (dist2.sqrt() + 1) * self.coord(m), dst, len(x)) / 20
        h = h + self.node(torch.cat([h, scatter_sum(m, dst, len(h))], 1))
        return h, x


class ForceField(nn.Module):
    def __init__(self, d, layers):
        super().__init__()
        self.embed = nn.Embedding(10, d)
        self.layers = nn.ModuleList([EGNNLayer(d) for _ in range(layers)])
        self.readout = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, z, pos, edges, graph, graphs):
        pos.requires_grad_(True)
        h, x = self.embed(z), pos
        for layer in self.layers:
            h, x = layer(h, x, edges[0], edges[1])
        energy = scatter_sum(self.readout(h), graph, graphs).squeeze(1)
        forces = -torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]
        return energy, forces


torch.manual_seed(0)
device = torch.device("cuda")
model = ForceField(args.hidden, args.layers).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
loader = DataLoader(Conformers(2000), batch_size=args.batch_size, shuffle=True, drop_last=True, collate_fn=collate)

step, mae_e, mae_f = 0, 0.0, 0.0
while step < args.steps:
    for batch in loader:
        z, pos, energy, forces, edges, graph = [t.to(device) for t in batch]
        pred_e, pred_f = model(z, pos, edges, graph, len(energy))
        loss = (pred_e - energy).pow(2).mean() + 10 * (pred_f - forces).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        scheduler.step()
        mae_e = 0.98 * mae_e + 0.02 * (pred_e - energy).abs().mean().item()
        mae_f = 0.98 * mae_f + 0.02 * (pred_f - forces).abs().mean().item()
        step += 1
        if step % 40 == 0:
            print(f"step {step}  E mae {mae_e:.4f}  F mae {mae_f:.4f}")
        if step >= args.steps:
            break
