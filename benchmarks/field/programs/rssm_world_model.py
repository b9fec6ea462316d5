"""World model of Dreamer: convolutional encoder, recurrent state space model unrolled in Python, decoder."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence

B, T, STOCH, DETER, ACT = 32, 24, 30, 200, 4


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Sequential(nn.Conv2d(3, 32, 4, 2), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                               nn.Conv2d(64, 128, 4, 2), nn.ReLU(), nn.Conv2d(128, 256, 4, 2), nn.ReLU(), nn.Flatten())

    def forward(self, o):
        return self.c(o)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(STOCH + DETER, 1024)
        self.c = nn.Sequential(nn.ConvTranspose2d(1024, 128, 5, 2), nn.ReLU(), nn.ConvTranspose2d(128, 64, 5, 2), nn.ReLU(),
                               nn.ConvTranspose2d(64, 32, 6, 2), nn.ReLU(), nn.ConvTranspose2d(32, 3, 6, 2))

    def forward(self, s):
        return self.c(self.fc(s)[:, :, None, None])


class RSSM(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(STOCH + ACT, DETER)
        self.cell = nn.GRUCell(DETER, DETER)
        self.prior = nn.Sequential(nn.Linear(DETER, 200), nn.ELU(), nn.Linear(200, 2 * STOCH))
        self.post = nn.Sequential(nn.Linear(DETER + 1024, 200), nn.ELU(), nn.Linear(200, 2 * STOCH))

    def forward(self, h, s, a, e):
        h = self.cell(F.elu(self.inp(torch.cat([s, a], -1))), h)
        pm, ps = self.prior(h).chunk(2, -1)
        qm, qs = self.post(torch.cat([h, e], -1)).chunk(2, -1)
        ps, qs = F.softplus(ps) + 0.1, F.softplus(qs) + 0.1
        return h, qm + qs * torch.randn_like(qs), pm, ps, qm, qs


class Replay:
    def __init__(self, size=20000):
        self.obs = np.random.randint(0, 255, (size, 3, 64, 64), dtype=np.uint8)
        self.act = np.random.randn(size, ACT).astype(np.float32)
        self.rew = np.random.randn(size).astype(np.float32)

    def sample(self):
        idx = np.random.randint(0, len(self.obs) - T, B)[None] + np.arange(T)[:, None]
        return self.obs[idx], self.act[idx], self.rew[idx]


torch.manual_seed(0)
np.random.seed(0)
enc, dec, rssm, rew_head = Encoder().cuda(), Decoder().cuda(), RSSM().cuda(), nn.Linear(STOCH + DETER, 1).cuda()
params = [p for m in (enc, dec, rssm, rew_head) for p in m.parameters()]
opt = torch.optim.Adam(params, lr=6e-4, eps=1e-7)
replay = Replay()
for step in range(50):
    obs, act, rew = (torch.as_tensor(x, device="cuda") for x in replay.sample())
    obs = obs.float() / 255 - 0.5
    embed = enc(obs.reshape(T * B, 3, 64, 64)).view(T, B, -1)
    h, s = torch.zeros(B, DETER, device="cuda"), torch.zeros(B, STOCH, device="cuda")
    feats, kl = [], 0
    for t in range(T):
        h, s, pm, ps, qm, qs = rssm(h, s, act[t], embed[t])
        kl = kl + kl_divergence(Normal(qm, qs), Normal(pm, ps)).sum(-1).mean().clamp(min=3.0)
        feats.append(torch.cat([h, s], -1))
    feats = torch.stack(feats)
    recon = dec(feats.view(T * B, -1))
    loss = F.mse_loss(recon, obs.reshape(T * B, 3, 64, 64)) * 3 * 64 * 64 + kl / T + F.mse_loss(rew_head(feats).squeeze(-1), rew)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 100.0)
    opt.step()
    if step % 10 == 0:
        print(f"{step}: {loss.item():.1f}")
