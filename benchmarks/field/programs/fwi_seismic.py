# %% [markdown]
# # Full-waveform inversion, a first try
# Find the velocity of the ground from what receivers at the surface record: simulate the acoustic wave equation with
# finite differences, compare with the observed traces and let autograd give the gradient with respect to the velocity.

# %%
import math
import os
import time

import torch
import torch.nn.functional as F

device = "cuda"
torch.manual_seed(0)

nz, nx = 72, 192              # grid
dx, dt = 15.0, 0.0022         # m, s
nt = int(os.environ.get("NT", 80))
n_iter = int(os.environ.get("N_ITER", 40))
pad = 20                      # cells of the absorbing border
f_peak = 22.0
receiver_z = 3
shots = [(2, 40), (2, 96), (2, 150)]   # (z, x) of the sources


# %%
def ricker(nt, dt, f):
    t = torch.arange(nt, dtype=torch.float32) * dt - 1.0 / f
    a = (math.pi * f * t) ** 2
    return ((1 - 2 * a) * torch.exp(-a)).to(device)


def layered_model():
    v = torch.full((nz, nx), 1800.0)
    v[9:], v[20:], v[40:] = 2100.0, 2500.0, 3000.0
    zz, xx = torch.meshgrid(torch.arange(nz), torch.arange(nx), indexing="ij")
    v[((zz - 15) / 4.0) ** 2 + ((xx - 100) / 22.0) ** 2 < 1] = 2900.0     # the body to be found
    return v.to(device)


def smooth(v, k=15):
    kernel = torch.ones(1, 1, k, k, device=v.device) / k ** 2
    return F.conv2d(F.pad(v[None, None], [k // 2] * 4, mode="replicate"), kernel)[0, 0]


# %%
def sponge():
    """Factor below one near the left, right and lower borders."""
    x = torch.arange(nx, dtype=torch.float32, device=device)
    z = torch.arange(nz, dtype=torch.float32, device=device)
    from_side = torch.minimum(x, nx - 1 - x).clamp(max=pad)
    from_bottom = (nz - 1 - z).clamp(max=pad)
    wx = torch.exp(-(0.015 * (pad - from_side)) ** 2)
    wz = torch.exp(-(0.015 * (pad - from_bottom)) ** 2)
    return wz[:, None] * wx[None, :]


def laplacian(u):
    # 4th order in space
    k = torch.tensor([[0, 0, -1 / 12, 0, 0], [0, 0, 4 / 3, 0, 0], [-1 / 12, 4 / 3, -5, 4 / 3, -1 / 12],
                      [0, 0, 4 / 3, 0, 0], [0, 0, -1 / 12, 0, 0]], device=u.device)
    return F.conv2d(u[:, None], k[None, None], padding=2)[:, 0] / dx ** 2


def time_step(u, u_prev, v, source):
    damp = sponge()
    u_next = (2 * u - u_prev * damp + (v * dt) ** 2 * laplacian(u) + source) * damp
    return u_next, u * damp


def propagate(v, positions):
    """Traces at the surface of the given sources: sources x time x receivers."""
    where = torch.zeros(len(positions), nz, nx, device=device)
    for i, (z, x) in enumerate(positions):
        where[i, z, x] = 1.0
    u = torch.zeros_like(where)
    u_prev = torch.zeros_like(where)
    traces = []
    for it in range(nt):
        u, u_prev = time_step(u, u_prev, v, wavelet[it] * where)
        traces.append(u[:, receiver_z])
    return torch.stack(traces, 1)


# %% observed data
wavelet = ricker(nt, dt, f_peak)
v_true = layered_model()
with torch.no_grad():
    observed = [propagate(v_true, [shot]) for shot in shots]
print("traces of a shot:", tuple(observed[0].shape))

# %% inversion
v = smooth(v_true).requires_grad_()
optimizer = torch.optim.Adam([v], lr=8.0)
history = []
t0 = time.time()
for it in range(n_iter):
    optimizer.zero_grad()
    total = 0.0
    for shot, data in zip(shots, observed):
        predicted = propagate(v, [shot])
        misfit = ((predicted - data) ** 2).sum()
        misfit.backward()
        total += misfit.item()
    v.grad[:5] = 0            # nothing is to change around the sources
    v.grad /= v.grad.abs().max() + 1e-12
    optimizer.step()
    with torch.no_grad():
        v.clamp_(1400.0, 3600.0)
    history.append(total)
    if it % 5 == 0:
        print(f"iteration {it:3d}: misfit {total:.6f}, model error {(v - v_true).abs().mean().item():.2f} m/s, "
              f"{time.time() - t0:.1f} s")

# %%
print("misfit fell to", history[-1] / history[0])
