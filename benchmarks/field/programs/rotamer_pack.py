"""Side-chain packing by gradient descent on chi angles.

Backbones are fixed (toy helix bundles for now, the PDB reader comes later). Every target gets RESTARTS copies that start from
random rotamers and minimise a soft Lennard-Jones energy plus a rotamer prior; the best copy of each target is kept.
"""
import math
import time

import numpy as np
import torch
import torch.nn.functional as F

DEVICE = "cuda"
RESTARTS = 8
LENGTHS = [74, 96, 108, 121, 133, 146, 158, 171, 190, 214]
ITERS = 1000
CUTOFF = 9.0
KAPPA = 6.0
BOND, ANGLE = 1.53, math.radians(112)

# number of chi angles = number of side-chain atoms beyond CB that we model
N_CHI = dict(A=0, G=0, S=1, C=1, T=1, V=1, P=1, L=2, I=2, D=2, N=2, F=2, Y=2, W=2, H=2, M=3, E=3, Q=3, K=4, R=4)
AMINO = list(N_CHI)
# backbone atoms of an ideal helix: radius, phase in degrees, height, LJ radius
HELIX = {
    "N": (1.55, -28.0, -0.9, 1.75),
    "CA": (2.28, 0.0, 0.0, 2.0),
    "C": (1.66, 27.0, 1.1, 2.0),
    "O": (2.02, 24.0, 2.3, 1.55),
    "CB": (3.30, -19.0, -0.4, 2.0),
}
SIDE_RADIUS = 1.95

rng = np.random.default_rng(11)
torch.manual_seed(11)


# ------------------------------------------------------------------ targets
def helix_bundle(length):
    """Antiparallel helices of 20 residues on a square grid, 9.5 A apart. (length, 5, 3)"""
    side = math.ceil(math.sqrt(math.ceil(length / 20)))
    xyz = np.zeros((length, len(HELIX), 3))
    for i in range(length):
        h, k = divmod(i, 20)
        up = 1 if h % 2 == 0 else -1
        for j, (radius, phase, z, _) in enumerate(HELIX.values()):
            a = math.radians(100.0 * k + phase + 40 * h)
            xyz[i, j] = [radius * math.cos(a), up * radius * math.sin(a), up * (1.5 * (k - 10) + z)]
        xyz[i] += [9.5 * (h // side), 9.5 * (h % side), 0.0]
    return xyz + rng.normal(size=xyz.shape) * 0.05


def make_target(length):
    sequence = rng.choice(AMINO, length)
    n_chi = np.array([N_CHI[a] for a in sequence])
    has_atom = np.arange(4)[None, :] < n_chi[:, None]
    residue = np.concatenate([np.repeat(np.arange(length), len(HELIX)), np.nonzero(has_atom)[0]])
    radius = np.concatenate([np.tile([v[3] for v in HELIX.values()], length), np.full(has_atom.sum(), SIDE_RADIUS)])
    return {
        "backbone": torch.tensor(helix_bundle(length), dtype=torch.float32, device=DEVICE),
        "has_atom": torch.tensor(has_atom, device=DEVICE),
        "side_index": torch.tensor(np.flatnonzero(has_atom), device=DEVICE),
        "atom_residue": residue,
        "atom_radius": radius.astype(np.float32),
    }


# ------------------------------------------------------------------ geometry
def place_atom(a, b, c, chi):
    """Next atom after a-b-c at torsion chi (ideal bond and angle)."""
    bc = F.normalize(c - b, dim=-1)
    n = F.normalize(torch.cross(b - a, bc, dim=-1), dim=-1)
    m = torch.cross(n, bc, dim=-1)
    x = -BOND * math.cos(ANGLE) * bc
    y = BOND * math.sin(ANGLE) * torch.cos(chi)[..., None] * m
    z = BOND * math.sin(ANGLE) * torch.sin(chi)[..., None] * n
    return c + x + y + z


def build(chi, target):
    """All atoms of all copies, (RESTARTS, atoms, 3); backbone first."""
    copies = chi.shape[0]
    backbone = target["backbone"].expand(copies, -1, -1, -1)
    a, b, c = backbone[:, :, 0], backbone[:, :, 1], backbone[:, :, 4]
    side = []
    for k in range(4):
        d = place_atom(a, b, c, chi[:, :, k])
        side.append(d)
        a, b, c = b, c, d
    side = torch.stack(side, dim=2).reshape(copies, -1, 3)
    return torch.cat([backbone.reshape(copies, -1, 3), side[:, target["side_index"]]], dim=1)


# ------------------------------------------------------------------ energy
def lennard_jones(x, sigma, apart):
    diff = x.unsqueeze(-2) - x.unsqueeze(-3)
    dist = torch.sqrt((diff ** 2).sum(dim=-1) + 1e-6)
    r6 = (sigma / torch.maximum(dist, 0.65 * sigma)) ** 6        # soft core
    lj = (r6 ** 2 - 2 * r6) * apart * (dist < CUTOFF)
    return 0.5 * lj.sum(dim=(-2, -1))


def clash_energy(x, target):
    residue = torch.tensor(target["atom_residue"], device=DEVICE)
    radius = torch.tensor(target["atom_radius"], device=DEVICE)
    apart = (residue[:, None] - residue[None, :]).abs() > 1      # neighbours are bonded
    sigma = radius[:, None] + radius[None, :]
    return lennard_jones(x, sigma, apart)


def rotamer_energy(chi, target):
    """Three wells at -60, 60 and 180 degrees."""
    wells = torch.tensor([-math.pi / 3, math.pi / 3, math.pi], device=DEVICE)
    e = -torch.logsumexp(KAPPA * torch.cos(chi[..., None] - wells), dim=-1)
    return (e * target["has_atom"]).sum(dim=(1, 2))


# ------------------------------------------------------------------ packing
targets = [make_target(n) for n in LENGTHS]
wells = torch.tensor([-math.pi / 3, math.pi / 3, math.pi])
chis = []
for n in LENGTHS:
    chi = wells[torch.randint(3, (RESTARTS, n, 4))] + 0.2 * torch.randn(RESTARTS, n, 4)
    chis.append(chi.to(DEVICE).requires_grad_(True))

optimizer = torch.optim.Adam(chis, lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ITERS, eta_min=1e-3)
best_energy = [float("inf")] * len(targets)
best_chi = [None] * len(targets)
history = []
tic = time.time()

for it in range(ITERS):
    optimizer.zero_grad()
    total = 0
    for k, target in enumerate(targets):
        energy = clash_energy(build(chis[k], target), target) + 0.3 * rotamer_energy(chis[k], target)
        total = total + energy.sum()
        lowest = energy.min().item()
        if lowest < best_energy[k]:
            best_energy[k] = lowest
            best_chi[k] = chis[k][energy.argmin()].detach().cpu().numpy()
    total.backward()
    torch.nn.utils.clip_grad_value_(chis, 50.0)
    optimizer.step()
    scheduler.step()
    history.append(total.item() / (RESTARTS * sum(LENGTHS)))
    if (it + 1) % 50 == 0:
        print(f"{it + 1:5d} energy per residue {np.mean(history[-50:]):8.3f}  best {np.sum(best_energy) / sum(LENGTHS):8.3f}  {time.time() - tic:.1f} s")

np.savez("/tmp/packed.npz", **{f"target{k}": c for k, c in enumerate(best_chi)})
