"""Mean-scale hyperprior image codec (Minnen et al. 2018), one rate point. Noise proxy for the quantiser, no context model."""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
N, M = 192, 320
LAMBDA = 0.013
BATCH, CROP = 32, 256
IMAGES, SIDE = 1024, 320
STEPS = 700


def make_images(n):
    """Smooth colour fields with some edges and grain, uint8 on the GPU."""
    images = torch.empty(n, 3, SIDE, SIDE, dtype=torch.uint8, device=DEVICE)
    for a in range(0, n, 64):
        k = min(64, n - a)
        x = 0
        for cells in (5, 16, 48):
            x = x + F.interpolate(torch.randn(k, 3, cells, cells, device=DEVICE), SIDE, mode="bicubic") / cells ** 0.5
        edges = (F.interpolate(torch.randn(k, 1, 7, 7, device=DEVICE), SIDE, mode="bilinear") > 0.3).float()
        x = 0.5 + 0.25 * x + 0.2 * edges + 0.01 * torch.randn(k, 3, SIDE, SIDE, device=DEVICE)
        images[a:a + k] = (x.clamp(0, 1) * 255).to(torch.uint8)
    return images


def random_crops(images):
    crops = []
    for i in torch.randint(len(images), (BATCH,)).tolist():
        y, x = torch.randint(SIDE - CROP + 1, (2,)).tolist()
        crop = images[i, :, y:y + CROP, x:x + CROP]
        if torch.rand(()) < 0.5:
            crop = crop.flip(-1)
        crops.append(crop)
    return torch.stack(crops).float() / 255


class GDN(nn.Module):
    def __init__(self, channels, inverse=False):
        super().__init__()
        self.inverse = inverse
        self.beta = nn.Parameter(torch.ones(channels))
        self.gamma = nn.Parameter(0.1 * torch.eye(channels) + 1e-3)

    def forward(self, x):
        gamma = self.gamma.clamp(min=1e-6)[:, :, None, None]
        norm = torch.sqrt(F.conv2d(x ** 2, gamma, self.beta.clamp(min=1e-6)))
        return x * norm if self.inverse else x / norm


def down(a, b, k=5):
    return nn.Conv2d(a, b, k, stride=2, padding=k // 2)


def up(a, b, k=5):
    return nn.ConvTranspose2d(a, b, k, stride=2, padding=k // 2, output_padding=1)


def gaussian_bits(v, mean, scale):
    """-log2 of the mass of the unit bin around v."""
    scale = scale.clamp(min=0.11)
    v = (v - mean).abs()
    upper = 0.5 * torch.erfc((v - 0.5) / (scale * math.sqrt(2)))
    lower = 0.5 * torch.erfc((v + 0.5) / (scale * math.sqrt(2)))
    return -torch.log2((upper - lower).clamp(min=1e-9))


class Hyperprior(nn.Module):
    def __init__(self):
        super().__init__()
        self.analysis = nn.Sequential(down(3, N), GDN(N), down(N, N), GDN(N), down(N, N), GDN(N), down(N, M))
        self.synthesis = nn.Sequential(up(M, N), GDN(N, True), up(N, N), GDN(N, True), up(N, N), GDN(N, True), up(N, 3))
        self.hyper_analysis = nn.Sequential(
            nn.Conv2d(M, N, 3, padding=1), nn.LeakyReLU(), down(N, N), nn.LeakyReLU(), down(N, N))
        self.hyper_synthesis = nn.Sequential(
            up(N, M), nn.LeakyReLU(), up(M, 3 * M // 2), nn.LeakyReLU(), nn.Conv2d(3 * M // 2, 2 * M, 3, padding=1))
        self.z_mean = nn.Parameter(torch.zeros(N, 1, 1))
        self.z_scale = nn.Parameter(torch.ones(N, 1, 1))

    def forward(self, x):
        y = self.analysis(x)
        z = self.hyper_analysis(y)
        z_hat = z + torch.rand_like(z) - 0.5
        mean, scale = self.hyper_synthesis(z_hat).chunk(2, dim=1)
        y_hat = y + torch.rand_like(y) - 0.5
        x_hat = self.synthesis(y_hat)

        pixels = x.shape[0] * x.shape[2] * x.shape[3]
        y_bits = gaussian_bits(y_hat, mean, F.softplus(scale)).sum() / pixels
        z_bits = gaussian_bits(z_hat, self.z_mean, self.z_scale.abs()).sum() / pixels
        mse = F.mse_loss(x_hat, x)
        return y_bits, z_bits, mse


def main():
    torch.manual_seed(0)
    images = make_images(IMAGES)
    model = Hyperprior().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, {len(images)} images")

    meters, tic = [], time.time()
    for step in range(STEPS):
        x = random_crops(images)
        y_bits, z_bits, mse = model(x)
        loss = y_bits + z_bits + LAMBDA * 255 ** 2 * mse
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        meters.append([loss.item(), (y_bits + z_bits).item(), -10 * math.log10(mse.item())])
        if (step + 1) % 50 == 0:
            loss_avg, bpp, psnr = (sum(c) / len(c) for c in zip(*meters))
            print(f"step {step + 1:4d} loss {loss_avg:.3f} bpp {bpp:.3f} psnr {psnr:.2f} dB {time.time() - tic:.1f} s", flush=True)
            meters = []
    torch.save(model.state_dict(), "/tmp/hyperprior.pt")


if __name__ == "__main__":
    main()
