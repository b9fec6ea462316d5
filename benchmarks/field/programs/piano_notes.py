"""Piano transcription: onsets-and-frames on synthetic recordings (additive synth until MAESTRO is on the new disk)."""
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")
SR, HOP, N_FFT, MELS = 16000, 512, 2048, 229
KEYS, FRAMES = 88, 160
SAMPLES = FRAMES * HOP
PIECES, SECONDS = 40, 60
BATCH, STEPS = 16, 700
WIDTH = 384

np.random.seed(0)
torch.manual_seed(0)


# ---------------------------------------------------------------- recordings
def key_sounds():
    """Two seconds of every key."""
    t = np.arange(2 * SR) / SR
    sounds = []
    for key in range(KEYS):
        f0 = 27.5 * 2 ** (key / 12)
        wave = np.zeros_like(t)
        for h in range(1, 9):
            if h * f0 < SR / 2:
                wave += np.sin(2 * np.pi * h * f0 * t) * 0.6 ** h * np.exp(-t * (1 + 0.3 * h))
        sounds.append(wave.astype(np.float32))
    return sounds


def make_piece(sounds):
    audio = np.random.randn(SECONDS * SR).astype(np.float32) * 0.003
    notes, t = [], 0.2
    while t < SECONDS - 2.1:
        for key in np.random.choice(np.arange(10, 80), np.random.randint(1, 4), replace=False):
            length = np.random.uniform(0.15, 1.8)
            velocity = np.random.uniform(0.3, 1.0)
            a, n = int(t * SR), int(length * SR)
            audio[a:a + n] += velocity * 0.2 * sounds[key][:n]
            notes.append((t, t + length, int(key), velocity))
        t += np.random.choice([0.12, 0.25, 0.25, 0.5])
    return audio, notes


sounds = key_sounds()
pieces = [make_piece(sounds) for _ in range(PIECES)]


# ---------------------------------------------------------------- features
def mel_filters():
    """(MELS, bins) triangles between 30 Hz and Nyquist."""
    freqs = torch.linspace(0, SR / 2, N_FFT // 2 + 1)
    low, high = (2595 * np.log10(1 + f / 700) for f in (30.0, SR / 2))
    points = 700 * (10 ** (torch.linspace(low, high, MELS + 2) / 2595) - 1)
    width = points[1:] - points[:-1]
    slopes = points[:, None] - freqs[None, :]
    down = -slopes[:-2] / width[:-1, None]
    up = slopes[2:] / width[1:, None]
    return torch.clamp(torch.minimum(down, up), min=0)


def log_mel(audio):
    filters = mel_filters().to(audio.device)
    window = torch.hann_window(N_FFT, device=audio.device)
    power = torch.stft(audio, N_FFT, HOP, window=window, return_complex=True).abs() ** 2
    mel = torch.log(filters @ power + 1e-6)[..., :FRAMES]
    mean, std = mel.mean(dim=(-2, -1), keepdim=True), mel.std(dim=(-2, -1), keepdim=True)
    return ((mel - mean) / std).transpose(-1, -2)


def rolls(notes, start):
    """Onset and frame targets of the segment that begins at `start` seconds."""
    onset = np.zeros((FRAMES, KEYS), np.float32)
    frame = np.zeros((FRAMES, KEYS), np.float32)
    for on, off, key, _ in notes:
        a = int(round((on - start) * SR / HOP))
        b = int(round((off - start) * SR / HOP))
        if b < 0 or a >= FRAMES:
            continue
        frame[max(a, 0):b + 1, key] = 1
        onset[max(a, 0):max(a + 2, 0), key] = 1
    return onset, frame


def get_batch():
    mels, onsets, frames = [], [], []
    for i in np.random.randint(PIECES, size=BATCH):
        audio, notes = pieces[i]
        first = np.random.randint(len(audio) - SAMPLES)
        clip = torch.from_numpy(audio[first:first + SAMPLES]).to(device)
        mels.append(log_mel(clip))
        onset, frame = rolls(notes, first / SR)
        onsets.append(torch.from_numpy(onset))
        frames.append(torch.from_numpy(frame))
    return torch.stack(mels), torch.stack(onsets).to(device), torch.stack(frames).to(device)


# ---------------------------------------------------------------- model
class ConvStack(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(),
            nn.Conv2d(48, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d((1, 2)), nn.Dropout(0.2),
            nn.Conv2d(48, 96, 3, padding=1), nn.BatchNorm2d(96), nn.ReLU(), nn.MaxPool2d((1, 2)), nn.Dropout(0.2))
        self.fc = nn.Sequential(nn.Linear(96 * (MELS // 4), 2 * width), nn.ReLU(), nn.Dropout(0.3))

    def forward(self, mel):
        x = self.cnn(mel[:, None])
        return self.fc(x.transpose(1, 2).flatten(2))


class OnsetsFrames(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.onset_stack, self.frame_stack = ConvStack(width), ConvStack(width)
        self.onset_rnn = nn.LSTM(2 * width, width, batch_first=True, bidirectional=True)
        self.onset_out = nn.Linear(2 * width, KEYS)
        self.frame_out = nn.Linear(2 * width, KEYS)
        self.joint_rnn = nn.LSTM(2 * KEYS, width, batch_first=True, bidirectional=True)
        self.joint_out = nn.Linear(2 * width, KEYS)

    def forward(self, mel):
        onset = self.onset_out(self.onset_rnn(self.onset_stack(mel))[0])
        frame = self.frame_out(self.frame_stack(mel))
        joint = torch.cat([onset.sigmoid().detach(), frame.sigmoid()], dim=-1)
        return onset, frame, self.joint_out(self.joint_rnn(joint)[0])


def f1(logits, target):
    p, t = logits.detach().sigmoid().cpu().numpy() > 0.5, target.cpu().numpy() > 0.5
    return 2 * (p & t).sum() / max(1, p.sum() + t.sum())


# ---------------------------------------------------------------- training
model = OnsetsFrames().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=6e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 500, gamma=0.98)
log = {"loss": [], "onset": [], "frame": []}
tic = time.time()
for step in range(STEPS):
    mel, onset, frame = get_batch()
    onset_logits, activation, frame_logits = model(mel)
    loss = F.binary_cross_entropy_with_logits(onset_logits, onset, weight=1 + 4 * onset)
    loss = loss + F.binary_cross_entropy_with_logits(activation, frame) + F.binary_cross_entropy_with_logits(frame_logits, frame)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 3.0)
    optimizer.step()
    scheduler.step()

    log["loss"].append(loss.item())
    log["onset"].append(f1(onset_logits, onset))
    log["frame"].append(f1(frame_logits, frame))
    if (step + 1) % 50 == 0:
        print(f"{step + 1:5d} " + " ".join(f"{k} {np.mean(v[-50:]):.3f}" for k, v in log.items()) + f" {time.time() - tic:.1f} s")
