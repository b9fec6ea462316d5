"""Self-supervised monocular depth and ego-motion from video triplets, in the manner of Monodepth2.

A depth network sees the middle frame, a pose network sees pairs, and the neighbours are warped into the
middle frame at four scales. Frames are synthetic: smooth noise that drifts sideways.
"""
import argparse
import time

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--height", type=int, default=192)
    p.add_argument("--width", type=int, default=640)
    p.add_argument("--batch_size", type=int, default=12)
    p.add_argument("--clips", type=int, default=48)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--smoothness", type=float, default=1e-3)
    p.add_argument("--log_every", type=int, default=10)
    return p.parse_args()


class ConvBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.pad, self.conv, self.act = nn.ReflectionPad2d(1), nn.Conv2d(i, o, 3), nn.ELU(inplace=True)

    def forward(self, x):
        return self.act(self.conv(self.pad(x)))


class DepthNet(nn.Module):
    """ResNet-18 encoder, skip connections, a disparity at each of the last four resolutions."""

    def __init__(self):
        super().__init__()
        self.encoder = timm.create_model("resnet18", pretrained=False, features_only=True)
        enc, dec = [64, 64, 128, 256, 512], [16, 32, 64, 128, 256]
        self.up0, self.up1, self.disp = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for i in range(5):
            self.up0.append(ConvBlock(enc[4] if i == 4 else dec[i + 1], dec[i]))
            self.up1.append(ConvBlock(dec[i] + (enc[i - 1] if i > 0 else 0), dec[i]))
        for i in range(4):
            self.disp.append(nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(dec[i], 1, 3)))

    def forward(self, x):
        feats = self.encoder((x - 0.45) / 0.225)
        x, disps = feats[-1], {}
        for i in range(4, -1, -1):
            x = F.interpolate(self.up0[i](x), scale_factor=2, mode="nearest")
            if i > 0:
                x = torch.cat([x, feats[i - 1]], 1)
            x = self.up1[i](x)
            if i < 4:
                disps[i] = torch.sigmoid(self.disp[i](x))
        return disps


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = timm.create_model("resnet18", pretrained=False, in_chans=6, num_classes=0, global_pool="")
        self.head = nn.Sequential(nn.Conv2d(512, 256, 1), nn.ReLU(True), nn.Conv2d(256, 256, 3, padding=1),
                                  nn.ReLU(True), nn.Conv2d(256, 6, 1))

    def forward(self, a, b):
        out = 0.01 * self.head(self.encoder(torch.cat([a, b], 1))).mean((2, 3))
        return out[:, :3], out[:, 3:]


def pose_matrix(axisangle, translation):
    angle = axisangle.norm(dim=1, keepdim=True)
    x, y, z = (axisangle / (angle + 1e-7)).unbind(1)
    c, s = angle.cos()[:, 0], angle.sin()[:, 0]
    k = 1 - c
    rot = torch.stack([c + x * x * k, x * y * k - z * s, x * z * k + y * s,
                       y * x * k + z * s, c + y * y * k, y * z * k - x * s,
                       z * x * k - y * s, z * y * k + x * s, c + z * z * k], 1).view(-1, 3, 3)
    return torch.cat([rot, translation[:, :, None]], 2)


def camera_rays(K, height, width):
    """Directions of all pixels, 3 x HW."""
    ys, xs = torch.meshgrid(torch.arange(height, dtype=torch.float32), torch.arange(width, dtype=torch.float32),
                            indexing="ij")
    pixels = torch.stack([xs.flatten(), ys.flatten(), torch.ones(height * width)]).to(K.device)
    return torch.linalg.inv(K) @ pixels


class SSIM(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool, self.pad = nn.AvgPool2d(3, 1), nn.ReflectionPad2d(1)

    def forward(self, x, y):
        x, y = self.pad(x), self.pad(y)
        mu_x, mu_y = self.pool(x), self.pool(y)
        sigma_x, sigma_y = self.pool(x ** 2) - mu_x ** 2, self.pool(y ** 2) - mu_y ** 2
        sigma_xy = self.pool(x * y) - mu_x * mu_y
        n = (2 * mu_x * mu_y + 0.01 ** 2) * (2 * sigma_xy + 0.03 ** 2)
        d = (mu_x ** 2 + mu_y ** 2 + 0.01 ** 2) * (sigma_x + sigma_y + 0.03 ** 2)
        return torch.clamp((1 - n / d) / 2, 0, 1)


class Trainer:
    def __init__(self, opt):
        self.opt = opt
        self.depth, self.pose, self.ssim = DepthNet().cuda(), PoseNet().cuda(), SSIM()
        self.optimizer = torch.optim.Adam([*self.depth.parameters(), *self.pose.parameters()], lr=opt.lr)
        w, h = opt.width, opt.height
        self.K = torch.tensor([[0.58 * w, 0, 0.5 * w], [0, 1.92 * h, 0.5 * h], [0, 0, 1]], device="cuda")
        coarse = torch.rand(opt.clips, 3, h // 8, w // 8 + 8)
        wide = F.interpolate(coarse, size=(h, w + 64), mode="bilinear")
        frames = torch.stack([wide[..., 8 * k:8 * k + w] for k in range(3)], 1)
        self.clips = (frames * 255).to(torch.uint8)

    def reprojection(self, depth, T, source):
        h, w = self.opt.height, self.opt.width
        rays = camera_rays(self.K, h, w)
        points = depth.flatten(2) * rays
        cam = self.K @ (T[:, :, :3] @ points + T[:, :, 3:])
        xy = cam[:, :2] / (cam[:, 2:] + 1e-7)
        grid = torch.stack([xy[:, 0] / (w - 1), xy[:, 1] / (h - 1)], -1).view(-1, h, w, 2) * 2 - 1
        return F.grid_sample(source, grid, padding_mode="border", align_corners=True)

    def photometric(self, pred, target):
        l1 = (target - pred).abs().mean(1, keepdim=True)
        return 0.85 * self.ssim(pred, target).mean(1, keepdim=True) + 0.15 * l1

    def losses(self, frames):
        before, target, after = frames.unbind(1)
        disps = self.depth(target)
        poses = {-1: pose_matrix(*self.pose(before, target)), 1: pose_matrix(*self.pose(target, after))}
        sources, total = {-1: before, 1: after}, 0
        for scale in range(4):
            disp = F.interpolate(disps[scale], frames.shape[-2:], mode="bilinear", align_corners=False)
            depth = 1 / (0.01 + 9.99 * disp)
            warped = [self.photometric(self.reprojection(depth, poses[f], sources[f]), target) for f in (-1, 1)]
            # pixels that fit better without any motion do not count
            still = [self.photometric(sources[f], target) for f in (-1, 1)]
            still = torch.cat(still, 1)
            still = still + torch.randn_like(still) * 1e-5
            best = torch.cat([still, *warped], 1).min(1).values
            norm = disps[scale] / (disps[scale].mean((2, 3), keepdim=True) + 1e-7)
            color = F.interpolate(target, norm.shape[-2:], mode="area")
            dx = (norm[..., 1:] - norm[..., :-1]).abs() * torch.exp(-(color[..., 1:] - color[..., :-1]).abs().mean(1, True))
            dy = (norm[..., 1:, :] - norm[..., :-1, :]).abs() \
                * torch.exp(-(color[..., 1:, :] - color[..., :-1, :]).abs().mean(1, True))
            total = total + best.mean() + self.opt.smoothness * (dx.mean() + dy.mean()) / 2 ** scale
        return total / 4

    def train(self):
        since = time.time()
        for step in range(self.opt.steps):
            pick = torch.randint(0, self.opt.clips, (self.opt.batch_size,))
            frames = self.clips[pick].cuda().float() / 255
            loss = self.losses(frames)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % self.opt.log_every == 0:
                print(f"step {step:4d} loss {loss.item():.5f} {time.time() - since:.1f}s")


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(get_args()).train()
