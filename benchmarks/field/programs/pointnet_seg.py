"""Part segmentation of point clouds: PointNet with its transform network, shared layers as Conv1d."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)


def shared(*sizes):
    return nn.Sequential(*[m for i, o in zip(sizes, sizes[1:]) for m in (nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU())])


class TNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k, self.conv = k, shared(k, 64, 128, 1024)
        self.fc = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, k * k))

    def forward(self, x):
        h = self.fc(self.conv(x).max(-1).values)
        return h.view(-1, self.k, self.k) + torch.eye(self.k).to(x.device)


class PointNetSeg(nn.Module):
    def __init__(self, parts=50):
        super().__init__()
        self.t3, self.t64 = TNet(3), TNet(64)
        self.a, self.b = shared(3, 64, 64), shared(64, 64, 128, 1024)
        self.head = nn.Sequential(shared(1088, 512, 256, 128), nn.Conv1d(128, parts, 1))

    def forward(self, x):
        x = torch.bmm(self.t3(x), x)
        h = self.a(x)
        t = self.t64(h)
        h = torch.bmm(t, h)
        g = self.b(h).max(-1, keepdim=True).values
        out = self.head(torch.cat([h, g.expand(-1, -1, x.size(-1))], 1))
        reg = torch.norm(torch.bmm(t, t.transpose(1, 2)) - torch.eye(64, device=x.device), dim=(1, 2)).mean()
        return out, reg


net = PointNetSeg().cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
ious = []
for step in range(50):
    points = torch.randn(32, 3, 2048).cuda()
    target = torch.randint(0, 50, (32, 2048)).cuda()
    out, reg = net(points)
    loss = F.cross_entropy(out, target) + 0.001 * reg
    opt.zero_grad()
    loss.backward()
    opt.step()
    pred = out.argmax(1)
    for part in range(10):
        inter = ((pred == part) & (target == part)).sum().item()
        union = ((pred == part) | (target == part)).sum().item()
        ious.append(inter / max(union, 1))
print(sum(ious) / len(ious))
