#!/usr/bin/env python
"""Training of a timm ViT-S with accelerate in bf16; mixup, label smoothing, cosine schedule."""
import timm
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch.utils.data import DataLoader
from torchvision.transforms import v2

CONFIG = dict(model="vit_small_patch16_224", batch_size=128, lr=1e-3, weight_decay=0.05, steps=50, classes=100, workers=12)


class Uint8Images(torch.utils.data.Dataset):
    def __init__(self, n):
        self.pool = torch.randint(0, 256, (64, 3, 224, 224), dtype=torch.uint8)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        image = self.pool[i % 64]
        if i % 2:
            image = image.flip(-1)
        return image, i % CONFIG["classes"]


def main():
    set_seed(0)
    torch.backends.cudnn.benchmark = True
    accelerator = Accelerator(mixed_precision="bf16")
    model = timm.create_model(CONFIG["model"], pretrained=False, num_classes=CONFIG["classes"], drop_path_rate=0.1)
    loader = DataLoader(Uint8Images(CONFIG["steps"] * CONFIG["batch_size"]), CONFIG["batch_size"], shuffle=True, drop_last=True,
                        num_workers=CONFIG["workers"], pin_memory=True, persistent_workers=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG["lr"], weight_decay=CONFIG["weight_decay"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100000)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    normalize = v2.Normalize([0.5] * 3, [0.5] * 3)
    mixup, criterion = Mixup(0.8, 1.0, num_classes=CONFIG["classes"]), SoftTargetCrossEntropy()
    model.train()
    running = torch.zeros((), device=accelerator.device)
    for images, target in loader:
        images = normalize(images.float().div_(255))
        images, target = mixup(images, target)
        with accelerator.autocast():
            loss = criterion(model(images), target)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.detach()
    accelerator.print("loss", (running / CONFIG["steps"]).item())


if __name__ == "__main__":
    main()
