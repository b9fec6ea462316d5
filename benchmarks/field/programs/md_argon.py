"""Molecular dynamics of Lennard-Jones argon in double precision, forces by autograd, velocity Verlet."""
import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
dev = "cuda"


class LennardJones(torch.nn.Module):
    def __init__(self, box, sigma=3.4, eps=0.238, cutoff=8.5):
        super().__init__()
        self.box, self.sigma, self.eps, self.cutoff = box, sigma, eps, cutoff

    def forward(self, pos):
        n = pos.shape[0]
        i, j = torch.triu_indices(n, n, 1, device=pos.device)
        d = pos[i] - pos[j]
        d = d - self.box * torch.round(d / self.box)
        r2 = (d ** 2).sum(-1)
        r2 = r2[r2 < self.cutoff ** 2]
        s6 = (self.sigma ** 2 / r2) ** 3
        return 4 * self.eps * (s6 ** 2 - s6).sum()


side = 10
a = 4.0
grid = torch.stack(torch.meshgrid(*[torch.arange(side) * a] * 3, indexing="ij"), -1).reshape(-1, 3)
pos = (grid + 0.05 * torch.randn(side ** 3, 3)).to(dev)
vel = 0.003 * torch.randn(side ** 3, 3, device=dev)
mass, dt = 39.95, 2.0
lj = LennardJones(side * a)


def forces(pos):
    pos = pos.detach().requires_grad_(True)
    energy = lj(pos)
    return energy.detach(), -torch.autograd.grad(energy, pos)[0]


e, f = forces(pos)
trajectory = []
for step in range(100):
    vel = vel + 0.5 * dt * f / mass * 4.184e-4
    pos = (pos + dt * vel) % lj.box
    e, f = forces(pos)
    vel = vel + 0.5 * dt * f / mass * 4.184e-4
    kinetic = 0.5 * mass * (vel ** 2).sum() / 4.184e-4
    temperature = (2 * kinetic / (3 * len(pos) * 0.0019872)).item()
    trajectory.append((e.item(), temperature))
    if step % 25 == 0:
        print(f"{step:5d}  E = {e.item() + kinetic.item():.4f}  T = {temperature:.1f} K")
