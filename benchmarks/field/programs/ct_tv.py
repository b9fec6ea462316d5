"""Iterative CT reconstruction of noisy parallel-beam sinograms: least squares with total variation, gradients by autograd."""
import math
import time

import numpy as np
import torch
import torch.nn.functional as F

SIZE = 256
ANGLES = 180
SLICES = 20
GROUP = 4            # slices that are reconstructed together
ITERATIONS = 160
LAMBDA_TV = 0.02
LR = 0.02
PHOTONS = 2e4

device = torch.device("cuda")


def random_phantoms(n, size, seed=0):
    """Ellipses in a disc, attenuation between 0 and 1."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[-1:1:size * 1j, -1:1:size * 1j]
    phantoms = np.zeros((n, 1, size, size), dtype=np.float32)
    for i in range(n):
        phantoms[i, 0][x ** 2 / 0.7 + y ** 2 / 0.8 < 1] = 0.3
        for _ in range(12):
            cx, cy = rng.uniform(-0.5, 0.5, 2)
            a, b, t = rng.uniform(0.03, 0.25), rng.uniform(0.03, 0.25), rng.uniform(0, math.pi)
            u, v = (x - cx) * math.cos(t) + (y - cy) * math.sin(t), -(x - cx) * math.sin(t) + (y - cy) * math.cos(t)
            phantoms[i, 0][(u / a) ** 2 + (v / b) ** 2 < 1] += rng.uniform(-0.2, 0.4)
    return torch.from_numpy(phantoms.clip(0, 1))


def project(img, theta):
    """Line integrals along the columns of the rotated image."""
    grid = F.affine_grid(theta, img.shape, align_corners=False)
    rotated = F.grid_sample(img, grid, align_corners=False)
    return rotated.sum(dim=2)


def radon(img, angles):
    """(N, 1, H, W) -> (N, 1, angles, W)"""
    sinogram = []
    for angle in angles:
        c, s = math.cos(angle), math.sin(angle)
        theta = torch.tensor([[[c, -s, 0.0], [s, c, 0.0]]], device=img.device).repeat(img.shape[0], 1, 1)
        sinogram.append(project(img, theta))
    return torch.stack(sinogram, dim=2)


def tv_loss(img, eps=1e-6):
    dx = img[..., 1:, :-1] - img[..., :-1, :-1]
    dy = img[..., :-1, 1:] - img[..., :-1, :-1]
    return torch.sqrt(dx ** 2 + dy ** 2 + eps).mean()


def measure(phantoms, angles):
    """Sinograms with the noise of counted photons."""
    with torch.no_grad():
        lines = radon(phantoms, angles) * (2.0 / SIZE)
        counts = torch.poisson(PHOTONS * torch.exp(-lines))
        return -torch.log(counts.clamp(min=1) / PHOTONS), counts / PHOTONS


def psnr(a, b):
    return 10 * torch.log10(1.0 / F.mse_loss(a, b))


def reconstruct(sinogram, weights, angles, truth):
    image = torch.zeros_like(truth, requires_grad=True)
    optimizer = torch.optim.Adam([image], lr=LR)
    history = []
    for it in range(ITERATIONS):
        optimizer.zero_grad()
        predicted = radon(image, angles) * (2.0 / SIZE)
        data_loss = (weights * (predicted - sinogram) ** 2).mean()
        reg_loss = tv_loss(image)
        loss = data_loss + LAMBDA_TV * reg_loss / SIZE
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            image.clamp_(min=0)
        history.append(loss.item())
        if it % 20 == 0:
            print(f"  it {it:4d}  data {data_loss.item():.3e}  tv {reg_loss.item():.4f}  psnr {psnr(image.detach(), truth).item():.2f} dB", flush=True)
    return image.detach(), history


def main():
    torch.manual_seed(0)
    angles = np.linspace(0, math.pi, ANGLES, endpoint=False)
    phantoms = random_phantoms(SLICES, SIZE)
    results = []
    for first in range(0, SLICES, GROUP):
        truth = phantoms[first:first + GROUP].to(device)
        sinogram, weights = measure(truth, angles)
        start = time.time()
        image, history = reconstruct(sinogram, weights, angles, truth)
        results.append(psnr(image, truth).item())
        print(f"slices {first}-{first + GROUP - 1}: loss {history[0]:.3e} -> {history[-1]:.3e}, psnr {results[-1]:.2f} dB, {time.time() - start:.1f} s", flush=True)
    print(f"mean psnr {np.mean(results):.2f} dB")


if __name__ == "__main__":
    main()
