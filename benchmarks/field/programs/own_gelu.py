"""An activation of one's own as an autograd function, in an MLP-Mixer."""
import torch
from torch import nn


class QuickGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(1.702 * x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g * (s + 1.702 * x * s * (1 - s))


class Mlp(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.a, self.b = nn.Linear(d, h), nn.Linear(h, d)

    def forward(self, x):
        return self.b(QuickGELU.apply(self.a(x)))


class Mixer(nn.Module):
    def __init__(self, d=512, n=196):
        super().__init__()
        self.n1, self.n2, self.tokens, self.channels = nn.LayerNorm(d), nn.LayerNorm(d), Mlp(n, 256), Mlp(d, 2048)

    def forward(self, x):
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.n2(x))


torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 512, 16, 16), nn.Flatten(2), nn.Unflatten(1, (512,)), nn.Identity()).cuda()
body, head = nn.Sequential(*[Mixer() for _ in range(8)]).cuda(), nn.Linear(512, 1000).cuda()
params = [*net.parameters(), *body.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.05)
images, labels = torch.randn(64, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (64,), device="cuda")
for step in range(40):
    x = body(net(images).transpose(1, 2))
    loss = nn.functional.cross_entropy(head(x.mean(1)), labels, label_smoothing=0.1)
    loss.backward()
    opt.step()
    opt.zero_grad()
print(loss.item())
