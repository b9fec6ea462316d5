"""Momentum contrast with a queue on small pictures; two views of each are made on the host."""
import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

DIM, QUEUE, M, TEMPERATURE, BATCH = 128, 4096, 0.99, 0.1, 256


def augment(img):
    """Random crop to 48, flip, brightness, contrast, grayscale."""
    y, x = np.random.randint(0, 16, 2)
    img = img[:, y:y + 48, x:x + 48]
    if np.random.rand() < 0.5:
        img = img.flip(-1)
    img = img * np.random.uniform(0.6, 1.4)
    mean = img.mean()
    img = (img - mean) * np.random.uniform(0.6, 1.4) + mean
    if np.random.rand() < 0.2:
        img = img.mean(0, keepdim=True).expand(3, -1, -1)
    return img.clamp(0, 1)


class TwoViews(Dataset):
    def __init__(self, n):
        self.n, self.images = n, torch.randint(0, 256, (5000, 3, 64, 64), dtype=torch.uint8)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        img = self.images[i % 5000].float() / 255
        return augment(img), augment(img)


class Basic(nn.Module):
    def __init__(self, i, o, s):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(),
                                  nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o))
        self.short = nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o)) if s != 1 or i != o else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


def resnet18():
    stages = [Basic(i, o, s) for i, o, s in ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))]
    return nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, DIM))


torch.manual_seed(0)
encoder_q = resnet18().cuda()
encoder_k = copy.deepcopy(encoder_q)
for p in encoder_k.parameters():
    p.requires_grad = False
queue, ptr = F.normalize(torch.randn(DIM, QUEUE), dim=0).cuda(), 0
optimizer = torch.optim.SGD(encoder_q.parameters(), lr=0.06, weight_decay=5e-4, momentum=0.9)
loader = DataLoader(TwoViews(BATCH * 80), batch_size=BATCH, shuffle=True, num_workers=4, drop_last=True)
total_loss = 0.0
for step, (im_q, im_k) in enumerate(loader):
    im_q, im_k = im_q.cuda(), im_k.cuda()
    q = F.normalize(encoder_q(im_q), dim=1)
    with torch.no_grad():
        for param_q, param_k in zip(encoder_q.parameters(), encoder_k.parameters()):
            param_k.data = param_k.data * M + param_q.data * (1.0 - M)
        idx = torch.randperm(BATCH).cuda()
        k = F.normalize(encoder_k(im_k[idx]), dim=1)[torch.argsort(idx)]
    l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
    l_neg = torch.einsum("nc,ck->nk", [q, queue.clone().detach()])
    logits = torch.cat([l_pos, l_neg], dim=1) / TEMPERATURE
    loss = F.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue[:, ptr:ptr + BATCH] = k.t()
    ptr = (ptr + BATCH) % QUEUE
    total_loss += loss.item() * BATCH
    if step % 10 == 0:
        print(f"step {step} loss {total_loss / ((step + 1) * BATCH):.4f}")
