"""Fourier neural operator for Darcy flow in two dimensions (after Li et al.)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class SpectralConv2d(nn.Module):
    def __init__(self, cin, cout, m1, m2):
        super().__init__()
        self.cout, self.m1, self.m2 = cout, m1, m2
        scale = 1 / (cin * cout)
        self.weights1 = nn.Parameter(scale * torch.rand(cin, cout, m1, m2, dtype=torch.cfloat))
        self.weights2 = nn.Parameter(scale * torch.rand(cin, cout, m1, m2, dtype=torch.cfloat))

    def compl_mul2d(self, a, b):
        return torch.einsum("bixy,ioxy->boxy", a, b)

    def forward(self, x):
        x_ft = torch.fft.rfft2(x)
        out_ft = torch.zeros(x.shape[0], self.cout, x.size(-2), x.size(-1) // 2 + 1, dtype=torch.cfloat, device=x.device)
        out_ft[:, :, :self.m1, :self.m2] = self.compl_mul2d(x_ft[:, :, :self.m1, :self.m2], self.weights1)
        out_ft[:, :, -self.m1:, :self.m2] = self.compl_mul2d(x_ft[:, :, -self.m1:, :self.m2], self.weights2)
        return torch.fft.irfft2(out_ft, s=(x.size(-2), x.size(-1)))


class FNO2d(nn.Module):
    def __init__(self, modes=16, width=48):
        super().__init__()
        self.fc0 = nn.Linear(3, width)
        self.spectral = nn.ModuleList([SpectralConv2d(width, width, modes, modes) for _ in range(4)])
        self.w = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(4)])
        self.fc1, self.fc2 = nn.Linear(width, 128), nn.Linear(128, 1)

    def get_grid(self, shape, device):
        b, nx, ny = shape[0], shape[1], shape[2]
        gx = torch.linspace(0, 1, nx).reshape(1, nx, 1, 1).repeat([b, 1, ny, 1])
        gy = torch.linspace(0, 1, ny).reshape(1, 1, ny, 1).repeat([b, nx, 1, 1])
        return torch.cat((gx, gy), dim=-1).to(device)

    def forward(self, x):
        x = self.fc0(torch.cat((x, self.get_grid(x.shape, x.device)), dim=-1)).permute(0, 3, 1, 2)
        x = F.pad(x, [0, 9, 0, 9])
        for i, (s, w) in enumerate(zip(self.spectral, self.w)):
            x = s(x) + w(x)
            if i < 3:
                x = F.gelu(x)
        x = x[..., :-9, :-9].permute(0, 2, 3, 1)
        return self.fc2(F.gelu(self.fc1(x)))


def lp_loss(x, y):
    n = x.size(0)
    return (torch.norm(x.reshape(n, -1) - y.reshape(n, -1), 2, 1) / torch.norm(y.reshape(n, -1), 2, 1)).sum()


a = torch.randn(400, 85, 85, 1)
u = torch.randn(400, 85, 85)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(a, u), batch_size=20, shuffle=True)
model = FNO2d().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001, weight_decay=1e-4)
for ep in range(3):
    train_l2 = 0
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        out = model(x).reshape(20, 85, 85)
        loss = lp_loss(out, y)
        loss.backward()
        optimizer.step()
        train_l2 += loss.item()
    print(ep, train_l2 / 400)
