"""Speaker verification: ECAPA-TDNN with additive angular margin softmax; features on the GPU, noise added on the host."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SPEAKERS, SECONDS, RATE, BATCH = 1200, 2, 16000, 64


class Voices(Dataset):
    def __init__(self, n):
        self.n = n
        self.wav = (np.random.randn(400, RATE * 6) * 3000).astype(np.int16)
        self.noise = np.random.randn(20, RATE * 4).astype(np.float32)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        audio = self.wav[i % 400].astype(np.float64)
        start = np.random.randint(0, len(audio) - SECONDS * RATE)
        audio = audio[start:start + SECONDS * RATE] / 32768
        noise = self.noise[np.random.randint(20)][:SECONDS * RATE]
        snr = np.random.uniform(0, 15)
        clean_db, noise_db = (10 * np.log10(np.mean(x ** 2) + 1e-4) for x in (audio, noise))
        audio = audio + np.sqrt(10 ** ((clean_db - noise_db - snr) / 10)) * noise
        return torch.FloatTensor(audio), i % SPEAKERS


class SEBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.se = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Conv1d(c, 128, 1), nn.ReLU(), nn.Conv1d(128, c, 1), nn.Sigmoid())

    def forward(self, x):
        return x * self.se(x)


class Bottle2neck(nn.Module):
    def __init__(self, c, dilation, scale=8):
        super().__init__()
        w = self.w = c // scale
        self.conv1, self.bn1 = nn.Conv1d(c, c, 1), nn.BatchNorm1d(c)
        self.convs = nn.ModuleList([nn.Conv1d(w, w, 3, dilation=dilation, padding=dilation) for _ in range(scale - 1)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(w) for _ in range(scale - 1)])
        self.conv3, self.bn3, self.se = nn.Conv1d(c, c, 1), nn.BatchNorm1d(c), SEBlock(c)

    def forward(self, x):
        out = self.bn1(F.relu(self.conv1(x)))
        parts = torch.split(out, self.w, 1)
        done, sp = [], None
        for i, (conv, bn) in enumerate(zip(self.convs, self.bns)):
            sp = parts[i] if sp is None else sp + parts[i]
            sp = bn(F.relu(conv(sp)))
            done.append(sp)
        return x + self.se(self.bn3(F.relu(self.conv3(torch.cat([*done, parts[-1]], 1)))))


class ECAPA(nn.Module):
    def __init__(self, c=1024):
        super().__init__()
        self.register_buffer("window", torch.hamming_window(400))
        self.register_buffer("fbank", torch.rand(80, 257))
        self.conv1, self.bn1 = nn.Conv1d(80, c, 5, padding=2), nn.BatchNorm1d(c)
        self.layers = nn.ModuleList([Bottle2neck(c, d) for d in (2, 3, 4)])
        self.layer4 = nn.Conv1d(3 * c, 1536, 1)
        self.attention = nn.Sequential(nn.Conv1d(1536, 256, 1), nn.ReLU(), nn.BatchNorm1d(256), nn.Tanh(), nn.Conv1d(256, 1536, 1), nn.Softmax(2))
        self.bn5, self.fc6, self.bn6 = nn.BatchNorm1d(3072), nn.Linear(3072, 192), nn.BatchNorm1d(192)

    def forward(self, wav):
        with torch.no_grad():
            spec = torch.stft(wav, 512, 160, 400, window=self.window, return_complex=True).abs() ** 2
            x = (self.fbank @ spec.float() + 1e-6).log()
            x = x - x.mean(-1, keepdim=True)
        x = self.bn1(F.relu(self.conv1(x)))
        x1 = self.layers[0](x)
        x2 = self.layers[1](x + x1)
        x3 = self.layers[2](x + x1 + x2)
        x = F.relu(self.layer4(torch.cat((x1, x2, x3), 1)))
        w = self.attention(x)
        mu = torch.sum(x * w, 2)
        sg = torch.sqrt((torch.sum(x ** 2 * w, 2) - mu ** 2).clamp(min=1e-4))
        return self.bn6(self.fc6(self.bn5(torch.cat((mu, sg), 1))))


class AAMsoftmax(nn.Module):
    def __init__(self, m=0.2, s=30):
        super().__init__()
        self.weight, self.m, self.s = nn.Parameter(torch.randn(SPEAKERS, 192) * 0.05), m, s

    def forward(self, x, label):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight)).float()
        phi = cosine * math.cos(self.m) - torch.sqrt((1 - cosine ** 2).clamp(1e-6, 1)) * math.sin(self.m)
        one_hot = torch.zeros_like(cosine).scatter_(1, label.view(-1, 1), 1)
        output = self.s * (one_hot * phi + (1 - one_hot) * cosine)
        return F.cross_entropy(output, label), (output.argmax(1) == label).float().mean() * 100


encoder, head = ECAPA().cuda(), AAMsoftmax().cuda()
optim = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3, weight_decay=2e-5)
loader = DataLoader(Voices(BATCH * 120), batch_size=BATCH, shuffle=True, drop_last=True)
top1, total = 0, 0
for num, (data, labels) in enumerate(loader, start=1):
    encoder.zero_grad()
    labels = torch.LongTensor(labels).cuda()
    loss, prec = head(encoder(data.cuda()), labels)
    loss.backward()
    optim.step()
    top1 += prec.item()
    total += loss.detach().cpu().numpy()
    if num % 10 == 0:
        print(f"[{num}] loss {total / num:.5f}, ACC {top1 / num:.2f}%")
