"""Draw pictures from text with a rectified flow: two-stream transformer, guidance, Euler steps with a shifted schedule."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

DIM, HEADS, DEPTH, GRID, CHANNELS, TEXT, VOCAB = 768, 12, 10, 32, 16, 77, 8000


class TextEncoder(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, DIM), nn.Parameter(torch.randn(TEXT, DIM) * 0.01)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, ids):
        h = self.norm(self.encoder(self.tokens(ids) + self.positions))
        return h, h.mean(1)


def rope_2d(size, dim):
    """Cosines and sines over a square of patches: half of a head's width for rows, half for columns."""
    freqs = 1.0 / (10000 ** (torch.arange(0, dim // 2, 2).float() / (dim // 2)))
    ys, xs = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
    angles = torch.cat([ys.flatten()[:, None] * freqs, xs.flatten()[:, None] * freqs], 1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def timestep_embedding(t, dim=256):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half) / half).to(t.device)
    args = t[:, None] * 1000 * freqs[None]
    return torch.cat([args.cos(), args.sin()], -1)


class Stream(nn.Module):
    """Weights of one of both streams in a block."""

    def __init__(self):
        super().__init__()
        self.ada = nn.Linear(DIM, 6 * DIM)
        self.n1, self.n2 = (nn.LayerNorm(DIM, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.qn, self.kn = nn.RMSNorm(DIM // HEADS), nn.RMSNorm(DIM // HEADS)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(approximate="tanh"), nn.Linear(4 * DIM, DIM))

    def heads(self, x, shift, scale):
        x = self.n1(x) * (1 + scale) + shift
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.qn(q), self.kn(k), v


class JointBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Stream(), Stream()

    def forward(self, x, c, cond, cos, sin):
        mod_x = self.image.ada(F.silu(cond))[:, None].chunk(6, -1)
        mod_c = self.text.ada(F.silu(cond))[:, None].chunk(6, -1)
        qx, kx, vx = self.image.heads(x, mod_x[0], mod_x[1])
        qc, kc, vc = self.text.heads(c, mod_c[0], mod_c[1])
        qx, kx = rotate(qx, cos, sin), rotate(kx, cos, sin)
        q, k, v = torch.cat([qc, qx], 2), torch.cat([kc, kx], 2), torch.cat([vc, vx], 2)
        attn = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        attn = attn.softmax(dim=-1)
        out = (attn @ v).transpose(1, 2).flatten(2)
        c_out, x_out = out[:, :TEXT], out[:, TEXT:]
        x = x + mod_x[2] * self.image.proj(x_out)
        c = c + mod_c[2] * self.text.proj(c_out)
        x = x + mod_x[5] * self.image.mlp(self.image.n2(x) * (1 + mod_x[4]) + mod_x[3])
        c = c + mod_c[5] * self.text.mlp(self.text.n2(c) * (1 + mod_c[4]) + mod_c[3])
        return x, c


class MMDiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(CHANNELS * 4, DIM)
        self.time = nn.Sequential(nn.Linear(256, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.pooled = nn.Linear(DIM, DIM)
        self.blocks = nn.ModuleList([JointBlock() for _ in range(DEPTH)])
        self.ada, self.norm = nn.Linear(DIM, 2 * DIM), nn.LayerNorm(DIM, elementwise_affine=False)
        self.out = nn.Linear(DIM, CHANNELS * 4)

    def forward(self, latent, t, text, pooled):
        x = F.pixel_unshuffle(latent, 2).flatten(2).transpose(1, 2)
        x, c = self.patch(x), text
        cond = self.time(timestep_embedding(t)) + self.pooled(pooled)
        cos, sin = rope_2d(GRID, DIM // HEADS)
        cos, sin = cos.to(x.device), sin.to(x.device)
        for block in self.blocks:
            x, c = block(x, c, cond, cos, sin)
        shift, scale = self.ada(F.silu(cond))[:, None].chunk(2, -1)
        x = self.out(self.norm(x) * (1 + scale) + shift)
        return F.pixel_shuffle(x.transpose(1, 2).unflatten(2, (GRID, GRID)), 2)


class GuidedFlow(nn.Module):
    def __init__(self, scale=4.5):
        super().__init__()
        self.text_encoder, self.net, self.scale = TextEncoder(), MMDiT(), scale

    def forward(self, latent, t, prompt_ids, empty_ids):
        text, pooled = self.text_encoder(prompt_ids)
        v_cond = self.net(latent, t, text, pooled)
        text, pooled = self.text_encoder(empty_ids)
        v_uncond = self.net(latent, t, text, pooled)
        return v_uncond + self.scale * (v_cond - v_uncond)


@torch.no_grad()
def sample(flow, prompts, steps=28, shift=3.0):
    empty = torch.zeros_like(prompts)
    latent = torch.randn(len(prompts), CHANNELS, 2 * GRID, 2 * GRID, device=prompts.device)
    times = torch.linspace(1, 0, steps + 1, device=prompts.device)
    times = shift * times / (1 + (shift - 1) * times)
    for i in range(steps):
        t = torch.full((len(prompts),), times[i].item(), device=prompts.device)
        v = flow(latent, t, prompts, empty)
        latent = latent + (times[i + 1] - times[i]) * v
        if torch.isnan(latent).any():
            raise ValueError(f"not a number at step {i}")
    return latent


if __name__ == "__main__":
    torch.manual_seed(0)
    flow = GuidedFlow().to("cuda").eval()
    for batch in range(4):
        prompts = torch.randint(1, VOCAB, (4, TEXT)).to("cuda")
        latents = sample(flow, prompts)
        print(f"batch {batch}: mean {latents.mean().item():.3f} std {latents.std().item():.3f}")
