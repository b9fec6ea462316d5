"""Speech separation: Conv-TasNet, scale-invariant SNR, permutations tried one by one."""
from itertools import permutations

import torch
import torch.nn as nn

EPS = 1e-8


class GlobLN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(1, c, 1)), nn.Parameter(torch.zeros(1, c, 1))

    def forward(self, x):
        mean = x.mean(dim=(1, 2), keepdim=True)
        var = ((x - mean) ** 2).mean(dim=(1, 2), keepdim=True)
        return self.gamma * (x - mean) / torch.sqrt(var + EPS) + self.beta


class Block(nn.Module):
    def __init__(self, b, h, dilation):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(b, h, 1), nn.PReLU(), GlobLN(h),
                                 nn.Conv1d(h, h, 3, padding=dilation, dilation=dilation, groups=h), nn.PReLU(), GlobLN(h))
        self.res, self.skip = nn.Conv1d(h, b, 1), nn.Conv1d(h, b, 1)

    def forward(self, x):
        y = self.net(x)
        return x + self.res(y), self.skip(y)


class ConvTasNet(nn.Module):
    def __init__(self, n=512, l=16, b=128, h=512, x=8, r=3, speakers=2):
        super().__init__()
        self.n, self.speakers = n, speakers
        self.encoder = nn.Conv1d(1, n, l, stride=l // 2, bias=False)
        self.norm, self.bottleneck = GlobLN(n), nn.Conv1d(n, b, 1)
        self.blocks = nn.ModuleList([Block(b, h, 2 ** i) for _ in range(r) for i in range(x)])
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(b, n * speakers, 1), nn.ReLU())
        self.decoder = nn.ConvTranspose1d(n, 1, l, stride=l // 2, bias=False)

    def forward(self, mixture):
        w = torch.relu(self.encoder(mixture[:, None]))
        x, total = self.bottleneck(self.norm(w)), 0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        masks = self.mask(total).view(len(w), self.speakers, self.n, -1)
        return torch.stack([self.decoder(w * masks[:, s])[:, 0] for s in range(self.speakers)], 1)


def si_snr(est, ref):
    est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
    proj = (est * ref).sum(-1, keepdim=True) * ref / ((ref ** 2).sum(-1, keepdim=True) + EPS)
    noise = est - proj
    return 10 * torch.log10((proj ** 2).sum(-1) / ((noise ** 2).sum(-1) + EPS) + EPS)


def pit_loss(est, ref):
    losses = []
    for n in range(est.shape[0]):
        best = None
        for p in permutations(range(est.shape[1])):
            snr = sum(si_snr(est[n, i], ref[n, j]) for i, j in enumerate(p)) / len(p)
            best = snr if best is None or snr > best else best
        losses.append(-best)
    return torch.stack(losses).mean()


torch.manual_seed(0)
model = ConvTasNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
voices = torch.randn(200, 24000) * 0.1
for step in range(100):
    refs = torch.stack([voices[torch.randperm(200)[:2]] for _ in range(8)])
    mixture = refs.sum(1)
    refs, mixture = refs.cuda(), mixture.cuda()
    est = model(mixture)
    loss = pit_loss(est, refs[..., :est.shape[-1]])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5)
    optimizer.step()
    print(f"step {step} si-snr {-loss.item():.2f} dB")
