"""Bayesian optimization of several objectives: a Gaussian process for each (Matern 5/2, ARD, float64), whose
expected improvement of a weighted sum is climbed by Adam from many random starts. Hyperparameters were fitted before."""
import math

import torch

N, DIM, OBJECTIVES, STARTS, STEPS = 1024, 8, 8, 256, 120
dtype, device = torch.float64, torch.device("cuda")


def objective(x, k):
    return torch.sin((3 + k) * x[:, 0]) + (x[:, k % DIM] - 0.3) ** 2 + 0.5 * torch.cos(5 * x.sum(1) + k) + 0.05 * torch.randn(len(x), dtype=x.dtype)


class GP(torch.nn.Module):
    def __init__(self, x, y):
        super().__init__()
        self.x = x
        self.y = (y - y.mean()) / y.std()
        self.log_ell = torch.nn.Parameter(torch.rand(DIM, dtype=dtype, device=device) - 0.5)
        self.log_scale = torch.nn.Parameter(torch.zeros((), dtype=dtype, device=device))
        self.log_noise = torch.nn.Parameter(torch.tensor(-3.0, dtype=dtype, device=device))

    def kernel(self, a, b):
        diff = (a[:, None, :] - b[None, :, :]) / self.log_ell.exp()
        r = torch.sqrt((diff ** 2).sum(-1) + 1e-12)
        s = math.sqrt(5) * r
        return self.log_scale.exp() * (1 + s + s ** 2 / 3) * torch.exp(-s)

    def factor(self):
        K = self.kernel(self.x, self.x) + (self.log_noise.exp() + 1e-6) * torch.eye(len(self.x), dtype=dtype, device=device)
        L = torch.linalg.cholesky(K)
        alpha = torch.cholesky_solve(self.y[:, None], L)
        return L, alpha

    def posterior(self, x):
        L, alpha = self.factor()
        k = self.kernel(x, self.x)
        mean = (k @ alpha).squeeze(1)
        v = torch.linalg.solve_triangular(L, k.T, upper=False)
        var = self.log_scale.exp() - (v ** 2).sum(0)
        return mean, var.clamp(min=1e-9)


def climb(models, weights):
    """Expected improvement of the weighted sum, started from many points."""
    x = torch.rand(STARTS, DIM, dtype=dtype, device=device, requires_grad=True)
    best = sum(w * m.y for w, m in zip(weights, models)).min()
    optimizer = torch.optim.Adam([x], lr=0.02)
    normal = torch.distributions.Normal(0.0, 1.0)
    for step in range(STEPS):
        means, variances = zip(*[m.posterior(x) for m in models])
        mean = sum(w * mu for w, mu in zip(weights, means))
        sigma = torch.sqrt(sum(w ** 2 * v for w, v in zip(weights, variances)))
        z = (best - mean) / sigma
        ei = sigma * (z * normal.cdf(z) + torch.exp(normal.log_prob(z)))
        optimizer.zero_grad()
        (-ei.sum()).backward()
        optimizer.step()
        with torch.no_grad():
            x.clamp_(0, 1)
        if step % 25 == 0:
            print(f"climb {step}: best ei {ei.max().item():.5f}")
    return x.detach()[ei.argmax()]


if __name__ == "__main__":
    torch.manual_seed(0)
    X = torch.rand(N, DIM, dtype=dtype)
    models = [GP(X.to(device), objective(X, k).to(device)) for k in range(OBJECTIVES)]
    print(climb(models, torch.full((OBJECTIVES,), 1 / OBJECTIVES, dtype=dtype)))
