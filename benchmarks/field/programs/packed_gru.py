"""Classification of sequences of differing length with a packed bidirectional GRU."""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.rnn = nn.GRU(80, 384, 3, bidirectional=True); self.out = nn.Linear(768, 10)
    def forward(self, xs):
        _, h = self.rnn(pack_sequence(xs, enforce_sorted=False))
        return self.out(torch.cat([h[-2], h[-1]], -1))
net = Net().cuda(); opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
lengths = torch.randint(20, 200, (100, 32)); right = 0
for row in lengths.tolist():
    xs = [torch.randn(n, 80).cuda() for n in row]; y = torch.randint(0, 10, (32,)).cuda()
    logits = net(xs); loss = nn.functional.cross_entropy(logits, y)
    opt.zero_grad(); loss.backward(); opt.step()
    right += (logits.argmax(-1) == y).sum().item()
print(right / lengths.numel())
