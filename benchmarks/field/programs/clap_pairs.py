"""CLAP-like contrastive audio/text pretraining: log-mel ViT tower, BERT text tower, symmetric InfoNCE."""
import argparse
import math
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel, get_cosine_schedule_with_warmup


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--items", type=int, default=3840)
    p.add_argument("--seconds", type=float, default=5.0)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--max-len", type=int, default=77)
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--log-interval", type=int, default=10)
    return p.parse_args()


class AudioCaps(Dataset):
    """Tones and noises whose caption names what is in them; captions of 6 to 30 words."""

    def __init__(self, args):
        self.n, self.length, self.max_len = args.items, int(args.seconds * 32000), args.max_len
        self.noise = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        t = np.arange(self.length, dtype=np.float32) / 32000
        at = rng.integers(0, len(self.noise) - self.length)
        wav = 0.05 * self.noise[at:at + self.length]
        words = [101]
        for _ in range(rng.integers(1, 4)):
            kind = int(rng.integers(0, 200))
            wav = wav + 0.2 * np.sin(2 * np.pi * (60 + 20 * kind) * t).astype(np.float32)
            words.append(1000 + kind)
        words += rng.integers(2000, 20000, rng.integers(4, 27)).tolist() + [102]
        ids = np.zeros(self.max_len, dtype=np.int64)
        ids[:len(words)] = words
        wav = (wav * 32767).clip(-32768, 32767).astype(np.int16) / 32767.0      # int16 round trip
        return torch.tensor(wav, dtype=torch.float32), torch.from_numpy(ids), torch.from_numpy((ids > 0).astype(np.int64))


def mel_matrix(n_fft, n_mels, sr):
    def to_hz(m):
        return 700 * (np.exp(m / 1127) - 1)
    edges = to_hz(np.linspace(1127 * math.log(1 + 50 / 700), 1127 * math.log(1 + 14000 / 700), n_mels + 2))
    f = np.linspace(0, sr / 2, n_fft // 2 + 1)
    up = (f[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - f[None]) / (edges[2:] - edges[1:-1])[:, None]
    return torch.tensor(np.maximum(0, np.minimum(up, down)), dtype=torch.float32)


class Attention(nn.Module):
    def __init__(self, dim, heads, drop=0.0):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = self.drop((q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1))
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class AudioTower(nn.Module):
    def __init__(self, dim=512, depth=8, heads=8, n_fft=1024, hop=320, mels=64):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("mel", mel_matrix(n_fft, mels, 32000))
        self.bn = nn.BatchNorm2d(1)
        self.patch = nn.Conv2d(1, dim, 8, 8)
        self.pos = nn.Parameter(torch.randn(1, 1024, dim) * 0.02)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(nn.ModuleDict(dict(
                n1=nn.LayerNorm(dim), attn=Attention(dim, heads), n2=nn.LayerNorm(dim),
                mlp=nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)))))
        self.norm = nn.LayerNorm(dim)

    def spec_augment(self, x):
        """Two stripes in time, two in frequency, others for each clip."""
        for i in range(x.shape[0]):
            for _ in range(2):
                w = random.randint(0, 32)
                t0 = random.randint(0, x.shape[2] - w)
                x[i, :, t0:t0 + w] = 0
                w = random.randint(0, 8)
                f0 = random.randint(0, x.shape[1] - w)
                x[i, f0:f0 + w, :] = 0
        return x

    def forward(self, wav):
        spec = torch.stft(wav, self.n_fft, self.hop, window=self.window, return_complex=True).abs() ** 2
        x = 10.0 * torch.log10(torch.clamp(self.mel @ spec, min=1e-10))
        x = self.bn(x.unsqueeze(1))
        if self.training:
            x = self.spec_augment(x.squeeze(1).clone()).unsqueeze(1)
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.pos[:, :x.shape[1]]
        for b in self.blocks:
            x = x + b["attn"](b["n1"](x))
            x = x + b["mlp"](b["n2"](x))
        return self.norm(x).mean(1)


class CLAP(nn.Module):
    def __init__(self, joint=512, text=BertConfig(num_hidden_layers=8)):
        super().__init__()
        self.audio, self.text = AudioTower(), BertModel(text, add_pooling_layer=False)
        self.audio_proj = nn.Sequential(nn.Linear(512, joint), nn.ReLU(), nn.Linear(joint, joint))
        self.text_proj = nn.Sequential(nn.Linear(text.hidden_size, joint), nn.ReLU(), nn.Linear(joint, joint))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, wav, ids, mask):
        a = self.audio_proj(self.audio(wav))
        t = self.text_proj(self.text(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0])
        return F.normalize(a, dim=-1), F.normalize(t, dim=-1), self.logit_scale.exp()


def main(args):
    torch.manual_seed(2023)
    random.seed(2023)
    model = CLAP().cuda()
    loader = DataLoader(AudioCaps(args), batch_size=args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True)
    no_decay = [p for n, p in model.named_parameters() if p.ndim < 2]
    decay = [p for n, p in model.named_parameters() if p.ndim >= 2]
    optimizer = torch.optim.AdamW([{"params": no_decay, "weight_decay": 0.0}, {"params": decay, "weight_decay": 0.1}], lr=args.lr, betas=(0.9, 0.99), eps=1e-6)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 50, args.epochs * len(loader))
    for epoch in range(args.epochs):
        for i, (wav, ids, mask) in enumerate(loader):
            wav, ids, mask = wav.cuda(), ids.cuda(), mask.cuda()
            a, t, scale = model(wav, ids, mask)
            labels = torch.arange(len(a)).cuda()
            logits = scale * a @ t.t()
            loss = (F.cross_entropy(logits, labels) + F.cross_entropy(scale * t @ a.t(), labels)) / 2
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))
            acc = (logits.argmax(1) == labels).float().mean().item()
            if i % args.log_interval == 0:
                print(f"epoch {epoch} [{i}/{len(loader)}] loss {loss.item():.4f} acc {acc:.3f} scale {scale.item():.2f}", flush=True)


if __name__ == "__main__":
    main(get_args())
