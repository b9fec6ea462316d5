# Matrix factorization with the BPR loss, implicit feedback, one sampled negative per positive
import numpy as np
import torch
import torch.nn as nn

n_users, n_items, dim = 400000, 150000, 64
np.random.seed(0)
torch.manual_seed(0)
interactions = np.stack([np.random.randint(0, n_users, 2000000), np.random.zipf(1.3, 2000000) % n_items], 1)


class BPR(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(n_users, dim)
        self.item = nn.Embedding(n_items, dim)
        self.bias = nn.Embedding(n_items, 1)
        nn.init.normal_(self.user.weight, std=0.01)
        nn.init.normal_(self.item.weight, std=0.01)
        nn.init.zeros_(self.bias.weight)

    def score(self, u, i):
        return (self.user(u) * self.item(i)).sum(1) + self.bias(i).squeeze(1)

    def forward(self, u, pos, neg):
        return self.score(u, pos) - self.score(u, neg)


def sample_batch(size):
    rows = interactions[np.random.randint(0, len(interactions), size)]
    negatives = np.random.randint(0, n_items, size)
    clash = negatives == rows[:, 1]
    negatives[clash] = (negatives[clash] + 1) % n_items
    return rows[:, 0], rows[:, 1], negatives


model = BPR().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for it in range(100):
    u, i, j = sample_batch(16384)
    u, i, j = torch.LongTensor(u).cuda(), torch.LongTensor(i).cuda(), torch.LongTensor(j).cuda()
    diff = model(u, i, j)
    reg = (model.user(u) ** 2).sum(1).mean() + (model.item(i) ** 2).sum(1).mean()
    loss = -torch.log(torch.sigmoid(diff) + 1e-8).mean() + 1e-4 * reg
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(np.mean(losses[:10]), np.mean(losses[-10:]))
