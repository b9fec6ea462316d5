"""Decision transformer on offline trajectories of a locomotion task (synthetic)."""
import random

import numpy as np
import torch
import torch.nn as nn

STATE, ACT, K, MAX_EP, HIDDEN, BATCH = 17, 6, 20, 1000, 256, 256
device = "cuda"


def make_trajectories(n):
    paths = []
    for _ in range(n):
        t = np.random.randint(200, MAX_EP)
        paths.append({"observations": np.random.randn(t, STATE), "actions": np.random.uniform(-1, 1, (t, ACT)),
                      "rewards": np.random.rand(t), "terminals": np.zeros(t)})
    return paths


def discount_cumsum(x):
    out = np.zeros_like(x)
    out[-1] = x[-1]
    for t in reversed(range(x.shape[0] - 1)):
        out[t] = x[t] + out[t + 1]
    return out


class DecisionTransformer(nn.Module):
    def __init__(self, layers=6, heads=4):
        super().__init__()
        self.embed_timestep = nn.Embedding(MAX_EP + 1, HIDDEN)
        self.embed_return, self.embed_state, self.embed_action = nn.Linear(1, HIDDEN), nn.Linear(STATE, HIDDEN), nn.Linear(ACT, HIDDEN)
        self.embed_ln = nn.LayerNorm(HIDDEN)
        layer = nn.TransformerEncoderLayer(HIDDEN, heads, 4 * HIDDEN, 0.1, "relu", batch_first=True, norm_first=True)
        self.transformer = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.predict_action = nn.Sequential(nn.Linear(HIDDEN, ACT), nn.Tanh())

    def forward(self, states, actions, rtg, timesteps, mask):
        b = states.shape[0]
        time = self.embed_timestep(timesteps)
        tokens = [self.embed_return(rtg) + time, self.embed_state(states) + time, self.embed_action(actions) + time]
        x = torch.stack(tokens, 1).permute(0, 2, 1, 3).reshape(b, 3 * K, HIDDEN)
        pad = torch.stack([mask] * 3, 1).permute(0, 2, 1).reshape(b, 3 * K) == 0
        causal = torch.triu(torch.full((3 * K, 3 * K), float("-inf"), device=x.device), 1)
        keep = torch.zeros_like(pad, dtype=x.dtype).masked_fill(pad, -1e9)
        x = self.transformer(self.embed_ln(x), mask=causal, src_key_padding_mask=keep)
        return self.predict_action(x.reshape(b, K, 3, HIDDEN)[:, :, 1])


np.random.seed(0)
trajectories = make_trajectories(300)
state_mean, state_std = 0.0, 1.0


def get_batch():
    s, a, rtg, timesteps, mask = [], [], [], [], []
    for _ in range(BATCH):
        traj = trajectories[random.randint(0, len(trajectories) - 1)]
        si = random.randint(0, traj["rewards"].shape[0] - 1)
        ob, ac = traj["observations"][si:si + K], traj["actions"][si:si + K]
        tlen = ob.shape[0]
        ret = discount_cumsum(traj["rewards"][si:])[:tlen]
        s.append(np.concatenate([np.zeros((K - tlen, STATE)), (ob - state_mean) / state_std]))
        a.append(np.concatenate([np.ones((K - tlen, ACT)) * -10.0, ac]))
        rtg.append(np.concatenate([np.zeros(K - tlen), ret])[:, None] / 1000)
        timesteps.append(np.concatenate([np.zeros(K - tlen), np.arange(si, si + tlen)]))
        mask.append(np.concatenate([np.zeros(K - tlen), np.ones(tlen)]))
    s, a, rtg = (torch.from_numpy(np.array(v)).to(dtype=torch.float32, device=device) for v in (s, a, rtg))
    timesteps, mask = (torch.from_numpy(np.array(v)).to(dtype=torch.long, device=device) for v in (timesteps, mask))
    return s, a, rtg, timesteps, mask


model = DecisionTransformer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: min((steps + 1) / 10000, 1))
train_losses = []
for i in range(150):
    states, actions, rtg, timesteps, mask = get_batch()
    preds = model(states, actions, rtg, timesteps, mask)
    keep = mask.reshape(-1) > 0
    loss = torch.mean((preds.reshape(-1, ACT)[keep] - actions.reshape(-1, ACT)[keep]) ** 2)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    scheduler.step()
    train_losses.append(loss.detach().cpu().item())
print("training/train_loss_mean", np.mean(train_losses))
