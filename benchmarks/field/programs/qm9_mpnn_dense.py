"""Message passing with edge networks (Gilmer et al.) on padded molecules, batch of dense adjacency."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

MAX_ATOMS = 29


class Molecules(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(7)
        self.sizes = rng.integers(9, MAX_ATOMS + 1, n)
        self.coords = [rng.normal(0, 1.5, (s, 3)) for s in self.sizes]
        self.charges = [rng.choice([1, 6, 7, 8, 9], s) for s in self.sizes]
        self.target = rng.normal(size=n).astype(np.float32)
        self.centers = np.linspace(0, 6, 24)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, idx):
        n, pos, z = self.sizes[idx], self.coords[idx], self.charges[idx]
        dist = np.sqrt(((pos[:, None] - pos[None]) ** 2).sum(-1))
        rbf = np.exp(-4.0 * (dist[..., None] - self.centers) ** 2)
        edges = np.zeros((MAX_ATOMS, MAX_ATOMS, 24), np.float32)
        edges[:n, :n] = rbf
        nodes = np.zeros((MAX_ATOMS, 6), np.float32)
        for i in range(n):
            nodes[i, [1, 6, 7, 8, 9].index(z[i])] = 1.0
            nodes[i, 5] = z[i] / 9.0
        adj = np.zeros((MAX_ATOMS, MAX_ATOMS), np.float32)
        adj[:n, :n] = (dist < 3.0) & ~np.eye(n, dtype=bool)
        mask = (np.arange(MAX_ATOMS) < n).astype(np.float32)
        return nodes, edges, adj, mask, self.target[idx]


class MPNN(nn.Module):
    def __init__(self, hidden, rounds):
        super().__init__()
        self.hidden, self.rounds = hidden, rounds
        self.embed = nn.Linear(6, hidden)
        self.edge_net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, hidden * hidden))
        self.gru = nn.GRUCell(hidden, hidden)
        self.gate = nn.Sequential(nn.Linear(hidden + 6, 128), nn.ReLU(), nn.Linear(128, 1))
        self.value = nn.Sequential(nn.Linear(hidden, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, nodes, edges, adj, mask):
        b, n, _ = nodes.shape
        h = self.embed(nodes)
        a = self.edge_net(edges).view(b, n, n, self.hidden, self.hidden) * adj[..., None, None]
        for _ in range(self.rounds):
            m = torch.einsum('bijkl,bjl->bik', a, h)
            h = self.gru(m.reshape(b * n, -1), h.reshape(b * n, -1)).view(b, n, -1)
        g = torch.sigmoid(self.gate(torch.cat([h, nodes], -1)))
        return (g * self.value(h)).squeeze(-1).mul(mask).sum(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--batch-size', type=int, default=64)
    p.add_argument('--hidden', type=int, default=48)
    p.add_argument('--rounds', type=int, default=4)
    p.add_argument('--lr', type=float, default=5e-4)
    args = p.parse_args()
    torch.manual_seed(0)
    train_set = Molecules(4096)
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = MPNN(args.hidden, args.rounds).cuda()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    mae = 0.0
    for it, (nodes, edges, adj, mask, y) in enumerate(loader):
        nodes, edges, adj, mask, y = nodes.cuda(), edges.cuda(), adj.cuda(), mask.cuda(), y.cuda()
        pred = model(nodes, edges, adj, mask)
        loss = nn.functional.mse_loss(pred, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        mae += (pred.detach() - y).abs().mean().item()
    print('train MAE', mae / (it + 1))


if __name__ == '__main__':
    main()
