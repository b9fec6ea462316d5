"""Samples the posterior of a Bayesian ResNet-20 with filter response normalization: cyclical stochastic gradient HMC (Zhang et al. 2020)."""
import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--cycles", type=int, default=1)
    p.add_argument("--batch_size", type=int, default=128)
    p.add_argument("--train_size", type=int, default=50000)
    p.add_argument("--test_size", type=int, default=2000)
    p.add_argument("--lr_0", type=float, default=2e-7)
    p.add_argument("--alpha", type=float, default=0.1, help="1 - momentum")
    p.add_argument("--prior_std", type=float, default=0.2)
    p.add_argument("--temperature", type=float, default=1.0)
    p.add_argument("--samples_per_cycle", type=int, default=3)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args()


class FilterResponseNorm(nn.Module):
    """With its thresholded linear unit."""

    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.tau = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.eps = eps

    def forward(self, x):
        nu2 = torch.mean(x ** 2, dim=[2, 3], keepdim=True)
        x = x * torch.rsqrt(nu2 + self.eps)
        return torch.max(self.gamma * x + self.beta, self.tau)


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), FilterResponseNorm(o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), FilterResponseNorm(o)
        self.skip = nn.Conv2d(i, o, 1, stride, bias=False) if stride > 1 or i != o else nn.Identity()

    def forward(self, x):
        out = self.norm1(self.conv1(x))
        return self.norm2(self.conv2(out) + self.skip(x))


class ResNet20(nn.Module):
    def __init__(self, width=32, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), FilterResponseNorm(width))
        blocks, i = [], width
        for stage, o in enumerate((width, 2 * width, 4 * width)):
            for b in range(3):
                blocks.append(Block(i, o, 2 if stage and b == 0 else 1))
                i = o
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(i, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def make_data(n, seed):
    """Ten textures that are shifted and noisy."""
    g = torch.Generator().manual_seed(seed)
    protos = F.interpolate(torch.randn(10, 3, 8, 8, generator=torch.Generator().manual_seed(0)), size=32, mode="bilinear")
    y = torch.randint(0, 10, (n,), generator=g)
    x = protos[y] + 0.8 * torch.randn(n, 3, 32, 32, generator=g)
    return TensorDataset(x, y)


class SGHMC:
    def __init__(self, params, alpha, temperature):
        self.params = list(params)
        self.velocity = [torch.zeros_like(p) for p in self.params]
        self.alpha, self.temperature = alpha, temperature

    def zero_grad(self):
        for p in self.params:
            if p.grad is not None:
                p.grad.zero_()

    @torch.no_grad()
    def step(self, lr, noisy):
        for p, v in zip(self.params, self.velocity):
            v.mul_(1 - self.alpha).add_(p.grad, alpha=-lr)
            if noisy:
                v.add_(torch.randn_like(p) * math.sqrt(2 * self.alpha * lr * self.temperature))
            p.add_(v)


def log_prior(model, std):
    return sum(-0.5 * (p ** 2).sum() / std ** 2 for p in model.parameters())


def learning_rate(args, step, total):
    length = total // args.cycles
    return 0.5 * args.lr_0 * (math.cos(math.pi * (step % length) / length) + 1), (step % length) / length


@torch.no_grad()
def predict(model, loader, device):
    model.eval()
    probs = [F.softmax(model(x.to(device)), dim=-1).cpu() for x, _ in loader]
    model.train()
    return torch.cat(probs)


def main():
    args = parse()
    torch.manual_seed(args.seed)
    device = torch.device("cuda")
    train_set, test_set = make_data(args.train_size, 1), make_data(args.test_size, 2)
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers)
    test_loader = DataLoader(test_set, batch_size=500)
    test_y = test_set.tensors[1]
    model = ResNet20(args.width).to(device)
    sampler = SGHMC(model.parameters(), args.alpha, args.temperature)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {len(loader)} batches")

    total, step, samples, ensemble = args.epochs * len(loader), 0, [], 0
    for epoch in range(args.epochs):
        start, seen, loss_sum, correct = time.time(), 0, 0.0, 0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            lr, position = learning_rate(args, step, total)
            logits = model(x)
            nll = F.cross_entropy(logits, y)
            potential = nll * args.train_size - log_prior(model, args.prior_std)
            sampler.zero_grad()
            potential.backward()
            sampler.step(lr, noisy=position > 0.6)
            loss_sum += nll.item() * len(y)
            correct += (logits.argmax(1) == y).sum().item()
            seen += len(y)
            step += 1
            if step % 100 == 0:
                print(f"step {step}/{total} lr {lr:.2e} nll {loss_sum / seen:.4f} acc {correct / seen:.4f} {seen / (time.time() - start):.0f} img/s", flush=True)
        if epoch % (args.epochs // args.cycles) >= args.epochs // args.cycles - args.samples_per_cycle:
            samples.append({k: v.cpu().clone() for k, v in model.state_dict().items()})
            ensemble = ensemble + predict(model, test_loader, device)
            acc = (ensemble.argmax(1) == test_y).float().mean().item()
            nll = F.nll_loss((ensemble / len(samples)).clamp(min=1e-8).log(), test_y).item()
            print(f"{len(samples)} samples: test acc {acc:.4f} nll {nll:.4f}", flush=True)


if __name__ == "__main__":
    main()
