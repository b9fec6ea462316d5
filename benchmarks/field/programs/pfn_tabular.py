"""Train a prior-data fitted network: a transformer that reads a labelled table and answers for unlabelled rows.

Tables are drawn from a prior (random networks with noise) right on the GPU, so that there is no data loader. The
answer is a distribution over bars of the standardized target.
"""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TablePrior:
    """Regression tables: random two-layer networks of random width of input, targets standardized on known rows."""

    def __init__(self, rows: int, known: int, features: int, device: str, width: int = 64):
        self.rows, self.known, self.features, self.device, self.width = rows, known, features, device, width

    @torch.no_grad()
    def draw(self, tables: int) -> tuple[Tensor, Tensor]:
        like = {"device": self.device}
        x = torch.randn(tables, self.rows, self.features, **like)
        used = torch.rand(tables, 1, self.features, **like) < torch.rand(tables, 1, 1, **like) * 0.8 + 0.2
        first = torch.randn(tables, self.features, self.width, **like) * used.transpose(1, 2)
        bias = torch.randn(tables, 1, self.width, **like)
        second = torch.randn(tables, self.width, 1, **like)
        h = torch.baddbmm(bias, x, first, alpha=self.features ** -0.5).tanh_()
        y = torch.bmm(h, second).squeeze(2)
        y += torch.randn_like(y) * torch.rand(tables, 1, **like) * 0.3 * y.std(1, keepdim=True)
        spread, mean = torch.std_mean(y[:, :self.known], 1, keepdim=True)
        return x * used, (y - mean) / spread.clamp_(min=1e-4)


class Block(nn.Module):
    """Every row attends to the known rows only, so that no mask is needed."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor, known: int) -> Tensor:
        h = self.norm1(x)
        q = self.q(h).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(h[:, :known]).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(a)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PFN(nn.Module):
    def __init__(self, features: int, dim: int, heads: int, depth: int, bars: int):
        super().__init__()
        self.embed_x, self.embed_y = nn.Linear(features, dim), nn.Linear(1, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, bars)

    def forward(self, x: Tensor, y_known: Tensor) -> Tensor:
        known = y_known.shape[1]
        x = self.embed_x(x)
        x[:, :known] += self.embed_y(y_known.unsqueeze(2))
        for block in self.blocks:
            x = block(x, known)
        return self.head(self.norm(x[:, known:]))


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=1024)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--depth", type=int, default=8)
    p.add_argument("--bars", type=int, default=512)
    p.add_argument("--features", type=int, default=32)
    p.add_argument("--rows", type=int, default=512)
    p.add_argument("--known", type=int, default=384)
    p.add_argument("--tables", type=int, default=64)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--log-every", type=int, default=20)
    args = p.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    prior = TablePrior(args.rows, args.known, args.features, "cuda")
    sample = torch.cat([prior.draw(256)[1].flatten() for _ in range(4)])
    edges = sample.sort().values[torch.linspace(0, len(sample) - 1, args.bars + 1, device="cuda").long()][1:-1]

    model = PFN(args.features, args.dim, args.heads, args.depth, args.bars).cuda()
    for block in model.blocks:
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, fused=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, 20)

    total, since = torch.zeros((), device="cuda"), time.time()
    for step in range(args.steps):
        x, y = prior.draw(args.tables)
        bars = torch.bucketize(y[:, args.known:], edges)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x, y[:, :args.known])
            loss = F.cross_entropy(logits.flatten(0, 1), bars.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        warmup.step()
        total += loss.detach()
        if (step + 1) % args.log_every == 0:
            print(f"step {step + 1} loss {total.item() / args.log_every:.4f} {time.time() - since:.1f}s", flush=True)
            total.zero_()


if __name__ == "__main__":
    main()
