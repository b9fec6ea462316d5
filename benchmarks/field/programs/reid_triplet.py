"""
Person re-identification baseline, for the course project (group 7).
ResNet-50 with last stride 1, BNNeck, ID loss + batch-hard triplet loss + center loss ("bag of tricks", Luo et al. 2019).
The images are random textures per person because Market-1501 may not be uploaded to the cluster.
"""
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler

DEVICE = os.environ.get("DEVICE", "cuda")
H, W = int(os.environ.get("H", 256)), int(os.environ.get("W", 128))
NUM_IDS = int(os.environ.get("IDS", 300))
IMGS_PER_ID = 8
P, K = int(os.environ.get("P", 16)), 4            # persons per batch, images per person
EPOCHS = 11
WIDTH = int(os.environ.get("WIDTH", 64))
MARGIN, CENTER_WEIGHT = 0.3, 0.0005

random.seed(7)
np.random.seed(7)
torch.manual_seed(7)


# =============================== data ===============================
class Market(Dataset):
    def __init__(self, num_ids, per_id):
        self.images, self.ids, self.cams = [], [], []
        for pid in range(num_ids):
            cloth = np.random.randint(30, 226, (8, 4, 3))
            for k in range(per_id):
                im = np.kron(cloth, np.ones((H // 8, W // 4, 1))) + np.random.randn(H, W, 1) * 12 + np.random.randint(-25, 25)
                self.images.append(im.clip(0, 255).astype(np.uint8))
                self.ids.append(pid)
                self.cams.append(k % 6)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        im = self.images[i]
        if random.random() < 0.5:
            im = im[:, ::-1]
        im = np.pad(im, ((10, 10), (10, 10), (0, 0)))
        top, left = random.randint(0, 20), random.randint(0, 20)
        im = im[top:top + H, left:left + W]
        im = torch.from_numpy(np.ascontiguousarray(im)).permute(2, 0, 1).float().div(255)
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        im = (im - mean[:, None, None]) / std[:, None, None]
        if random.random() < 0.5:
            im = random_erasing(im)
        return im, self.ids[i], self.cams[i]


def random_erasing(im, low=0.02, high=0.4, ratio=0.3):
    for _ in range(100):
        area = random.uniform(low, high) * H * W
        aspect = random.uniform(ratio, 1 / ratio)
        h, w = int(round((area * aspect) ** 0.5)), int(round((area / aspect) ** 0.5))
        if h < H and w < W:
            y, x = random.randint(0, H - h), random.randint(0, W - w)
            im[:, y:y + h, x:x + w] = 0
            return im
    return im


class PKSampler(Sampler):
    def __init__(self, ids):
        self.where = {}
        for i, pid in enumerate(ids):
            self.where.setdefault(pid, []).append(i)

    def __iter__(self):
        pids = list(self.where) * 2
        random.shuffle(pids)
        for pid in pids[:len(pids) // P * P]:
            yield from random.sample(self.where[pid], K)

    def __len__(self):
        return len(self.where) * 2 // P * P * K


# =============================== model ===============================
class Bottleneck(nn.Module):
    def __init__(self, c_in, c, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, c, 1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, stride, 1, bias=False), nn.BatchNorm2d(c)
        self.conv3, self.bn3 = nn.Conv2d(c, 4 * c, 1, bias=False), nn.BatchNorm2d(4 * c)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or c_in != 4 * c:
            self.down = nn.Sequential(nn.Conv2d(c_in, 4 * c, 1, stride, bias=False), nn.BatchNorm2d(4 * c))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.down is None else self.down(x)))


class ReID(nn.Module):
    def __init__(self, num_ids, layers=(3, 4, 6, 3), width=WIDTH):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks, c_in = [], width
        for stage, n in enumerate(layers):
            c = width * 2 ** stage
            for j in range(n):
                blocks.append(Bottleneck(c_in, c, 2 if j == 0 and stage in (1, 2) else 1))
                c_in = 4 * c
        self.body = nn.Sequential(*blocks)
        self.gap = nn.AdaptiveAvgPool2d(1)
        self.neck = nn.BatchNorm1d(c_in)
        self.neck.bias.requires_grad_(False)
        self.classifier = nn.Linear(c_in, num_ids, bias=False)
        self.dim = c_in

    def forward(self, x):
        f = self.gap(self.body(self.stem(x))).flatten(1)
        bn = self.neck(f)
        return (self.classifier(bn), f) if self.training else bn


# =============================== losses ===============================
def euclidean_dist(x, y):
    m, n = x.size(0), y.size(0)
    xx = torch.pow(x, 2).sum(1, keepdim=True).expand(m, n)
    yy = torch.pow(y, 2).sum(1, keepdim=True).expand(n, m).t()
    dist = xx + yy - 2 * torch.matmul(x, y.t())
    return dist.clamp(min=1e-12).sqrt()


class TripletLoss(nn.Module):
    """With the hardest positive and the hardest negative of the batch for each anchor."""

    def __init__(self, margin):
        super().__init__()
        self.ranking_loss = nn.MarginRankingLoss(margin=margin)

    def forward(self, inputs, targets):
        n = inputs.size(0)
        dist = euclidean_dist(inputs, inputs)
        mask = targets.expand(n, n).eq(targets.expand(n, n).t())
        dist_ap, dist_an = [], []
        for i in range(n):
            dist_ap.append(dist[i][mask[i]].max().unsqueeze(0))
            dist_an.append(dist[i][mask[i] == 0].min().unsqueeze(0))
        dist_ap = torch.cat(dist_ap)
        dist_an = torch.cat(dist_an)
        y = torch.ones_like(dist_an)
        loss = self.ranking_loss(dist_an, dist_ap, y)
        prec = (dist_an.data > dist_ap.data).sum().item() / n
        return loss, prec


class CenterLoss(nn.Module):
    def __init__(self, num_classes, feat_dim):
        super().__init__()
        self.num_classes = num_classes
        self.centers = nn.Parameter(torch.randn(num_classes, feat_dim))

    def forward(self, x, labels):
        batch_size = x.size(0)
        distmat = torch.pow(x, 2).sum(dim=1, keepdim=True).expand(batch_size, self.num_classes) + \
            torch.pow(self.centers, 2).sum(dim=1, keepdim=True).expand(self.num_classes, batch_size).t()
        distmat = distmat - 2 * torch.matmul(x, self.centers.t())
        classes = torch.arange(self.num_classes).long().to(x.device)
        labels = labels.unsqueeze(1).expand(batch_size, self.num_classes)
        mask = labels.eq(classes.expand(batch_size, self.num_classes))
        dist = []
        for i in range(batch_size):
            value = distmat[i][mask[i]]
            value = value.clamp(min=1e-12, max=1e+12)
            dist.append(value)
        dist = torch.cat(dist)
        return dist.mean()


class SmoothedCE(nn.Module):
    def __init__(self, num_classes, epsilon=0.1):
        super().__init__()
        self.num_classes, self.epsilon = num_classes, epsilon
        self.logsoftmax = nn.LogSoftmax(dim=1)

    def forward(self, inputs, targets):
        log_probs = self.logsoftmax(inputs)
        targets = torch.zeros(log_probs.size()).scatter_(1, targets.unsqueeze(1).data.cpu(), 1).to(inputs.device)
        targets = (1 - self.epsilon) * targets + self.epsilon / self.num_classes
        return (-targets * log_probs).mean(0).sum()


def rank1(feats, ids, cams):
    """Cross-camera rank-1 of the first image of each person."""
    dist = euclidean_dist(feats, feats)
    hits = []
    for i in range(0, len(ids), IMGS_PER_ID):
        order = dist[i].argsort()
        order = [j for j in order.tolist() if not (ids[j] == ids[i] and cams[j] == cams[i])]
        hits.append(ids[order[0]] == ids[i])
    return np.mean(hits)


# =============================== training ===============================
data = Market(NUM_IDS, IMGS_PER_ID)
loader = DataLoader(data, batch_size=P * K, sampler=PKSampler(data.ids), drop_last=True)
model = ReID(NUM_IDS).to(DEVICE)
xent, triplet, center = SmoothedCE(NUM_IDS), TripletLoss(MARGIN), CenterLoss(NUM_IDS, model.dim).to(DEVICE)
optimizer = torch.optim.Adam([{"params": [p], "lr": 3.5e-4 * (2 if n.endswith("bias") else 1), "weight_decay": 5e-4}
                              for n, p in model.named_parameters() if p.requires_grad])
optimizer_center = torch.optim.SGD(center.parameters(), lr=0.5)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda it: min(1.0, 0.01 + it / 60))

for epoch in range(EPOCHS):
    model.train()
    sums, tic = {"id": 0, "tri": 0, "cen": 0, "acc": 0, "prec": 0}, time.time()
    for it, (img, pid, cam) in enumerate(loader, 1):
        img, pid = img.to(DEVICE), pid.to(DEVICE)
        optimizer.zero_grad()
        optimizer_center.zero_grad()
        score, feat = model(img)
        l_id = xent(score, pid)
        l_tri, prec = triplet(feat, pid)
        l_cen = center(feat, pid)
        loss = l_id + l_tri + CENTER_WEIGHT * l_cen
        loss.backward()
        optimizer.step()
        for p in center.parameters():
            p.grad.data *= 1.0 / CENTER_WEIGHT
        optimizer_center.step()
        warmup.step()
        acc = (score.max(1)[1] == pid).float().mean()
        for name, value in zip(sums, (l_id, l_tri, l_cen, acc, prec)):
            sums[name] += float(value)
        if it % 10 == 0:
            print(f"Epoch[{epoch}] {it}/{len(loader)} " + " ".join(f"{k} {v / it:.3f}" for k, v in sums.items()) + f" {it * P * K / (time.time() - tic):.0f} img/s", flush=True)

model.eval()
with torch.no_grad():
    chosen = list(range(min(len(data), 100 * IMGS_PER_ID)))
    feats = torch.cat([model(torch.stack([data[i][0] for i in chosen[at:at + 64]]).to(DEVICE)) for at in range(0, len(chosen), 64)])
print("rank-1 on train images:", rank1(feats, [data.ids[i] for i in chosen], [data.cams[i] for i in chosen]))
