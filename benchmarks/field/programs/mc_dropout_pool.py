"""Active learning, acquisition step: MC dropout over an unlabelled pool, BALD scores, top-k by mutual information.

The net would come from the previous round's checkpoint; here it is random.
"""
import logging

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO)
logger = logging.getLogger("acquire")

CLASSES = 100
T = 20                 # stochastic passes
POOL, BATCH = 12800, 128
QUERY = 256
P_DROP = 0.3


class Bottleneck(nn.Module):
    def __init__(self, inp, mid, stride=1, drop=0.0):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inp, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv2, self.bn2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv3, self.bn3 = nn.Conv2d(mid, mid * 4, 1, bias=False), nn.BatchNorm2d(mid * 4)
        self.down = None
        if stride != 1 or inp != mid * 4:
            self.down = nn.Sequential(nn.Conv2d(inp, mid * 4, 1, stride, bias=False), nn.BatchNorm2d(mid * 4))
        self.drop = drop

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        if self.drop:
            out = F.dropout(out, self.drop, training=True)   # stays on at test time
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.down is None else self.down(x)))


class BayesianResNet(nn.Module):
    """ResNet-50 with dropout in the last stage and before the classifier."""

    def __init__(self, width=64, depths=(3, 4, 6, 3)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        inp, stages = width, []
        for i, depth in enumerate(depths):
            mid, blocks = width * 2 ** i, []
            for j in range(depth):
                blocks.append(Bottleneck(inp, mid, 2 if i and not j else 1, P_DROP if i == 3 else 0.0))
                inp = mid * 4
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc1, self.fc2 = nn.Linear(inp, 512), nn.Linear(512, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        x = self.layer3(self.layer2(self.layer1(x)))
        x = self.layer4(x)
        x = x.mean(dim=(2, 3))
        x = F.dropout(F.relu(self.fc1(x)), 0.5, training=True)
        return self.fc2(x)


def entropy(p):
    return -(p * (p + 1e-12).log()).sum(-1)


def bald(probs):
    """probs: T x B x C"""
    mean = probs.mean(0)
    predictive = entropy(mean)
    expected = entropy(probs).mean(0)
    return predictive - expected, predictive, (mean.max(-1).values)


def make_pool():
    g = torch.Generator().manual_seed(11)
    small = torch.randint(0, 256, (POOL, 3, 20, 20), generator=g, dtype=torch.uint8)
    return TensorDataset(small, torch.arange(POOL))


@torch.no_grad()
def acquire(model, loader):
    model.eval()
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1).cuda()
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1).cuda()
    scores, entropies, confidences, ids = [], [], [], []
    for n, (images, index) in enumerate(loader):
        x = images.cuda()
        x = F.interpolate(x.float() / 255, size=(160, 160), mode="bilinear")
        x = (x - mean) / std
        probs = []
        for _ in range(T):
            logits = model(x)
            probs.append(F.softmax(logits, dim=1).cpu())
        score, ent, conf = bald(torch.stack(probs))
        scores.append(score)
        entropies.append(ent)
        confidences.append(conf)
        ids.append(index)
        if n % 20 == 0:
            logger.info("batch %d: mean BALD %.4f, entropy %.3f, confidence %.3f", n, score.mean(), ent.mean(), conf.mean())
    scores, ids = torch.cat(scores).numpy(), torch.cat(ids).numpy()
    order = np.argsort(-scores)[:QUERY]
    return ids[order], scores[order]


def main():
    torch.manual_seed(0)
    model = BayesianResNet().cuda()
    loader = DataLoader(make_pool(), batch_size=BATCH, shuffle=False, num_workers=2)
    chosen, values = acquire(model, loader)
    logger.info("query %d images, BALD %.4f .. %.4f, first ids %s", len(chosen), values[0], values[-1], chosen[:8].tolist())


if __name__ == "__main__":
    main()
