# RAFT-style optical flow, training on synthetic affine motion ("flying textures")
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--iters", type=int, default=12)
parser.add_argument("--batch_size", type=int, default=6)
parser.add_argument("--image_size", type=int, nargs=2, default=[368, 496])
parser.add_argument("--num_steps", type=int, default=180)
parser.add_argument("--gamma", type=float, default=0.8)
parser.add_argument("--workers", type=int, default=4)
args = parser.parse_args()
H, W = args.image_size
RADIUS, LEVELS = 4, 4


class FlyingTextures(Dataset):
    def __init__(self):
        rng = np.random.RandomState(0)
        low = torch.from_numpy(rng.rand(24, 3, 40, 52).astype(np.float32))
        self.textures = (F.interpolate(low, size=(H + 80, W + 80), mode="bicubic") * 255).clamp(0, 255)
        self.textures += torch.from_numpy(rng.randn(*self.textures.shape).astype(np.float32)) * 8

    def __len__(self):
        return 100000

    def __getitem__(self, i):
        tex = self.textures[np.random.randint(len(self.textures))]
        A = torch.from_numpy(np.random.randn(2, 2).astype(np.float32)) * 0.02
        t = torch.from_numpy(np.random.randn(2, 1, 1).astype(np.float32)) * 8
        yy, xx = torch.meshgrid(torch.arange(H).float(), torch.arange(W).float(), indexing="ij")
        rel = torch.stack([xx - W / 2, yy - H / 2])
        flow = torch.einsum("ij,jhw->ihw", A, rel) + t
        img1 = tex[:, 40:40 + H, 40:40 + W]
        src = torch.stack([xx, yy]) - flow + 40      # inverse of small motion, good enough
        grid = torch.stack([2 * src[0] / (W + 79) - 1, 2 * src[1] / (H + 79) - 1], -1)
        img2 = F.grid_sample(tex[None], grid[None], align_corners=True)[0]
        return img1, img2, flow, (flow.abs() < 400).all(0).float()


class ResidualBlock(nn.Module):
    def __init__(self, a, b, norm, stride=1):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, stride, 1), nn.Conv2d(b, b, 3, 1, 1)
        self.norm1, self.norm2 = norm(b), norm(b)
        self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride), norm(b)) if stride > 1 or a != b else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.down(x) + y)


def encoder(out, norm):
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), norm(64), nn.ReLU(inplace=True),
                         ResidualBlock(64, 64, norm), ResidualBlock(64, 64, norm),
                         ResidualBlock(64, 96, norm, 2), ResidualBlock(96, 96, norm),
                         ResidualBlock(96, 128, norm, 2), ResidualBlock(128, 128, norm), nn.Conv2d(128, out, 1))


def coords_grid(b, h, w):
    ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack([xs, ys]).float()[None].repeat(b, 1, 1, 1)


def bilinear_sampler(img, coords):
    h, w = img.shape[-2:]
    x, y = coords.split([1, 1], dim=-1)
    return F.grid_sample(img, torch.cat([2 * x / (w - 1) - 1, 2 * y / (h - 1) - 1], -1), align_corners=True)


class CorrBlock:
    def __init__(self, f1, f2):
        b, c, h, w = f1.shape
        corr = torch.matmul(f1.view(b, c, h * w).transpose(1, 2), f2.view(b, c, h * w)) / c ** 0.5
        corr = corr.reshape(b * h * w, 1, h, w)
        self.pyramid = [corr]
        for _ in range(LEVELS - 1):
            corr = F.avg_pool2d(corr, 2, stride=2)
            self.pyramid.append(corr)

    def __call__(self, coords):
        coords = coords.permute(0, 2, 3, 1)
        b, h, w, _ = coords.shape
        out = []
        for i, corr in enumerate(self.pyramid):
            d = torch.linspace(-RADIUS, RADIUS, 2 * RADIUS + 1)
            delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), dim=-1).to(coords.device)
            lookup = coords.reshape(b * h * w, 1, 1, 2) / 2 ** i + delta[None]
            out.append(bilinear_sampler(corr, lookup).view(b, h, w, -1))
        return torch.cat(out, dim=-1).permute(0, 3, 1, 2).contiguous().float()


class SepConvGRU(nn.Module):
    def __init__(self, hidden=128, inp=256):
        super().__init__()
        for n, k, p in (("1", (1, 5), (0, 2)), ("2", (5, 1), (2, 0))):
            for g in "zrq":
                setattr(self, f"conv{g}{n}", nn.Conv2d(hidden + inp, hidden, k, padding=p))

    def forward(self, h, x):
        for n in "12":
            hx = torch.cat([h, x], dim=1)
            z = torch.sigmoid(getattr(self, "convz" + n)(hx))
            r = torch.sigmoid(getattr(self, "convr" + n)(hx))
            q = torch.tanh(getattr(self, "convq" + n)(torch.cat([r * h, x], dim=1)))
            h = (1 - z) * h + z * q
        return h


class UpdateBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.convc1, self.convc2 = nn.Conv2d(LEVELS * (2 * RADIUS + 1) ** 2, 256, 1), nn.Conv2d(256, 192, 3, padding=1)
        self.convf1, self.convf2 = nn.Conv2d(2, 128, 7, padding=3), nn.Conv2d(128, 64, 3, padding=1)
        self.conv, self.gru = nn.Conv2d(256, 126, 3, padding=1), SepConvGRU()
        self.flow_head = nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 2, 3, padding=1))
        self.mask = nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 64 * 9, 1))

    def forward(self, net, inp, corr, flow):
        cor = F.relu(self.convc2(F.relu(self.convc1(corr))))
        flo = F.relu(self.convf2(F.relu(self.convf1(flow))))
        motion = torch.cat([F.relu(self.conv(torch.cat([cor, flo], 1))), flow], 1)
        net = self.gru(net, torch.cat([inp, motion], 1))
        return net, 0.25 * self.mask(net), self.flow_head(net)


class RAFT(nn.Module):
    def __init__(self):
        super().__init__()
        self.fnet, self.cnet, self.update = encoder(256, nn.InstanceNorm2d), encoder(256, nn.BatchNorm2d), UpdateBlock()

    def upsample_flow(self, flow, mask):
        n, _, h, w = flow.shape
        mask = torch.softmax(mask.view(n, 1, 9, 8, 8, h, w), dim=2)
        up = F.unfold(8 * flow, [3, 3], padding=1).view(n, 2, 9, 1, 1, h, w)
        return torch.sum(mask * up, dim=2).permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 8 * h, 8 * w)

    def forward(self, image1, image2, iters):
        image1, image2 = 2 * (image1 / 255.0) - 1.0, 2 * (image2 / 255.0) - 1.0
        fmap1, fmap2 = self.fnet(image1), self.fnet(image2)
        corr_fn = CorrBlock(fmap1.float(), fmap2.float())
        net, inp = torch.split(self.cnet(image1), [128, 128], dim=1)
        net, inp = torch.tanh(net), torch.relu(inp)
        coords0 = coords_grid(len(image1), H // 8, W // 8).to(image1.device)
        coords1, predictions = coords0.clone(), []
        for _ in range(iters):
            coords1 = coords1.detach()
            corr = corr_fn(coords1)
            net, mask, delta = self.update(net, inp, corr, coords1 - coords0)
            coords1 = coords1 + delta
            predictions.append(self.upsample_flow(coords1 - coords0, mask))
        return predictions


def sequence_loss(preds, gt, valid):
    loss = 0.0
    for i, p in enumerate(preds):
        loss = loss + args.gamma ** (len(preds) - i - 1) * (valid[:, None] * (p - gt).abs()).mean()
    epe = torch.sum((preds[-1] - gt) ** 2, dim=1).sqrt().view(-1)[valid.view(-1) >= 0.5]
    return loss, {"epe": epe.mean().item(), "1px": (epe < 1).float().mean().item(), "3px": (epe < 3).float().mean().item()}


torch.manual_seed(1234)
np.random.seed(1234)
model = RAFT().cuda().train()
print("Parameter Count: %d" % sum(p.numel() for p in model.parameters()))
loader = DataLoader(FlyingTextures(), batch_size=args.batch_size, num_workers=args.workers, drop_last=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=1e-4, eps=1e-8)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-4, 100000, pct_start=0.05, anneal_strategy="linear")
for total_steps, blob in enumerate(loader):
    image1, image2, flow, valid = [x.cuda() for x in blob]
    optimizer.zero_grad()
    loss, metrics = sequence_loss(model(image1, image2, args.iters), flow, valid)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if total_steps % 20 == 0:
        print(total_steps, round(loss.item(), 3), metrics)
    if total_steps + 1 == args.num_steps:
        break
