"""Double DQN with convolutions, a replay buffer of uint8 frames on the host, a target network."""
import random
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

random.seed(0); np.random.seed(0); torch.manual_seed(0)
device = "cuda"


class QNet(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                                  nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions))

    def forward(self, x):
        return self.fc(self.conv(x.float() / 255.0))


class Replay:
    def __init__(self, size=3000):
        self.s = np.random.randint(0, 255, (size, 4, 84, 84), dtype=np.uint8)
        self.a = np.random.randint(0, 6, size); self.r = np.random.rand(size).astype(np.float32)
        self.d = (np.random.rand(size) < 0.01).astype(np.float32)

    def sample(self, n):
        i = np.random.randint(0, len(self.s) - 1, n)
        return [torch.tensor(x, device=device) for x in (self.s[i], self.a[i], self.r[i], self.s[i + 1], self.d[i])]


q, target = QNet().to(device), QNet().to(device)
target.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), lr=1e-4)
buffer = Replay()
state = buffer.s[0]
for step in range(200):
    if random.random() < 0.1:
        action = random.randrange(6)
    else:
        with torch.no_grad():
            action = q(torch.tensor(state, device=device).unsqueeze(0)).argmax(1).item()
    state = buffer.s[(step + action) % 3000]
    s, a, r, s2, d = buffer.sample(256)
    with torch.no_grad():
        best = q(s2).argmax(1, keepdim=True)
        y = r + 0.99 * (1 - d) * target(s2).gather(1, best).squeeze(1)
    loss = F.smooth_l1_loss(q(s).gather(1, a.unsqueeze(1)).squeeze(1), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    for p, tp in zip(q.parameters(), target.parameters()):
        tp.data.copy_(0.995 * tp.data + 0.005 * p.data)
    if step % 50 == 0:
        print(step, loss.item())
