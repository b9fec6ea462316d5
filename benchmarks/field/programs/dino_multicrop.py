"""Self-distillation without labels: a student sees two large and six small crops, a momentum teacher the large ones."""
import copy
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, DIM, DEPTH, HEADS, PATCH, OUT, SMALL_CROPS, ITERATIONS, EPOCH = 32, 384, 12, 6, 16, 16384, 6, 80, 400


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, DIM, PATCH, stride=PATCH)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, DIM) * 0.02), nn.Parameter(torch.randn(1, 197, DIM) * 0.02)
        self.blocks, self.norm = nn.Sequential(*[Block(DIM, HEADS) for _ in range(DEPTH)]), nn.LayerNorm(DIM, eps=1e-6)

    def positions(self, n):
        if n == self.pos.shape[1] - 1:
            return self.pos
        side = int(math.sqrt(n))
        grid = self.pos[:, 1:].reshape(1, 14, 14, DIM).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(side, side), mode="bicubic", align_corners=False)
        return torch.cat([self.pos[:, :1], grid.permute(0, 2, 3, 1).reshape(1, -1, DIM)], 1)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        pos = self.positions(x.shape[1])
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + pos
        return self.norm(self.blocks(x))[:, 0]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(DIM, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 256))
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(256, OUT, bias=False))

    def forward(self, x):
        return self.last(F.normalize(self.mlp(x), dim=-1))


class DINOLoss(nn.Module):
    def __init__(self, student_temp=0.1, teacher_temp=0.04, momentum=0.9):
        super().__init__()
        self.student_temp, self.teacher_temp, self.momentum = student_temp, teacher_temp, momentum
        self.register_buffer("center", torch.zeros(1, OUT))

    def forward(self, student_out, teacher_out):
        total, terms = 0, 0
        for i, t in enumerate(teacher_out):
            q = F.softmax((t - self.center) / self.teacher_temp, dim=-1).detach()
            for j, s in enumerate(student_out):
                if i == j:
                    continue
                total += torch.sum(-q * F.log_softmax(s / self.student_temp, dim=-1), dim=-1).mean()
                terms += 1
        self.update_center(teacher_out)
        return total / terms

    @torch.no_grad()
    def update_center(self, teacher_out):
        batch_center = torch.cat(teacher_out).mean(0, keepdim=True)
        self.center = self.center * self.momentum + batch_center * (1 - self.momentum)


def random_crops(images, size):
    """A crop of its own of every picture, mirrored half of the time."""
    crops = []
    for image in images:
        top, left = torch.randint(0, images.shape[2] - size + 1, (2,)).tolist()
        crop = image[:, top:top + size, left:left + size]
        if torch.rand(1).item() < 0.5:
            crop = torch.flip(crop, [2])
        crops.append(crop)
    return torch.stack(crops)


torch.manual_seed(0)
device = "cuda"
student = nn.Sequential(ViT(), Head()).to(device)
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad = False
criterion = DINOLoss().to(device)
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4, weight_decay=0.04)
pictures = torch.rand(512, 3, 256, 256).to(device)

for it in range(ITERATIONS):
    momentum = 1 - 0.004 * (math.cos(math.pi * it / EPOCH) + 1) / 2
    images = pictures[torch.randint(0, len(pictures), (BATCH,)).to(device)]
    large = [random_crops(images, 224) for _ in range(2)]
    small = [random_crops(images, 96) for _ in range(SMALL_CROPS)]
    with torch.no_grad():
        teacher_out = [teacher(crop) for crop in large]
    student_out = [student(crop) for crop in large + small]
    loss = criterion(student_out, teacher_out)
    if not math.isfinite(loss.item()):
        print(f"Loss is {loss.item()}, stopping training")
        sys.exit(1)
    optimizer.zero_grad()
    loss.backward()
    for name, p in student.named_parameters():
        if p.grad is not None:
            norm = p.grad.norm(2)
            coefficient = 3.0 / (norm + 1e-6)
            if coefficient < 1:
                p.grad.mul_(coefficient)
    optimizer.step()
    with torch.no_grad():
        for param_q, param_k in zip(student.parameters(), teacher.parameters()):
            param_k.data.mul_(momentum).add_((1 - momentum) * param_q.detach().data)
    if it % 20 == 0:
        print(f"it {it} loss {loss.item():.4f} momentum {momentum:.4f}")
