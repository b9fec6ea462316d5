"""Binary segmentation: U-Net, PIL augmentation in loader workers, automatic mixed precision with a scaler."""
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageEnhance
from torch.utils.data import DataLoader, Dataset


class CarvanaLike(Dataset):
    def __init__(self, n, size=256):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = random.Random(i)
        img = Image.fromarray(np.random.randint(0, 255, (360, 480, 3), dtype=np.uint8))
        mask = Image.new("L", (480, 360))
        x, y, r = rng.randint(100, 380), rng.randint(100, 260), rng.randint(30, 90)
        ImageDraw.Draw(mask).ellipse((x - r, y - r, x + r, y + r), fill=255)
        img.paste((200, 40, 40), mask=mask)
        angle = random.uniform(-15, 15)
        img, mask = img.rotate(angle, Image.BILINEAR), mask.rotate(angle, Image.NEAREST)
        if random.random() < 0.5:
            img, mask = img.transpose(Image.FLIP_LEFT_RIGHT), mask.transpose(Image.FLIP_LEFT_RIGHT)
        img = ImageEnhance.Brightness(img).enhance(random.uniform(0.8, 1.2))
        img = ImageEnhance.Contrast(img).enhance(random.uniform(0.8, 1.2))
        img, mask = img.resize((self.size, self.size), Image.BICUBIC), mask.resize((self.size, self.size), Image.NEAREST)
        x = (np.asarray(img).astype(np.float32) / 255 - 0.5).transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy((np.asarray(mask) > 127).astype(np.float32))


def double_conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.inc = double_conv(3, c)
        self.downs = nn.ModuleList([double_conv(c * 2 ** i, c * 2 ** (i + 1)) for i in range(4)])
        self.ups = nn.ModuleList([nn.ConvTranspose2d(c * 2 ** (i + 1), c * 2 ** i, 2, 2) for i in reversed(range(4))])
        self.convs = nn.ModuleList([double_conv(c * 2 ** (i + 1), c * 2 ** i) for i in reversed(range(4))])
        self.outc = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        xs = [self.inc(x)]
        for down in self.downs:
            xs.append(down(F.max_pool2d(xs[-1], 2)))
        x = xs.pop()
        for up, conv in zip(self.ups, self.convs):
            x = conv(torch.cat([xs.pop(), up(x)], 1))
        return self.outc(x).squeeze(1)


def dice_loss(logits, target):
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)


def train(batch_size=8, steps=40):
    loader = DataLoader(CarvanaLike(batch_size * steps), batch_size=batch_size, shuffle=True, num_workers=2, pin_memory=True)
    model = UNet().cuda()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    epoch_loss = 0
    for images, masks in loader:
        images, masks = images.to("cuda"), masks.to("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            pred = model(images)
            loss = F.binary_cross_entropy_with_logits(pred, masks) + dice_loss(pred.float(), masks)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        epoch_loss += loss.item()
    print("epoch loss", epoch_loss / steps)


if __name__ == "__main__":
    torch.manual_seed(0)
    train()
