"""Predict chromatin tracks from long DNA windows: a reduced Enformer (conv tower + relative attention), Lightning."""
import math

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange
from torch.utils.data import DataLoader, Dataset

WINDOW = 65_536
BIN = 128
TRACKS = 512


class GenomeWindows(Dataset):
    """Random windows of a made-up chromosome, with counts per bin and track."""

    BASES = {"A": 0, "C": 1, "G": 2, "T": 3}
    COMPLEMENT = {"A": "T", "C": "G", "G": "C", "T": "A", "N": "N"}

    def __init__(self, n, seed=0):
        rng = np.random.default_rng(seed)
        self.chromosome = "".join(rng.choice(list("ACGTN"), 4_000_000, p=[.29, .2, .2, .29, .02]))
        self.starts = rng.integers(0, len(self.chromosome) - WINDOW, n)
        self.counts = torch.from_numpy(rng.poisson(0.7, (n, WINDOW // BIN, TRACKS)).astype(np.float32))
        self.rng = rng

    def __len__(self):
        return len(self.starts)

    def one_hot(self, sequence):
        index = np.array([self.BASES.get(base, 4) for base in sequence])
        return torch.from_numpy(np.eye(5, dtype=np.float32)[index][:, :4]).T.contiguous()

    def __getitem__(self, i):
        start = self.starts[i]
        sequence, counts = self.chromosome[start:start + WINDOW], self.counts[i]
        if self.rng.random() < 0.5:   # reverse complement
            sequence = "".join(self.COMPLEMENT[base] for base in reversed(sequence))
            counts = counts.flip(0)
        return self.one_hot(sequence), counts


class GELU(nn.Module):
    def forward(self, x):
        return torch.sigmoid(1.702 * x) * x


def conv_block(dim, out, k=1):
    return nn.Sequential(nn.BatchNorm1d(dim), GELU(), nn.Conv1d(dim, out, k, padding=k // 2))


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return x + self.fn(x)


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_logits = nn.Conv2d(dim, dim, 1, bias=False)
        nn.init.dirac_(self.to_logits.weight)

    def forward(self, x):
        x = rearrange(x, "b d (n p) -> b d n p", p=2)
        return (x * self.to_logits(x).softmax(-1)).sum(-1)


def positional_basis(length, features):
    """Exponentials, central masks and gammas over all distances, each also with the sign of the distance."""
    distance = torch.arange(-length + 1, length).float()
    magnitude, n = distance.abs(), features // 6
    half_life = 2 ** torch.linspace(3, math.log2(length), n)
    exponential = torch.exp(-math.log(2) / half_life * magnitude[:, None])
    central = (2 ** torch.arange(1, n + 1).float() - 1 > magnitude[:, None]).float()
    mean, std = torch.linspace(length / n, length, n), length / (2 * n)
    concentration, rate = (mean / std) ** 2, mean / std ** 2
    log_p = torch.xlogy(concentration - 1, magnitude[:, None]) - rate * magnitude[:, None] - (
        torch.lgamma(concentration) - concentration * torch.log(rate))
    gamma = torch.exp(log_p) + 1e-8
    basis = torch.cat([exponential, central, gamma / gamma.max()], 1)
    return torch.cat([basis, torch.sign(distance)[:, None] * basis], 1)


def relative_shift(x):
    x = F.pad(x, (1, 0))
    b, h, t1, t2 = x.shape
    x = x.reshape(b, h, t2, t1)[:, :, 1:]
    return x.reshape(b, h, t1, t2 - 1)[..., :t1]


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_key=64, features=96):
        super().__init__()
        self.heads, self.features, self.scale = heads, features, dim_key ** -0.5
        self.to_q, self.to_k = (nn.Linear(dim, dim_key * heads, bias=False) for _ in range(2))
        self.to_v, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)
        self.to_rel_k = nn.Linear(features, dim_key * heads, bias=False)
        self.content_bias, self.position_bias = (nn.Parameter(torch.randn(1, heads, 1, dim_key)) for _ in range(2))

    def forward(self, x):
        q, k, v = (rearrange(f(x), "b n (h d) -> b h n d", h=self.heads) for f in (self.to_q, self.to_k, self.to_v))
        q = q * self.scale
        content = torch.einsum("bhid,bhjd->bhij", q + self.content_bias, k)
        positions = F.dropout(positional_basis(x.shape[1], self.features).to(x.device), 0.01, self.training)
        rel_k = rearrange(self.to_rel_k(positions), "n (h d) -> h n d", h=self.heads)
        relative = relative_shift(torch.einsum("bhid,hjd->bhij", q + self.position_bias, rel_k))
        attn = F.dropout((content + relative).softmax(-1), 0.05, self.training)
        return self.out(rearrange(torch.einsum("bhij,bhjd->bhid", attn, v), "b h n d -> b n (h d)"))


class MiniEnformer(L.LightningModule):
    def __init__(self, dims=(192, 224, 256, 288, 320, 352, 384), depth=4, lr=2e-4):
        super().__init__()
        self.lr = lr
        self.stem = nn.Sequential(nn.Conv1d(4, dims[0], 15, padding=7), Residual(conv_block(dims[0], dims[0])),
                                  AttentionPool(dims[0]))
        self.tower = nn.Sequential(*[nn.Sequential(conv_block(a, b, 5), Residual(conv_block(b, b)), AttentionPool(b))
                                     for a, b in zip(dims, dims[1:])])
        d = dims[-1]
        self.transformer = nn.Sequential(*[nn.Sequential(
            Residual(nn.Sequential(nn.LayerNorm(d), Attention(d), nn.Dropout(0.3))),
            Residual(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Dropout(0.3), nn.ReLU(), nn.Linear(2 * d, d))))
            for _ in range(depth)])
        self.head = nn.Sequential(nn.Linear(d, 2 * d), nn.Dropout(0.05), GELU(), nn.Linear(2 * d, TRACKS), nn.Softplus())
        self.ema = {name: p.detach().clone() for name, p in self.named_parameters()}

    def forward(self, x):
        x = self.tower(self.stem(x))
        return self.head(self.transformer(x.transpose(1, 2)))

    def pearson(self, a, b):
        a, b = a.double() - a.double().mean((0, 1)), b.double() - b.double().mean((0, 1))
        return ((a * b).sum((0, 1)) / (a.norm(dim=(0, 1)) * b.norm(dim=(0, 1)) + 1e-8)).mean()

    def training_step(self, batch, batch_idx):
        x, y = batch
        prediction = self(x)
        loss = F.poisson_nll_loss(prediction, y, log_input=False)
        self.log("loss", loss.item(), prog_bar=True)
        self.log("pearson", self.pearson(prediction.detach(), y), prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        for name, p in self.named_parameters():
            self.ema[name] = 0.999 * self.ema[name].to(p.device) + 0.001 * p.detach()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    L.seed_everything(0)
    loader = DataLoader(GenomeWindows(64), batch_size=2, shuffle=True, drop_last=True)
    trainer = L.Trainer(max_epochs=5, accelerator="gpu", devices=1, gradient_clip_val=0.2, logger=False,
                        enable_checkpointing=False, detect_anomaly=True)   # had nans in the gammas
    trainer.fit(MiniEnformer(), loader)
