"""Decaying turbulence: pseudo-spectral 2-D Navier-Stokes on the GPU, with a step chosen by the CFL number."""
import math

import numpy as np
import torch

N, NU = 512, 1e-4
device = torch.device("cuda")
torch.manual_seed(0)

k = torch.fft.fftfreq(N, 1 / N)
kx, ky = (v.to(device) for v in torch.meshgrid(k, k[:N // 2 + 1].abs(), indexing="ij"))
k2 = kx ** 2 + ky ** 2
inv_k2 = torch.where(k2 > 0, 1 / k2.clamp(min=1), 0.0)
dealias = ((kx.abs() < N / 3) & (ky.abs() < N / 3)).float()


def velocity(w_hat):
    psi_hat = w_hat * inv_k2
    u = torch.fft.irfft2(1j * ky * psi_hat, s=(N, N))
    v = torch.fft.irfft2(-1j * kx * psi_hat, s=(N, N))
    return u, v


def rhs(w_hat):
    u, v = velocity(w_hat)
    w_x = torch.fft.irfft2(1j * kx * w_hat, s=(N, N))
    w_y = torch.fft.irfft2(1j * ky * w_hat, s=(N, N))
    advection = torch.fft.rfft2(u * w_x + v * w_y)
    return -advection * dealias - NU * k2 * w_hat


def rk4(w_hat, dt):
    k1 = rhs(w_hat)
    k2_ = rhs(w_hat + 0.5 * dt * k1)
    k3 = rhs(w_hat + 0.5 * dt * k2_)
    k4 = rhs(w_hat + dt * k3)
    return w_hat + dt / 6 * (k1 + 2 * k2_ + 2 * k3 + k4)


def run(steps=5000):
    w = torch.randn(N, N, device=device)
    w_hat = torch.fft.rfft2(w) * torch.exp(-((k2.sqrt() - 8) / 4) ** 2) * 5
    t, energies = 0.0, []
    for step in range(steps):
        u, v = velocity(w_hat)
        speed = max(u.abs().max().item(), v.abs().max().item())
        dt = min(1e-3, 0.5 * (2 * math.pi / N) / speed)
        w_hat = rk4(w_hat, dt)
        t += dt
        energy = 0.5 * (u ** 2 + v ** 2).mean()
        energies.append(energy.cpu().numpy())
        if step % 500 == 0:
            print(f"step {step:5d} t={t:.4f} dt={dt:.2e} E={energies[-1]:.5f}")
        if np.isnan(energies[-1]):
            raise RuntimeError("blow-up")
    return torch.fft.irfft2(w_hat, s=(N, N)).cpu(), energies


if __name__ == "__main__":
    w, energies = run()
    print(w.std().item(), energies[0], energies[-1])
