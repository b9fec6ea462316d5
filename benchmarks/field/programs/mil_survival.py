"""Survival from whole-slide images: gated attention MIL over patch features of a foundation model (1024 numbers a patch).

One slide is a bag of hundreds to thousands of patches, so slides go through the network one by one and the Cox loss is
taken over a group of patients. Features here are random with a planted signal; the real ones are .npy files per slide.
"""
import argparse
import random
import time
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--slides", type=int, default=96)
    p.add_argument("--dim", type=int, default=1024)
    p.add_argument("--hidden", type=int, default=512)
    p.add_argument("--att", type=int, default=256)
    p.add_argument("--least", type=int, default=400)
    p.add_argument("--most", type=int, default=4000)
    p.add_argument("--keep", type=float, default=0.8, help="share of a slide's patches that is kept, drawn anew each epoch")
    p.add_argument("--group", type=int, default=12, help="patients per Cox loss")
    p.add_argument("--drop", type=float, default=0.25)
    p.add_argument("--epochs", type=int, default=40)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--l1", type=float, default=1e-5)
    return p.parse_args()


args = get_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def set_seed(seed=7):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Slides(Dataset):
    """Features stay in memory; reading them from the share took longer than training."""

    def __init__(self, n):
        rng = np.random.default_rng(3)
        self.bags, self.time, self.event = [], [], []
        bad = rng.standard_normal(args.dim, dtype=np.float32) / 4
        for _ in range(n):
            size, share = int(rng.integers(args.least, args.most)), rng.beta(1, 4)
            bag = rng.standard_normal((size, args.dim), dtype=np.float32)
            bag[: int(share * size)] += bad
            self.bags.append(bag)
            death, lost = rng.exponential(60 * np.exp(-4 * share)), rng.uniform(6, 90)
            self.time.append(min(death, lost))
            self.event.append(int(death <= lost))

    def __len__(self):
        return len(self.bags)

    def __getitem__(self, i):
        bag = self.bags[i]
        chosen = np.random.choice(len(bag), int(args.keep * len(bag)), replace=False)
        return torch.from_numpy(bag[chosen]), self.time[i], self.event[i], i


class GatedAttention(nn.Module):
    def __init__(self, dim, att):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(dim, att), nn.Tanh(), nn.Dropout(args.drop))
        self.b = nn.Sequential(nn.Linear(dim, att), nn.Sigmoid(), nn.Dropout(args.drop))
        self.c = nn.Linear(att, 1)

    def forward(self, x):
        return self.c(self.a(x) * self.b(x))


class MILSurv(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(args.dim, args.hidden), nn.ReLU(), nn.Dropout(args.drop))
        self.attention = GatedAttention(args.hidden, args.att)
        self.risk = nn.Linear(args.hidden, 1, bias=False)

    def forward(self, x):
        h = self.fc(x)                                   # patches x hidden
        a = self.attention(h).transpose(0, 1)            # 1 x patches
        w = F.softmax(a, dim=1)
        return self.risk(torch.mm(w, h)), w


def cox_loss(risks, times, events):
    """Negative partial log likelihood (Breslow)."""
    loss, deaths = 0.0, 0
    for i in range(len(risks)):
        if events[i] == 0:
            continue
        at_risk = [risks[j] for j in range(len(risks)) if times[j] >= times[i]]
        loss = loss - (risks[i] - torch.logsumexp(torch.stack(at_risk), dim=0))
        deaths += 1
    return loss / max(deaths, 1)


def c_index(risks, times, events):
    good, pairs = 0.0, 0
    for i in range(len(risks)):
        for j in range(len(risks)):
            if events[i] == 1 and times[i] < times[j]:
                pairs += 1
                good += 1.0 if risks[i] > risks[j] else 0.5 if risks[i] == risks[j] else 0.0
    return good / max(pairs, 1)


def l1_reg(model):
    reg = None
    for w in model.parameters():
        reg = torch.abs(w).sum() if reg is None else reg + torch.abs(w).sum()
    return reg


def collate(batch):
    bag, t, e, i = batch[0]
    return bag, torch.tensor([t]), torch.tensor([e]), i


set_seed()
tic = time.time()
data = Slides(args.slides)
print(f"{len(data)} slides, {sum(map(len, data.bags))} patches in {time.time() - tic:.1f} s, {np.mean(data.event):.0%} died")
loader = DataLoader(data, batch_size=1, shuffle=True, collate_fn=collate)
model = MILSurv().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=1e-5)
heatmaps = defaultdict(list)

for epoch in range(args.epochs):
    model.train()
    all_risks, all_times, all_events, epoch_loss = [], [], [], 0.0
    risks, times, events, n = [], [], [], 0
    for bag, t, e, slide in loader:
        bag, t, e = bag.to(device), t.to(device), e.to(device)
        risk, w = model(bag)
        risks.append(risk.squeeze())
        times.append(t.item())
        events.append(e.item())
        heatmaps[slide] = w.detach().cpu().numpy()       # for the figures
        if len(risks) < args.group:
            continue
        loss = cox_loss(risks, times, events) + args.l1 * l1_reg(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n, epoch_loss = n + 1, epoch_loss + loss.item()
        all_risks += [r.item() for r in risks]
        all_times, all_events = all_times + times, all_events + events
        print(f"  epoch {epoch} group {n}: loss {loss.item():.4f} c-index {c_index(all_risks, all_times, all_events):.3f}")
        risks, times, events = [], [], []
    print(f"Epoch {epoch}: loss {epoch_loss / n:.4f}, c-index {c_index(all_risks, all_times, all_events):.4f}", flush=True)
