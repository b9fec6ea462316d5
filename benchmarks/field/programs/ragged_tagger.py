"""Tagging of sentences of differing length: padded per batch, nn.TransformerEncoder, a loss over real tokens."""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
sentences = [torch.randint(1, 20000, (int(n),)) for n in torch.randint(5, 120, (3200,))]
data = [(s, s % 17) for s in sentences]


def collate(batch):
    return pad_sequence([s for s, _ in batch], True), pad_sequence([t for _, t in batch], True, -100)


class Tagger(nn.Module):
    def __init__(self, d=384):
        super().__init__()
        self.emb, self.pos = nn.Embedding(20000, d, padding_idx=0), nn.Embedding(128, d)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 6, 4 * d, batch_first=True), 6, enable_nested_tensor=False)
        self.out = nn.Linear(d, 17)

    def forward(self, x):
        h = self.emb(x) + self.pos(torch.arange(x.size(1), device=x.device))
        return self.out(self.encoder(h, src_key_padding_mask=x == 0))


model = Tagger().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
seen = correct = 0
for x, y in DataLoader(data, batch_size=32, shuffle=True, collate_fn=collate):
    x, y = x.cuda(), y.cuda()
    out = model(x)
    loss = nn.functional.cross_entropy(out.transpose(1, 2), y, ignore_index=-100)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    mask = y != -100
    correct += (out.argmax(-1)[mask] == y[mask]).sum().item()
    seen += mask.sum().item()
print(correct / seen)
