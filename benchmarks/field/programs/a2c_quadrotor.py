"""A2C with generalized advantages on a planar quadrotor; thousands of environments are simulated on the GPU."""
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Normal


@dataclass
class Config:
    envs: int = 8192
    horizon: int = 24
    updates: int = 120
    gamma: float = 0.99
    lam: float = 0.95
    lr: float = 3e-4
    entropy_coef: float = 1e-3
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    device: str = "cuda"


class Quadrotor:
    """State: x, y, angle and their velocities; two rotors; a goal near the origin."""

    dt, mass, arm, inertia, g, limit = 0.02, 0.5, 0.15, 0.005, 9.81, 500

    def __init__(self, n, device):
        self.n, self.device = n, device
        self.state = torch.zeros(n, 6, device=device)
        self.goal = torch.zeros(n, 2, device=device)
        self.t = torch.zeros(n, dtype=torch.long, device=device)
        self.returns = torch.zeros(n, device=device)
        self.finished = []
        self.reset_idx(torch.arange(n, device=device))

    def reset_idx(self, idx):
        self.state[idx] = torch.randn(len(idx), 6, device=self.device) * torch.tensor([1, 1, 0.3, 0.5, 0.5, 0.3], device=self.device)
        self.goal[idx] = torch.rand(len(idx), 2, device=self.device) * 2 - 1
        self.t[idx] = 0
        self.returns[idx] = 0

    def obs(self):
        x, y, th, vx, vy, om = self.state.unbind(1)
        return torch.stack([x - self.goal[:, 0], y - self.goal[:, 1], torch.sin(th), torch.cos(th), vx, vy, om, self.t / self.limit], 1)

    def step(self, action):
        thrust = (action.clamp(-1, 1) + 1) * self.mass * self.g * 0.5
        x, y, th, vx, vy, om = self.state.unbind(1)
        total = thrust.sum(1)
        ax = -total * torch.sin(th) / self.mass
        ay = total * torch.cos(th) / self.mass - self.g
        alpha = (thrust[:, 1] - thrust[:, 0]) * self.arm / self.inertia
        vx, vy, om = vx + ax * self.dt, vy + ay * self.dt, om + alpha * self.dt
        x, y, th = x + vx * self.dt, y + vy * self.dt, th + om * self.dt
        self.state = torch.stack([x, y, th, vx, vy, om], 1)
        self.t += 1
        dist = torch.sqrt((x - self.goal[:, 0]) ** 2 + (y - self.goal[:, 1]) ** 2)
        reward = torch.exp(-dist) - 0.01 * (action ** 2).sum(1) - 0.05 * om.abs()
        crashed = (dist > 5) | (th.abs() > 3)
        done = crashed | (self.t >= self.limit)
        self.returns += reward
        if done.any():
            idx = done.nonzero().squeeze(1)
            self.finished.extend(self.returns[idx].tolist())
            self.reset_idx(idx)
        return self.obs(), reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self, obs_dim=8, act_dim=2, hidden=256):
        super().__init__()

        def mlp(out):
            return nn.Sequential(nn.Linear(obs_dim, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(),
                                 nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, out))

        self.actor, self.critic = mlp(act_dim), mlp(1)
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def forward(self, obs):
        return self.actor(obs), self.log_std.exp().expand(len(obs), -1), self.critic(obs).squeeze(-1)


def grad_norm(model):
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.data.norm(2).item() ** 2
    return total ** 0.5


def train(cfg):
    torch.manual_seed(1)
    env = Quadrotor(cfg.envs, cfg.device)
    model = ActorCritic().to(cfg.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, eps=1e-5)
    obs, start, history = env.obs(), time.time(), []
    for update in range(cfg.updates):
        all_obs, actions, rewards, dones = [], [], [], []
        with torch.no_grad():
            for t in range(cfg.horizon):
                mean, std, _ = model(obs)
                action = Normal(mean, std, validate_args=False).sample()
                all_obs.append(obs)
                actions.append(action)
                obs, reward, done = env.step(action)
                rewards.append(reward)
                dones.append(done)
            _, _, last_value = model(obs)

        log_probs, entropies, values = [], [], []
        for t in range(cfg.horizon):
            mean, std, value = model(all_obs[t])
            dist = Normal(mean, std, validate_args=False)
            log_probs.append(dist.log_prob(actions[t]).sum(-1))
            entropies.append(dist.entropy().sum(-1))
            values.append(value)

        advantages, gae = [], torch.zeros_like(last_value)
        next_value = last_value
        for t in reversed(range(cfg.horizon)):
            alive = 1.0 - dones[t]
            delta = rewards[t] + cfg.gamma * next_value * alive - values[t].detach()
            gae = delta + cfg.gamma * cfg.lam * alive * gae
            advantages.insert(0, gae)
            next_value = values[t].detach()
        advantages = torch.stack(advantages)
        values = torch.stack(values)
        returns = advantages + values.detach()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

        policy_loss = -(torch.stack(log_probs) * advantages).mean()
        value_loss = (returns - values).pow(2).mean()
        entropy = torch.stack(entropies).mean()
        loss = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy
        optimizer.zero_grad()
        loss.backward()
        norm = grad_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), cfg.max_grad_norm)
        optimizer.step()
        history.append((policy_loss.item(), value_loss.item(), entropy.item(), norm))
        if update % 20 == 0:
            recent = env.finished[-200:]
            fps = (update + 1) * cfg.horizon * cfg.envs / (time.time() - start)
            print(f"update {update} return {sum(recent) / max(len(recent), 1):.2f} value loss {history[-1][1]:.3f} fps {fps:.0f}")


if __name__ == "__main__":
    train(Config())
