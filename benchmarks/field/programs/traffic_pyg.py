"""Traffic speed forecasting on a sensor network (METR-LA layout: 207 sensors, 5 minutes): graph convolutional GRU.

GConvGRU is the cell of torch_geometric_temporal, copied here because that package does not install next to our
torch_geometric. Speeds are synthetic; swap load() for the .h5 of the paper.
"""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch_geometric.nn import ChebConv

parser = argparse.ArgumentParser()
parser.add_argument("--sensors", type=int, default=207)
parser.add_argument("--days", type=int, default=28)
parser.add_argument("--lags", type=int, default=12)
parser.add_argument("--horizon", type=int, default=12)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--K", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--lr", type=float, default=1e-3)
args = parser.parse_args()

torch.manual_seed(42)
np.random.seed(42)
device = torch.device("cuda")


def load():
    """Speeds (time, sensors) in mph with zeros where a sensor was silent, and the graph by distance."""
    place = np.random.rand(args.sensors, 2)
    dist = np.linalg.norm(place[:, None] - place[None], axis=-1)
    weight = np.exp(-((dist / dist.std()) ** 2) * 8)
    weight[weight < 0.3] = 0
    np.fill_diagonal(weight, 0)
    src, dst = np.nonzero(weight)
    steps = args.days * 288
    hour = (np.arange(steps) % 288) / 12
    rush = np.exp(-((hour[:, None] - 8 - place[:, 0]) ** 2) / 2) + np.exp(-((hour[:, None] - 17 - place[:, 1]) ** 2) / 3)
    noise = np.zeros((steps, args.sensors))
    kick = np.random.randn(steps, args.sensors)
    for t in range(1, steps):
        noise[t] = 0.95 * noise[t - 1] + kick[t]
    speed = 62 - 28 * rush * (0.5 + place.sum(1) / 2) + noise
    speed[np.random.rand(steps, args.sensors) < 0.05] = 0
    return speed, hour / 24, np.stack([src, dst]), weight[src, dst]


class GConvGRU(nn.Module):
    def __init__(self, in_channels, out_channels, K):
        super().__init__()
        self.out_channels = out_channels
        self.conv_x_z, self.conv_h_z = ChebConv(in_channels, out_channels, K), ChebConv(out_channels, out_channels, K)
        self.conv_x_r, self.conv_h_r = ChebConv(in_channels, out_channels, K), ChebConv(out_channels, out_channels, K)
        self.conv_x_h, self.conv_h_h = ChebConv(in_channels, out_channels, K), ChebConv(out_channels, out_channels, K)

    def forward(self, X, edge_index, edge_weight, H=None):
        if H is None:
            H = torch.zeros(X.shape[0], X.shape[1], self.out_channels).to(X.device)
        Z = torch.sigmoid(self.conv_x_z(X, edge_index, edge_weight) + self.conv_h_z(H, edge_index, edge_weight))
        R = torch.sigmoid(self.conv_x_r(X, edge_index, edge_weight) + self.conv_h_r(H, edge_index, edge_weight))
        H_tilde = torch.tanh(self.conv_x_h(X, edge_index, edge_weight) + self.conv_h_h(H * R, edge_index, edge_weight))
        return Z * H + (1 - Z) * H_tilde


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = GConvGRU(2, args.hidden, args.K)
        self.head = nn.Sequential(nn.Linear(args.hidden, args.hidden), nn.ReLU(), nn.Linear(args.hidden, args.horizon))

    def forward(self, x, edge_index, edge_weight):
        """x: batch x lags x sensors x 2"""
        h = None
        for t in range(x.shape[1]):
            h = self.recurrent(x[:, t], edge_index, edge_weight, h)
        return self.head(h).transpose(1, 2)


def masked_mae(pred, true):
    mask = (true != 0).float()
    mask = mask / mask.mean()
    mask = torch.where(torch.isnan(mask), torch.zeros_like(mask), mask)
    loss = torch.abs(pred - true) * mask
    return torch.where(torch.isnan(loss), torch.zeros_like(loss), loss).mean()


speed, time_of_day, edges, weights = load()
mean, std = speed[speed > 0].mean(), speed[speed > 0].std()
features = np.stack([(speed - mean) / std, np.tile(time_of_day[:, None], (1, args.sensors))], axis=-1)
count = len(speed) - args.lags - args.horizon
xs = np.stack([features[i:i + args.lags] for i in range(count)])
ys = np.stack([speed[i + args.lags:i + args.lags + args.horizon] for i in range(count)])
train_set = TensorDataset(torch.FloatTensor(xs), torch.FloatTensor(ys))
loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)

edge_index, edge_weight = torch.LongTensor(edges).to(device), torch.FloatTensor(weights).to(device)
model = Forecaster().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, eps=1e-3)
print(f"{edge_index.shape[1]} edges, {count} windows, {sum(p.numel() for p in model.parameters())} parameters")

for epoch in range(args.epochs):
    model.train()
    losses, by_horizon, tic = [], [], time.time()
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        pred = model(x, edge_index, edge_weight) * std + mean
        loss = masked_mae(pred, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5)
        optimizer.step()
        losses.append(loss.item())
        by_horizon.append([masked_mae(pred[:, k], y[:, k]).item() for k in (2, 5, 11)])       # 15, 30, 60 minutes
        if i % 20 == 0:
            print(f"epoch {epoch} iter {i} MAE {np.mean(losses[-20:]):.3f} 15/30/60 min {np.mean(by_horizon[-20:], axis=0).round(3)}", flush=True)
    print(f"Epoch {epoch}: MAE {np.mean(losses):.4f}, {(time.time() - tic) / len(loader) * 1000:.0f} ms per iteration")
