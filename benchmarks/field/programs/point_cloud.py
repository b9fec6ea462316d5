"""Point clouds: farthest point sampling in a Python loop, neighbors by cdist and topk, gathered features."""
import torch
from torch import nn
torch.manual_seed(0)
def fps(xyz, k):
    b, n, _ = xyz.shape; r = torch.arange(b, device=xyz.device)
    dist = torch.full((b, n), 1e10, device=xyz.device); far = torch.zeros(b, dtype=torch.long, device=xyz.device); out = []
    for _ in range(k):
        out.append(far)
        dist = torch.minimum(dist, ((xyz - xyz[r, far][:, None]) ** 2).sum(-1)); far = dist.argmax(-1)
    return torch.stack(out, 1)
def gather(x, i):
    return x[torch.arange(len(x), device=x.device).view(-1, *[1] * (i.dim() - 1)), i]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128)); self.head = nn.Linear(128, 40)
    def forward(self, xyz):
        c = gather(xyz, fps(xyz, 128)); i = torch.cdist(c, xyz).topk(32, largest=False).indices
        return self.head(self.m(gather(xyz, i) - c[:, :, None]).amax(2).amax(1))
net = Net().cuda(); opt = torch.optim.Adam(net.parameters())
for step in range(100):
    x = torch.randn(16, 1024, 3).cuda(); y = torch.randint(0, 40, (16,)).cuda()
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
