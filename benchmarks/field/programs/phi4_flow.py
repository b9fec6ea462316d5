# Flow-based sampler for phi^4 theory in two dimensions (reverse KL, path gradients), then an independence Metropolis chain.
# Started from the notebook of Albergo et al. (2101.08176); path gradient estimator as in Vaitl et al. (2206.09016).
import copy
import os
import time

import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(1331)
np.random.seed(1331)
device = "cuda" if torch.cuda.is_available() else "cpu"

L = 32
M2, LAM = -4.0, 6.975
N_LAYERS = 16
HIDDEN = [32, 32]
BATCH = 256
N_STEPS = 500
LR = 5e-4
CHAIN = 8192
if os.environ.get("SMOKE"):
    L, N_LAYERS, HIDDEN, BATCH, N_STEPS, CHAIN = 8, 4, [4], 16, 12, 64


def grab(var):
    return var.detach().cpu().numpy()


class SimpleNormal:
    def __init__(self, loc, var):
        self.dist = torch.distributions.normal.Normal(torch.flatten(loc), torch.flatten(var))
        self.shape = loc.shape

    def log_prob(self, x):
        logp = self.dist.log_prob(x.reshape(x.shape[0], -1))
        return torch.sum(logp, dim=1)

    def sample_n(self, batch_size):
        x = self.dist.sample((batch_size,))
        return x.reshape(batch_size, *self.shape)


class ScalarPhi4Action:
    def __init__(self, M2, lam):
        self.M2 = M2
        self.lam = lam

    def __call__(self, cfgs):
        action_density = self.M2 * cfgs ** 2 + self.lam * cfgs ** 4
        dims = range(1, len(cfgs.shape))
        for mu in dims:
            action_density = action_density + 2 * cfgs ** 2
            action_density = action_density - cfgs * torch.roll(cfgs, -1, mu)
            action_density = action_density - cfgs * torch.roll(cfgs, 1, mu)
        return torch.sum(action_density, dim=tuple(dims))


def make_checker_mask(shape, parity):
    checker = torch.ones(shape, dtype=torch.uint8) - parity
    checker[::2, ::2] = parity
    checker[1::2, 1::2] = parity
    return checker.to(device)


def make_conv_net(hidden_sizes, kernel_size=3, in_channels=1, out_channels=2):
    sizes = [in_channels] + hidden_sizes + [out_channels]
    net = []
    for i in range(len(sizes) - 1):
        net.append(nn.Conv2d(sizes[i], sizes[i + 1], kernel_size, padding=1, padding_mode="circular"))
        if i != len(sizes) - 2:
            net.append(nn.LeakyReLU())
        else:
            net.append(nn.Tanh())
    return nn.Sequential(*net)


class AffineCoupling(nn.Module):
    def __init__(self, net, parity):
        super().__init__()
        self.mask = make_checker_mask((L, L), parity)
        self.net = net

    def forward(self, x):
        x_frozen = self.mask * x
        x_active = (1 - self.mask) * x
        net_out = self.net(x_frozen.unsqueeze(1))
        s, t = net_out[:, 0], net_out[:, 1]
        fx = (1 - self.mask) * t + x_active * torch.exp(s) + x_frozen
        logJ = torch.sum((1 - self.mask) * s, dim=(1, 2))
        return fx, logJ

    def reverse(self, fx):
        fx_frozen = self.mask * fx
        fx_active = (1 - self.mask) * fx
        net_out = self.net(fx_frozen.unsqueeze(1))
        s, t = net_out[:, 0], net_out[:, 1]
        x = (fx_active - (1 - self.mask) * t) * torch.exp(-s) + fx_frozen
        logJ = torch.sum((1 - self.mask) * (-s), dim=(1, 2))
        return x, logJ


class Flow(nn.Module):
    def __init__(self, n_layers):
        super().__init__()
        self.layers = nn.ModuleList([AffineCoupling(make_conv_net(HIDDEN), i % 2) for i in range(n_layers)])

    def forward(self, z):
        logJ = 0
        for layer in self.layers:
            z, lj = layer(z)
            logJ = logJ + lj
        return z, logJ

    def log_prob(self, x, prior):
        logJ = 0
        for layer in reversed(self.layers):
            x, lj = layer.reverse(x)
            logJ = logJ + lj
        return prior.log_prob(x) + logJ


def compute_ess(logp, logq):
    logw = logp - logq
    log_ess = 2 * torch.logsumexp(logw, dim=0) - torch.logsumexp(2 * logw, dim=0)
    return torch.exp(log_ess) / len(logw)


prior = SimpleNormal(torch.zeros((L, L), device=device), torch.ones((L, L), device=device))
action = ScalarPhi4Action(M2, LAM)
flow = Flow(N_LAYERS).to(device)
for layer in flow.layers:                                # start close to the identity
    layer.net[-2].weight.data.mul_(0.1)
frozen = copy.deepcopy(flow)                             # density of the current flow, without its own gradient
optimizer = torch.optim.Adam(flow.parameters(), lr=LR)
history = {"loss": [], "logp": [], "logq": [], "ess": [], "mag2": []}


def train_step():
    optimizer.zero_grad()
    z = prior.sample_n(BATCH)
    x, _ = flow(z)
    frozen.load_state_dict(flow.state_dict())
    logq = frozen.log_prob(x, prior)
    logp = -action(x)
    loss = torch.mean(logq - logp)
    loss.backward()
    optimizer.step()

    history["loss"].append(grab(loss))
    history["logp"].append(grab(logp).mean())
    history["logq"].append(grab(logq).mean())
    history["ess"].append(grab(compute_ess(logp, logq)))
    history["mag2"].append(grab(x.mean(dim=(1, 2)) ** 2).mean())


tic = time.time()
for step in range(N_STEPS):
    train_step()
    if (step + 1) % 50 == 0 or step + 1 == N_STEPS:
        recent = {k: float(np.mean(v[-50:])) for k, v in history.items()}
        print(f"step {step + 1:5d} " + "  ".join(f"{k} {v:.4g}" for k, v in recent.items()) + f"  {time.time() - tic:.1f} s")

# ---- independence Metropolis with the trained flow
chain, accepted, old = [], 0, None
with torch.no_grad():
    while len(chain) < CHAIN:
        z = prior.sample_n(BATCH)
        x, logJ = flow(z)
        logq, logp = prior.log_prob(z) - logJ, -action(x)
        for i in range(BATCH):
            new = (x[i].mean().item(), logq[i].item(), logp[i].item())
            if old is None or np.log(np.random.rand()) < (new[2] - old[2]) - (new[1] - old[1]):
                old, accepted = new, accepted + 1
            chain.append(old[0])
print(f"acceptance {accepted / len(chain):.3f}  <|m|> {np.abs(chain).mean():.4f}  chi {L * L * np.var(chain):.3f}  {time.time() - tic:.1f} s")
