"""Segmentation of volumes with a small 3-D U-Net."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


def block(i, o):
    return nn.Sequential(
        nn.Conv3d(i, o, 3, padding=1),
        nn.InstanceNorm3d(o, affine=True),
        nn.LeakyReLU(0.01),
        nn.Conv3d(o, o, 3, padding=1),
        nn.InstanceNorm3d(o, affine=True),
        nn.LeakyReLU(0.01),
    )


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128)):
        super().__init__()
        self.down = nn.ModuleList(block(i, o) for i, o in zip((1, *widths), widths))
        self.up = nn.ModuleList(block(2 * w, w) for w in widths[:-1])
        self.lift = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.head = nn.Conv3d(widths[0], 3, 1)

    def forward(self, x):
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
            x = F.max_pool3d(x, 2)
        x = skips.pop()
        for up, lift in zip(reversed(self.up), reversed(self.lift)):
            x = up(torch.cat([lift(x), skips.pop()], 1))
        return self.head(x)


model = UNet().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    volume = torch.randn(2, 1, 96, 96, 96, device="cuda")
    target = torch.randint(0, 3, (2, 96, 96, 96), device="cuda")
    loss = F.cross_entropy(model(volume), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
