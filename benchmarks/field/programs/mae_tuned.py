#!/usr/bin/env python
"""Masked autoencoder pretraining. Compiled, bf16, fused AdamW, workers with pinned memory; scalars stay on the GPU until they are logged."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SIZE, PATCH, DIM, DEPTH, HEADS, DEC_DIM, DEC_DEPTH, DEC_HEADS, BATCH, STEPS, KEEP = 224, 16, 768, 8, 12, 512, 2, 8, 128, 120, 49


class Pictures(Dataset):
    """Decoded bytes, as they lie in a memory-mapped file."""

    def __init__(self, n):
        self.pool = np.random.default_rng(0).integers(0, 256, (64, 256, 256, 3), dtype=np.uint8)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        top, left, mirrored = np.random.randint(0, 33), np.random.randint(0, 33), np.random.rand() < 0.5
        crop = self.pool[i % 64][top:top + SIZE, left:left + SIZE]
        return torch.from_numpy(np.ascontiguousarray(crop[:, ::-1] if mirrored else crop))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x)), approximate="tanh"))


class MAE(nn.Module):
    def __init__(self):
        super().__init__()
        n = (SIZE // PATCH) ** 2
        self.embed = nn.Linear(3 * PATCH ** 2, DIM)
        self.pos, self.dec_pos = nn.Parameter(torch.randn(n, DIM) * 0.02), nn.Parameter(torch.randn(n, DEC_DIM) * 0.02)
        self.encoder, self.norm = nn.ModuleList([Block(DIM, HEADS) for _ in range(DEPTH)]), nn.LayerNorm(DIM)
        self.mask_token, self.to_decoder = nn.Parameter(torch.zeros(DEC_DIM)), nn.Linear(DIM, DEC_DIM)
        self.decoder, self.dec_norm = nn.ModuleList([Block(DEC_DIM, DEC_HEADS) for _ in range(DEC_DEPTH)]), nn.LayerNorm(DEC_DIM)
        self.head = nn.Linear(DEC_DIM, 3 * PATCH ** 2)
        self.register_buffer("mean", torch.tensor([123.7, 116.3, 103.5]))
        self.register_buffer("std", torch.tensor([58.4, 57.1, 57.4]))

    def forward(self, pictures, noise):
        x = (pictures.float() - self.mean) / self.std
        b, g = len(x), SIZE // PATCH
        patches = x.view(b, g, PATCH, g, PATCH, 3).transpose(2, 3).reshape(b, g * g, -1)
        order = noise.argsort(1)
        kept = order[:, :KEEP, None]
        h = self.embed(patches) + self.pos
        h = h.gather(1, kept.expand(-1, -1, DIM))
        for block in self.encoder:
            h = block(h)
        h = self.to_decoder(self.norm(h))
        full = self.mask_token.to(h.dtype).expand(b, g * g, DEC_DIM).scatter(1, kept.expand(-1, -1, DEC_DIM), h) + self.dec_pos
        for block in self.decoder:
            full = block(full)
        pred = self.head(self.dec_norm(full)).float()
        target = (patches - patches.mean(-1, keepdim=True)) / (patches.var(-1, keepdim=True) + 1e-6).sqrt()
        masked = torch.ones_like(noise).scatter(1, kept[..., 0], 0.0)
        return (((pred - target) ** 2).mean(-1) * masked).sum() / masked.sum()


def parameter_groups(model, decay=0.05):
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def prefetch(loader):
    """The next batch is copied while the current one is used."""
    stream, ahead = torch.cuda.Stream(), None
    for batch in loader:
        with torch.cuda.stream(stream):
            batch = batch.cuda(non_blocking=True)
        if ahead is not None:
            yield ahead
        torch.cuda.current_stream().wait_stream(stream)
        batch.record_stream(torch.cuda.current_stream())
        ahead = batch
    yield ahead


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = MAE().cuda()
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=1.5e-4, betas=(0.9, 0.95), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 2000))
    loader = DataLoader(Pictures(BATCH * STEPS), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=10,
                        pin_memory=True, persistent_workers=True, prefetch_factor=4)
    compiled = torch.compile(model)
    running, precision = torch.zeros((), device="cuda"), torch.autocast("cuda", dtype=torch.bfloat16)
    for step, pictures in enumerate(prefetch(loader)):
        noise = torch.rand(len(pictures), (SIZE // PATCH) ** 2, device="cuda")
        with precision:
            loss = compiled(pictures, noise)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.detach()
        if step % 50 == 49:
            print(f"step {step + 1} loss {running.item() / 50:.4f}")
            running.zero_()


if __name__ == "__main__":
    main()
