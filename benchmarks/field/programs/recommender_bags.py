"""Click prediction: bags of ids of varying length, dense features, products of pairs."""
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self, tables=12, rows=100000, d=64):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, d, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, d), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(d + 78, 512), nn.ReLU(), nn.Linear(512, 1))
    def forward(self, dense, ids, offsets):
        x = self.bottom(dense)
        t = torch.stack([x] + [b(i, o) for b, i, o in zip(self.bags, ids, offsets)], 1)
        i, j = torch.tril_indices(13, 13, -1)
        return self.top(torch.cat([x, (t @ t.transpose(1, 2))[:, i, j]], 1)).squeeze(1)
net = Net().cuda(); opt = torch.optim.Adagrad(net.parameters(), lr=0.01); losses = []
for step in range(100):
    n = [torch.randint(1, 6, (2048,)) for _ in range(12)]
    ids = [torch.randint(0, 100000, (int(k.sum()),)).cuda() for k in n]
    offsets = [(k.cumsum(0) - k).cuda() for k in n]
    loss = nn.functional.binary_cross_entropy_with_logits(net(torch.randn(2048, 13).cuda(), ids, offsets), torch.rand(2048).round().cuda())
    opt.zero_grad(); loss.backward(); opt.step(); losses.append(loss.item())
