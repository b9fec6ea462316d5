"""HiFi-GAN: mel to waveform, multi-period discriminator, mel and feature losses."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

SEG, HOP, MELS = 8192, 256, 80


class ResBlock(nn.Module):
    def __init__(self, c, k, dilations=(1, 3, 5)):
        super().__init__()
        self.a = nn.ModuleList(weight_norm(nn.Conv1d(c, c, k, dilation=d, padding=d * (k - 1) // 2)) for d in dilations)
        self.b = nn.ModuleList(weight_norm(nn.Conv1d(c, c, k, padding=(k - 1) // 2)) for _ in dilations)

    def forward(self, x):
        for a, b in zip(self.a, self.b):
            x = x + b(F.leaky_relu(a(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Generator(nn.Module):
    def __init__(self, c=256):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(MELS, c, 7, padding=3))
        self.ups, self.res = nn.ModuleList(), nn.ModuleList()
        for i, (u, k) in enumerate(zip((8, 8, 2, 2), (16, 16, 4, 4))):
            self.ups.append(weight_norm(nn.ConvTranspose1d(c >> i, c >> (i + 1), k, u, (k - u) // 2)))
            self.res.append(nn.ModuleList(ResBlock(c >> (i + 1), k) for k in (3, 7, 11)))
        self.post = weight_norm(nn.Conv1d(c >> 4, 1, 7, padding=3))

    def forward(self, x):
        x = self.pre(x)
        for up, blocks in zip(self.ups, self.res):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.post(F.leaky_relu(x)))


class PeriodD(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period, cs = period, (1, 32, 128, 512)
        self.convs = nn.ModuleList(weight_norm(nn.Conv2d(i, o, (5, 1), (3, 1), (2, 0))) for i, o in zip(cs, cs[1:]))
        self.post = weight_norm(nn.Conv2d(512, 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        if x.shape[-1] % self.period:
            x = F.pad(x, (0, self.period - x.shape[-1] % self.period), "reflect")
        x, fmap = x.view(x.shape[0], 1, -1, self.period), []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            fmap.append(x)
        return self.post(x).flatten(1), fmap


window = torch.hann_window(1024).cuda()
basis = (torch.rand(MELS, 513) ** 8).cuda()


def mel(y):
    y = F.pad(y.squeeze(1), (384, 384), "reflect")
    spec = torch.stft(y, 1024, HOP, 1024, window, center=False, return_complex=True)
    return torch.log(torch.clamp(basis @ torch.sqrt(spec.real ** 2 + spec.imag ** 2 + 1e-9), min=1e-5))


torch.manual_seed(1234)
generator, mpd = Generator().cuda(), nn.ModuleList(PeriodD(p) for p in (2, 3, 5, 7, 11)).cuda()
optim_g = torch.optim.AdamW(generator.parameters(), 2e-4, betas=(0.8, 0.99))
optim_d = torch.optim.AdamW(mpd.parameters(), 2e-4, betas=(0.8, 0.99))
waves = torch.randn(256, 1, SEG) * 0.1
for steps in range(40):
    y = waves[torch.randint(0, 256, (16,))].cuda(non_blocking=True)
    y_mel = mel(y)
    y_hat = generator(y_mel)
    optim_d.zero_grad()
    loss_d = 0
    for d in mpd:
        loss_d = loss_d + torch.mean((1 - d(y)[0]) ** 2) + torch.mean(d(y_hat.detach())[0] ** 2)
    loss_d.backward()
    optim_d.step()
    optim_g.zero_grad()
    loss_g = F.l1_loss(mel(y_hat), y_mel) * 45
    for d in mpd:
        real, (fake, fmap) = d(y)[1], d(y_hat)
        loss_g = loss_g + torch.mean((1 - fake) ** 2) + 2 * sum(F.l1_loss(b, a) for a, b in zip(real, fmap))
    loss_g.backward()
    optim_g.step()
    if steps % 5 == 0:
        print("Steps : {:d}, Gen Loss Total : {:4.3f}, Disc : {:4.3f}".format(steps, loss_g.item(), loss_d.item()))
