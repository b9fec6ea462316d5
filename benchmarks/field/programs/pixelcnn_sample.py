"""Samples latent codes of a VQ-VAE from its prior, a gated PixelCNN conditioned on the class (van den Oord 2016),
and keeps them for the decoder. 32 x 32 codes out of 512, pixel by pixel.

    python pixelcnn_sample.py --ckpt prior.pt --n 512 --out codes.npy
"""
import argparse
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"


class GatedActivation(nn.Module):
    def forward(self, x):
        x, y = x.chunk(2, dim=1)
        return torch.tanh(x) * torch.sigmoid(y)


class GatedMaskedConv2d(nn.Module):
    """Two stacks: the vertical one sees the rows above, the horizontal one the pixels to the left as well."""

    def __init__(self, mask_type, dim, kernel, residual, n_classes):
        super().__init__()
        self.mask_type, self.residual = mask_type, residual
        self.class_embedding = nn.Embedding(n_classes, 2 * dim)
        self.vert_stack = nn.Conv2d(dim, dim * 2, (kernel // 2 + 1, kernel), 1, (kernel // 2, kernel // 2))
        self.vert_to_horiz = nn.Conv2d(2 * dim, 2 * dim, 1)
        self.horiz_stack = nn.Conv2d(dim, dim * 2, (1, kernel // 2 + 1), 1, (0, kernel // 2))
        self.horiz_resid = nn.Conv2d(dim, dim, 1)
        self.gate = GatedActivation()

    def make_causal(self):
        self.vert_stack.weight.data[:, :, -1].zero_()       # the row itself
        self.horiz_stack.weight.data[:, :, :, -1].zero_()   # the pixel itself

    def forward(self, x_v, x_h, y):
        if self.mask_type == "A":
            self.make_causal()
        h = self.class_embedding(y)[:, :, None, None]
        h_vert = self.vert_stack(x_v)[:, :, :x_v.size(2), :]
        out_v = self.gate(h_vert + h)
        h_horiz = self.horiz_stack(x_h)[:, :, :, :x_h.size(3)]
        out = self.gate(self.vert_to_horiz(h_vert) + h_horiz + h)
        out_h = self.horiz_resid(out) + x_h if self.residual else self.horiz_resid(out)
        return out_v, out_h


class GatedPixelCNN(nn.Module):
    def __init__(self, n_codes=512, dim=128, n_layers=15, n_classes=10):
        super().__init__()
        self.embedding = nn.Embedding(n_codes, dim)
        self.layers = nn.ModuleList(
            GatedMaskedConv2d("B" if i else "A", dim, 3 if i else 7, bool(i), n_classes) for i in range(n_layers)
        )
        self.output_conv = nn.Sequential(nn.Conv2d(dim, 512, 1), nn.ReLU(True), nn.Conv2d(512, n_codes, 1))
        self.apply(self.init)

    @staticmethod
    def init(m):
        if isinstance(m, nn.Conv2d):
            nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0)

    def forward(self, x, label):
        x = self.embedding(x).permute(0, 3, 1, 2)
        x_v, x_h = x, x
        for layer in self.layers:
            x_v, x_h = layer(x_v, x_h, label)
        return self.output_conv(x_h)


def sharpen(logits, temperature, top_k):
    logits = logits / temperature
    if top_k:
        kth = torch.topk(logits, top_k, dim=-1)[0][:, -1:]
        logits = torch.where(logits < kth, torch.full_like(logits, -float("inf")), logits)
    return F.softmax(logits, dim=-1)


def generate(model, labels, shape, temperature=1.0, top_k=0):
    codes = torch.zeros((len(labels), *shape), dtype=torch.int64)
    labels = torch.tensor(labels)
    tic = time.time()
    for i in range(shape[0]):
        for j in range(shape[1]):
            logits = model(codes.to(DEVICE), labels.to(DEVICE))
            probs = sharpen(logits[:, :, i, j], temperature, top_k)
            codes[:, i, j] = torch.distributions.Categorical(probs=probs).sample().cpu()
        print(f"  row {i + 1}/{shape[0]}, {(time.time() - tic) / (i + 1):.2f} s a row", flush=True)
    return codes


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ckpt", default="prior.pt")
    p.add_argument("--n", type=int, default=512)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--layers", type=int, default=15)
    p.add_argument("--temperature", type=float, default=0.95)
    p.add_argument("--top-k", type=int, default=100)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", default="")
    args = p.parse_args()

    torch.manual_seed(args.seed)
    model = GatedPixelCNN(dim=args.dim, n_layers=args.layers).to(DEVICE)
    if os.path.exists(args.ckpt):
        model.load_state_dict(torch.load(args.ckpt, map_location=DEVICE))
    else:
        print(f"{args.ckpt} not found, sampling from an untrained prior")
    model.eval()

    samples = []
    for first in range(0, args.n, args.batch):
        labels = [k % 10 for k in range(first, min(first + args.batch, args.n))]
        codes = generate(model, labels, (args.size, args.size), args.temperature, args.top_k)
        samples.append(codes.numpy())
        used = len(np.unique(samples[-1]))
        print(f"{first + len(labels)}/{args.n} samples, {used} codes in use")
    if args.out:
        np.save(args.out, np.concatenate(samples))


if __name__ == "__main__":
    main()
