#!/usr/bin/env python3
"""Parallel tempering of the 3D Edwards-Anderson spin glass (+-J), several disorder samples at once.

Checkerboard Metropolis at each temperature, then swaps of neighbouring temperatures. Measures the energy and the
overlap of two replicas (Binder parameter), which is what we fit T_c from.

usage: spin_glass_pt.py [L]
"""
import sys
import time

import numpy as np
import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(2024)
np.random.seed(2024)
device = torch.device("cuda")

L = int(sys.argv[1]) if len(sys.argv) > 1 else 12
SAMPLES = 64                 # disorder samples
N_TEMP = 16
SWEEPS = 5                   # between swaps
N_STEPS = 2000
N_THERM = 500
N = L ** 3
temperatures = np.geomspace(0.8, 2.0, N_TEMP)


def parity(L):
    i = torch.arange(L, device=device)
    return (i[:, None, None] + i[None, :, None] + i[None, None, :]) % 2


def local_field(spins, J):
    """Sum of J_ij s_j over the six neighbours, periodic."""
    field = torch.zeros_like(spins)
    for d in range(3):
        dim = d - 3
        field = field + J[:, d] * torch.roll(spins, -1, dims=dim)
        field = field + torch.roll(J[:, d] * spins, 1, dims=dim)
    return field


def sweep(spins, J, beta):
    """One Metropolis sweep: even sites, then odd ones."""
    for color in (0, 1):
        delta = 2.0 * spins * local_field(spins, J)
        accept = torch.rand_like(spins) < torch.exp(-beta * delta)
        flip = accept & (parity(L) == color)
        spins = torch.where(flip, -spins, spins)
    return spins


def energy(spins, J):
    """Per sample."""
    e = torch.zeros(SAMPLES, device=device)
    for d in range(3):
        e = e - (J[:, d] * spins * torch.roll(spins, -1, dims=d - 3)).sum(dim=(-1, -2, -3))
    return e


def swap(replica, energies, betas, parity_of_pairs):
    """Exchange configurations of neighbouring temperatures, sample by sample."""
    accepted = 0
    for t in range(parity_of_pairs, N_TEMP - 1, 2):
        for s in range(SAMPLES):
            log_p = (betas[t + 1] - betas[t]) * (energies[t + 1, s] - energies[t, s])
            if np.log(np.random.rand()) < log_p:
                keep = replica[t][s].clone()
                replica[t][s] = replica[t + 1][s]
                replica[t + 1][s] = keep
                energies[[t, t + 1], s] = energies[[t + 1, t], s]
                accepted += 1
    return accepted


def overlap(a, b):
    return (a * b).mean(dim=(-1, -2, -3))


def random_spins():
    return torch.randint(0, 2, (SAMPLES, L, L, L), device=device) * 2.0 - 1.0


def main():
    J = torch.randint(0, 2, (SAMPLES, 3, L, L, L), device=device) * 2.0 - 1.0
    betas = 1.0 / temperatures
    replicas = [[random_spins() for _ in range(N_TEMP)] for _ in range(2)]
    q2, q4, e_mean, n_meas = np.zeros(N_TEMP), np.zeros(N_TEMP), np.zeros(N_TEMP), 0
    tic = time.time()
    for step in range(N_STEPS):
        n_acc = 0
        for replica in replicas:
            energies = np.zeros((N_TEMP, SAMPLES))
            for t in range(N_TEMP):
                for _ in range(SWEEPS):
                    replica[t] = sweep(replica[t], J, betas[t])
                e = energy(replica[t], J)
                for s in range(SAMPLES):
                    energies[t, s] = e[s].item()
            n_acc += swap(replica, energies, betas, step % 2)
        if step >= N_THERM // 10:
            for t in range(N_TEMP):
                q = overlap(replicas[0][t], replicas[1][t])
                q2[t] += (q ** 2).mean().item()
                q4[t] += (q ** 4).mean().item()
            e_mean += energies.mean(1) / N
            n_meas += 1
        if step % 20 == 0:
            rate = n_acc / (SAMPLES * N_TEMP)
            print(f"step {step} E/N coldest {energies[0].mean() / N:.4f} hottest {energies[-1].mean() / N:.4f} swaps {rate:.2f} "
                  f"({time.time() - tic:.1f} s)", flush=True)
    q2, q4 = q2 / n_meas, q4 / n_meas
    for T, g, e in zip(temperatures, 0.5 * (3 - q4 / q2 ** 2), e_mean / n_meas):
        print(f"T {T:.4f}  g {g:.4f}  E/N {e:.4f}")


if __name__ == "__main__":
    main()
