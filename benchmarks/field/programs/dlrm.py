"""Click prediction: 26 embedding tables, pairwise interactions, two MLPs."""

import torch
from torch import nn

torch.manual_seed(0)


def mlp(*sizes):
    layers = []
    for i, o in zip(sizes, sizes[1:]):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    def __init__(self, d=64, tables=26, rows=100000):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, d, mode="sum") for _ in range(tables))
        self.bottom = mlp(13, 512, 256, d)
        self.top = mlp(d + (tables + 1) * tables // 2, 1024, 512, 1)
        self.pairs = torch.tril_indices(tables + 1, tables + 1, -1)

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        rows = torch.stack([x] + [table(sparse[:, i]) for i, table in enumerate(self.tables)], 1)
        z = torch.bmm(rows, rows.transpose(1, 2))
        return self.top(torch.cat([x, z[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)


model = DLRM().cuda()
opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
loss_fn = nn.BCEWithLogitsLoss()
for step in range(60):
    dense = torch.rand(8192, 13)
    sparse = torch.randint(0, 100000, (8192, 26, 3))
    clicked = torch.randint(0, 2, (8192,)).float()
    loss = loss_fn(model(dense.cuda(), sparse.cuda()), clicked.cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
