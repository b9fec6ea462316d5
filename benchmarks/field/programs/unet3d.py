"""Segmentation of volumes with a small 3-D U-Net."""
import torch
from torch import nn
torch.manual_seed(0)
def block(i, o):
    return nn.Sequential(nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o), nn.LeakyReLU(0.01),
                         nn.Conv3d(o, o, 3, padding=1), nn.InstanceNorm3d(o), nn.LeakyReLU(0.01))
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = block(1, 16), block(16, 32), block(32, 64)
        self.u1, self.u2 = nn.ConvTranspose3d(64, 32, 2, 2), nn.ConvTranspose3d(32, 16, 2, 2)
        self.d, self.e, self.out = block(64, 32), block(32, 16), nn.Conv3d(16, 4, 1)
    def forward(self, x):
        a = self.a(x); b = self.b(nn.functional.max_pool3d(a, 2)); c = self.c(nn.functional.max_pool3d(b, 2))
        y = self.d(torch.cat([self.u1(c), b], 1))
        return self.out(self.e(torch.cat([self.u2(y), a], 1)))
net = UNet().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.99, nesterov=True)
for step in range(100):
    x = torch.randn(2, 1, 64, 64, 64).cuda(); y = torch.randint(0, 4, (2, 64, 64, 64)).cuda()
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
