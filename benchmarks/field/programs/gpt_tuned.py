"""Pretrain a GPT: bf16, compiled, fused AdamW, tokens prefetched through pinned memory; the loss is read seldom."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, LAYERS, SEQ, BATCH, STEPS = 50304, 768, 6, 12, 1024, 24, 120
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True
torch.manual_seed(1337)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.fc, self.out = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.relu(self.fc(self.ln2(x))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe.weight[:idx.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, VOCAB), targets.view(-1))


tokens = np.random.randint(0, VOCAB, 20_000_000, dtype=np.uint16)


def get_batch():
    ix = np.random.randint(0, len(tokens) - SEQ - 1, BATCH)
    window = torch.from_numpy(np.stack([tokens[i:i + SEQ + 1] for i in ix]).astype(np.int64))
    x, y = window[:, :-1].contiguous().pin_memory(), window[:, 1:].contiguous().pin_memory()
    return x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)


model = GPT().to("cuda")
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=6e-4, betas=(0.9, 0.95), fused=True)
model = torch.compile(model)
x, y = get_batch()
for it in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * min(1.0, (it + 1) / 50)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x, y)
    x, y = get_batch()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if it % 40 == 0:
        print(f"iter {it}: loss {loss.item():.4f}")
