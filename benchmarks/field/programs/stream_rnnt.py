"""Streaming captions: an LSTM transducer decodes several live audio streams, 640 ms at a time, greedily."""
import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = os.environ.get("DEVICE", "cuda")
STREAMS = int(os.environ.get("STREAMS", 16))
RATE, HOP, WIN, NFFT = 16000, 160, 400, 512
CHUNK = 64 * HOP           # 640 ms
STACK = 4                  # frames of 40 ms
MAX_SYMBOLS = 3
BLANK, VOCAB = 0, 1025
CHUNKS = 1500

torch.manual_seed(0)


class Microphone:
    """Plays noise with speech-like loudness; one per stream."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.tape = (self.rng.standard_normal(RATE * 20) * 2500).astype(np.float32)
        self.tape *= 0.55 + 0.45 * np.sin(np.arange(len(self.tape)) / RATE * 2 * np.pi * self.rng.uniform(0.05, 0.4))
        self.at = 0

    def read(self):
        if self.at + CHUNK > len(self.tape):
            self.at = 0
        self.at += CHUNK
        return self.tape[self.at - CHUNK:self.at].astype(np.int16)


def mel_filters(n_mels=80):
    mel = lambda f: 2595 * math.log10(1 + f / 700)
    points = np.linspace(mel(20), mel(RATE / 2), n_mels + 2)
    hz = 700 * (10 ** (points / 2595) - 1)
    freqs = np.linspace(0, RATE / 2, NFFT // 2 + 1)
    up = (freqs - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - freqs) / (hz[2:] - hz[1:-1])[:, None]
    return torch.tensor(np.maximum(0, np.minimum(up, down)), dtype=torch.float32)


class Frontend:
    """Log-mel features of a chunk; the end of the last chunk is kept for the first window."""

    def __init__(self):
        self.window = torch.hann_window(WIN, device=device)
        self.filters = mel_filters().to(device)
        self.tail = torch.zeros(STREAMS, WIN - HOP, device=device)

    def features(self, wav):
        frames = wav.unfold(-1, WIN, HOP)
        spec = torch.fft.rfft(frames * self.window, n=NFFT).abs() ** 2
        logmel = torch.log(spec @ self.filters.T + 1e-6)
        return (logmel - logmel.mean(-1, keepdim=True)) / (logmel.std(-1, keepdim=True) + 1e-3)

    def __call__(self, chunks):
        feats = []
        for s, chunk in enumerate(chunks):
            pcm = torch.from_numpy(chunk.astype(np.float32) / 32768).to(device)
            wav = torch.cat([self.tail[s], pcm])
            self.tail[s] = wav[-(WIN - HOP):]
            feats.append(self.features(wav))
        return torch.stack(feats)


class Encoder(nn.Module):
    def __init__(self, dim=768, layers=6):
        super().__init__()
        self.inp = nn.Linear(80 * STACK, dim)
        self.lstms = nn.ModuleList([nn.LSTM(dim, dim, batch_first=True) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers)])

    def forward(self, x, states):
        x = self.inp(x.reshape(x.shape[0], -1, 80 * STACK))
        for lstm, norm, state in zip(self.lstms, self.norms, states):
            y, (h, c) = lstm(x, (state[0], state[1]))
            state[0].copy_(h)
            state[1].copy_(c)
            x = norm(x + y)
        return x


class Predictor(nn.Module):
    def __init__(self, dim=640):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.cells = nn.ModuleList([nn.LSTMCell(dim, dim) for _ in range(2)])

    def forward(self, token, h, c):
        x, hs, cs = self.embed(token), [], []
        for i, cell in enumerate(self.cells):
            x, new_c = cell(x, (h[i], c[i]))
            hs.append(x)
            cs.append(new_c)
        return x, torch.stack(hs), torch.stack(cs)


class Joint(nn.Module):
    def __init__(self, enc=768, pred=640, dim=640):
        super().__init__()
        self.enc, self.pred, self.out = nn.Linear(enc, dim), nn.Linear(pred, dim), nn.Linear(dim, VOCAB)

    def forward(self, e, p):
        return self.out(torch.tanh(self.enc(e) + self.pred(p)))


class Recognizer:
    def __init__(self):
        self.encoder, self.predictor, self.joint = (m.to(device).eval() for m in (Encoder(), Predictor(), Joint()))
        self.joint.out.bias.data[BLANK] = 10.5        # about what a trained model emits
        self.joint.out.weight.data *= 12
        self.frontend = Frontend()
        self.enc_state = [torch.zeros(2, 1, STREAMS, 768, device=device) for _ in self.encoder.lstms]
        self.h, self.c = torch.zeros(2, STREAMS, 640, device=device), torch.zeros(2, STREAMS, 640, device=device)
        self.pred_out, self.h, self.c = self.predictor(torch.zeros(STREAMS, dtype=torch.long, device=device), self.h, self.c)
        self.texts = [[] for _ in range(STREAMS)]
        self.quiet = [0] * STREAMS

    def symbol(self, enc, pred, h, c, going):
        """One symbol for every stream that has not said blank in this frame."""
        logits = self.joint(enc, pred)
        logp = F.log_softmax(logits.float(), dim=-1)
        self.confidence, token = logp.max(-1)
        entropy = -(logp.exp() * logp).sum(-1)
        self.entropy = entropy / math.log(VOCAB)
        going = going & (token != BLANK)
        new_pred, new_h, new_c = self.predictor(token, h, c)
        pick = going[:, None]
        return token, going, torch.where(pick, new_pred, pred), torch.where(pick, new_h, h), torch.where(pick, new_c, c)

    @torch.no_grad()
    def step(self, chunks):
        feats = self.frontend(chunks)
        enc = self.encoder(feats, self.enc_state)
        for t in range(enc.shape[1]):
            going = torch.ones(STREAMS, dtype=torch.bool, device=device)
            for _ in range(MAX_SYMBOLS):
                token, going, self.pred_out, self.h, self.c = self.symbol(enc[:, t], self.pred_out, self.h, self.c, going)
                if not going.any():
                    break
                for s, (k, g) in enumerate(zip(token.tolist(), going.tolist())):
                    if g:
                        self.texts[s].append(k)
        # endpointing: three quiet chunks end an utterance
        for s, chunk in enumerate(chunks):
            rms = math.sqrt(float(np.mean((chunk / 32768.0) ** 2)))
            self.quiet[s] = self.quiet[s] + 1 if rms < 0.012 else 0
            if self.quiet[s] == 3:
                self.texts[s] = []


@torch.no_grad()
def main():
    mics = [Microphone(s) for s in range(STREAMS)]
    asr = Recognizer()
    took, tic = [], time.time()
    for i in range(CHUNKS):
        begin = time.perf_counter()
        asr.step([mic.read() for mic in mics])
        took.append(time.perf_counter() - begin)
        if (i + 1) % 250 == 0:
            p95 = np.percentile(took[-250:], 95) * 1000
            print(f"chunk {i + 1}: {np.mean(took[-250:]) * 1000:.1f} ms (p95 {p95:.1f}), "
                  f"{sum(map(len, asr.texts)) / (i + 1) / STREAMS:.1f} tokens/chunk, rtf {(time.time() - tic) / (i + 1) / 0.64:.3f}")


if __name__ == "__main__":
    main()
