"""RetinaNet-like detector trained on synthetic boxes; targets are assigned image by image."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES, SIZE, BATCH = 20, 416, 16


class Shapes(Dataset):
    def __init__(self, n):
        self.n, self.pictures = n, torch.randint(0, 256, (64, 3, SIZE, SIZE), dtype=torch.uint8)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        k = int(torch.randint(1, 12, ()))
        xy, wh = torch.rand(k, 2) * 300, torch.rand(k, 2) * 100 + 12
        img = self.pictures[i % 64].float() / 255
        if torch.rand(()) < 0.5:
            img = img.flip(-1)
        return img, torch.cat([xy, xy + wh], 1), torch.randint(0, CLASSES, (k,))


def collate(batch):
    images, boxes, labels = zip(*batch)
    return torch.stack(images), list(boxes), list(labels)


def conv(i, o, k=3, s=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class Retina(nn.Module):
    def __init__(self, a=9, f=256):
        super().__init__()
        self.c2 = nn.Sequential(conv(3, 64, 7, 2), nn.MaxPool2d(2), conv(64, 128), conv(128, 128))
        self.c3 = nn.Sequential(conv(128, 256, 3, 2), conv(256, 256), conv(256, 256))
        self.c4 = nn.Sequential(conv(256, 512, 3, 2), conv(512, 512), conv(512, 512))
        self.c5 = nn.Sequential(conv(512, 512, 3, 2), conv(512, 512))
        self.lat = nn.ModuleList([nn.Conv2d(c, f, 1) for c in (256, 512, 512)])
        self.smooth = nn.ModuleList([nn.Conv2d(f, f, 3, padding=1) for _ in range(3)])
        tower = lambda o: nn.Sequential(*[m for _ in range(4) for m in (nn.Conv2d(f, f, 3, padding=1), nn.ReLU())], nn.Conv2d(f, o, 3, padding=1))
        self.cls, self.reg = tower(a * CLASSES), tower(a * 4)

    def forward(self, x):
        c3 = self.c3(self.c2(x))
        c4 = self.c4(c3)
        c5 = self.c5(c4)
        p5 = self.lat[2](c5)
        p4 = self.lat[1](c4) + F.interpolate(p5, size=c4.shape[-2:])
        p3 = self.lat[0](c3) + F.interpolate(p4, size=c3.shape[-2:])
        out = [s(p) for s, p in zip(self.smooth, (p3, p4, p5))]
        flat = lambda y, n: y.permute(0, 2, 3, 1).reshape(len(x), -1, n)
        return torch.cat([flat(self.cls(p), CLASSES) for p in out], 1), torch.cat([flat(self.reg(p), 4) for p in out], 1)


def make_anchors():
    boxes = []
    for stride in (8, 16, 32):
        n = SIZE // stride
        c = (torch.arange(n) + 0.5) * stride
        cy, cx = torch.meshgrid(c, c, indexing="ij")
        for scale in (1, 1.26, 1.59):
            for ratio in (0.5, 1, 2):
                w, h = 4 * stride * scale * ratio ** -0.5, 4 * stride * scale * ratio ** 0.5
                boxes.append(torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1).view(-1, 4))
    return torch.cat(boxes)


def iou(a, b):
    lt, rb = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(2)
    area = lambda x: (x[:, 2:] - x[:, :2]).prod(1)
    return inter / (area(a)[:, None] + area(b)[None] - inter)


def focal(logits, boxes, anchors, gt, labels):
    overlap, which = iou(anchors, gt).max(1)
    positive, ignored = overlap >= 0.5, (overlap >= 0.4) & (overlap < 0.5)
    target = torch.zeros_like(logits)
    target[positive, labels[which[positive]]] = 1
    p, ce = torch.sigmoid(logits), F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = p * target + (1 - p) * (1 - target)
    loss = ((0.25 * target + 0.75 * (1 - target)) * (1 - p_t) ** 2 * ce)[~ignored].sum() / max(1, positive.sum().item())
    if positive.sum() > 0:
        a, g = anchors[positive], gt[which[positive]]
        size = a[:, 2:] - a[:, :2]
        offsets = torch.cat([(g[:, :2] - a[:, :2]) / size, torch.log((g[:, 2:] - g[:, :2]) / size)], 1)
        loss = loss + F.smooth_l1_loss(boxes[positive], offsets.to(boxes.dtype))
    return loss


model, anchors = Retina().cuda(), make_anchors().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
loader = DataLoader(Shapes(BATCH * 80), batch_size=BATCH, shuffle=True, collate_fn=collate)
for it, (images, boxes, labels) in enumerate(loader):
    images = images.cuda()
    cls, reg = model(images)
    loss = sum(focal(cls[i], reg[i], anchors, boxes[i].cuda(), labels[i].cuda()) for i in range(len(images))) / len(images)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    print(f"iter {it}: loss {loss.item():.4f}")
