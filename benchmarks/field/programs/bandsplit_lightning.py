"""Vocal separation with a band-split RNN (Luo & Yu 2022) under Lightning; remixed synthetic stems until MUSDB is mounted."""
import os
import warnings

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
SMOKE = bool(os.environ.get("SMOKE"))

SR, SECONDS = 44100, 3.0
N_FFT, HOP = 2048, 512
DIM, BLOCKS, BATCH, STEPS = 96, 6, 8, 200
SONGS, SONG_SECONDS = 12, 30
if SMOKE:
    SECONDS, DIM, BLOCKS, BATCH, STEPS, SONGS, SONG_SECONDS = 0.4, 8, 1, 2, 6, 3, 2


def band_widths(n_bins=N_FFT // 2 + 1):
    """Narrow bands below 1 kHz, wider ones above (bins)."""
    hz = SR / N_FFT
    widths = [int(100 / hz)] * 10 + [int(250 / hz)] * 12 + [int(500 / hz)] * 8 + [int(1000 / hz)] * 8
    while sum(widths) + int(2000 / hz) < n_bins:
        widths.append(int(2000 / hz))
    return widths + [n_bins - sum(widths)]


# ------------------------------------------------------------------------------------------ data
def synth_stem(rng, kind, n):
    y = np.zeros(n)
    for start in np.arange(0, n, int(0.4 * SR)):
        t = np.arange(min(int(0.4 * SR), n - start)) / SR
        f0 = {"vocals": 180, "drums": 60, "bass": 50, "other": 330}[kind] * 2 ** (rng.integers(0, 13) / 12)
        env = np.exp(-t * rng.uniform(2, 9))
        if kind == "drums":
            note = env ** 3 * rng.normal(size=len(t))
        else:
            bend = 0.6 * np.sin(2 * np.pi * 5.5 * t) if kind == "vocals" else 0
            note = sum(env * np.sin(2 * np.pi * f0 * h * t + bend) / h for h in range(1, 6))
        y[start:start + len(t)] += note
    pan = rng.uniform(0.3, 0.7)
    return np.stack([pan * y, (1 - pan) * y]).astype(np.float32)


class Stems(Dataset):
    KINDS = ["vocals", "drums", "bass", "other"]

    def __init__(self, items):
        rng = np.random.default_rng(0)
        self.songs = [{k: synth_stem(rng, k, SONG_SECONDS * SR) for k in self.KINDS} for _ in range(SONGS)]
        self.items, self.n = items, int(SECONDS * SR)

    def __len__(self):
        return self.items

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        stems = []
        for kind in self.KINDS:
            song = self.songs[rng.integers(len(self.songs))][kind]
            at = rng.integers(0, song.shape[1] - self.n)
            x = song[:, at:at + self.n] * 10 ** (rng.uniform(-6, 6) / 20)
            stems.append(x[::-1].copy() if rng.random() < 0.5 else x)
        stems = np.stack(stems)
        return torch.from_numpy(stems.sum(0)).float(), torch.from_numpy(stems[0]).float()


# ------------------------------------------------------------------------------------------ model
class ResRNN(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.GroupNorm(1, dim)
        self.rnn = nn.LSTM(dim, 2 * dim, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(4 * dim, dim)

    def forward(self, x):                                   # (n, dim, length)
        y, _ = self.rnn(self.norm(x).transpose(1, 2).contiguous())
        return x + self.proj(y.contiguous()).transpose(1, 2)


class BandSplitRNN(nn.Module):
    def __init__(self, dim=DIM, blocks=BLOCKS, channels=2):
        super().__init__()
        self.widths = band_widths()
        self.split_norm = nn.ModuleList([nn.GroupNorm(1, 2 * channels * w) for w in self.widths])
        self.split = nn.ModuleList([nn.Conv1d(2 * channels * w, dim, 1) for w in self.widths])
        self.time = nn.ModuleList([ResRNN(dim) for _ in range(blocks)])
        self.band = nn.ModuleList([ResRNN(dim) for _ in range(blocks)])
        self.mask = nn.ModuleList([
            nn.Sequential(nn.GroupNorm(1, dim), nn.Conv1d(dim, 2 * dim, 1), nn.Tanh(), nn.Conv1d(2 * dim, 4 * channels * w, 1), nn.GLU(dim=1))
            for w in self.widths])

    def forward(self, spec):                                # (b, channels, bins, frames), complex
        b, c, _, t = spec.shape
        features, at = [], 0
        for w, norm, split in zip(self.widths, self.split_norm, self.split):
            band = torch.view_as_real(spec[:, :, at:at + w]).permute(0, 4, 1, 2, 3).reshape(b, 2 * c * w, t)
            features.append(split(norm(band)))
            at += w
        x = torch.stack(features, dim=1)                    # (b, bands, dim, frames)
        k, d = x.shape[1], x.shape[2]
        for over_time, over_bands in zip(self.time, self.band):
            x = over_time(x.reshape(b * k, d, t)).view(b, k, d, t)
            x = x.permute(0, 3, 2, 1).reshape(b * t, d, k)
            x = over_bands(x).view(b, t, d, k).permute(0, 3, 2, 1)
        out, at = [], 0
        for i, w in enumerate(self.widths):
            m = self.mask[i](x[:, i]).view(b, 2, c, w, t).float()
            out.append(spec[:, :, at:at + w] * torch.complex(m[:, 0].contiguous(), m[:, 1].contiguous()))
            at += w
        return torch.cat(out, dim=2)


# ------------------------------------------------------------------------------------------ training
def stft(x, n_fft, hop):
    window = torch.hann_window(n_fft).to(x.device)
    y = torch.stft(x.reshape(-1, x.shape[-1]), n_fft, hop, window=window, return_complex=True)
    return y.view(*x.shape[:-1], *y.shape[-2:])


def si_sdr(est, ref):
    est, ref = est.flatten(1), ref.flatten(1)
    s = (est * ref).sum(-1, keepdim=True) / (ref.pow(2).sum(-1, keepdim=True) + 1e-8) * ref
    return 10 * torch.log10((s.pow(2).sum(-1) + 1e-8) / ((est - s).pow(2).sum(-1) + 1e-8))


class Separator(pl.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = BandSplitRNN()
        self.best = -100.0

    def forward(self, mix):
        spec = stft(mix, N_FFT, HOP)
        est = self.net(spec)
        y = torch.istft(est.flatten(0, 1), N_FFT, HOP, window=torch.hann_window(N_FFT).to(mix.device), length=mix.shape[-1])
        return y.view(mix.shape)

    def training_step(self, batch, batch_idx):
        mix, vocals = batch
        est = self(mix)
        loss = F.l1_loss(est, vocals)
        for n_fft in (4096, 2048, 1024, 512, 256):
            a, b = stft(est, n_fft, n_fft // 4), stft(vocals, n_fft, n_fft // 4)
            loss = loss + 0.2 * F.l1_loss(torch.view_as_real(a), torch.view_as_real(b))
        sdr = si_sdr(est.detach(), vocals)
        self.best = max(self.best, sdr.max().item())
        self.log("loss", loss, prog_bar=True)
        self.log_dict({"si_sdr": sdr.mean(), "si_sdr_in": si_sdr(mix, vocals).mean(), "best": self.best})
        if batch_idx % 20 == 0:
            print(f"step {batch_idx}: loss {loss.item():.4f}, SI-SDR {sdr.mean().item():.2f} dB", flush=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)}


if __name__ == "__main__":
    pl.seed_everything(5)
    loader = DataLoader(Stems(BATCH * STEPS), batch_size=BATCH, shuffle=True, num_workers=4, persistent_workers=True)
    trainer = pl.Trainer(max_steps=STEPS, accelerator="auto", devices=1, gradient_clip_val=5.0, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False)
    trainer.fit(Separator(), loader)
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})
