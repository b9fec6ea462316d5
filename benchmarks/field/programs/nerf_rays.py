"""NeRF on one synthetic scene: coarse network, stratified samples along random rays."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

H = W = 400
FOCAL, NEAR, FAR, N_RAND, N_SAMPLES = 555.0, 2.0, 6.0, 2048, 96


class Embedder:
    def __init__(self, freqs):
        self.bands = 2.0 ** torch.linspace(0.0, freqs - 1, freqs)
        self.out_dim = 3 + 6 * freqs

    def __call__(self, x):
        out = [x]
        for freq in self.bands:
            for fn in (torch.sin, torch.cos):
                out.append(fn(x * freq))
        return torch.cat(out, -1)


class NeRF(nn.Module):
    def __init__(self, d_pts, d_views, D=8, W=256):
        super().__init__()
        self.pts = nn.ModuleList([nn.Linear(d_pts, W)] + [nn.Linear(W + d_pts if i == 4 else W, W) for i in range(D - 1)])
        self.alpha, self.feature = nn.Linear(W, 1), nn.Linear(W, W)
        self.views, self.rgb = nn.Linear(W + d_views, W // 2), nn.Linear(W // 2, 3)

    def forward(self, pts, views):
        h = pts
        for i, layer in enumerate(self.pts):
            h = F.relu(layer(h))
            if i == 4:
                h = torch.cat([pts, h], -1)
        alpha = self.alpha(h)
        h = F.relu(self.views(torch.cat([self.feature(h), views], -1)))
        return torch.cat([self.rgb(h), alpha], -1)


def get_rays(c2w):
    i, j = torch.meshgrid(torch.linspace(0, W - 1, W), torch.linspace(0, H - 1, H), indexing='xy')
    dirs = torch.stack([(i - W * .5) / FOCAL, -(j - H * .5) / FOCAL, -torch.ones_like(i)], -1)
    rays_d = torch.sum(dirs[..., None, :] * c2w[:3, :3].cpu(), -1)
    return c2w[:3, -1].expand(rays_d.shape), rays_d.to(c2w.device)


def raw2outputs(raw, z_vals, rays_d):
    dists = z_vals[..., 1:] - z_vals[..., :-1]
    dists = torch.cat([dists, torch.full_like(dists[..., :1], 1e10)], -1) * torch.norm(rays_d[..., None, :], dim=-1)
    rgb = torch.sigmoid(raw[..., :3])
    alpha = 1. - torch.exp(-F.relu(raw[..., 3]) * dists)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1. - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * trans
    return torch.sum(weights[..., None] * rgb, -2), weights


np.random.seed(0)
torch.manual_seed(0)
images = np.random.rand(20, H, W, 3).astype(np.float32)
poses = np.tile(np.eye(4, dtype=np.float32)[None, :3], (20, 1, 1))
poses[:, 2, 3] = 4.0
embed, embed_dirs = Embedder(10), Embedder(4)
model = NeRF(embed.out_dim, embed_dirs.out_dim).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.999))
for it in range(60):
    img_i = np.random.choice(20)
    target, pose = torch.Tensor(images[img_i]).cuda(), torch.Tensor(poses[img_i]).cuda()
    rays_o, rays_d = get_rays(pose)
    select = np.random.choice(H * W, size=[N_RAND], replace=False)
    rows, cols = torch.from_numpy(select // W).cuda(), torch.from_numpy(select % W).cuda()
    rays_o, rays_d, target_s = rays_o[rows, cols], rays_d[rows, cols], target[rows, cols]
    viewdirs = rays_d / torch.norm(rays_d, dim=-1, keepdim=True)
    z = torch.linspace(NEAR, FAR, N_SAMPLES).cuda().expand(N_RAND, N_SAMPLES)
    z = z + torch.rand(z.shape).cuda() * (FAR - NEAR) / N_SAMPLES
    pts = rays_o[:, None, :] + rays_d[:, None, :] * z[..., :, None]
    raw = model(embed(pts), embed_dirs(viewdirs)[:, None].expand(-1, N_SAMPLES, -1))
    rgb, _ = raw2outputs(raw, z, rays_d)
    loss = torch.mean((rgb - target_s) ** 2)
    psnr = -10. * torch.log10(loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group['lr'] = 5e-4 * 0.1 ** (it / 250000)
    if it % 20 == 0:
        print(f"[TRAIN] Iter: {it} Loss: {loss.item()}  PSNR: {psnr.item()}")
