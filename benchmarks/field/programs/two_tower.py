"""Retrieval: user and item towers, in-batch softmax, sparse history averaged with a mask."""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Clicks(Dataset):
    def __init__(self, n=200000, items=200000):
        rng = np.random.default_rng(0)
        self.user = rng.integers(0, 100000, n)
        self.item = rng.integers(1, items, n)
        self.history = rng.integers(0, items, (n, 50))

    def __len__(self):
        return len(self.user)

    def __getitem__(self, i):
        return self.user[i], self.item[i], self.history[i]


class Towers(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.users = nn.Embedding(100000, d)
        self.items = nn.Embedding(200000, d, padding_idx=0)
        self.user_mlp = nn.Sequential(nn.Linear(2 * d, 512), nn.ReLU(), nn.Linear(512, d))
        self.item_mlp = nn.Sequential(nn.Linear(d, 512), nn.ReLU(), nn.Linear(512, d))

    def forward(self, user, item, history):
        h = self.items(history)
        mask = (history > 0).float().unsqueeze(-1)
        h = (h * mask).sum(1) / mask.sum(1).clamp(min=1)
        u = F.normalize(self.user_mlp(torch.cat([self.users(user), h], -1)), dim=-1)
        i = F.normalize(self.item_mlp(self.items(item)), dim=-1)
        return u @ i.T / 0.05


torch.manual_seed(0)
model = Towers().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Clicks(), batch_size=4096, shuffle=True)
for step, (user, item, history) in enumerate(loader):
    user, item, history = user.cuda(), item.cuda(), history.cuda()
    scores = model(user, item, history)
    loss = F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
