"""Jet tagging with a Particle-Transformer-like model: pairwise features as attention bias, class token, EMA weights."""
import copy
import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    jets: int = 400_000
    val_jets: int = 20_000
    particles: int = 64
    classes: int = 5
    dim: int = 128
    heads: int = 8
    depth: int = 8
    pair_dim: int = 64
    batch: int = 512
    epochs: int = 2
    lr: float = 1e-3
    ema: float = 0.999
    log_every: int = 100


@torch.no_grad()
def make_jets(n, cfg, generator, device):
    """Particles (log pt, eta, phi) around as many axes as the class has prongs; pt 0 is padding. All stays on the device."""
    labels = torch.randint(0, cfg.classes, (n,), device=device, generator=generator)
    out = torch.empty(n, cfg.particles, 3, device=device)
    for first in range(0, n, 50_000):
        y = labels[first:first + 50_000]
        m = len(y)
        axes = 0.4 * torch.randn(m, cfg.classes, 2, device=device, generator=generator)
        prong = (torch.rand(m, cfg.particles, device=device, generator=generator) * (y[:, None] + 1)).long()
        spread = 0.1 * torch.randn(m, cfg.particles, 2, device=device, generator=generator)
        place = axes.gather(1, prong[..., None].expand(-1, -1, 2)) + spread
        pt = torch.exp(1.5 * torch.randn(m, cfg.particles, device=device, generator=generator)).sort(1, descending=True).values
        count = torch.randint(cfg.particles // 3, cfg.particles + 1, (m, 1), device=device, generator=generator)
        pt = pt * (torch.arange(cfg.particles, device=device) < count)
        out[first:first + m] = torch.cat([pt[..., None], place], dim=2)
    return out, labels


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, bias):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.norm2(self.out(y.transpose(1, 2).reshape(b, n, d)))
        return x + self.down(F.gelu(self.up(self.norm3(x))))


class ParT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 256), nn.GELU(), nn.Linear(256, cfg.dim))
        self.pair = nn.Sequential(nn.Linear(4, cfg.pair_dim), nn.GELU(), nn.Linear(cfg.pair_dim, cfg.pair_dim), nn.GELU(), nn.Linear(cfg.pair_dim, cfg.heads))
        self.blocks = nn.ModuleList(Block(cfg.dim, cfg.heads) for _ in range(cfg.depth))
        self.pool = nn.Linear(cfg.dim, 1)
        self.head = nn.Sequential(nn.LayerNorm(cfg.dim), nn.Linear(cfg.dim, cfg.classes))

    def forward(self, jets):
        pt, eta, phi = jets.unbind(-1)
        real = pt > 0
        log_pt = torch.log(pt.clamp(min=1e-3))
        total = torch.log(pt.sum(1, keepdim=True))
        energy = log_pt + torch.log(torch.cosh(eta))
        x = torch.stack([log_pt, energy, log_pt - total, eta, phi, torch.sqrt(eta ** 2 + phi ** 2 + 1e-8)], dim=-1)
        delta = 0.5 * torch.log((eta[:, :, None] - eta[:, None]) ** 2 + (phi[:, :, None] - phi[:, None]) ** 2 + 1e-6)
        low = torch.minimum(log_pt[:, :, None], log_pt[:, None])
        both = torch.logaddexp(log_pt[:, :, None], log_pt[:, None])
        pairs = torch.stack([delta, low + delta, low - both, log_pt[:, :, None] + log_pt[:, None] + 2 * delta], dim=-1)
        bias = self.pair(pairs).permute(0, 3, 1, 2).masked_fill(~real[:, None, None], -1e4).contiguous()
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, bias)
        weight = self.pool(x).squeeze(-1).float().masked_fill(~real, -1e4).softmax(1)
        return self.head((weight[:, :, None] * x).sum(1)).float()


@torch.no_grad()
def evaluate(model, jets, labels, batch):
    hits = torch.zeros((), device=labels.device)
    for at in range(0, len(jets) - batch + 1, batch):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hits += (model(jets[at:at + batch]).argmax(1) == labels[at:at + batch]).sum()
    return hits.item() / (len(jets) // batch * batch)


def main():
    cfg = Config()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    generator = torch.Generator(device=device).manual_seed(0)
    jets, labels = make_jets(cfg.jets, cfg, generator, device)
    val_jets, val_labels = make_jets(cfg.val_jets, cfg, generator, device)
    model = ParT(cfg).to(device)
    averaged = copy.deepcopy(model).requires_grad_(False)
    weights, averages = list(model.parameters()), list(averaged.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01, fused=True)
    batches = cfg.jets // cfg.batch
    total = cfg.epochs * batches
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 200) * 0.5 * (1 + math.cos(math.pi * min(1.0, s / total))))
    net = torch.compile(model)

    sums, step, start = torch.zeros(2, device=device), 0, time.time()
    for epoch in range(cfg.epochs):
        order = torch.randperm(cfg.jets, device=device)
        for i in range(batches):
            chosen = order[i * cfg.batch:(i + 1) * cfg.batch]
            x, y = jets[chosen], labels[chosen]
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = net(x)
                loss = F.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()
            with torch.no_grad():
                torch._foreach_lerp_(averages, weights, 1 - cfg.ema)
                sums += torch.stack([loss, (logits.argmax(1) == y).float().mean()])
            step += 1
            if step % cfg.log_every == 0:
                loss_avg, acc = (sums / cfg.log_every).tolist()
                sums.zero_()
                print(f"epoch {epoch} step {step}/{total} loss {loss_avg:.4f} acc {acc:.4f} {step * cfg.batch / (time.time() - start):.0f} jets/s", flush=True)
        print(f"epoch {epoch}: EMA accuracy {evaluate(averaged, val_jets, val_labels, cfg.batch):.4f}", flush=True)


if __name__ == "__main__":
    main()
