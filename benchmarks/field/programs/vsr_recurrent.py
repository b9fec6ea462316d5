# Bidirectional recurrent video super-resolution (x4), in the manner of BasicVSR
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

opt = dict(scale=4, frames=7, gt_size=256, batch=6, mid=64, blocks=12, iters=160, lr=2e-4, print_freq=20)


class ConvRes(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, 1, 1)
        self.conv2 = nn.Conv2d(c, c, 3, 1, 1)
        for m in (self.conv1, self.conv2):
            nn.init.kaiming_normal_(m.weight)
            m.weight.data *= 0.1
            nn.init.zeros_(m.bias)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(x), inplace=True))


class Trunk(nn.Module):
    def __init__(self, i, c, n):
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(i, c, 3, 1, 1), nn.LeakyReLU(0.1, inplace=True), *[ConvRes(c) for _ in range(n)])

    def forward(self, x):
        return self.main(x)


def flow_warp(x, flow, padding_mode="zeros"):
    """x: n c h w, flow: n h w 2"""
    _, _, h, w = x.size()
    gy, gx = torch.meshgrid(torch.arange(0, h), torch.arange(0, w), indexing="ij")
    grid = torch.stack((gx, gy), 2).type_as(x).to(x.device)
    grid.requires_grad = False
    vgrid = grid + flow
    vx = 2.0 * vgrid[..., 0] / max(w - 1, 1) - 1.0
    vy = 2.0 * vgrid[..., 1] / max(h - 1, 1) - 1.0
    return F.grid_sample(x, torch.stack((vx, vy), 3), mode="bilinear", padding_mode=padding_mode, align_corners=True)


class BasicModule(nn.Module):
    def __init__(self):
        super().__init__()
        cs = [8, 32, 64, 32, 16, 2]
        layers = []
        for a, b in zip(cs, cs[1:]):
            layers += [nn.Conv2d(a, b, 7, 1, 3), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.net(x)


class SpyNet(nn.Module):
    def __init__(self, levels=4):
        super().__init__()
        self.levels = nn.ModuleList([BasicModule() for _ in range(levels)])
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, ref, supp):
        ref, supp = [(ref - self.mean) / self.std], [(supp - self.mean) / self.std]
        for _ in range(len(self.levels) - 1):
            ref.insert(0, F.avg_pool2d(ref[0], 2, 2))
            supp.insert(0, F.avg_pool2d(supp[0], 2, 2))
        n, _, h, w = ref[0].size()
        flow = ref[0].new_zeros(n, 2, h // 2, w // 2)
        for r, s, net in zip(ref, supp, self.levels):
            up = F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True) * 2.0
            flow = net(torch.cat([r, flow_warp(s, up.permute(0, 2, 3, 1), "border"), up], 1)) + up
        return flow


class BasicVSR(nn.Module):
    def __init__(self, c=opt["mid"], n=opt["blocks"]):
        super().__init__()
        self.c = c
        self.spynet = SpyNet()
        self.backward_trunk, self.forward_trunk = Trunk(c + 3, c, n), Trunk(c + 3, c, n)
        self.fusion = nn.Conv2d(c * 2, c, 1)
        self.up1, self.up2 = nn.Conv2d(c, c * 4, 3, 1, 1), nn.Conv2d(c, 64 * 4, 3, 1, 1)
        self.hr, self.last = nn.Conv2d(64, 64, 3, 1, 1), nn.Conv2d(64, 3, 3, 1, 1)

    def get_flow(self, x):
        fwd, bwd = [], []
        for i in range(x.size(1) - 1):
            bwd.append(self.spynet(x[:, i], x[:, i + 1]))
            fwd.append(self.spynet(x[:, i + 1], x[:, i]))
        return torch.stack(fwd, 1), torch.stack(bwd, 1)

    def forward(self, x):
        b, n, _, h, w = x.size()
        flows_forward, flows_backward = self.get_flow(x)
        out_l = []
        feat = x.new_zeros(b, self.c, h, w)
        for i in range(n - 1, -1, -1):
            if i < n - 1:
                feat = flow_warp(feat, flows_backward[:, i].permute(0, 2, 3, 1))
            feat = self.backward_trunk(torch.cat([x[:, i], feat], dim=1))
            out_l.insert(0, feat)
        feat = torch.zeros_like(feat)
        for i in range(n):
            if i > 0:
                feat = flow_warp(feat, flows_forward[:, i - 1].permute(0, 2, 3, 1))
            feat = self.forward_trunk(torch.cat([x[:, i], feat], dim=1))
            out = F.leaky_relu(self.fusion(torch.cat([out_l[i], feat], dim=1)), 0.1)
            out = F.leaky_relu(F.pixel_shuffle(self.up1(out), 2), 0.1)
            out = F.leaky_relu(F.pixel_shuffle(self.up2(out), 2), 0.1)
            out = self.last(F.leaky_relu(self.hr(out), 0.1))
            out_l[i] = out + F.interpolate(x[:, i], scale_factor=4, mode="bilinear", align_corners=False)
        return torch.stack(out_l, dim=1)


class Clips:
    """Pans over large pictures; low resolution by blur and decimation (BD)."""

    def __init__(self):
        rng = np.random.RandomState(0)
        base = torch.from_numpy(rng.rand(20, 3, 96, 96).astype(np.float32))
        self.pictures = F.interpolate(base, scale_factor=6, mode="bicubic").clamp(0, 1)
        x = torch.arange(13).float() - 6
        k = torch.exp(-x ** 2 / (2 * 1.6 ** 2))
        k = k[:, None] * k[None]
        self.kernel = (k / k.sum()).expand(3, 1, 13, 13)

    def degrade(self, hq):
        b, t, c, h, w = hq.shape
        flat = F.pad(hq.view(b * t, c, h, w), (6, 6, 6, 6), mode="reflect")
        lq = F.conv2d(flat, self.kernel, stride=opt["scale"], groups=3)
        return lq.view(b, t, c, h // 4, w // 4)

    def batch(self):
        size, clips = opt["gt_size"], []
        for _ in range(opt["batch"]):
            pic = self.pictures[np.random.randint(20)]
            y, x = np.random.randint(60, pic.shape[1] - size - 60, 2)
            dy, dx = np.random.randint(-8, 9, 2)
            clips.append(torch.stack([pic[:, y + t * dy:y + t * dy + size, x + t * dx:x + t * dx + size] for t in range(opt["frames"])]))
        hq = torch.stack(clips)
        return self.degrade(hq), hq


def charbonnier(pred, target, eps=1e-12):
    return torch.sqrt((pred - target) ** 2 + eps).mean()


torch.manual_seed(10)
np.random.seed(10)
clips, net = Clips(), BasicVSR().cuda()
params = [{"params": net.spynet.parameters(), "lr": opt["lr"] * 0.125},
          {"params": [p for n, p in net.named_parameters() if not n.startswith("spynet")]}]
optim_g = torch.optim.Adam(params, lr=opt["lr"], betas=(0.9, 0.99))
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim_g, 300000, eta_min=1e-7)
t_start = time.time()
for current_iter in range(1, opt["iters"] + 1):
    lq, gt = clips.batch()
    lq, gt = lq.cuda(), gt.cuda()
    optim_g.zero_grad()
    sr = net(lq)
    l_pix = charbonnier(sr, gt)
    l_pix.backward()
    optim_g.step()
    sched.step()
    if current_iter % opt["print_freq"] == 0:
        psnr = -10 * torch.log10(F.mse_loss(sr.detach().clamp(0, 1), gt))
        print(f"iter {current_iter} l_pix {l_pix.item():.4e} psnr {psnr.item():.2f} ({(time.time() - t_start) / current_iter:.3f} s/iter)")
