"""A neural ordinary differential equation: torchdiffeq's adaptive solver, adjoint off."""
import torch
from torch import nn
from torchdiffeq import odeint

torch.manual_seed(0)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 2))

    def forward(self, t, y):
        return self.net(y ** 3)


field = Field().cuda()
opt = torch.optim.RMSprop(field.parameters(), lr=1e-3)
A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]]).cuda()
t = torch.linspace(0.0, 2.5, 20).cuda()
y0 = torch.randn(256, 2).cuda()
with torch.no_grad():
    truth = odeint(lambda t, y: y ** 3 @ A, y0, t, method="rk4")
for step in range(30):
    pred = odeint(field, y0, t, method="dopri5", rtol=1e-4, atol=1e-4)
    loss = (pred - truth).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
