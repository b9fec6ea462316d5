"""LSTM language model on random tokens, truncated backpropagation through time, clipped gradients."""
import torch
from torch import nn
torch.manual_seed(0)
class LM(nn.Module):
    def __init__(self, v=20000, d=650):
        super().__init__()
        self.emb = nn.Embedding(v, d); self.rnn = nn.LSTM(d, d, 2, dropout=0.5); self.out = nn.Linear(d, v)
    def forward(self, x, h):
        y, h = self.rnn(self.emb(x), h)
        return self.out(y), h
model = LM().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.randint(0, 20000, (35 * 100 + 1, 32)).cuda()
h = None; total = 0.0
for i in range(100):
    x, y = data[i * 35:(i + 1) * 35], data[i * 35 + 1:(i + 1) * 35 + 1]
    if h is not None: h = tuple(s.detach() for s in h)
    logits, h = model(x, h)
    loss = nn.functional.cross_entropy(logits.reshape(-1, 20000), y.reshape(-1))
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    opt.step()
    total += loss.item()
print(total / 100)
