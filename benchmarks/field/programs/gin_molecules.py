"""Batches of small graphs from torch_geometric's loader (collated on the host), GIN with sum pooling."""
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

torch.manual_seed(0)


def molecule():
    n = int(torch.randint(10, 40, (1,)))
    e = torch.randint(0, n, (2, 2 * n))
    return Data(x=torch.randn(n, 32), edge_index=torch.cat([e, e.flip(0)], 1), y=torch.rand(1))


graphs = [molecule() for _ in range(4000)]
loader = DataLoader(graphs, batch_size=64, shuffle=True)


class GIN(nn.Module):
    def __init__(self, d=128, layers=5):
        super().__init__()
        self.convs = nn.ModuleList()
        for i in range(layers):
            mlp = nn.Sequential(nn.Linear(32 if i == 0 else d, d), nn.BatchNorm1d(d), nn.ReLU(), nn.Linear(d, d))
            self.convs.append(GINConv(mlp, train_eps=True))
        self.out = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, data):
        h = data.x
        for conv in self.convs:
            h = F.relu(conv(h, data.edge_index))
        return self.out(global_add_pool(h, data.batch)).squeeze(-1)


model = GIN().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
total = 0.0
for data in loader:
    data = data.to("cuda")
    loss = F.l1_loss(model(data), data.y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    total += loss.item() * data.num_graphs
print(total / len(graphs))
