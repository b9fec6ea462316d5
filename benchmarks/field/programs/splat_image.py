"""Fit an image with 2D Gaussians: plain tensor operations, tiles of the image one after another."""
import torch

torch.manual_seed(0)
device = "cuda"
N, SIZE, TILE = 600, 192, 64
yy, xx = torch.meshgrid(torch.linspace(0, 1, SIZE, device=device), torch.linspace(0, 1, SIZE, device=device), indexing="ij")
target = torch.stack([torch.sin(8 * xx) * 0.5 + 0.5, yy, ((xx - 0.5) ** 2 + (yy - 0.5) ** 2 < 0.1).float()], -1)
target = (target + 0.05 * torch.randn_like(target)).clamp(0, 1)

params = {
    "mean": torch.rand(N, 2, device=device),
    "log_scale": torch.full((N, 2), -3.5, device=device),
    "angle": torch.rand(N, device=device) * 3.14,
    "color": torch.rand(N, 3, device=device),
    "opacity": torch.zeros(N, device=device),
}
params = {k: v.requires_grad_() for k, v in params.items()}
optimizer = torch.optim.Adam([
    {"params": [params["mean"]], "lr": 1e-3},
    {"params": [params["log_scale"]], "lr": 5e-3},
    {"params": [params["angle"]], "lr": 1e-2},
    {"params": [params["color"], params["opacity"]], "lr": 2.5e-2},
])


def render_tile(mean, log_scale, angle, color, opacity, px):
    cos, sin = torch.cos(angle), torch.sin(angle)
    inv = torch.exp(-2 * log_scale)
    a = cos * cos * inv[:, 0] + sin * sin * inv[:, 1]
    b = cos * sin * (inv[:, 0] - inv[:, 1])
    c = sin * sin * inv[:, 0] + cos * cos * inv[:, 1]
    d = px[:, None] - mean[None]
    power = -0.5 * (a * d[..., 0] ** 2 + 2 * b * d[..., 0] * d[..., 1] + c * d[..., 1] ** 2)
    alpha = (torch.sigmoid(opacity) * torch.exp(power)).clamp(max=0.99)
    transmittance = torch.cumprod(1 - alpha + 1e-7, 1)
    transmittance = torch.cat([torch.ones_like(transmittance[:, :1]), transmittance[:, :-1]], 1)
    return (transmittance * alpha) @ torch.sigmoid(color)


pixels = torch.stack([xx, yy], -1)
for step in range(60):
    loss = 0
    for i in range(0, SIZE, TILE):
        for j in range(0, SIZE, TILE):
            px = pixels[i:i + TILE, j:j + TILE].reshape(-1, 2)
            out = render_tile(**params, px=px)
            loss = loss + (out - target[i:i + TILE, j:j + TILE].reshape(-1, 3)).abs().mean()
    loss = loss / (SIZE // TILE) ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} L1 {loss.item():.4f}")
