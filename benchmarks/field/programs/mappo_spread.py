# MAPPO (PPO with central critics), CleanRL style: N agents cover N landmarks without bumping. The world runs on the GPU.
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical


@dataclass
class Args:
    seed: int = 1
    torch_deterministic: bool = True
    num_envs: int = 512
    num_agents: int = 5
    num_steps: int = 16          # of a rollout
    episode_length: int = 64
    iterations: int = 60
    learning_rate: float = 7e-4
    gamma: float = 0.98
    gae_lambda: float = 0.95
    update_epochs: int = 3
    num_minibatches: int = 2
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    max_grad_norm: float = 10.0
    hidden: int = 64
    device: str = os.environ.get("DEVICE", "cuda")


MOVES = [[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]


class SpreadWorld:
    dt, damping, size, contact = 0.1, 0.25, 0.15, 60.0

    def __init__(self, args):
        self.args = args
        self.n, self.e, self.device = args.num_agents, args.num_envs, args.device
        self.obs_dim = 4 + 2 * self.n + 2 * (self.n - 1)
        self.t = 0
        self.reset()

    def reset(self):
        self.pos = torch.rand(self.e, self.n, 2, device=self.device) * 2 - 1
        self.vel = torch.zeros(self.e, self.n, 2, device=self.device)
        self.marks = torch.rand(self.e, self.n, 2, device=self.device) * 2 - 1
        self.t = 0
        return self.observe(self.pos, self.vel, self.marks)

    def observe(self, pos, vel, marks):
        rows = []
        for i in range(self.n):
            parts = [vel[:, i], pos[:, i]]
            for j in range(self.n):
                parts.append(marks[:, j] - pos[:, i])
            for j in range(self.n):
                if j != i:
                    parts.append(pos[:, j] - pos[:, i])
            rows.append(torch.cat(parts, 1))
        return torch.stack(rows, 1)

    def physics(self, pos, vel, marks, force):
        total = [force[:, i] * 5.0 for i in range(self.n)]
        bumps = [0.0] * self.n
        for a in range(self.n):
            for b in range(a + 1, self.n):
                delta = pos[:, a] - pos[:, b]
                dist = torch.sqrt((delta ** 2).sum(1)).clamp(min=1e-4)
                depth = torch.nn.functional.softplus((2 * self.size - dist) / 0.02) * 0.02
                push = self.contact * (delta / dist[:, None]) * depth[:, None]
                total[a] = total[a] + push
                total[b] = total[b] - push
                hit = (dist < 2 * self.size).float()
                bumps[a] = bumps[a] + hit
                bumps[b] = bumps[b] + hit
        vel = vel * (1 - self.damping) + torch.stack(total, 1) * self.dt
        pos = pos + vel * self.dt
        reward = 0.0
        for k in range(self.n):
            dists = torch.stack([((pos[:, i] - marks[:, k]) ** 2).sum(1).sqrt() for i in range(self.n)], 1)
            reward = reward - dists.min(1).values
        reward = reward[:, None] - torch.stack(bumps, 1)
        return pos, vel, reward, self.observe(pos, vel, marks)

    def step(self, actions):
        force = torch.tensor(MOVES, device=self.device)[actions]
        self.pos, self.vel, reward, obs = self.physics(self.pos, self.vel, self.marks, force)
        self.t += 1
        done = self.t >= self.args.episode_length
        return self.reset() if done else obs, reward, done


def layer_init(layer, std=np.sqrt(2)):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self, obs_dim, state_dim, hidden):
        super().__init__()
        self.actor = nn.Sequential(layer_init(nn.Linear(obs_dim, hidden)), nn.Tanh(), layer_init(nn.Linear(hidden, hidden)),
                                   nn.Tanh(), layer_init(nn.Linear(hidden, len(MOVES)), 0.01))
        self.critic = nn.Sequential(layer_init(nn.Linear(state_dim, hidden)), nn.Tanh(), layer_init(nn.Linear(hidden, hidden)),
                                    nn.Tanh(), layer_init(nn.Linear(hidden, 1), 1.0))

    def get_action_and_value(self, obs, state, action=None):
        probs = Categorical(logits=self.actor(obs))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(state).squeeze(1)


if __name__ == "__main__":
    args = Args()
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    device = args.device
    world = SpreadWorld(args)
    A, T, E = args.num_agents, args.num_steps, args.num_envs
    agents = [Agent(world.obs_dim, A * world.obs_dim, args.hidden).to(device) for _ in range(A)]
    optimizers = [optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5) for agent in agents]

    obs_buf = torch.zeros(T, E, A, world.obs_dim)
    act_buf, logp_buf = torch.zeros(T, E, A, dtype=torch.long), torch.zeros(T, E, A)
    rew_buf, val_buf = torch.zeros(T, E, A), torch.zeros(T, E, A)
    done_buf = torch.zeros(T)

    obs, start = world.reset(), time.time()
    for iteration in range(1, args.iterations + 1):
        for t in range(T):
            with torch.no_grad():
                state = obs.flatten(1)
                outs = [agent.get_action_and_value(obs[:, i], state) for i, agent in enumerate(agents)]
            actions, logps, values = (torch.stack([out[k] for out in outs], 1) for k in (0, 1, 3))
            obs_buf[t], act_buf[t], logp_buf[t], val_buf[t] = obs.cpu(), actions.cpu(), logps.cpu(), values.cpu()
            obs, reward, done = world.step(actions)
            rew_buf[t], done_buf[t] = reward.cpu(), float(done)

        with torch.no_grad():
            next_value = torch.stack([agent.critic(obs.flatten(1)).squeeze(1) for agent in agents], 1).cpu()
        adv_buf, last = torch.zeros(T, E, A), 0
        for t in reversed(range(T)):
            alive = 1.0 - done_buf[t]
            following = next_value if t == T - 1 else val_buf[t + 1]
            delta = rew_buf[t] + args.gamma * following * alive - val_buf[t]
            adv_buf[t] = last = delta + args.gamma * args.gae_lambda * alive * last
        returns = adv_buf + val_buf

        b_obs = obs_buf.reshape(T * E, A, -1)
        order = np.arange(T * E)
        clipfracs = []
        for epoch in range(args.update_epochs):
            np.random.shuffle(order)
            for chunk in np.array_split(order, args.num_minibatches):
                mb_obs = b_obs[chunk].to(device)
                for i, (agent, optimizer) in enumerate(zip(agents, optimizers)):
                    mb_act, mb_logp, mb_adv, mb_ret = (x.reshape(T * E, A)[chunk, i].to(device)
                                                       for x in (act_buf, logp_buf, adv_buf, returns))
                    _, logp, entropy, value = agent.get_action_and_value(mb_obs[:, i], mb_obs.flatten(1), mb_act)
                    ratio = (logp - mb_logp).exp()
                    with torch.no_grad():
                        clipfracs.append(((ratio - 1.0).abs() > args.clip_coef).float().mean().item())
                    mb_adv = (mb_adv - mb_adv.mean()) / (mb_adv.std() + 1e-8)
                    pg_loss = torch.max(-mb_adv * ratio, -mb_adv * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)).mean()
                    v_loss = 0.5 * nn.functional.huber_loss(value, mb_ret, delta=10.0)
                    loss = pg_loss - args.ent_coef * entropy.mean() + v_loss
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                    optimizer.step()
        if iteration % 5 == 0:
            print(f"iteration {iteration} reward {rew_buf.mean().item():.3f} value loss {v_loss.item():.3f} "
                  f"clipped {np.mean(clipfracs):.3f} steps/s {iteration * T * E / (time.time() - start):.0f}")
