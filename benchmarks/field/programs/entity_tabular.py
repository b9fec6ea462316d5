"""Store sales from categories and numbers: entity embeddings and a small MLP."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

CARDINALITIES = [1115, 7, 12, 31, 4, 3, 3, 366, 24, 52, 8, 22, 13, 26, 10, 5]
N_CONT = 16


class Rows(Dataset):
    def __init__(self, cats, conts, y):
        self.cats, self.conts, self.y = cats, conts, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, idx):
        return self.cats[idx], self.conts[idx], self.y[idx]


class MixedInputModel(nn.Module):
    def __init__(self, sizes=(1000, 500)):
        super().__init__()
        self.embs = nn.ModuleList([nn.Embedding(c, min(50, (c + 1) // 2)) for c in CARDINALITIES])
        n_emb = sum(e.embedding_dim for e in self.embs)
        self.emb_drop, self.bn = nn.Dropout(0.04), nn.BatchNorm1d(N_CONT)
        layers, last = [], n_emb + N_CONT
        for size in sizes:
            layers += [nn.Linear(last, size), nn.ReLU(), nn.BatchNorm1d(size), nn.Dropout(0.1)]
            last = size
        self.layers = nn.Sequential(*layers, nn.Linear(last, 1))

    def forward(self, x_cat, x_cont):
        x = torch.cat([e(x_cat[:, i]) for i, e in enumerate(self.embs)], 1)
        x = torch.cat([self.emb_drop(x), self.bn(x_cont)], 1)
        return self.layers(x).squeeze(1)


def exp_rmspe(pred, target):
    pred, target = torch.exp(pred), torch.exp(target)
    return torch.sqrt((((target - pred) / target) ** 2).mean())


np.random.seed(0)
torch.manual_seed(0)
n = 400000
cats = np.stack([np.random.randint(0, c, n) for c in CARDINALITIES], 1).astype(np.int64)
conts = np.random.randn(n, N_CONT).astype(np.float32)
y = (8 + 0.3 * np.random.randn(n)).astype(np.float32)
train_dl = DataLoader(Rows(cats, conts, y), batch_size=512, shuffle=True)
model = MixedInputModel().to("cuda")
opt = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-3, total_steps=10_000_000)
loss_func = nn.MSELoss()

running, metric = 0.0, 0.0
for i, (xc, xn, yb) in enumerate(train_dl):
    xc, xn, yb = xc.to("cuda"), xn.to("cuda"), yb.to("cuda")
    pred = model(xc, xn)
    loss = loss_func(pred, yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    running = 0.98 * running + 0.02 * loss.item()
    metric = 0.98 * metric + 0.02 * exp_rmspe(pred.detach(), yb).item()
    if i % 100 == 0:
        print(i, f"{running:.4f} {metric:.4f}")
