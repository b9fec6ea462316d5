# Node classification on a heterogeneous citation graph (papers, authors, venues), full batch.
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, Linear, SAGEConv

torch.manual_seed(42)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


def make_graph(num_papers=24000, num_authors=30000, num_venues=400):
    data = HeteroData()
    data['paper'].x = torch.randn(num_papers, 256)
    data['paper'].y = torch.randint(0, 20, (num_papers,))
    split = torch.rand(num_papers)
    data['paper'].train_mask = split < 0.6
    data['paper'].val_mask = (split >= 0.6) & (split < 0.8)
    data['paper'].test_mask = split >= 0.8
    data['author'].x = torch.randn(num_authors, 128)
    data['venue'].x = torch.randn(num_venues, 32)
    pairs = lambda a, b, n: torch.stack([torch.randint(0, a, (n,)), torch.randint(0, b, (n,))])
    data['author', 'writes', 'paper'].edge_index = pairs(num_authors, num_papers, 90000)
    data['paper', 'cites', 'paper'].edge_index = pairs(num_papers, num_papers, 200000)
    data['paper', 'in', 'venue'].edge_index = pairs(num_papers, num_venues, num_papers)
    return T.ToUndirected()(data)


class HeteroGNN(torch.nn.Module):
    def __init__(self, metadata, hidden_channels, out_channels, num_layers):
        super().__init__()
        self.convs = torch.nn.ModuleList()
        for _ in range(num_layers):
            self.convs.append(HeteroConv({
                edge_type: SAGEConv((-1, -1), hidden_channels) for edge_type in metadata[1]
            }, aggr='sum'))
        self.lin = Linear(hidden_channels, out_channels)

    def forward(self, x_dict, edge_index_dict):
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
            x_dict = {key: F.leaky_relu(x) for key, x in x_dict.items()}
        return self.lin(x_dict['paper'])


data = make_graph().to(device)
model = HeteroGNN(data.metadata(), hidden_channels=128, out_channels=20, num_layers=2).to(device)
with torch.no_grad():  # Initialize lazy modules.
    model(data.x_dict, data.edge_index_dict)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=0.001)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x_dict, data.edge_index_dict)
    mask = data['paper'].train_mask
    loss = F.cross_entropy(out[mask], data['paper'].y[mask])
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x_dict, data.edge_index_dict).argmax(dim=-1)
    accs = []
    for split in ['train_mask', 'val_mask', 'test_mask']:
        mask = data['paper'][split]
        accs.append(float((pred[mask] == data['paper'].y[mask]).sum() / mask.sum()))
    return accs


for epoch in range(1, 61):
    loss = train()
    train_acc, val_acc, test_acc = test()
    if epoch % 20 == 0:
        print(f'Epoch: {epoch:03d}, Loss: {loss:.4f}, Train: {train_acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}')
