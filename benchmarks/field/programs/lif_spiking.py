"""A spiking network on spoken digits as spike trains (like the SHD data): leaky integrate-and-fire neurons.

The recurrence over time is a Triton kernel of our own, with a surrogate gradient. Layout is that of Conv1d:
batch x neurons x time.
"""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def lif_forward(x_ptr, spike_ptr, v_ptr, rows, steps, row_stride, time_stride, decay, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < rows
    at = row * row_stride
    v = tl.zeros([BLOCK], dtype=tl.float32)
    for _ in range(steps):
        v = v * decay + tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        spike = tl.where(v > 1.0, 1.0, 0.0)
        tl.store(v_ptr + at, v, mask=mask)
        tl.store(spike_ptr + at, spike, mask=mask)
        v -= spike
        at += time_stride


@triton.jit
def lif_backward(grad_ptr, v_ptr, dx_ptr, rows, steps, row_stride, time_stride, decay, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < rows
    at = row * row_stride + (steps - 1) * time_stride
    carry = tl.zeros([BLOCK], dtype=tl.float32)
    for _ in range(steps):
        distance = (tl.load(v_ptr + at, mask=mask, other=0.0) - 1.0) * 3.14159265
        surrogate = 1.0 / (1.0 + distance * distance)
        grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
        carry = grad * surrogate + carry * decay * (1.0 - surrogate)
        tl.store(dx_ptr + at, carry, mask=mask)
        at -= time_stride


class LIFFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, decay):
        x = x.contiguous()
        spikes, v = torch.empty_like(x), torch.empty_like(x, dtype=torch.float32)
        steps = x.shape[2]
        rows, strides = x.numel() // steps, (steps, 1)
        lif_forward[(triton.cdiv(rows, BLOCK),)](x, spikes, v, rows, steps, *strides, decay, BLOCK=BLOCK)
        ctx.save_for_backward(v)
        ctx.decay = decay
        return spikes

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        grad = grad.contiguous()
        dx = torch.empty_like(grad)
        steps = v.shape[2]
        rows, strides = v.numel() // steps, (steps, 1)
        lif_backward[(triton.cdiv(rows, BLOCK),)](grad, v, dx, rows, steps, *strides, ctx.decay, BLOCK=BLOCK)
        return dx, None


class LIF(nn.Module):
    def __init__(self, decay=0.9):
        super().__init__()
        self.decay = decay

    def forward(self, x):
        return LIFFunction.apply(x, self.decay)


class SpikingNet(nn.Module):
    def __init__(self, channels, hidden, classes):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(channels, hidden, 1), nn.Conv1d(hidden, hidden, 1)])
        self.neurons = nn.ModuleList([LIF(0.9), LIF(0.95)])
        self.readout = nn.Conv1d(hidden, classes, 1)
        nn.init.normal_(self.layers[0].weight, std=0.15)
        nn.init.normal_(self.layers[1].weight, std=0.05)

    def forward(self, x):
        rates = []
        for layer, neuron in zip(self.layers, self.neurons):
            x = neuron(layer(x))
            rates.append(x.mean())
        return self.readout(x).mean(2), rates


def spike_trains(n, channels, steps, classes, device):
    """Bytes of 0 and 1; each class drives other channels at other times."""
    labels = torch.randint(0, classes, (n,), device=device)
    centre = torch.rand(classes, channels, 1, device=device) * steps
    time = torch.arange(steps, device=device)
    trains = torch.empty(n, channels, steps, dtype=torch.uint8, device=device)
    for part in torch.arange(n, device=device).split(64):
        rate = 0.01 + 0.15 * torch.exp(-((time - centre[labels[part]]) / (0.05 * steps)) ** 2)
        trains[part] = torch.rand_like(rate).lt(rate).to(torch.uint8)
    return trains, labels


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--channels", type=int, default=700)
    p.add_argument("--time-bins", type=int, default=250)
    p.add_argument("--hidden", type=int, default=1024)
    p.add_argument("--classes", type=int, default=20)
    p.add_argument("--samples", type=int, default=1024)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()

    torch.manual_seed(0)
    trains, labels = spike_trains(args.samples, args.channels, args.time_bins, args.classes, args.device)
    net = SpikingNet(args.channels, args.hidden, args.classes).to(args.device)
    optimizer = torch.optim.Adamax(net.parameters(), lr=args.lr)
    for step in range(args.steps):
        pick = torch.randint(0, args.samples, (args.batch_size,), device=args.device)
        out, rates = net(trains[pick].float())
        loss = F.cross_entropy(out, labels[pick]) + 0.1 * sum((rate - 0.05) ** 2 for rate in rates)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            accuracy = (out.argmax(1) == labels[pick]).float().mean()
            print(f"step {step} loss {loss.item():.4f} accuracy {accuracy.item():.3f} "
                  f"rates {' '.join(f'{r.item():.4f}' for r in rates)}")


if __name__ == "__main__":
    main()
