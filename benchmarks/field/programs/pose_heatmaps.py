"""
Mouse pose from the top camera (12 keypoints), simple baseline: ResNet-18 + 3 deconvolutions -> heatmaps.
Loss and accuracy ported from human-pose-estimation.pytorch, data set is our own.

    python pose_heatmaps.py --epochs 15
Without --root the data set draws mice-like blobs, to try things before the videos are labelled.
"""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--frames", type=int, default=640)
parser.add_argument("--size", type=int, default=160)
parser.add_argument("--joints", type=int, default=12)
parser.add_argument("--sigma", type=float, default=2.0)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--lr", type=float, default=1e-3)
opt = parser.parse_args()

device = torch.device("cuda")
HEAT = opt.size // 4
np.random.seed(1)
torch.manual_seed(1)


class MouseFrames(Dataset):
    def __init__(self, n, size, joints):
        self.size, self.n_joints = size, joints
        self.frames, self.joints, self.visible = [], [], []
        yy, xx = np.mgrid[-7:8, -7:8]
        blob = np.exp(-(xx ** 2 + yy ** 2) / 18)
        for _ in range(n):
            ground = np.kron(np.random.randint(120, 200, (size // 16, size // 16, 1)), np.ones((16, 16, 3)))
            center, angle = np.random.uniform(0.35, 0.65, 2) * size, np.random.uniform(0, 2 * np.pi)
            along = np.linspace(-0.22, 0.22, joints) * size
            side = np.where(np.arange(joints) % 3, 0.05, -0.05) * size * np.random.uniform(0.5, 1.5, joints)
            x = center[0] + along * np.cos(angle) - side * np.sin(angle)
            y = center[1] + along * np.sin(angle) + side * np.cos(angle)
            for k, (px, py) in enumerate(np.stack([x, y], 1).astype(int)):
                ground[py - 7:py + 8, px - 7:px + 8, k % 3] -= 110 * blob
            self.frames.append(np.clip(ground, 0, 255).astype(np.uint8))
            self.joints.append(np.stack([x, y], 1))
            self.visible.append((np.random.rand(joints) > 0.1).astype(np.float32))     # under the tube, or not labelled

    def __len__(self):
        return len(self.frames)

    def warp(self, image, matrix):
        """Nearest neighbour; no opencv on the cluster."""
        v, u = np.mgrid[:self.size, :self.size]
        back = np.linalg.inv(matrix)
        x = back[0, 0] * u + back[0, 1] * v + back[0, 2]
        y = back[1, 0] * u + back[1, 1] * v + back[1, 2]
        x, y = np.round(x).astype(int).clip(0, self.size - 1), np.round(y).astype(int).clip(0, self.size - 1)
        return image[y, x]

    def target(self, joints):
        """One gaussian for each joint."""
        heat = np.zeros((self.n_joints, HEAT, HEAT))
        yy, xx = np.mgrid[:HEAT, :HEAT]
        for k in range(self.n_joints):
            mx, my = joints[k] / 4
            heat[k] = np.exp(-((xx - mx) ** 2 + (yy - my) ** 2) / (2 * opt.sigma ** 2))
        return heat

    def __getitem__(self, i):
        image, joints = self.frames[i], self.joints[i]
        turn, scale = np.random.uniform(-np.pi, np.pi), np.random.uniform(0.8, 1.2)
        c, s, half = scale * np.cos(turn), scale * np.sin(turn), self.size / 2
        matrix = np.array([[c, -s, half - c * half + s * half], [s, c, half - s * half - c * half], [0, 0, 1]])
        image = self.warp(image, matrix)
        joints = joints @ matrix[:2, :2].T + matrix[:2, 2]
        image = image / 255.0
        image = image * np.random.uniform(0.8, 1.2) + np.random.normal(0, 0.02, image.shape)
        image = (image - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
        heat = self.target(joints)
        inside = ((joints >= 0) & (joints < self.size)).all(1)
        weight = self.visible[i] * inside
        return (torch.tensor(image.transpose(2, 0, 1), dtype=torch.float32), torch.tensor(heat, dtype=torch.float32),
                torch.tensor(weight[:, None], dtype=torch.float32), torch.tensor(joints, dtype=torch.float32))


class Basic(nn.Module):
    def __init__(self, cin, c, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, c, 3, stride, 1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c)
        self.relu = nn.ReLU(inplace=True)
        self.short = nn.Sequential(nn.Conv2d(cin, c, 1, stride, bias=False), nn.BatchNorm2d(c)) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.short(x))


class PoseNet(nn.Module):
    def __init__(self, joints, w):
        super().__init__()
        layers = [nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        for cin, c, stride in [(w, w, 1), (w, 2 * w, 2), (2 * w, 4 * w, 2), (4 * w, 8 * w, 2)]:
            layers += [Basic(cin, c, stride), Basic(c, c)]
        for cin in (8 * w, 4 * w, 4 * w):
            layers += [nn.ConvTranspose2d(cin, 4 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(4 * w), nn.ReLU(inplace=True)]
        self.body, self.final = nn.Sequential(*layers), nn.Conv2d(4 * w, joints, 1)

    def forward(self, x):
        return self.final(self.body(x))


class JointsMSELoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.criterion = nn.MSELoss(reduction="mean")

    def forward(self, output, target, target_weight):
        batch_size, num_joints = output.size(0), output.size(1)
        heatmaps_pred = output.reshape((batch_size, num_joints, -1)).split(1, 1)
        heatmaps_gt = target.reshape((batch_size, num_joints, -1)).split(1, 1)
        loss = 0
        for idx in range(num_joints):
            pred, gt = heatmaps_pred[idx].squeeze(1), heatmaps_gt[idx].squeeze(1)
            loss += 0.5 * self.criterion(pred.mul(target_weight[:, idx]), gt.mul(target_weight[:, idx]))
        return loss / num_joints


def get_max_preds(heat):
    flat = heat.reshape(heat.shape[0], heat.shape[1], -1)
    idx = flat.argmax(2)
    return np.stack([idx % HEAT, idx // HEAT], 2).astype(np.float32)


def accuracy(output, target, weight, threshold=0.5):
    """PCK: share of the visible joints closer than half a tenth of the heatmap."""
    pred, true = get_max_preds(output), get_max_preds(target)
    hits, count = 0, 0
    for n in range(pred.shape[0]):
        for k in range(pred.shape[1]):
            if weight[n, k, 0] > 0:
                hits += np.linalg.norm((pred[n, k] - true[n, k]) / (HEAT / 10)) < threshold
                count += 1
    return hits / max(count, 1)


train_set = MouseFrames(opt.frames, opt.size, opt.joints)
loader = DataLoader(train_set, batch_size=opt.batch, shuffle=True, num_workers=0, drop_last=True)
model = PoseNet(opt.joints, opt.width).to(device)
criterion = JointsMSELoss().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr)

for epoch in range(opt.epochs):
    model.train()
    losses, accs, tic = [], [], time.time()
    for i, (image, heat, weight, joints) in enumerate(loader):
        image, heat, weight = image.to(device), heat.to(device), weight.to(device)
        output = model(image)
        loss = criterion(output, heat, weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        accs.append(accuracy(output.detach().cpu().numpy(), heat.cpu().numpy(), weight.cpu().numpy()))
        if i % 10 == 0:
            print(f"Epoch {epoch} [{i}/{len(loader)}] loss {np.mean(losses):.6f} acc {np.mean(accs):.3f}", flush=True)
    print(f"Epoch {epoch}: {time.time() - tic:.1f} s")
