"""Node classification with attention over edges, written with scatter operations."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
NODES, EDGES = 100000, 1000000


class GAT(nn.Module):
    def __init__(self, i, o, heads=4):
        super().__init__()
        self.lin = nn.Linear(i, heads * o, bias=False)
        self.src, self.dst = nn.Parameter(torch.randn(heads, o)), nn.Parameter(torch.randn(heads, o))
        self.heads, self.o = heads, o

    def forward(self, x, edges):
        h = self.lin(x).view(-1, self.heads, self.o)
        a, b = edges
        score = F.leaky_relu((h * self.src).sum(-1)[a] + (h * self.dst).sum(-1)[b], 0.2)
        score = (score - score.max()).exp()
        total = torch.zeros(h.shape[0], self.heads, device=x.device).index_add_(0, b, score)
        out = torch.zeros_like(h).index_add_(0, b, h[a] * (score / (total[b] + 1e-9))[..., None])
        return out.flatten(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.g1, self.g2, self.head = GAT(128, 64), GAT(256, 64), nn.Linear(256, 40)

    def forward(self, x, edges):
        x = F.dropout(F.elu(self.g1(x, edges)), 0.5, self.training)
        return self.head(F.elu(self.g2(x, edges)))


x = torch.randn(NODES, 128).cuda()
edges = torch.randint(0, NODES, (2, EDGES)).cuda()
y = torch.randint(0, 40, (NODES,)).cuda()
mask = (torch.rand(NODES) < 0.5).cuda()
model = Net().cuda()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(50):
    out = model(x, edges)
    loss = F.cross_entropy(out[mask], y[mask])
    opt.zero_grad()
    loss.backward()
    opt.step()
    accuracy = (out.argmax(1) == y).float().mean().item()
