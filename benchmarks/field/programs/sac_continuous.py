"""Soft actor-critic on a toy continuous control task (in the style of CleanRL's single file)."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

OBS, ACT, N_ENVS = 24, 6, 8
device = torch.device("cuda")


class PointEnvs:
    """Vector of linear systems with noise."""

    def __init__(self, n):
        self.A, self.B = np.random.randn(OBS, OBS) * 0.05, np.random.randn(ACT, OBS) * 0.3
        self.s = np.random.randn(n, OBS).astype(np.float32)

    def step(self, a):
        self.s = (0.95 * self.s + self.s @ self.A + a @ self.B + 0.01 * np.random.randn(*self.s.shape)).astype(np.float32)
        done = np.abs(self.s).max(1) > 10
        r = -np.square(self.s).mean(1) - 0.1 * np.square(a).mean(1)
        nxt = self.s.copy()
        self.s[done] = np.random.randn(int(done.sum()), OBS)
        return nxt, r.astype(np.float32), done.astype(np.float32)


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, o))


class SoftQNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(OBS + ACT, 1)

    def forward(self, x, a):
        return self.net(torch.cat([x, a], 1))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(OBS, 2 * ACT)

    def forward(self, x):
        mean, log_std = self.net(x).chunk(2, -1)
        log_std = -5 + 0.5 * 7 * (torch.tanh(log_std) + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        x_t = normal.rsample()
        y_t = torch.tanh(x_t)
        log_prob = normal.log_prob(x_t) - torch.log(1 - y_t.pow(2) + 1e-6)
        return y_t, log_prob.sum(1, keepdim=True)


np.random.seed(1)
torch.manual_seed(1)
envs, actor = PointEnvs(N_ENVS), Actor().to(device)
qf1, qf2, qf1_target, qf2_target = [SoftQNetwork().to(device) for _ in range(4)]
qf1_target.load_state_dict(qf1.state_dict())
qf2_target.load_state_dict(qf2.state_dict())
q_optimizer = optim.Adam(list(qf1.parameters()) + list(qf2.parameters()), lr=1e-3)
actor_optimizer = optim.Adam(list(actor.parameters()), lr=3e-4)
log_alpha = torch.zeros(1, requires_grad=True, device=device)
a_optimizer = optim.Adam([log_alpha], lr=1e-3)
rb = {"s": np.random.randn(100000, OBS).astype(np.float32), "a": np.random.uniform(-1, 1, (100000, ACT)).astype(np.float32),
      "r": np.zeros(100000, np.float32), "n": np.random.randn(100000, OBS).astype(np.float32), "d": np.zeros(100000, np.float32)}
for global_step in range(100):
    obs = envs.s.copy()
    with torch.no_grad():
        actions = actor(torch.Tensor(obs).to(device))[0].cpu().numpy()
    nxt, rew, done = envs.step(actions)
    at = (global_step * N_ENVS + np.arange(N_ENVS)) % 100000
    rb["s"][at], rb["a"][at], rb["r"][at], rb["n"][at], rb["d"][at] = obs, actions, rew, nxt, done
    idx = np.random.randint(0, 100000, 256)
    s, a, r, n, d = (torch.tensor(rb[k][idx], device=device) for k in "sarnd")
    alpha = log_alpha.exp().item()
    with torch.no_grad():
        n_a, n_logp = actor(n)
        min_q = torch.min(qf1_target(n, n_a), qf2_target(n, n_a)) - alpha * n_logp
        target = r + (1 - d) * 0.99 * min_q.view(-1)
    qf_loss = F.mse_loss(qf1(s, a).view(-1), target) + F.mse_loss(qf2(s, a).view(-1), target)
    q_optimizer.zero_grad()
    qf_loss.backward()
    q_optimizer.step()
    pi, logp = actor(s)
    actor_loss = (alpha * logp - torch.min(qf1(s, pi), qf2(s, pi))).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    alpha_loss = (-log_alpha.exp() * (logp.detach() - ACT)).mean()
    a_optimizer.zero_grad()
    alpha_loss.backward()
    a_optimizer.step()
    for q, t in ((qf1, qf1_target), (qf2, qf2_target)):
        for param, target_param in zip(q.parameters(), t.parameters()):
            target_param.data.copy_(0.005 * param.data + 0.995 * target_param.data)
print(qf_loss.item(), actor_loss.item(), alpha)
