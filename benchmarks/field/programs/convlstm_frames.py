"""Predict the next ten frames of bouncing digits with a two-layer ConvLSTM (encoder and forecaster share their cells)."""
import numpy as np
import torch
from torch import nn, optim

SIDE, SPRITE, PAST, FUTURE, BATCH = 64, 28, 10, 10, 16


class BouncingDigits:
    def __init__(self, digits=2, seed=3):
        self.rng = np.random.RandomState(seed)
        yy, xx = np.mgrid[:SPRITE, :SPRITE] - SPRITE / 2
        self.sprites = np.stack([np.exp(-((np.hypot(yy, xx * (0.6 + 0.08 * k)) - 7) / 2.5) ** 2) for k in range(10)]).astype(np.float32)
        self.digits = digits

    def trajectory(self, length):
        free = SIDE - SPRITE
        x, y = self.rng.rand(2)
        theta = self.rng.rand() * 2 * np.pi
        vx, vy = np.cos(theta) * 0.1, np.sin(theta) * 0.1
        xs, ys = np.zeros(length), np.zeros(length)
        for i in range(length):
            x, y = x + vx, y + vy
            if x <= 0 or x >= 1:
                x, vx = min(max(x, 0), 1), -vx
            if y <= 0 or y >= 1:
                y, vy = min(max(y, 0), 1), -vy
            xs[i], ys[i] = x * free, y * free
        return xs.astype(int), ys.astype(int)

    def batch(self, n):
        out = np.zeros((n, PAST + FUTURE, 1, SIDE, SIDE), dtype=np.float32)
        for b in range(n):
            for _ in range(self.digits):
                xs, ys = self.trajectory(PAST + FUTURE)
                sprite = self.sprites[self.rng.randint(10)]
                for t in range(PAST + FUTURE):
                    top, left = ys[t], xs[t]
                    canvas = out[b, t, 0]
                    canvas[top:top + SPRITE, left:left + SPRITE] = np.maximum(canvas[top:top + SPRITE, left:left + SPRITE], sprite)
        return torch.from_numpy(out)


class ConvLSTMCell(nn.Module):
    def __init__(self, inputs, hidden, kernel=5):
        super().__init__()
        self.hidden = hidden
        self.conv = nn.Conv2d(inputs + hidden, 4 * hidden, kernel, padding=kernel // 2)
        self.norm = nn.GroupNorm(4 * hidden // 32, 4 * hidden)

    def forward(self, x, state):
        h, c = state
        gates = self.norm(self.conv(torch.cat([x, h], dim=1)))
        i, f, o, g = torch.split(gates, self.hidden, dim=1)
        i, f, o, g = torch.sigmoid(i), torch.sigmoid(f + 1.0), torch.sigmoid(o), torch.tanh(g)
        c = f * c + i * g
        h = o * torch.tanh(c)
        return h, (h, c)

    def empty(self, x):
        zeros = torch.zeros(x.shape[0], self.hidden, *x.shape[-2:]).to(x.device)
        return zeros, zeros


class Predictor(nn.Module):
    def __init__(self, hidden=(64, 64)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.LeakyReLU(0.2))
        sizes = (32, *hidden)
        self.cells = nn.ModuleList([ConvLSTMCell(a, b) for a, b in zip(sizes, hidden)])
        self.head = nn.Sequential(nn.ConvTranspose2d(hidden[-1], 32, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 1))

    def forward(self, past, future):
        small = self.stem(past[:, 0])
        states = [cell.empty(small) for cell in self.cells]
        frame, outputs = past[:, 0], []
        for t in range(PAST + future - 1):
            x = self.stem(frame)
            for k, cell in enumerate(self.cells):
                x, states[k] = cell(x, states[k])
            if t >= PAST - 1:
                frame = torch.sigmoid(self.head(x))
                outputs.append(frame)
            else:
                frame = past[:, t + 1]
        return torch.stack(outputs, 1)


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    data = BouncingDigits()
    net = Predictor().cuda()
    opt = optim.Adam(net.parameters(), lr=1e-3)
    history = {"loss": [], "mae": []}
    for it in range(100):
        video = data.batch(BATCH).cuda()
        past, future = video[:, :PAST], video[:, PAST:]
        pred = net(past, FUTURE)
        loss = nn.functional.mse_loss(pred, future) + nn.functional.l1_loss(pred, future)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 10.0)
        opt.step()
        history["loss"].append(loss.item())
        history["mae"].append((pred - future).abs().mean().item())
        if it % 25 == 0:
            print("iteration", it, {k: round(v[-1], 5) for k, v in history.items()})


main()
