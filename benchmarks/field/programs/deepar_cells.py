"""Probabilistic forecasts of many series: DeepAR with a GRU cell unrolled by hand, negative binomial likelihood."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SERIES, LENGTH, WINDOW, COVARIATES = 370, 3000, 48, 4


class Electricity(Dataset):
    def __init__(self, n):
        hours = np.arange(LENGTH)
        self.time = np.stack([hours % 24 / 23, hours // 24 % 7 / 6, hours // 720 / 12, hours / LENGTH], 1).astype(np.float32)
        self.load = np.random.poisson(20, (SERIES, LENGTH)).astype(np.float32)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        series, start = np.random.randint(SERIES), np.random.randint(0, LENGTH - WINDOW - 1)
        z = self.load[series, start:start + WINDOW + 1]
        return torch.tensor(z), torch.tensor(self.time[start + 1:start + WINDOW + 1]), series


class DeepAR(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.hidden = hidden
        self.embedding = nn.Embedding(SERIES, 20)
        self.cell = nn.GRUCell(1 + COVARIATES + 20, hidden)
        self.mu, self.alpha = nn.Linear(hidden, 1), nn.Linear(hidden, 1)

    def forward(self, z, covariates, series):
        scale = 1 + z[:, :-1].mean(1, keepdim=True)
        h = torch.zeros(len(z), self.hidden, device=z.device)
        emb = self.embedding(series)
        mus, alphas = [], []
        for t in range(WINDOW):
            x = torch.cat([z[:, t:t + 1] / scale, covariates[:, t], emb], dim=1)
            h = self.cell(x, h)
            mus.append(nn.functional.softplus(self.mu(h)) * scale)
            alphas.append(nn.functional.softplus(self.alpha(h)) / scale.sqrt())
        return torch.cat(mus, 1), torch.cat(alphas, 1)


def nb_loss(z, mu, alpha):
    r = 1 / (alpha + 1e-6)
    log_p = torch.lgamma(z + r) - torch.lgamma(r) - torch.lgamma(z + 1) - r * torch.log1p(alpha * mu) + z * torch.log(alpha * mu / (1 + alpha * mu) + 1e-8)
    return -log_p.mean()


np.random.seed(0)
torch.manual_seed(0)
model = DeepAR().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Electricity(256 * 200), batch_size=256, shuffle=True, num_workers=2)
losses = []
for i, (z, covariates, series) in enumerate(loader):
    z, covariates, series = z.cuda(), covariates.cuda(), series.cuda()
    mu, alpha = model(z, covariates, series)
    loss = nb_loss(z[:, 1:], mu, alpha)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    losses.append(loss.item())
    if i % 25 == 0:
        print(f"batch {i} nll {np.mean(losses[-25:]):.3f}")
