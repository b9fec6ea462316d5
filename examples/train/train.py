"""A small training script that knows nothing of opscope, for `opscope run` and `opscope try`."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention composed of single operators, and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            part.view(split).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, dim=-1)
        )
        weights = torch.softmax(query @ key.transpose(-1, -2) / split[-1] ** 0.5, dim=-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(x.shape))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, vocabulary = 128, 1000
    model = nn.Sequential(
        nn.Embedding(vocabulary, width),
        *(Block(width, 4) for _ in range(2)),
        nn.Linear(width, vocabulary),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(200):
        tokens = torch.randint(vocabulary, (8, 64), device=device)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
