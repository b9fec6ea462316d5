"""Word language model: embedding, LSTM, tied output."""

import torch
from torch import nn

torch.manual_seed(0)
VOCAB = 20000


class LM(nn.Module):
    def __init__(self, d=1024):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.rnn = nn.LSTM(d, d, 2, dropout=0.2)
        self.out = nn.Linear(d, VOCAB)
        self.out.weight = self.emb.weight

    def forward(self, x, state):
        h, state = self.rnn(self.emb(x), state)
        return self.out(h), state


model = LM().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
data = torch.randint(0, VOCAB, (4000, 64))
state = None
for step in range(50):
    i = step * 70 % 3500
    x, y = data[i : i + 70].cuda(), data[i + 1 : i + 71].cuda()
    if state is not None:
        state = tuple(s.detach() for s in state)
    logits, state = model(x, state)
    loss = criterion(logits.view(-1, VOCAB), y.view(-1))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    opt.step()
