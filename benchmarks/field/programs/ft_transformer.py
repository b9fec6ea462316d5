"""FT-Transformer on a tabular data set that fits on the card."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

torch.set_float32_matmul_precision("high")


@dataclass
class Config:
    rows: int = 200_000
    numeric: int = 28
    cards: tuple = (12, 7, 40, 1000, 300, 24)
    d: int = 192
    blocks: int = 4
    heads: int = 8
    batch: int = 2048
    steps: int = 80
    lr: float = 1e-4


class Tokens(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w = nn.Parameter(torch.randn(c.numeric, c.d) * 0.02)
        self.b = nn.Parameter(torch.zeros(c.numeric + len(c.cards), c.d))
        self.register_buffer("offsets", torch.tensor((0, *c.cards[:-1])).cumsum(0))
        self.emb = nn.Embedding(sum(c.cards), c.d)
        self.cls = nn.Parameter(torch.randn(1, 1, c.d) * 0.02)

    def forward(self, num, cat):
        x = torch.cat([num[..., None] * self.w, self.emb(cat + self.offsets)], 1) + self.b
        return torch.cat([self.cls.expand(len(x), -1, -1), x], 1)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * (d * 4 // 3)), nn.Linear(d * 4 // 3, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        a, g = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(a * F.relu(g))


class FTTransformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens = Tokens(c)
        self.blocks = nn.Sequential(*[Block(c.d, c.heads) for _ in range(c.blocks)])
        self.head = nn.Sequential(nn.LayerNorm(c.d), nn.ReLU(), nn.Linear(c.d, 1))

    def forward(self, num, cat):
        return self.head(self.blocks(self.tokens(num, cat))[:, 0]).squeeze(-1)


c = Config()
torch.manual_seed(0)
num = torch.randn(c.rows, c.numeric, device="cuda")
cat = torch.stack([torch.randint(0, k, (c.rows,), device="cuda") for k in c.cards], 1)
y = (num[:, 0] + 0.3 * torch.randn(c.rows, device="cuda") > 0).float()
model = FTTransformer(c).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=c.lr, weight_decay=1e-5, fused=True)
order = torch.randperm(c.rows, device="cuda")
total = torch.zeros((), device="cuda")
for step in range(c.steps):
    at = order[step % (c.rows // c.batch) * c.batch:][:c.batch]
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(num[at], cat[at])
    loss = F.binary_cross_entropy_with_logits(logits.float(), y[at])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    total += loss.detach()
print(f"mean loss {total.item() / c.steps:.4f}")
