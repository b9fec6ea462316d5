"""PPO on a vectorized environment in numpy: act step by step, then a few epochs of minibatches."""
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
rng = np.random.default_rng(0)
ENVS, HORIZON, OBS, ACT = 64, 64, 32, 8
W = rng.standard_normal((ACT, OBS)).astype(np.float32) * 0.1


def env_step(state, action):
    state = 0.95 * state + action @ W + 0.05 * rng.standard_normal(state.shape).astype(np.float32)
    return state, -np.square(state).mean(1)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(OBS, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, ACT))
        self.v = nn.Sequential(nn.Linear(OBS, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
        self.log_std = nn.Parameter(torch.zeros(ACT))

    def dist(self, obs):
        return Normal(self.pi(obs), self.log_std.exp())


ac = ActorCritic().cuda()
opt = torch.optim.Adam(ac.parameters(), lr=3e-4)
state = rng.standard_normal((ENVS, OBS)).astype(np.float32)
for iteration in range(12):
    obs, acts, logps, rews, vals = [], [], [], [], []
    for t in range(HORIZON):
        with torch.no_grad():
            o = torch.from_numpy(state).cuda()
            d = ac.dist(o)
            a = d.sample()
            logp = d.log_prob(a).sum(-1)
            v = ac.v(o).squeeze(-1)
        state, r = env_step(state, a.cpu().numpy())
        obs.append(o); acts.append(a); logps.append(logp); vals.append(v)
        rews.append(torch.as_tensor(r, device="cuda"))
    adv, ret, last = [], [], torch.zeros(ENVS, device="cuda")
    for t in reversed(range(HORIZON)):
        nxt = vals[t + 1] if t + 1 < HORIZON else torch.zeros(ENVS, device="cuda")
        last = rews[t] + 0.99 * nxt - vals[t] + 0.99 * 0.95 * last
        adv.insert(0, last); ret.insert(0, last + vals[t])
    obs, acts, logps, adv, ret = (torch.cat(x) for x in (obs, acts, logps, adv, ret))
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for epoch in range(4):
        for idx in torch.randperm(len(obs), device="cuda").split(1024):
            d = ac.dist(obs[idx])
            ratio = (d.log_prob(acts[idx]).sum(-1) - logps[idx]).exp()
            surrogate = torch.min(ratio * adv[idx], ratio.clamp(0.8, 1.2) * adv[idx]).mean()
            value_loss = (ac.v(obs[idx]).squeeze(-1) - ret[idx]).pow(2).mean()
            loss = -surrogate + 0.5 * value_loss - 0.01 * d.entropy().sum(-1).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ac.parameters(), 0.5)
            opt.step()
    print(iteration, loss.item())
