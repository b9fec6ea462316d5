"""Class-incremental image tasks with elastic weight consolidation (EWC), one Fisher per old task."""
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TASKS, PER_TASK, N, BATCH, LAMBDA = 5, 80, 4096, 128, 400.0
device = torch.device("cuda")


def task_data(t):
    """Ten blurred prototypes per task, with noise; uint8 as on disk."""
    rng = np.random.default_rng(100 + t)
    proto = np.kron(rng.uniform(60, 200, (10, 3, 8, 8)), np.ones((1, 1, 4, 4)))
    y = rng.integers(0, 10, N)
    x = proto[y] + rng.normal(0, 40, (N, 3, 32, 32))
    return torch.from_numpy(x.clip(0, 255).astype(np.uint8)), torch.from_numpy(y + 10 * t)


class BasicBlock(nn.Module):
    def __init__(self, i, o, s):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.short = nn.Sequential()
        if s != 1 or i != o:
            self.short = nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(y)) + self.short(x))


class Net(nn.Module):
    def __init__(self, w=64):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, w, 3, 1, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU())
        plan = [(w, w, 1), (w, w, 1), (w, 2 * w, 2), (2 * w, 2 * w, 1), (2 * w, 4 * w, 2), (4 * w, 4 * w, 1), (4 * w, 8 * w, 2), (8 * w, 8 * w, 1)]
        self.layers = nn.Sequential(*[BasicBlock(*p) for p in plan])
        self.head = nn.Linear(8 * w, 10 * TASKS)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


class EWC:
    def __init__(self):
        self.means, self.fishers = [], []

    def penalty(self, model):
        loss = torch.tensor(0.0).to(device)
        for mean, fisher in zip(self.means, self.fishers):
            for n, p in model.named_parameters():
                loss = loss + (fisher[n] * (p - mean[n]) ** 2).sum()
        return loss

    def consolidate(self, model, x, y, samples=64):
        model.eval()
        fisher = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        for i in np.random.choice(len(x), samples, replace=False):
            model.zero_grad()
            logp = F.log_softmax(model(normalize(x[i:i + 1].to(device))), -1)
            logp[0, y[i]].backward()
            for n, p in model.named_parameters():
                fisher[n] += p.grad.detach() ** 2 / samples
        self.fishers.append(fisher)
        self.means.append({n: p.detach().clone() for n, p in model.named_parameters()})
        model.train()


MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)


def normalize(x):
    mean = torch.tensor(MEAN, device=x.device).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=x.device).view(1, 3, 1, 1)
    return (x.float() / 255 - mean) / std


def augment(x):
    """Random shifts of up to four pixels and mirroring, one picture after another."""
    padded, out = F.pad(x, (4, 4, 4, 4)), torch.empty_like(x)
    for i in range(len(x)):
        dy, dx = np.random.randint(0, 9, 2)
        crop = padded[i, :, dy:dy + 32, dx:dx + 32]
        out[i] = crop.flip(-1) if np.random.rand() < 0.5 else crop
    return out


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    right = 0
    for i in range(0, 512, 128):
        right += (model(normalize(x[i:i + 128].to(device))).argmax(1).cpu() == y[i:i + 128]).sum().item()
    model.train()
    return right / 512


torch.manual_seed(0)
np.random.seed(0)
data = [task_data(t) for t in range(TASKS)]
model, ewc = Net().to(device), EWC()
for t, (x, y) in enumerate(data):
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    running, t0 = 0.0, time.time()
    for step in range(PER_TASK):
        idx = torch.randint(0, N, (BATCH,))
        xb, yb = augment(x[idx]).to(device), y[idx].to(device)
        out = model(normalize(xb))
        ce = F.cross_entropy(out, yb)
        loss = ce + LAMBDA / 2 * ewc.penalty(model)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running = 0.9 * running + 0.1 * ce.item()
        sys.stderr.write(f"\rtask {t} step {step} ce {running:.3f} acc {(out.argmax(1) == yb).float().mean().item():.2f}")
    ewc.consolidate(model, x, y)
    print(f"\ntask {t} done in {time.time() - t0:.1f}s:", [round(accuracy(model, *data[k]), 3) for k in range(t + 1)])
