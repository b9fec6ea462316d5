"""Conservative Q-learning (CQL-H) on a logged data set, single file after the style of CleanRL / CORL."""
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainConfig:
    state_dim: int = 17
    action_dim: int = 6
    hidden: int = 256
    n_hidden: int = 3
    transitions: int = 400_000
    batch_size: int = 256
    n_actions: int = 10
    cql_alpha: float = 10.0
    target_gap: float = 0.8
    discount: float = 0.99
    tau: float = 5e-3
    policy_lr: float = 3e-5
    qf_lr: float = 3e-4
    steps: int = 400
    log_every: int = 100
    device: str = "cuda"
    seed: int = 10


class ReplayBuffer:
    def __init__(self, cfg):
        rng = np.random.default_rng(cfg.seed)
        n, s, a = cfg.transitions, cfg.state_dim, cfg.action_dim
        A, B = rng.normal(0, 0.3, (s, s)), rng.normal(0, 0.3, (a, s))
        self.states = rng.normal(0, 1, (n, s)).astype(np.float32)
        self.actions = np.tanh(rng.normal(0, 1, (n, a))).astype(np.float32)
        self.next_states = (0.5 * np.tanh(self.states @ A + self.actions @ B) + 0.5 * self.states).astype(np.float32)
        self.rewards = (self.next_states[:, :1] - 0.1 * (self.actions ** 2).sum(1, keepdims=True)).astype(np.float32)
        self.dones = (rng.random((n, 1)) < 0.002).astype(np.float32)
        mean, std = self.states.mean(0), self.states.std(0) + 1e-3
        self.states, self.next_states = (self.states - mean) / std, (self.next_states - mean) / std
        self.device = cfg.device

    def sample(self, batch_size):
        i = np.random.randint(0, len(self.states), size=batch_size)
        return [torch.tensor(x[i]).to(self.device) for x in (self.states, self.actions, self.rewards, self.next_states, self.dones)]


def mlp(i, o, cfg):
    layers, d = [], i
    for _ in range(cfg.n_hidden):
        layers += [nn.Linear(d, cfg.hidden), nn.ReLU()]
        d = cfg.hidden
    return nn.Sequential(*layers, nn.Linear(d, o))


class TanhGaussianPolicy(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.base = mlp(cfg.state_dim, 2 * cfg.action_dim, cfg)
        self.log_std_multiplier, self.log_std_offset = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(-1.0))

    def forward(self, obs, repeat=None):
        if repeat is not None:
            obs = obs.unsqueeze(1).repeat(1, repeat, 1)
        mean, log_std = torch.chunk(self.base(obs), 2, dim=-1)
        log_std = torch.clamp(self.log_std_multiplier * log_std + self.log_std_offset, -20, 2)
        dist = torch.distributions.TransformedDistribution(
            torch.distributions.Normal(mean, log_std.exp()), torch.distributions.TanhTransform(cache_size=1))
        action = dist.rsample()
        return action, dist.log_prob(action).sum(-1)


class Critic(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = mlp(cfg.state_dim + cfg.action_dim, 1, cfg)

    def forward(self, obs, act):
        if act.ndim == 3:
            obs = obs.unsqueeze(1).repeat(1, act.shape[1], 1)
        return self.net(torch.cat([obs, act], -1)).squeeze(-1)


class CQL:
    def __init__(self, cfg):
        self.cfg = cfg
        self.actor = TanhGaussianPolicy(cfg).to(cfg.device)
        self.q1, self.q2, self.t1, self.t2 = (Critic(cfg).to(cfg.device) for _ in range(4))
        self.t1.load_state_dict(self.q1.state_dict())
        self.t2.load_state_dict(self.q2.state_dict())
        self.log_alpha = torch.zeros(1, device=cfg.device, requires_grad=True)
        self.log_alpha_prime = torch.ones(1, device=cfg.device, requires_grad=True)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=cfg.policy_lr)
        self.q_opt = torch.optim.Adam(list(self.q1.parameters()) + list(self.q2.parameters()), lr=cfg.qf_lr)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=cfg.policy_lr)
        self.prime_opt = torch.optim.Adam([self.log_alpha_prime], lr=cfg.qf_lr)

    def soft_update(self, net, target):
        for p, t in zip(net.parameters(), target.parameters()):
            t.data.copy_((1 - self.cfg.tau) * t.data + self.cfg.tau * p.data)

    def conservative(self, q, s, a, q_pred, rand, curr, curr_lp, nxt, nxt_lp):
        q_rand, q_curr, q_next = q(s, rand), q(s, curr), q(s, nxt)
        log_uniform = np.log(0.5 ** self.cfg.action_dim)
        cat = torch.cat([q_rand - log_uniform, q_next - nxt_lp.detach(), q_curr - curr_lp.detach()], dim=1)
        std = torch.std(torch.cat([q_rand, q_pred.unsqueeze(1), q_next, q_curr], 1), dim=1)
        gap = torch.clamp(torch.logsumexp(cat, dim=1) - q_pred, -200, torch.inf).mean()
        return gap, std.mean()

    def update(self, batch):
        cfg = self.cfg
        s, a, r, s2, d = batch
        r, d = r.squeeze(-1), d.squeeze(-1)
        # policy and temperature
        new_a, logp = self.actor(s)
        alpha_loss = -(self.log_alpha * (logp - cfg.action_dim).detach()).mean()
        alpha = self.log_alpha.exp()
        policy_loss = (alpha.detach() * logp - torch.min(self.q1(s, new_a), self.q2(s, new_a))).mean()
        # critics, with the highest of several next actions
        q1, q2 = self.q1(s, a), self.q2(s, a)
        with torch.no_grad():
            many, _ = self.actor(s2, repeat=cfg.n_actions)
            target_q = torch.min(self.t1(s2, many), self.t2(s2, many)).max(-1).values
            target = r + (1.0 - d) * cfg.discount * target_q
        bellman1, bellman2 = F.mse_loss(q1, target), F.mse_loss(q2, target)
        rand = s.new_empty((len(s), cfg.n_actions, cfg.action_dim)).uniform_(-1, 1)
        curr, curr_lp = self.actor(s, repeat=cfg.n_actions)
        nxt, nxt_lp = self.actor(s2, repeat=cfg.n_actions)
        curr, nxt = curr.detach(), nxt.detach()
        gap1, std1 = self.conservative(self.q1, s, a, q1, rand, curr, curr_lp, nxt, nxt_lp)
        gap2, std2 = self.conservative(self.q2, s, a, q2, rand, curr, curr_lp, nxt, nxt_lp)
        prime = torch.clamp(torch.exp(self.log_alpha_prime), 0.0, 1e6)
        min1, min2 = prime * cfg.cql_alpha * (gap1 - cfg.target_gap), prime * cfg.cql_alpha * (gap2 - cfg.target_gap)
        prime_loss = (-min1 - min2) * 0.5
        self.prime_opt.zero_grad()
        prime_loss.backward(retain_graph=True)
        self.prime_opt.step()
        self.log_alpha_prime.grad = None
        min1, min2 = prime.detach() * cfg.cql_alpha * (gap1 - cfg.target_gap), prime.detach() * cfg.cql_alpha * (gap2 - cfg.target_gap)
        qf_loss = bellman1 + bellman2 + min1 + min2
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()
        self.actor_opt.zero_grad()
        policy_loss.backward(retain_graph=True)
        self.q_opt.zero_grad()
        qf_loss.backward()
        self.actor_opt.step()
        self.q_opt.step()
        self.soft_update(self.q1, self.t1)
        self.soft_update(self.q2, self.t2)
        return dict(policy_loss=policy_loss.item(), alpha_loss=alpha_loss.item(), alpha=alpha.item(), bellman1=bellman1.item(),
                    bellman2=bellman2.item(), gap1=gap1.item(), gap2=gap2.item(), std1=std1.item(), std2=std2.item(),
                    average_q1=q1.mean().item(), average_q2=q2.mean().item(), target_q=target.mean().item(), log_pi=logp.mean().item())


if __name__ == "__main__":
    cfg = TrainConfig()
    torch.manual_seed(cfg.seed)
    np.random.seed(cfg.seed)
    buffer, trainer = ReplayBuffer(cfg), CQL(cfg)
    start, logs = time.time(), []
    for t in range(cfg.steps):
        batch = buffer.sample(cfg.batch_size)
        logs.append(trainer.update(batch))
        if (t + 1) % cfg.log_every == 0:
            print(t + 1, {k: round(float(np.mean([one[k] for one in logs[-50:]])), 3) for k in logs[-1]}, f"{(t + 1) / (time.time() - start):.1f} it/s")
