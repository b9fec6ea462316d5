"""Precipitation nowcasting: 12 radar frames in, the next 12 out, U-Net on random crops.

Sequences stay on the GPU as uint8 and crops are gathered there. compile + bf16 + channels_last + fused AdamW, EMA by foreach.
"""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
PAST, FUTURE = 12, 12
SEQUENCES, LENGTH, SIDE, CROP = 192, 60, 192, 128
BASE, BATCH = 96, 48
STEPS, WARMUP, LR = 900, 100, 4e-4
EMA = 0.999

torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True


@torch.no_grad()
def make_radar():
    """Rain fields that drift, grow and decay: (SEQUENCES, LENGTH, SIDE, SIDE) uint8."""
    radar = torch.empty(SEQUENCES, LENGTH, SIDE, SIDE, dtype=torch.uint8, device=DEVICE)
    k = 2 * math.pi * torch.fft.fftfreq(SIDE, device=DEVICE)
    kx, ky = k[None, :], k[:, None]
    spectrum = (kx ** 2 + ky ** 2 + 0.01) ** -1.25
    for i in range(SEQUENCES):
        a = torch.fft.fft2(torch.randn(2, SIDE, SIDE, device=DEVICE)) * spectrum
        vx, vy = (torch.rand(2) * 4 - 2).tolist()
        for t in range(LENGTH):
            mixed = math.cos(0.02 * t) * a[0] + math.sin(0.02 * t) * a[1]
            field = torch.fft.ifft2(mixed * torch.polar(torch.ones_like(spectrum), -t * (vx * kx + vy * ky))).real
            radar[i, t] = (field / field.std() * 70 - 10).clamp(0, 255).to(torch.uint8)
    return radar


frame_offsets = torch.arange(PAST + FUTURE, device=DEVICE)[None, :, None, None]
row_offsets = torch.arange(CROP, device=DEVICE)[None, None, :, None]
column_offsets = torch.arange(CROP, device=DEVICE)[None, None, None, :]


def sample(radar):
    which = torch.randint(SEQUENCES, (BATCH, 1, 1, 1), device=DEVICE)
    t = torch.randint(LENGTH - PAST - FUTURE + 1, (BATCH, 1, 1, 1), device=DEVICE) + frame_offsets
    y = torch.randint(SIDE - CROP + 1, (BATCH, 1, 1, 1), device=DEVICE) + row_offsets
    x = torch.randint(SIDE - CROP + 1, (BATCH, 1, 1, 1), device=DEVICE) + column_offsets
    return radar[which, t, y, x]


class Residual(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(min(16, a), a), nn.Conv2d(a, b, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(16, b), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, base=BASE, multipliers=(1, 2, 4, 4)):
        super().__init__()
        widths = [base * m for m in multipliers]
        self.inp = nn.Conv2d(PAST, base, 3, padding=1)
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        a = base
        for w in widths:
            self.encoder.append(Residual(a, w))
            a = w
        self.middle = Residual(a, a)
        for w in reversed(widths):
            self.decoder.append(Residual(a + w, w))
            a = w
        self.out = nn.Conv2d(a, FUTURE, 3, padding=1)

    def forward(self, x):
        skips, last = [], x[:, -1:]
        x = self.inp(x)
        for i, block in enumerate(self.encoder):
            x = block(x if i == 0 else F.avg_pool2d(x, 2))
            skips.append(x)
        x = self.middle(x)
        for i, block in enumerate(self.decoder):
            x = block(torch.cat([x if i == 0 else F.interpolate(x, scale_factor=2), skips.pop()], dim=1))
        return last + self.out(x)


def loss_of(model, frames):
    frames = frames.float() / 255
    past, future = frames[:, :PAST].contiguous(memory_format=torch.channels_last), frames[:, PAST:]
    with torch.autocast(torch.device(DEVICE).type, dtype=torch.bfloat16):
        predicted = model(past)
    weight = 1 + 4 * future          # heavy rain counts more
    return (weight * (predicted.float() - future).abs()).mean()


def main():
    radar = make_radar()
    model = UNet().to(DEVICE, memory_format=torch.channels_last)
    params = list(model.parameters())
    ema = [p.detach().clone() for p in params]
    optimizer = torch.optim.AdamW(params, lr=LR, weight_decay=0.01, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1, (s + 1) / WARMUP) * (0.1 + 0.9 * max(0.0, 1 - s / STEPS)))
    compiled_loss = torch.compile(loss_of)
    print(f"{sum(p.numel() for p in params) / 1e6:.1f}M parameters, {radar.numel() / 1e6:.0f} MB of radar")

    running, tic = torch.zeros((), device=DEVICE), time.time()
    for step in range(STEPS):
        frames = sample(radar)
        loss = compiled_loss(model, frames)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(ema, params, 1 - EMA)

        running += loss.detach()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {running.item() / 100:.4f} {BATCH * (step + 1) / (time.time() - tic):.0f} crops/s", flush=True)
            running.zero_()
    torch.save([e.cpu() for e in ema], "/tmp/radar_ema.pt")


if __name__ == "__main__":
    main()
