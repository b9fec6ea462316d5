# Flow around a row of cylinders, lattice Boltzmann D2Q9 with the BGK collision, double precision
import numpy as np
import torch

nx, ny, steps = 1600, 800, 300
reynolds, u_in, radius = 120.0, 0.04, 45
viscosity = u_in * radius / reynolds
omega = 1.0 / (3 * viscosity + 0.5)
device = torch.device("cuda")
torch.set_default_dtype(torch.float64)

c = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
w = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4
opposite = [0, 3, 4, 1, 2, 7, 8, 5, 6]
left, middle, right = [3, 6, 7], [0, 2, 4], [1, 5, 8]

yy, xx = np.meshgrid(np.arange(ny), np.arange(nx))
obstacle = np.zeros((nx, ny), dtype=bool)
for cx, cy in [(nx // 5, ny // 2), (nx // 3, ny // 4), (nx // 3, 3 * ny // 4)]:
    obstacle |= (xx - cx) ** 2 + (yy - cy) ** 2 < radius ** 2
obstacle = torch.from_numpy(obstacle).to(device)

profile = u_in * (1 + 1e-4 * torch.sin(torch.arange(ny) / (ny - 1) * 2 * np.pi))
inflow = torch.stack([profile.expand(nx, ny), torch.zeros(nx, ny)]).to(device)


def equilibrium(rho, u):
    usqr = 1.5 * (u[0] ** 2 + u[1] ** 2)
    feq = torch.zeros(9, *rho.shape, device=rho.device)
    for i in range(9):
        cu = 3.0 * (c[i][0] * u[0] + c[i][1] * u[1])
        feq[i] = rho * w[i] * (1 + cu + 0.5 * cu ** 2 - usqr)
    return feq


def macroscopic(f):
    rho = f.sum(0)
    u = torch.zeros(2, f.shape[1], f.shape[2]).to(f.device)
    for i in range(9):
        u[0] += c[i][0] * f[i]
        u[1] += c[i][1] * f[i]
    return rho, u / rho


f = equilibrium(torch.ones(nx, ny).to(device), inflow)
for step in range(steps):
    f[left, -1, :] = f[left, -2, :]                       # outflow
    rho, u = macroscopic(f)
    u[:, 0, :] = inflow[:, 0, :]
    rho[0, :] = (f[middle, 0, :].sum(0) + 2 * f[left, 0, :].sum(0)) / (1 - u[0, 0, :])
    feq = equilibrium(rho, u)
    f[right, 0, :] = feq[right, 0, :] + f[[opposite[i] for i in right], 0, :] - feq[[opposite[i] for i in right], 0, :]
    out = f - omega * (f - feq)
    for i in range(9):                                    # bounce back
        out[i][obstacle] = f[opposite[i]][obstacle]
    for i in range(9):                                    # streaming
        f[i] = torch.roll(torch.roll(out[i], c[i][0], dims=0), c[i][1], dims=1)
    speed = torch.sqrt(u[0] ** 2 + u[1] ** 2).max().item()
    if np.isnan(speed) or speed > 0.5:
        raise SystemExit(f"unstable at step {step}: {speed}")
    if step % 100 == 0:
        print(f"step {step}: highest speed {speed:.4f}, mass {rho.mean().item():.5f}")
