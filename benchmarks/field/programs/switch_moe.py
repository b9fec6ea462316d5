"""Language model with Switch layers (top-1 experts, capacity, one-hot dispatch as in Mesh TensorFlow) in every second block."""
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, LAYERS, EXPERTS, CAPACITY, SEQ, BATCH = 16000, 512, 8, 6, 8, 1.25, 512, 8


class SwitchFFN(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, EXPERTS, bias=False)
        self.w1 = nn.Parameter(torch.randn(EXPERTS, DIM, 4 * DIM) * DIM ** -0.5)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, 4 * DIM, DIM) * (4 * DIM) ** -0.5)
        self.aux, self.load, self.dropped = 0.0, [0.0] * EXPERTS, 0.0

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, DIM)
        tokens = len(x)
        capacity = int(CAPACITY * tokens / EXPERTS)
        probs = F.softmax(self.router(x).float(), dim=-1)
        gate, expert = probs.max(dim=-1)

        expert_mask = F.one_hot(expert, EXPERTS).float()                          # tokens, experts
        position = torch.cumsum(expert_mask, dim=0) * expert_mask - 1             # place in the queue of its expert
        keep = expert_mask * (position < capacity).float()
        slot = F.one_hot(position.clamp(0, capacity - 1).long(), capacity)
        dispatch = keep.unsqueeze(-1) * slot.float()                              # tokens, experts, capacity
        combine = dispatch * gate[:, None, None]

        self.aux = EXPERTS * (expert_mask.mean(0) * probs.mean(0)).sum()
        self.load = expert_mask.mean(0).tolist()
        self.dropped = 1 - keep.sum().item() / tokens

        inputs = torch.einsum("tec,td->ecd", dispatch, x)
        hidden = F.gelu(torch.einsum("ecd,edh->ech", inputs, self.w1))
        outputs = torch.einsum("ech,ehd->ecd", hidden, self.w2)
        return torch.einsum("tec,ecd->td", combine, outputs).reshape(shape)


class Block(nn.Module):
    def __init__(self, is_sparse):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ffn = SwitchFFN() if is_sparse else nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        q, k, v = [t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1)]
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.ffn(self.n2(x))


class SwitchLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.blocks = nn.ModuleList([Block(i % 2 == 1) for i in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        h = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


torch.manual_seed(0)
model = SwitchLM().cuda()
switches = [b.ffn for b in model.blocks if isinstance(b.ffn, SwitchFFN)]
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
corpus = torch.randint(0, VOCAB, (2_000_000,))
for step in range(100):
    starts = torch.randint(0, len(corpus) - SEQ - 1, (BATCH,))
    batch = torch.stack([corpus[s:s + SEQ + 1] for s in starts]).cuda()
    logits = model(batch[:, :-1])
    lm_loss = F.cross_entropy(logits.reshape(-1, VOCAB), batch[:, 1:].reshape(-1))
    loss = lm_loss + 0.01 * sum(s.aux for s in switches)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {lm_loss.item():.3f} dropped {switches[0].dropped:.2%} load", [round(v, 2) for v in switches[0].load])
