"""Leaf disease classifier (field photos, 38 classes) with a timm model, own augmentation and an EMA of the weights."""
import copy
import io
import math
import os
import random
import time

import numpy as np
import timm
import torch
import torch.nn as nn
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset

DEVICE = os.environ.get("DEVICE", "cuda")
BATCH_SIZE = int(os.environ.get("BATCH", 64))
IMG = 160
CLASSES = 38
MEAN = np.array([0.485, 0.456, 0.406])
STD = np.array([0.229, 0.224, 0.225])
STEPS = 600
WARMUP = 60


def fake_photos(n, size=256, seed=0):
    """Stand-in for the photos on disk: smooth colored blobs, as JPEG bytes."""
    rng = np.random.default_rng(seed)
    photos = []
    for i in range(n):
        small = rng.integers(0, 255, (10, 10, 3), dtype=np.uint8)
        img = np.asarray(Image.fromarray(small).resize((size, size), Image.BICUBIC)).astype(np.int16)
        img = np.clip(img + rng.integers(-12, 12, img.shape, dtype=np.int16), 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(img).save(buffer, "JPEG", quality=88)
        photos.append((buffer.getvalue(), i % CLASSES))
    return photos


class LeafDataset(Dataset):
    def __init__(self, photos, repeats=8):
        self.photos, self.repeats = photos, repeats

    def __len__(self):
        return len(self.photos) * self.repeats

    def augment(self, img):
        w, h = img.size
        scale = random.uniform(0.35, 1.0)
        ratio = math.exp(random.uniform(-0.28, 0.28))
        cw = min(w, int(w * math.sqrt(scale * ratio)))
        ch = min(h, int(h * math.sqrt(scale / ratio)))
        x, y = random.randint(0, w - cw), random.randint(0, h - ch)
        img = img.crop((x, y, x + cw, y + ch)).resize((IMG, IMG), Image.BILINEAR)
        if random.random() < 0.5:
            img = img.transpose(Image.FLIP_LEFT_RIGHT)
        img = ImageEnhance.Brightness(img).enhance(random.uniform(0.7, 1.3))
        img = ImageEnhance.Contrast(img).enhance(random.uniform(0.7, 1.3))
        img = ImageEnhance.Color(img).enhance(random.uniform(0.7, 1.3))
        return img

    def to_tensor(self, img):
        x = (np.array(img) / 255.0 - MEAN) / STD
        return torch.tensor(x.transpose(2, 0, 1), dtype=torch.float32)

    def __getitem__(self, i):
        data, label = self.photos[i % len(self.photos)]
        img = Image.open(io.BytesIO(data)).convert("RGB")
        return self.to_tensor(self.augment(img)), label


class EMA:
    def __init__(self, model, decay=0.999):
        self.model = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.model.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        new = model.state_dict()
        for k, v in self.model.state_dict().items():
            if v.dtype.is_floating_point:
                v.mul_(self.decay).add_(new[k], alpha=1 - self.decay)
            else:
                v.copy_(new[k])


def lr_at(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - WARMUP) / (STEPS - WARMUP))))


def cutmix(images, labels):
    """One box per batch, labels as probabilities."""
    lam = np.random.beta(1.0, 1.0)
    perm = torch.randperm(images.size(0), device=images.device)
    side = int(IMG * math.sqrt(1 - lam))
    cx, cy = random.randrange(IMG), random.randrange(IMG)
    x0, x1 = max(0, cx - side // 2), min(IMG, cx + side // 2)
    y0, y1 = max(0, cy - side // 2), min(IMG, cy + side // 2)
    images[:, :, y0:y1, x0:x1] = images[perm, :, y0:y1, x0:x1]
    lam = 1 - (x1 - x0) * (y1 - y0) / IMG ** 2
    onehot = nn.functional.one_hot(labels, CLASSES).float()
    return images, lam * onehot + (1 - lam) * onehot[perm]


def main():
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    dataset = LeafDataset(fake_photos(int(os.environ.get("PHOTOS", 1000))))
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=4, drop_last=True)

    model = timm.create_model("resnet26d", pretrained=False, num_classes=CLASSES).to(DEVICE)
    ema = EMA(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_at)
    model.train()

    step, epoch, tic = 0, 0, time.time()
    while step < STEPS:
        seen, total = 0, 0.0
        for images, labels in loader:
            images, labels = images.to(DEVICE), labels.to(DEVICE)
            images, targets = cutmix(images, labels)
            loss = criterion(model(images), targets)

            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            ema.update(model)

            total += loss.item()
            seen += 1
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {total / seen:.4f} "
                      f"{step * BATCH_SIZE / (time.time() - tic):.0f} img/s", flush=True)
            if step >= STEPS:
                break
        epoch += 1

    with torch.no_grad():
        images, labels = next(iter(loader))
        acc = (ema.model(images.to(DEVICE)).argmax(1).cpu() == labels).float().mean()
    print(f"ema train acc {acc:.3f}")


if __name__ == "__main__":
    main()
