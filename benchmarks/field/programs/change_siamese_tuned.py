"""
Change detection in pairs of satellite images (as LEVIR-CD): a siamese encoder of timm and a light decoder.

usage: python change_siamese_tuned.py --encoder resnet18 --batch-size 48

Notes to self
  * tiles are small enough to stay on the GPU as uint8, crops and flips are made there for the whole batch
  * both dates go through the encoder as one batch (also better for BN)
  * channels_last + bf16 + compile
"""
import argparse

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def get_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--width", type=int, default=64, help="channels of the decoder")
    parser.add_argument("--tiles", type=int, default=64)
    parser.add_argument("--tile-size", type=int, default=512)
    parser.add_argument("--crop", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--iters", type=int, default=200)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


class ConvBNReLU(nn.Sequential):
    def __init__(self, inp, out, k=3):
        super().__init__(nn.Conv2d(inp, out, k, padding=k // 2, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class ChangeNet(nn.Module):
    def __init__(self, encoder, width):
        super().__init__()
        self.encoder = timm.create_model(encoder, features_only=True, pretrained=False, out_indices=(1, 2, 3, 4))
        channels = self.encoder.feature_info.channels()
        self.lateral = nn.ModuleList([ConvBNReLU(c, width, 1) for c in channels])
        self.smooth = nn.ModuleList([ConvBNReLU(width, width) for _ in channels])
        self.out = nn.Sequential(ConvBNReLU(width, width // 2), nn.Conv2d(width // 2, 1, 1))

    def forward(self, both):
        n = both.shape[0] // 2
        features, top = self.encoder(both), None
        for level in reversed(range(len(self.lateral))):
            difference = (features[level][:n] - features[level][n:]).abs()
            x = self.lateral[level](difference)
            if top is not None:
                x = x + F.interpolate(top, scale_factor=2.0, mode="nearest")
            top = self.smooth[level](x)
        return F.interpolate(self.out(top).float(), scale_factor=4.0, mode="bilinear", align_corners=False)


def bce_dice(logits, mask):
    bce = F.binary_cross_entropy_with_logits(logits, mask)
    p = logits.sigmoid()
    dice = 1 - (2 * (p * mask).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
    return bce + dice.mean()


def make_tiles(n, size, device):
    """Before, after and the mask of new 'buildings'."""
    before = F.interpolate(torch.rand(n, 3, size // 16, size // 16, device=device), size=size, mode="bicubic").clamp(0, 1)
    mask = (torch.rand(n, 1, size // 32, size // 32, device=device) < 0.08).float()
    mask = F.interpolate(mask, size=size, mode="nearest")
    roof = torch.rand(n, 3, 1, 1, device=device)
    after = (before * torch.rand(n, 3, 1, 1, device=device).mul(0.4).add(0.8)).lerp(roof.expand_as(before), mask)
    both = torch.stack([before, after], 1)
    return (both * 255).clamp(0, 255).byte(), mask.byte()


def sample(tiles, masks, args, mean, std):
    """A random crop, flipped and turned, of random tiles: 2 B x 3 x crop x crop and B x 1 x crop x crop."""
    pick = torch.randint(len(tiles), (args.batch_size,), device=tiles.device)
    y, x = torch.randint(args.tile_size - args.crop + 1, (2,)).tolist()    # of the CPU: no wait
    turns, flip = int(torch.randint(4, ())), bool(torch.rand(()) < 0.5)
    window = (slice(y, y + args.crop), slice(x, x + args.crop))
    images, mask = tiles[(pick, ..., *window)], masks[(pick, ..., *window)]
    images, mask = images.rot90(turns, (-2, -1)), mask.rot90(turns, (-2, -1))
    if flip:
        images, mask = images.flip(-1), mask.flip(-1)
    images = images.transpose(0, 1).flatten(0, 1)
    images = images.to(memory_format=torch.channels_last).float().sub_(mean).div_(std)
    return images, mask.float()


def main():
    args = get_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    tiles, masks = make_tiles(args.tiles, args.tile_size, device)
    mean, std = (255 * torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))

    net = ChangeNet(args.encoder, args.width).to(device, memory_format=torch.channels_last)
    fast_net, criterion = torch.compile(net), torch.compile(bce_dice)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.01, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.iters)
    stats = torch.zeros(3, device=device)    # intersection, union, loss

    for it in range(1, args.iters + 1):
        images, mask = sample(tiles, masks, args, mean, std)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = fast_net(images)
        loss = criterion(logits, mask)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            said, true = logits > 0, mask > 0
            stats += torch.stack([(said & true).sum().float(), (said | true).sum().float(), loss.detach()])
        if it % args.log_every == 0:
            inter, union, total = stats.tolist()
            print(f"iter {it} loss {total / args.log_every:.4f} IoU {inter / max(union, 1):.4f} lr {scheduler.get_last_lr()[0]:.2e}")
            stats.zero_()


if __name__ == "__main__":
    main()
