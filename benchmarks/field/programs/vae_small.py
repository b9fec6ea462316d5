"""A variational autoencoder on small images; the textbook's loop."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


torch.manual_seed(0)
model = VAE().to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.rand(25600, 1, 28, 28), torch.zeros(25600)), batch_size=128, shuffle=True)
train_loss = 0
for batch_idx, (data, _) in enumerate(loader):
    data = data.to("cuda")
    optimizer.zero_grad()
    recon, mu, logvar = model(data.view(-1, 784))
    bce = F.binary_cross_entropy(recon, data.view(-1, 784), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    loss = bce + kld
    loss.backward()
    train_loss += loss.item()
    optimizer.step()
    if batch_idx % 50 == 0:
        print(batch_idx, loss.item() / len(data))
