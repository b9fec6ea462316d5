"""
Neural audio codec, stage 1 (no GAN yet): conv encoder, 8-stage residual VQ with EMA codebooks, multi-scale mel loss.
24 kHz mono, ~3 kbps. Run:  python rvq_codec.py
"""
import math
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

SR = 24000
CLIP = 24000
BATCH = 24
STEPS = 180
N_Q, BINS, DIM = 8, 1024, 128
DECAY, DEAD = 0.99, 2.0


class Snake(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, c, 1))

    def forward(self, x):
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2)


def conv(*a, **k):
    return weight_norm(nn.Conv1d(*a, **k))


class ResUnit(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.block = nn.Sequential(Snake(c), conv(c, c, 7, dilation=d, padding=3 * d), Snake(c), conv(c, c, 1))

    def forward(self, x):
        return x + self.block(x)


class Codec(nn.Module):
    def __init__(self, c=32, strides=(2, 4, 5, 8)):
        super().__init__()
        enc = [conv(1, c, 7, padding=3)]
        for s in strides:
            enc += [ResUnit(c, d) for d in (1, 3, 9)]
            enc += [Snake(c), conv(c, 2 * c, 2 * s, stride=s, padding=math.ceil(s / 2))]
            c *= 2
        enc += [Snake(c), conv(c, DIM, 3, padding=1)]
        dec = [conv(DIM, c, 7, padding=3)]
        for s in reversed(strides):
            dec += [Snake(c), weight_norm(nn.ConvTranspose1d(c, c // 2, 2 * s, stride=s, padding=math.ceil(s / 2), output_padding=s % 2))]
            c //= 2
            dec += [ResUnit(c, d) for d in (1, 3, 9)]
        dec += [Snake(c), conv(c, 1, 7, padding=3), nn.Tanh()]
        self.encoder, self.decoder = nn.Sequential(*enc), nn.Sequential(*dec)


class VectorQuantize(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("embed", torch.randn(BINS, DIM) * 0.1)
        self.register_buffer("embed_avg", self.embed.clone())
        self.register_buffer("cluster_size", torch.ones(BINS))

    @torch.no_grad()
    def update(self, flat, idx):
        onehot = F.one_hot(idx, BINS).type(flat.dtype)
        self.cluster_size.mul_(DECAY).add_(onehot.sum(0), alpha=1 - DECAY)
        self.embed_avg.mul_(DECAY).add_(onehot.t() @ flat, alpha=1 - DECAY)
        n = self.cluster_size.sum()
        size = (self.cluster_size + 1e-5) / (n + BINS * 1e-5) * n
        self.embed.copy_(self.embed_avg / size[:, None])
        dead = self.cluster_size < DEAD * 0.1
        if torch.any(dead):
            new = flat[torch.randint(0, len(flat), (BINS,), device=flat.device)]
            self.embed[dead] = new[dead].float()
            self.embed_avg[dead] = new[dead].float()
            self.cluster_size[dead] = 1.0

    def forward(self, x):                       # x: (B, D, T)
        flat = x.transpose(1, 2).reshape(-1, DIM)
        dist = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed.t() + self.embed.pow(2).sum(1)
        idx = dist.argmin(1)
        q = F.embedding(idx, self.embed).view(x.shape[0], -1, DIM).transpose(1, 2)
        commit = F.mse_loss(x, q.detach())
        if self.training:
            self.update(flat.detach(), idx)
        usage = len(torch.unique(idx)) / BINS
        return x + (q - x).detach(), commit, usage


class ResidualVQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([VectorQuantize() for _ in range(N_Q)])

    def forward(self, x):
        residual, out, commits, usage = x, 0.0, [], []
        n = random.choice([2, 4, 8, 8])         # quantizer dropout
        for layer in self.layers[:n]:
            q, commit, used = layer(residual)
            residual = residual - q.detach()
            out = out + q
            commits.append(commit)
            usage.append(used)
        return out, torch.stack(commits).mean(), float(np.mean(usage))


def mel_basis(n_fft, n_mels):
    """Triangular filters, HTK scale."""
    hz = np.linspace(0, SR / 2, n_fft // 2 + 1)
    pts = 700 * (10 ** (np.linspace(0, 2595 * math.log10(1 + SR / 2 / 700), n_mels + 2) / 2595) - 1)
    fb = np.zeros((n_mels, len(hz)), dtype=np.float32)
    for m in range(n_mels):
        lo, mid, hi = pts[m], pts[m + 1], pts[m + 2]
        fb[m] = np.maximum(0, np.minimum((hz - lo) / (mid - lo), (hi - hz) / (hi - mid)))
    return torch.from_numpy(fb)


def mel_loss(x, y):
    loss = 0.0
    for e in range(5, 12):
        n_fft = 2 ** e
        window = torch.hann_window(n_fft).to(x.device)
        fb = mel_basis(n_fft, min(80, n_fft // 4)).to(x.device)
        mels = []
        for s in (x, y):
            spec = torch.stft(s.squeeze(1), n_fft, hop_length=n_fft // 4, window=window, return_complex=True).abs()
            mels.append(torch.matmul(fb, spec))
        a, b = mels
        loss = loss + F.l1_loss(a, b) + F.mse_loss(torch.log(a.clamp(min=1e-5)), torch.log(b.clamp(min=1e-5)))
    return loss / 7


def get_clips(bank):
    """Random mixtures of two stems with random gain."""
    out = []
    for _ in range(BATCH):
        i, j = np.random.randint(0, len(bank), 2)
        s, t = np.random.randint(0, bank.shape[1] - CLIP, 2)
        g = 10 ** (np.random.uniform(-12, 0) / 20)
        clip = g * (bank[i, s:s + CLIP] + 0.3 * bank[j, t:t + CLIP])
        out.append(clip / max(1.0, np.abs(clip).max()))
    return torch.tensor(np.stack(out), dtype=torch.float32)[:, None]


if __name__ == "__main__":
    torch.manual_seed(3407)
    np.random.seed(3407)
    t = np.arange(SR * 4) / SR
    bank = np.stack([np.sin(2 * np.pi * f * t + 3 * np.sin(2 * np.pi * (f / 50) * t)) * np.exp(-((t * 3) % 1)) * 0.5
                     for f in np.random.uniform(80, 2000, 64)]).astype(np.float32)
    bank += np.random.randn(*bank.shape).astype(np.float32) * 0.01
    codec, rvq = Codec().cuda(), ResidualVQ().cuda()
    opt = torch.optim.AdamW(codec.parameters(), lr=1e-4, betas=(0.8, 0.99))
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.999996)
    began = time.time()
    for step in range(STEPS):
        wav = get_clips(bank).cuda()
        z = codec.encoder(wav)
        zq, commit, usage = rvq(z)
        rec = codec.decoder(zq)[..., :CLIP]
        l_mel, l_wav = mel_loss(rec, wav), F.l1_loss(rec, wav)
        loss = 15 * l_mel + l_wav + 0.25 * commit
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(codec.parameters(), 1e3)
        opt.step()
        sched.step()
        if step % 20 == 0:
            print(f"[{step:5d}] mel {l_mel.item():.3f} wav {l_wav.item():.4f} commit {commit.item():.4f} codes used {usage:.2%} {time.time() - began:.1f}s")
    print("peak memory %.1f GB" % (torch.cuda.max_memory_allocated() / 2 ** 30))
