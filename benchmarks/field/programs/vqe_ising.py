# VQE for the transverse-field Ising chain, one circuit for each field strength.
# Own state vector simulator: pennylane was slower for this, and we want plain autograd through the amplitudes.
import math
import time

import torch

DEV = "cuda"
N = 16                          # qubits
LAYERS = 3
FIELDS = [0.5, 1.0, 1.5]        # below, at and above the transition
J = 1.0
STEPS = 350
DIM = 2 ** N

torch.manual_seed(7)


# ------------------------------------------------------------- gates
def ry(theta):
    c, s = torch.cos(theta / 2), torch.sin(theta / 2)
    return torch.stack([torch.stack([c, -s]), torch.stack([s, c])]).to(torch.complex64)


def rz(theta):
    half = torch.complex(torch.zeros_like(theta), theta / 2)
    zero = torch.zeros_like(half)
    return torch.stack([torch.stack([torch.exp(-half), zero]), torch.stack([zero, torch.exp(half)])])


def apply_gate(state, gate, qubit):
    """Qubit 0 is the most significant bit."""
    parts = state.reshape(2 ** qubit, 2, 2 ** (N - qubit - 1))
    return torch.einsum("ab,lbr->lar", gate, parts).reshape(DIM)


def bit(qubit):
    index = torch.arange(DIM, device=DEV)
    return (index >> (N - 1 - qubit)) & 1


def apply_cz(state, a, b):
    sign = 1 - 2 * (bit(a) * bit(b))
    return state * sign


# ------------------------------------------------------------- circuit
def circuit(theta):
    """Hardware efficient ansatz: RY, RZ on every qubit, a ladder of CZ, again and again. theta: (LAYERS + 1, N, 2)"""
    state = torch.zeros(DIM, dtype=torch.complex64, device=DEV)
    state[0] = 1
    for layer in range(LAYERS):
        for q in range(N):
            state = apply_gate(state, ry(theta[layer, q, 0]), q)
            state = apply_gate(state, rz(theta[layer, q, 1]), q)
        for q in range(N - 1):
            state = apply_cz(state, q, q + 1)
    # last rotations
    for q in range(N):
        state = apply_gate(state, ry(theta[LAYERS, q, 0]), q)
    return state


# ------------------------------------------------------------- Hamiltonian  H = -J sum ZZ - h sum X
def zz_energy(state):
    prob = state.abs() ** 2
    e = 0.0
    for q in range(N - 1):
        za, zb = 1 - 2 * bit(q), 1 - 2 * bit(q + 1)
        e = e - J * (prob * (za * zb)).sum()
    return e


def x_energy(state, h):
    e = 0.0
    for q in range(N):
        parts = state.reshape(2 ** q, 2, 2 ** (N - q - 1))
        flipped = parts.flip(1).reshape(DIM)
        e = e - h * (state.conj() * flipped).sum().real
    return e


def energy(theta, h):
    state = circuit(theta)
    return zz_energy(state) + x_energy(state, h)


def exact_ground_energy(h):
    """Free fermions, open chain: singular values of the coupling matrix."""
    m = torch.zeros(N, N, dtype=torch.float64)
    for i in range(N):
        m[i, i] = h
        if i + 1 < N:
            m[i, i + 1] = J
    return -torch.linalg.svdvals(m).sum().item()


# ------------------------------------------------------------- optimisation
exact = [exact_ground_energy(h) for h in FIELDS]
thetas = [(0.3 * torch.randn(LAYERS + 1, N, 2)).to(DEV).requires_grad_(True) for _ in FIELDS]
optimizer = torch.optim.Adam(thetas, lr=0.03)
curves = [[] for _ in FIELDS]
grad_norms = [[] for _ in FIELDS]

tic = time.time()
for step in range(STEPS):
    optimizer.zero_grad()
    values = []
    for k, h in enumerate(FIELDS):
        e = energy(thetas[k], h)
        e.backward()
        values.append(e.detach())
    optimizer.step()
    for k in range(len(FIELDS)):
        curves[k].append(values[k].item())
        grad_norms[k].append(thetas[k].grad.norm().item())      # watch for plateaus
    if (step + 1) % 25 == 0:
        line = "  ".join(
            f"h={h}: {curves[k][-1]:.4f} (err {100 * (curves[k][-1] - exact[k]) / abs(exact[k]):.2f} %, |g| {grad_norms[k][-1]:.2e})"
            for k, h in enumerate(FIELDS))
        print(f"{step + 1:4d} {line} {time.time() - tic:.1f} s")

with torch.no_grad():
    for k, h in enumerate(FIELDS):
        prob = circuit(thetas[k]).abs() ** 2
        up = torch.stack([(prob * (1 - 2 * bit(q))).sum() for q in range(N)])
        print(f"h={h}: |<Z>| {up.abs().mean().item():.3f}, norm {prob.sum().item():.5f}")
