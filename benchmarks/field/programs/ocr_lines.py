"""CRNN + CTC for printed text lines. Lines are rendered with a toy bitmap font and the usual scanner mess."""
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CHARS = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,-:/"
BLANK = len(CHARS)
HEIGHT, MAX_WIDTH = 32, 896
GLYPH_H, GLYPH_W, SCALE, ADVANCE = 9, 6, 2, 13
MAX_CHARS = 66
LINES = 12800
BATCH = 64
EPOCHS = 2
DEVICE = "cuda"

torch.manual_seed(5)
font = np.random.default_rng(5).random((len(CHARS), GLYPH_H, GLYPH_W)) > 0.55
font[0] = False


class TextLines(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        length = int(np.clip(rng.normal(26, 9), 4, MAX_CHARS))
        text = rng.integers(1, len(CHARS), length)
        text[rng.random(length) < 0.15] = 0
        width = 8 + ADVANCE * length + 8

        page = np.zeros((HEIGHT, width), np.float32)
        x = 6
        for c in text:
            y = 7 + rng.integers(-2, 3)
            glyph = np.kron(font[c], np.ones((SCALE, SCALE)))
            page[y:y + GLYPH_H * SCALE, x:x + GLYPH_W * SCALE] = glyph
            x += ADVANCE

        # slant: shift every row a bit
        slant = rng.uniform(-0.15, 0.15)
        for r in range(HEIGHT):
            page[r] = np.roll(page[r], int(round(slant * (r - HEIGHT / 2))))
        # ink bleed, contrast and noise
        padded = np.pad(page, 1)
        blurred = sum(padded[a:a + HEIGHT, b:b + width] for a in range(3) for b in range(3)) / 9
        page = 0.5 * page + 0.5 * blurred
        page = rng.uniform(0.5, 1.0) * page + rng.normal(0, 0.08, page.shape)
        return torch.from_numpy(page.astype(np.float32)), torch.from_numpy(text)


def collate(samples):
    images = torch.zeros(len(samples), 1, HEIGHT, MAX_WIDTH)
    for i, (page, _) in enumerate(samples):
        images[i, 0, :, :page.shape[1]] = page
    widths = torch.tensor([page.shape[1] for page, _ in samples])
    lengths = torch.tensor([len(t) for _, t in samples])
    return images, widths, torch.cat([t for _, t in samples]), lengths


def conv(a, b):
    return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]


class CRNN(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.cnn = nn.Sequential(
            *conv(1, 64), nn.MaxPool2d(2),
            *conv(64, 128), nn.MaxPool2d(2),
            *conv(128, 256), *conv(256, 256), nn.MaxPool2d((2, 1)),
            *conv(256, 512), *conv(512, 512), nn.MaxPool2d((2, 1)))
        self.reduce = nn.Linear(512 * HEIGHT // 16, hidden)
        self.rnn = nn.LSTM(hidden, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, len(CHARS) + 1)

    def forward(self, images):
        x = self.cnn(images)                                # (B, 512, 2, W / 4)
        x = self.reduce(x.permute(0, 3, 1, 2).flatten(2))
        return self.out(self.rnn(x)[0])


def greedy(ids):
    out, last = [], BLANK
    for c in ids:
        if c != last and c != BLANK:
            out.append(c)
        last = c
    return out


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


loader = DataLoader(TextLines(LINES), batch_size=BATCH, shuffle=True, collate_fn=collate, drop_last=True)
model = CRNN().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-3)
losses, cers = [], []
step, tic = 0, time.time()

for epoch in range(EPOCHS):
    for images, widths, targets, lengths in loader:
        images, targets = images.to(DEVICE), targets.to(DEVICE)
        logits = model(images)
        log_probs = F.log_softmax(logits, dim=-1).transpose(0, 1)
        loss = F.ctc_loss(log_probs, targets, widths // 4, lengths, blank=BLANK, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

        # training CER on the first lines of the batch
        losses.append(loss.item())
        best = logits.argmax(-1).cpu()
        truth = targets.cpu().split(lengths.tolist())
        for i in range(8):
            read = greedy(best[i, :widths[i] // 4].tolist())
            cers.append(edit_distance(read, truth[i].tolist()) / len(truth[i]))
        step += 1
        if step % 50 == 0:
            print(f"epoch {epoch} step {step} loss {np.mean(losses[-50:]):.3f} cer {np.mean(cers[-400:]):.3f} {time.time() - tic:.1f} s")
