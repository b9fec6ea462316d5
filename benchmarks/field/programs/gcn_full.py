"""Node classification on one large graph, all nodes at once, torch_geometric's SAGEConv."""
import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

torch.manual_seed(0)
N, E = 60000, 900000
x = torch.randn(N, 128)
edge_index = torch.randint(0, N, (2, E))
y = torch.randint(0, 40, (N,))
train_mask = torch.rand(N) < 0.5
device = torch.device("cuda")


class SAGE(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(128, 256), SAGEConv(256, 256), SAGEConv(256, 40)])
        self.bns = torch.nn.ModuleList([torch.nn.BatchNorm1d(256) for _ in range(2)])

    def forward(self, x, edge_index):
        for conv, bn in zip(self.convs[:-1], self.bns):
            x = F.dropout(F.relu(bn(conv(x, edge_index))), p=0.5, training=self.training)
        return self.convs[-1](x, edge_index)


model = SAGE().to(device)
x, edge_index, y, train_mask = x.to(device), edge_index.to(device), y.to(device), train_mask.to(device)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(40):
    model.train()
    opt.zero_grad()
    out = model(x, edge_index)
    loss = F.cross_entropy(out[train_mask], y[train_mask])
    loss.backward()
    opt.step()
    acc = (out.argmax(-1) == y)[train_mask].float().mean()
    if epoch % 10 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} acc {acc.item():.3f}")
