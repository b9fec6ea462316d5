# %% [markdown]
# # Neural local-stochastic-vol: calibrate to a smile by Monte Carlo
# dS = r S dt + S L(t, S) sqrt(V) dW,   dV = kappa (theta - V) dt + xi sqrt(V) dB,   corr(dW, dB) = rho
# L is a small net. Prices are averages over simulated paths and autograd goes through the whole simulation.
# (no market data on this machine -> "market" prices come from an SVI-like smile)

# %%
import math
import time

import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(7)
np.random.seed(7)
dev = torch.device("cuda")

# %% config
S0, r = 1.0, 0.02
maturities = [0.25, 0.5, 0.75]
steps_per_year = 48
strikes = np.linspace(0.75, 1.3, 19)
N = 8192              # paths
n_iter = 60

# %% Black-Scholes things
def ncdf(x):
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def bs_call(K, T, vol):
    d1 = (torch.log(S0 / K) + (r + 0.5 * vol ** 2) * T) / (vol * math.sqrt(T))
    return S0 * ncdf(d1) - K * math.exp(-r * T) * ncdf(d1 - vol * math.sqrt(T))


def bs_vega(K, T, vol):
    d1 = (torch.log(S0 / K) + (r + 0.5 * vol ** 2) * T) / (vol * math.sqrt(T))
    return S0 * math.sqrt(T) * torch.exp(-0.5 * d1 ** 2) / math.sqrt(2 * math.pi)


def implied_vol(price, K, T):
    """Bisection, all strikes at once."""
    lo, hi = torch.full_like(price, 1e-3), torch.full_like(price, 2.0)
    for _ in range(50):
        mid = 0.5 * (lo + hi)
        too_high = bs_call(K, T, mid) > price
        hi = torch.where(too_high, mid, hi)
        lo = torch.where(too_high, lo, mid)
    return 0.5 * (lo + hi)


def market_vol(K, T):
    k = np.log(K / S0)
    return 0.2 + 0.02 * np.sqrt(T) - 0.12 * k + 0.35 * k ** 2


# %% the model
class Leverage(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                 nn.Linear(width, 1))

    def forward(self, t, S):
        x = torch.stack([torch.full_like(S, t), torch.log(S)], 1)
        return 0.5 + nn.functional.softplus(self.net(x).squeeze(1) + 0.5)


class Heston(nn.Module):
    def __init__(self):
        super().__init__()
        self.L = Leverage()
        self.raw = nn.ParameterDict({
            "kappa": nn.Parameter(torch.tensor(0.5)), "theta": nn.Parameter(torch.tensor(-3.2)),
            "xi": nn.Parameter(torch.tensor(-0.8)), "rho": nn.Parameter(torch.tensor(-0.7)),
            "v0": nn.Parameter(torch.tensor(-3.2))})

    def start(self):
        v0 = nn.functional.softplus(self.raw["v0"])
        return torch.full((N,), S0, device=dev), v0.expand(N)

    def step(self, t, S, V, z1, z2, dt):
        kappa, theta, xi = (nn.functional.softplus(self.raw[k]) for k in ("kappa", "theta", "xi"))
        rho = torch.tanh(self.raw["rho"])
        zb = rho * z1 + torch.sqrt(1 - rho ** 2) * z2
        vol = torch.sqrt(V.clamp(min=1e-6))
        sig = self.L(t, S) * vol
        S = S * torch.exp((r - 0.5 * sig ** 2) * dt + sig * math.sqrt(dt) * z1)
        V = (V + kappa * (theta - V) * dt + xi * vol * math.sqrt(dt) * zb).clamp(min=1e-6)
        return S, V


def draw(n):
    # np because I wanted the same numbers as in the old numpy code
    return torch.from_numpy(np.random.standard_normal((2, n)).astype(np.float32)).to(dev)


def simulate(model, T):
    n_steps = int(round(T * steps_per_year))
    dt = T / n_steps
    S, V = model.start()
    for i in range(n_steps):
        z = draw(N)
        S, V = model.step(i * dt, S, V, z[0], z[1], dt)
    return S


def price_calls(S_T, T):
    prices = []
    for K in strikes:
        payoff = torch.relu(S_T - K)
        prices.append(math.exp(-r * T) * payoff.mean())
    return torch.stack(prices)


# %% "market"
K = torch.tensor(strikes, dtype=torch.float32, device=dev)
target, vega = {}, {}
for T in maturities:
    vol = torch.tensor(market_vol(strikes, T), dtype=torch.float32, device=dev)
    target[T], vega[T] = bs_call(K, T, vol), bs_vega(K, T, vol).clamp(min=1e-3)

# %% calibration
model = Heston().to(dev)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
history = []
tic = time.time()
for it in range(n_iter):
    loss = 0
    fits = []
    for T in maturities:
        S_T = simulate(model, T)
        p = price_calls(S_T, T)
        loss = loss + (((p - target[T]) / vega[T]) ** 2).mean()
        fits.append(implied_vol(p.detach(), K, T))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    history.append(loss.item())
    if it % 10 == 0:
        err = np.mean([np.abs(f.cpu().numpy() - market_vol(strikes, T)).mean() for f, T in zip(fits, maturities)])
        print(f"{it:4d}  loss {loss.item():.3e}  mean |iv error| {100 * err:.2f} %  {time.time() - tic:.1f} s")

# %%
print("last/first loss:", history[-1] / history[0])
