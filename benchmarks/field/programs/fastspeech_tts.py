"""Non-autoregressive text to speech (FastSpeech 2 without energy): phonemes in, mel spectrograms out."""
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    n_phonemes: int = 80
    n_mels: int = 80
    dim: int = 256
    heads: int = 2
    enc_layers: int = 4
    dec_layers: int = 4
    conv_dim: int = 1024
    kernel: int = 9
    dropout: float = 0.1
    utterances: int = 640
    min_phonemes: int = 20
    max_phonemes: int = 160
    batch_size: int = 32
    epochs: int = 3
    lr: float = 2e-4
    clip: float = 1.0


cfg = Config()


class Speech(Dataset):
    """Utterances as an aligner leaves them: phonemes, frames of each, mel frames, pitch by phoneme."""

    def __init__(self, cfg, seed=0):
        rng = np.random.default_rng(seed)
        self.items = []
        for _ in range(cfg.utterances):
            n = int(rng.integers(cfg.min_phonemes, cfg.max_phonemes))
            durations = rng.integers(3, 11, n)
            self.items.append({
                "phonemes": rng.integers(1, cfg.n_phonemes, n),
                "durations": durations,
                "pitch": rng.standard_normal(n).astype(np.float32),
                "mel": rng.standard_normal((int(durations.sum()), cfg.n_mels), dtype=np.float32),
            })

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return {k: torch.from_numpy(v) for k, v in self.items[i].items()}


def collate(items):
    batch = {k: pad_sequence([item[k] for item in items], batch_first=True) for k in items[0]}
    batch["text_len"] = torch.tensor([len(item["phonemes"]) for item in items])
    batch["mel_len"] = torch.tensor([len(item["mel"]) for item in items])
    return batch


def pad_mask(lengths, size):
    return torch.arange(size, device=lengths.device)[None, :] >= lengths[:, None]


class FFTBlock(nn.Module):
    """Self-attention and a convolutional feed-forward, both with residuals and LayerNorm after."""

    def __init__(self, cfg):
        super().__init__()
        self.attn = nn.MultiheadAttention(cfg.dim, cfg.heads, dropout=cfg.dropout, batch_first=True)
        self.conv1 = nn.Conv1d(cfg.dim, cfg.conv_dim, cfg.kernel, padding=cfg.kernel // 2)
        self.conv2 = nn.Conv1d(cfg.conv_dim, cfg.dim, 1)
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x, mask):
        a, _ = self.attn(x, x, x, key_padding_mask=mask)
        x = self.norm1(x + self.drop(a)).masked_fill(mask[..., None], 0)
        h = self.conv2(F.relu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)
        return self.norm2(x + self.drop(h)).masked_fill(mask[..., None], 0)


class Predictor(nn.Module):
    """Two convolutions and a scalar for each phoneme: log duration, or pitch."""

    def __init__(self, cfg):
        super().__init__()
        self.conv1 = nn.Conv1d(cfg.dim, cfg.dim, 3, padding=1)
        self.conv2 = nn.Conv1d(cfg.dim, cfg.dim, 3, padding=1)
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.out = nn.Linear(cfg.dim, 1)

    def forward(self, x, mask):
        x = self.norm1(F.relu(self.conv1(x.transpose(1, 2))).transpose(1, 2))
        x = self.norm2(F.relu(self.conv2(x.transpose(1, 2))).transpose(1, 2))
        return self.out(x).squeeze(-1).masked_fill(mask, 0)


class LengthRegulator(nn.Module):
    """Repeats the vector of each phoneme for as many frames as it lasts."""

    def forward(self, x, durations):
        expanded = []
        for seq, duration in zip(x, durations):
            expanded.append(torch.repeat_interleave(seq, duration, dim=0))
        return pad_sequence(expanded, batch_first=True)


class FastSpeech(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.n_phonemes, cfg.dim, padding_idx=0)
        self.pitch_embed = nn.Conv1d(1, cfg.dim, 3, padding=1)
        self.encoder = nn.ModuleList([FFTBlock(cfg) for _ in range(cfg.enc_layers)])
        self.decoder = nn.ModuleList([FFTBlock(cfg) for _ in range(cfg.dec_layers)])
        self.duration, self.pitch = Predictor(cfg), Predictor(cfg)
        self.regulate = LengthRegulator()
        self.to_mel = nn.Linear(cfg.dim, cfg.n_mels)
        at = torch.arange(2048)[:, None] / 10000 ** (torch.arange(0, cfg.dim, 2) / cfg.dim)
        self.register_buffer("positions", torch.stack([at.sin(), at.cos()], -1).flatten(1))

    def forward(self, batch):
        text_mask = pad_mask(batch["text_len"], batch["phonemes"].shape[1])
        mel_mask = pad_mask(batch["mel_len"], batch["mel"].shape[1])
        x = self.embed(batch["phonemes"]) + self.positions[:text_mask.shape[1]]
        for block in self.encoder:
            x = block(x, text_mask)
        log_duration, pitch = self.duration(x, text_mask), self.pitch(x, text_mask)
        x = x + self.pitch_embed(batch["pitch"][:, None]).transpose(1, 2)
        x = self.regulate(x, batch["durations"])
        x = x + self.positions[:x.shape[1]]
        for block in self.decoder:
            x = block(x, mel_mask)
        return self.to_mel(x), log_duration, pitch, text_mask, mel_mask


def tts_loss(outputs, batch):
    mel, log_duration, pitch, text_mask, mel_mask = outputs
    n_text, n_mel = batch["text_len"].sum(), batch["mel_len"].sum()
    l_mel = ((mel - batch["mel"]).abs().mean(-1) * ~mel_mask).sum() / n_mel
    l_duration = ((log_duration - torch.log1p(batch["durations"].float())) ** 2 * ~text_mask).sum() / n_text
    l_pitch = ((pitch - batch["pitch"]) ** 2 * ~text_mask).sum() / n_text
    return l_mel, l_duration, l_pitch


def main():
    torch.manual_seed(0)
    model = FastSpeech(cfg).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.98))
    data = Speech(cfg)
    loader = DataLoader(data, batch_size=cfg.batch_size, shuffle=True, collate_fn=collate, drop_last=True)
    step = 0
    for epoch in range(cfg.epochs):
        for batch in loader:
            batch = {k: v.cuda() for k, v in batch.items()}
            l_mel, l_duration, l_pitch = tts_loss(model(batch), batch)
            loss = l_mel + l_duration + l_pitch
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} mel {l_mel.item():.4f} "
                      f"duration {l_duration.item():.4f} pitch {l_pitch.item():.4f}")


if __name__ == "__main__":
    main()
