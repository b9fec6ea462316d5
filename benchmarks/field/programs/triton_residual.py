"""A small language model whose bias, dropout and residual are one Triton kernel with its own backward."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

VOCAB, DIM, HEADS, LAYERS, SEQ, BATCH, P = 16384, 768, 12, 8, 512, 16, 0.1


@triton.jit
def bias_dropout_add_kernel(x_ptr, bias_ptr, res_ptr, out_ptr, n, dim, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32) + tl.load(bias_ptr + offsets % dim, mask=mask).to(tl.float32)
    keep = tl.rand(seed, offsets) > p
    out = tl.load(res_ptr + offsets, mask=mask).to(tl.float32) + tl.where(keep, x / (1 - p), 0.0)
    tl.store(out_ptr + offsets, out, mask=mask)


@triton.jit
def dropout_backward_kernel(grad_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    grad = tl.load(grad_ptr + offsets, mask=mask).to(tl.float32)
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, grad / (1 - p), 0.0), mask=mask)


class BiasDropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, residual):
        x, residual = x.contiguous(), residual.contiguous()
        out, n = torch.empty_like(residual), x.numel()
        ctx.seed, ctx.dtype = int(torch.randint(0, 2 ** 31 - 1, (1,))), x.dtype
        bias_dropout_add_kernel[(triton.cdiv(n, 1024),)](x, bias, residual, out, n, x.shape[-1], P, ctx.seed, BLOCK=1024)
        return out

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dx = torch.empty(grad.shape, dtype=ctx.dtype, device=grad.device)
        dropout_backward_kernel[(triton.cdiv(grad.numel(), 1024),)](grad, dx, grad.numel(), P, ctx.seed, BLOCK=1024)
        return dx, dx.float().flatten(0, -2).sum(0), grad


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj, self.b1 = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM, bias=False), nn.Parameter(torch.zeros(DIM))
        self.up, self.down, self.b2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM, bias=False), nn.Parameter(torch.zeros(DIM))

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = BiasDropoutAdd.apply(self.proj(y), self.b1, x)
        return BiasDropoutAdd.apply(self.down(F.gelu(self.up(self.n2(x)))), self.b2, x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.blocks, self.norm, self.head = nn.Sequential(*[Block() for _ in range(LAYERS)]), nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
corpus = torch.randint(0, VOCAB, (2_000_000,))
for step in range(80):
    at = torch.randint(0, len(corpus) - SEQ - 1, (BATCH,)).tolist()
    x = torch.stack([corpus[i:i + SEQ] for i in at]).cuda()
    y = torch.stack([corpus[i + 1:i + SEQ + 1] for i in at]).cuda()
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(step, loss.item())
