"""Variational graph autoencoder for link prediction on one citation graph."""
import torch
from torch_geometric.nn import GCNConv, VGAE
from torch_geometric.utils import negative_sampling

torch.manual_seed(12345)
NODES, EDGES, FEATURES = 20000, 60000, 500
device = torch.device("cuda")

x = (torch.rand(NODES, FEATURES) < 0.05).float()
train_pos = torch.randint(0, NODES, (2, EDGES))
val_pos = torch.randint(0, NODES, (2, EDGES // 20))
val_neg = torch.randint(0, NODES, (2, EDGES // 20))


class VariationalGCNEncoder(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = GCNConv(in_channels, 2 * out_channels)
        self.conv_mu = GCNConv(2 * out_channels, out_channels)
        self.conv_logstd = GCNConv(2 * out_channels, out_channels)

    def forward(self, x, edge_index):
        x = self.conv1(x, edge_index).relu()
        return self.conv_mu(x, edge_index), self.conv_logstd(x, edge_index)


model = VGAE(VariationalGCNEncoder(FEATURES, 64)).to(device)
x, train_pos, val_pos, val_neg = x.to(device), train_pos.to(device), val_pos.to(device), val_neg.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    optimizer.zero_grad()
    z = model.encode(x, train_pos)
    neg = negative_sampling(train_pos, num_nodes=NODES, num_neg_samples=EDGES)
    loss = model.recon_loss(z, train_pos, neg)
    loss = loss + (1 / NODES) * model.kl_loss()
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test():
    model.eval()
    z = model.encode(x, train_pos)
    pos, neg = model.decode(z, val_pos), model.decode(z, val_neg)
    return float((pos > neg).float().mean())


for epoch in range(1, 151):
    loss = train()
    auc = test()
    if epoch % 20 == 0:
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, AUC: {auc:.4f}")
