"""x4 super-resolution of four-band satellite tiles with a residual channel attention network.

Low resolution is made on the GPU from random crops (area mean, point spread, shot noise). bf16, channels_last, compiled.
"""
import argparse
import copy
import math
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Tiles(Dataset):
    """Random crops, turned at random; integers travel, all else is done on the GPU."""

    def __init__(self, tiles, crop):
        self.tiles, self.crop = tiles, crop

    def __len__(self):
        return len(self.tiles)

    def __getitem__(self, i):
        tile, generator = self.tiles[i], torch.randint(0, 1 << 30, (3,)).tolist()
        top, left = generator[0] % (tile.shape[1] - self.crop + 1), generator[1] % (tile.shape[2] - self.crop + 1)
        crop = np.rot90(tile[:, top:top + self.crop, left:left + self.crop], generator[2] % 4, axes=(1, 2))
        if generator[2] & 4:
            crop = crop[:, :, ::-1]
        return torch.from_numpy(np.ascontiguousarray(crop))


def make_tiles(count, size):
    rng = np.random.default_rng(2)
    tiles = np.empty((count, 4, size, size), dtype=np.int16)
    y, x = np.mgrid[:size, :size].astype(np.float32) / size
    for tile in tiles:
        fields = np.kron(rng.normal(0, 1, (4, size // 16, size // 16)).astype(np.float32), np.ones((1, 16, 16), dtype=np.float32))
        waves = np.sin(40 * (rng.random() * x + rng.random() * y) + 6 * rng.random())
        tile[:] = (2000 + 500 * fields + 400 * waves).clip(0, 10000)
    return tiles


class ChannelAttention(nn.Module):
    def __init__(self, c, reduction=16):
        super().__init__()
        self.down, self.up = nn.Linear(c, c // reduction), nn.Linear(c // reduction, c)

    def forward(self, x):
        weight = torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
        return x * weight[:, :, None, None]


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.conv2, self.attention = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1), ChannelAttention(c)

    def forward(self, x):
        return x + self.attention(self.conv2(F.relu(self.conv1(x))))


class Group(nn.Module):
    def __init__(self, c, blocks):
        super().__init__()
        self.blocks, self.conv = nn.Sequential(*(Residual(c) for _ in range(blocks))), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.conv(self.blocks(x))


class RCAN(nn.Module):
    def __init__(self, c, groups, blocks):
        super().__init__()
        self.head = nn.Conv2d(4, c, 3, padding=1)
        self.groups, self.conv = nn.Sequential(*(Group(c, blocks) for _ in range(groups))), nn.Conv2d(c, c, 3, padding=1)
        self.tail = nn.Sequential(nn.Conv2d(c, 4 * c, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(c, 64, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(16, 4, 3, padding=1))

    def forward(self, x):
        h = self.head(x)
        base = F.interpolate(x, scale_factor=4, mode="bilinear", align_corners=False)
        return base + self.tail(h + self.conv(self.groups(h)))


def point_spread(device, sigma=1.4, size=9):
    at = torch.arange(size, device=device) - size // 2
    line = torch.exp(-at ** 2 / (2 * sigma ** 2))
    kernel = torch.outer(line, line)
    return (kernel / kernel.sum()).expand(4, 1, size, size).contiguous()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiles", type=int, default=1000)
    parser.add_argument("--tile-size", type=int, default=256)
    parser.add_argument("--crop", type=int, default=192)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--channels", type=int, default=96)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--lr", type=float, default=2e-4)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")

    data = Tiles(make_tiles(args.tiles, args.tile_size), args.crop)
    loader = DataLoader(data, batch_size=args.batch, sampler=RandomSampler(data, num_samples=args.batch * args.steps, replacement=True), drop_last=True,
                        num_workers=args.workers, pin_memory=device.type == "cuda", persistent_workers=args.workers > 0, prefetch_factor=4 if args.workers else None)
    model = RCAN(args.channels, args.groups, args.blocks).to(device, memory_format=torch.channels_last)
    averaged = copy.deepcopy(model).requires_grad_(False)
    weights, averages = list(model.parameters()), list(averaged.parameters())
    lr = torch.tensor(args.lr, device=device)
    optimizer = torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.99), weight_decay=1e-4, fused=True)
    kernel = point_spread(device)

    @torch.compile
    def objective(raw):
        with torch.no_grad():
            high = (raw.float() / 10000).contiguous(memory_format=torch.channels_last)
            blurred = F.conv2d(F.pad(high, (4, 4, 4, 4), mode="reflect"), kernel, groups=4)
            low = F.avg_pool2d(blurred, 4)
            low = low + torch.randn_like(low) * (1e-4 * low.clamp(min=0)).sqrt()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            out = model(low)
        error = out.float() - high
        return torch.sqrt(error ** 2 + 1e-6).mean(), error.detach().square().mean()

    sums, tic = torch.zeros(2, device=device), time.perf_counter()
    for step, raw in enumerate(loader):
        raw = raw.to(device, non_blocking=True)
        lr.fill_(args.lr * min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / args.steps))))
        loss, mse = objective(raw)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 0.001)
            sums += torch.stack([loss, mse])
        if (step + 1) % 50 == 0:
            charbonnier, mse = (sums / 50).tolist()
            sums.zero_()
            print(f"step {step + 1}/{args.steps} loss {charbonnier:.5f} PSNR {-10 * math.log10(mse):.2f} dB "
                  f"{(step + 1) * args.batch / (time.perf_counter() - tic):.0f} crops/s", flush=True)


if __name__ == "__main__":
    main()
