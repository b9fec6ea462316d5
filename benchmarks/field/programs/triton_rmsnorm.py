"""A small language model with RMSNorm as a Triton kernel of one's own."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _fwd(X, W, Y, R, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * N + cols, mask=mask, other=0.0).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(x * x, 0) / N + eps)
    tl.store(R + row, r)
    w = tl.load(W + cols, mask=mask, other=0.0)
    tl.store(Y + row * N + cols, x * r * w, mask=mask)


@triton.jit
def _bwd(DY, X, W, R, DX, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * N + cols, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(DY + row * N + cols, mask=mask, other=0.0).to(tl.float32) * tl.load(W + cols, mask=mask, other=0.0)
    r = tl.load(R + row)
    dx = r * g - x * (r * r * r) * tl.sum(g * x, 0) / N
    tl.store(DX + row * N + cols, dx, mask=mask)


class RMSNormFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        shape = x.shape
        x = x.contiguous().view(-1, shape[-1])
        y, r = torch.empty_like(x), torch.empty(x.shape[0], device=x.device)
        _fwd[(x.shape[0],)](x, w, y, r, x.shape[1], 1e-6, BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=4)
        ctx.save_for_backward(x, w, r)
        return y.view(shape)

    @staticmethod
    def backward(ctx, dy):
        x, w, r = ctx.saved_tensors
        shape, dy = dy.shape, dy.contiguous().view_as(x)
        dx = torch.empty_like(x)
        _bwd[(x.shape[0],)](dy, x, w, r, dx, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=4)
        dw = (dy * x * r[:, None]).sum(0).to(w.dtype)
        return dx.view(shape), dw


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return RMSNormFn.apply(x, self.weight)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.n1, self.n2 = heads, RMSNorm(d), RMSNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.gate_up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(2 * d, d, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
d, vocab = 768, 16384
model = nn.Sequential(nn.Embedding(vocab, d), *[Block(d, 12) for _ in range(8)], RMSNorm(d), nn.Linear(d, vocab, bias=False)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
tokens = torch.randint(0, vocab, (2_000_000,), dtype=torch.int32).pin_memory()
for step in range(60):
    start = torch.randint(0, len(tokens) - 513, (16,)).tolist()
    batch = torch.stack([tokens[s:s + 513] for s in start]).pin_memory().cuda(non_blocking=True).long()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
