import argparse

import torch
import torch.nn as nn
from torch.nn import BatchNorm1d, Embedding, Linear, ModuleList, ReLU, Sequential
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool

parser = argparse.ArgumentParser()
parser.add_argument("--graphs", type=int, default=5120)
parser.add_argument("--batch_size", type=int, default=64)
args = parser.parse_args()


def molecule():
    n = int(torch.randint(12, 36, ()))
    src = torch.arange(n - 1)
    ring = torch.randint(0, n, (2, 4))
    edge = torch.cat([torch.stack([src, src + 1]), ring], 1)
    edge = torch.cat([edge, edge.flip(0)], 1)
    return Data(x=torch.randint(0, 28, (n, 1)), edge_index=edge, edge_attr=torch.randint(0, 4, (edge.size(1),)),
                pe=torch.randn(n, 20), y=torch.randn(1))


class GPS(torch.nn.Module):
    def __init__(self, channels, pe_dim, num_layers):
        super().__init__()
        self.node_emb = Embedding(28, channels - pe_dim)
        self.pe_lin = Linear(20, pe_dim)
        self.pe_norm = BatchNorm1d(20)
        self.edge_emb = Embedding(4, channels)
        self.convs = ModuleList()
        for _ in range(num_layers):
            net = Sequential(Linear(channels, channels), ReLU(), Linear(channels, channels))
            self.convs.append(GPSConv(channels, GINEConv(net), heads=4, attn_type="multihead", attn_kwargs={"dropout": 0.5}))
        self.mlp = Sequential(Linear(channels, channels // 2), ReLU(), Linear(channels // 2, channels // 4), ReLU(),
                              Linear(channels // 4, 1))

    def forward(self, x, pe, edge_index, edge_attr, batch):
        x_pe = self.pe_norm(pe)
        x = torch.cat((self.node_emb(x.squeeze(-1)), self.pe_lin(x_pe)), 1)
        edge_attr = self.edge_emb(edge_attr)
        for conv in self.convs:
            x = conv(x, edge_index, batch, edge_attr=edge_attr)
        x = global_add_pool(x, batch)
        return self.mlp(x)


torch.manual_seed(0)
train_dataset = [molecule() for _ in range(args.graphs)]
train_loader = DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True)
device = torch.device("cuda")
model = GPS(channels=64, pe_dim=8, num_layers=10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001, weight_decay=1e-5)


def train():
    model.train()
    total_loss = 0
    for data in train_loader:
        data = data.to(device)
        optimizer.zero_grad()
        out = model(data.x, data.pe, data.edge_index, data.edge_attr, data.batch)
        loss = (out.squeeze() - data.y).abs().mean()
        loss.backward()
        total_loss += loss.item() * data.num_graphs
        optimizer.step()
    return total_loss / len(train_loader.dataset)


for epoch in range(1, 3):
    print(f"Epoch: {epoch:02d}, Loss: {train():.4f}")
