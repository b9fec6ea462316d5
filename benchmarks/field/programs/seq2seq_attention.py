"""Translation by recurrent networks: GRU encoder, a decoder of GRU cells with attention in a Python loop."""
import random
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0); random.seed(0)
V, D, S, T, B = 8000, 512, 40, 30, 64


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.cell = nn.Embedding(V, D), nn.GRUCell(3 * D, D)
        self.attn, self.v, self.out = nn.Linear(3 * D, D), nn.Linear(D, 1, bias=False), nn.Linear(4 * D, V)

    def forward(self, token, h, memory):
        energy = torch.tanh(self.attn(torch.cat([h[:, None].expand(-1, memory.size(1), -1), memory], -1)))
        w = self.v(energy).squeeze(-1).softmax(-1)
        context = torch.bmm(w[:, None], memory).squeeze(1)
        e = self.emb(token)
        h = self.cell(torch.cat([e, context], -1), h)
        return self.out(torch.cat([h, context, e], -1)), h


encoder = nn.GRU(D, D, bidirectional=True, batch_first=True).cuda()
source, decoder = nn.Embedding(V, D).cuda(), Decoder().cuda()
bridge = nn.Linear(2 * D, D).cuda()
params = [p for m in (encoder, source, decoder, bridge) for p in m.parameters()]
opt = torch.optim.Adam(params, lr=1e-3)
for step in range(30):
    src = torch.randint(0, V, (B, S), device="cuda")
    tgt = torch.randint(0, V, (B, T), device="cuda")
    memory, last = encoder(source(src))
    h = torch.tanh(bridge(torch.cat([last[0], last[1]], -1)))
    token, loss = tgt[:, 0], 0.0
    for t in range(1, T):
        logits, h = decoder(token, h, memory)
        loss = loss + F.cross_entropy(logits, tgt[:, t])
        token = tgt[:, t] if random.random() < 0.5 else logits.argmax(-1)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    print(step, loss.item() / T)
