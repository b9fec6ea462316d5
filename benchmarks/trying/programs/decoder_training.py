"""A decoder of 12 layers is trained on random tokens, float32."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.n2(x))


class Decoder(nn.Module):
    def __init__(self, vocabulary=32000, width=768, layers=12, heads=12, length=512):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


model = Decoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = torch.randint(0, 32000, (256, 513), device="cuda")
for step in range(20_000):
    rows = data[(step * 4) % 256 : (step * 4) % 256 + 4]
    logits = model(rows[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
