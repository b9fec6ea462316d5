"""
Class-conditional energy based model (Du & Mordatch 2019), negatives by Langevin dynamics from a replay buffer.
Images are small synthetic "mosaics" until the real tiles are released.
"""
import argparse
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--images", type=int, default=20000)
parser.add_argument("--size", type=int, default=32)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--channels", type=int, default=64)
parser.add_argument("--langevin", type=int, default=15, help="steps of each chain")
parser.add_argument("--step-size", type=float, default=10.0)
parser.add_argument("--buffer", type=int, default=10000)
parser.add_argument("--alpha", type=float, default=1.0)
parser.add_argument("--iterations", type=int, default=220)
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)
random.seed(3)
np.random.seed(3)


def mosaics(n):
    """Each class has its own grid of colors; images are shifted, noisy copies."""
    cells = torch.rand(args.classes, 3, 4, 4)
    labels = torch.randint(0, args.classes, (n,))
    images = torch.empty(n, 3, args.size, args.size)
    for c in range(args.classes):
        own = (labels == c).nonzero().squeeze(1)
        big = F.interpolate(cells[c][None], size=args.size, mode="nearest")[0]
        shifts = torch.randint(0, args.size, (len(own),)).tolist()
        images[own] = torch.stack([big.roll(s, 1) for s in shifts]) if len(own) else images[own]
    return (images + 0.06 * torch.randn_like(images)).clamp(0, 1), labels


class ResBlock(nn.Module):
    def __init__(self, c_in, c_out, n_class, downsample=False):
        super().__init__()
        self.conv1 = spectral_norm(nn.Conv2d(c_in, c_out, 3, padding=1))
        self.conv2 = spectral_norm(nn.Conv2d(c_out, c_out, 3, padding=1))
        self.class_embed = nn.Embedding(n_class, c_out * 4)
        nn.init.zeros_(self.class_embed.weight)
        self.class_embed.weight.data[:, :c_out] = 1
        self.class_embed.weight.data[:, c_out * 2:c_out * 3] = 1
        self.skip = spectral_norm(nn.Conv2d(c_in, c_out, 1, bias=False)) if c_in != c_out or downsample else None
        self.downsample = downsample

    def forward(self, x, label):
        w1, b1, w2, b2 = self.class_embed(label)[:, :, None, None].chunk(4, 1)
        out = F.leaky_relu(w1 * self.conv1(x) + b1, negative_slope=0.2)
        out = w2 * self.conv2(out) + b2
        skip = x if self.skip is None else self.skip(x)
        out = out + skip
        if self.downsample:
            out = F.avg_pool2d(out, 2)
        return F.leaky_relu(out, negative_slope=0.2)


class Energy(nn.Module):
    def __init__(self, n_class, c):
        super().__init__()
        self.conv1 = spectral_norm(nn.Conv2d(3, c, 3, padding=1))
        self.blocks = nn.ModuleList([
            ResBlock(c, c, n_class, downsample=True), ResBlock(c, c, n_class),
            ResBlock(c, 2 * c, n_class, downsample=True), ResBlock(2 * c, 2 * c, n_class),
            ResBlock(2 * c, 2 * c, n_class, downsample=True),
        ])
        self.linear = nn.Linear(2 * c, 1)

    def forward(self, x, label):
        out = F.leaky_relu(self.conv1(x), negative_slope=0.2)
        for block in self.blocks:
            out = block(out, label)
        out = F.relu(out).flatten(2).sum(2)
        return self.linear(out)


class ReplayBuffer:
    def __init__(self, size):
        self.size, self.items = size, []

    def push(self, images, labels):
        for image, label in zip(images.detach().cpu(), labels.detach().cpu()):
            if len(self.items) < self.size:
                self.items.append((image, label))
            else:
                self.items[random.randrange(self.size)] = (image, label)

    def get(self, n):
        chosen = random.choices(self.items, k=n)
        return torch.stack([image for image, _ in chosen]), torch.stack([label for _, label in chosen])


def initial_samples(buffer, shape, p=0.95):
    n = shape[0]
    if len(buffer.items) < 1:
        return torch.rand(shape, device=device), torch.randint(0, args.classes, (n,), device=device)
    n_replay = (np.random.rand(n) < p).sum()
    replay, replay_id = buffer.get(n_replay)
    fresh, fresh_id = torch.rand(n - n_replay, *shape[1:]), torch.randint(0, args.classes, (n - n_replay,))
    return torch.cat([replay, fresh]).to(device), torch.cat([replay_id, fresh_id]).to(device)


def langevin(model, x, label):
    x.requires_grad_(True)
    noise = torch.randn(x.shape, device=device)
    for _ in range(args.langevin):
        noise.normal_(0, 0.005)
        x.data.add_(noise.data)
        energy = model(x, label)
        energy.sum().backward()
        x.grad.data.clamp_(-0.01, 0.01)
        x.data.add_(x.grad.data, alpha=-args.step_size)
        x.grad.detach_()
        x.grad.zero_()
        x.data.clamp_(0, 1)
    return x.detach()


def accumulate(averaged, model, decay):
    own, par = dict(averaged.named_parameters()), dict(model.named_parameters())
    for k in own:
        own[k].data.mul_(decay).add_(par[k].data, alpha=1 - decay)


model, averaged = Energy(args.classes, args.channels).to(device), Energy(args.classes, args.channels).to(device)
averaged.load_state_dict(model.state_dict())
loader = DataLoader(TensorDataset(*mosaics(args.images)), batch_size=args.batch, shuffle=True, drop_last=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.0, 0.999))
buffer = ReplayBuffer(args.buffer)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")

batches, tic, history = iter(loader), time.time(), []
for it in range(1, args.iterations + 1):
    try:
        pos, pos_id = next(batches)
    except StopIteration:
        batches = iter(loader)
        pos, pos_id = next(batches)
    pos, pos_id = pos.to(device), pos_id.to(device)
    neg, neg_id = initial_samples(buffer, pos.shape)
    neg = langevin(model, neg, neg_id)

    model.zero_grad()
    pos_out = model(pos, pos_id)
    neg_out = model(neg, neg_id)
    loss = args.alpha * (pos_out ** 2 + neg_out ** 2).mean() + (pos_out - neg_out).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    accumulate(averaged, model, 0.999)
    buffer.push(neg, neg_id)

    history.append((loss.item(), pos_out.mean().item(), neg_out.mean().item()))
    if it % 20 == 0:
        l, p, n = np.mean(history[-20:], axis=0)
        print(f"{it:4d} loss {l:.4f} energy of data {p:.4f} of samples {n:.4f} | {(time.time() - tic) / it * 1000:.0f} ms", flush=True)
