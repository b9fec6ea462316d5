"""A small GAN: two networks, two optimizers, three backward passes a step."""
import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU(True),
                  nn.ConvTranspose2d(512, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(True),
                  nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(True),
                  nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
                  nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()).cuda()
D = nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True),
                  nn.Conv2d(64, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.LeakyReLU(0.2, True),
                  nn.Conv2d(128, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.LeakyReLU(0.2, True),
                  nn.Conv2d(256, 512, 4, 2, 1, bias=False), nn.BatchNorm2d(512), nn.LeakyReLU(0.2, True),
                  nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Sigmoid()).cuda()
bce = nn.BCELoss()
optD = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
optG = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
data = torch.rand(1024, 3, 64, 64) * 2 - 1
for step in range(40):
    real = data[torch.randint(0, 1024, (128,))].cuda()
    D.zero_grad()
    label = torch.full((128,), 1.0, device="cuda")
    errD_real = bce(D(real).view(-1), label)
    errD_real.backward()
    fake = G(torch.randn(128, 100, 1, 1, device="cuda"))
    label.fill_(0.0)
    errD_fake = bce(D(fake.detach()).view(-1), label)
    errD_fake.backward()
    optD.step()
    G.zero_grad()
    label.fill_(1.0)
    errG = bce(D(fake).view(-1), label)
    errG.backward()
    optG.step()
    print(f"[{step}] D {errD_real.item() + errD_fake.item():.4f} G {errG.item():.4f}")
