"""Classifier of pictures with everything switched on: workers, pinned memory, channels last, bf16, compiled, fused SGD."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

BATCH, CLASSES, STEPS = 256, 1000, 120
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True


class Decoded(Dataset):
    """Pictures that were decoded and cropped ahead; whole batches are taken at once."""

    def __init__(self, n):
        self.n, self.images, self.labels = n, torch.randint(0, 256, (2048, 3, 176, 176), dtype=torch.uint8), torch.randint(0, CLASSES, (2048,))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        at = torch.randint(0, 2048 - BATCH, ()).item()
        return self.images[at:at + BATCH], self.labels[at:at + BATCH]


class Bottleneck(nn.Module):
    def __init__(self, i, w, s):
        super().__init__()
        o = 4 * w
        self.body = nn.Sequential(nn.Conv2d(i, w, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True),
                                  nn.Conv2d(w, w, 3, s, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True),
                                  nn.Conv2d(w, o, 1, bias=False), nn.BatchNorm2d(o))
        self.short = nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o)) if s != 1 or i != o else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x), inplace=True)


def resnet50():
    layers, i = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for w, n, s in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(n):
            layers.append(Bottleneck(i, w, s if k == 0 else 1))
            i = 4 * w
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, CLASSES))


def main():
    torch.manual_seed(0)
    model = resnet50().to("cuda", memory_format=torch.channels_last)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=5e-5, nesterov=True, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2.0, total_steps=100_000)
    loader = DataLoader(Decoded(STEPS), batch_size=None, num_workers=6, pin_memory=True, prefetch_factor=3, persistent_workers=True)
    mean, std = (torch.tensor(v, device="cuda").view(1, 3, 1, 1) for v in ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)))
    running = torch.zeros((), device="cuda")
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
        images = ((images - mean) / std).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(compiled(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        running.lerp_(loss.detach(), 0.05)
        if step % 50 == 0:
            print(step, running.item())


if __name__ == "__main__":
    main()
