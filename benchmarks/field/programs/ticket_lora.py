"""Fine-tune a small Llama on support tickets with LoRA.

Own LoRA instead of peft (peft pins an old transformers here). Base model: our 110M checkpoint, random weights if
the checkpoint is not there. Tickets are already tokenized: (prompt ids, reply ids).
"""
import argparse
import math
import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

device = os.environ.get("DEVICE", "cuda")
BOS, EOS, PAD = 1, 2, 0


class Tickets(Dataset):
    def __init__(self, n, vocab, seed=0):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            topic = [rng.randrange(10, vocab) for _ in range(30)]
            prompt = [rng.choice(topic) for _ in range(int(rng.gammavariate(3.0, 22)) + 8)]
            reply = [rng.choice(topic) for _ in range(int(rng.gammavariate(2.5, 25)) + 5)]
            self.rows.append((prompt, reply))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Collator:
    """[BOS] prompt reply [EOS], loss on the reply only."""

    def __init__(self, max_len):
        self.max_len = max_len

    def __call__(self, rows):
        rows = [([BOS] + p, r + [EOS]) for p, r in rows]
        length = self.max_len
        ids, labels, mask = [], [], []
        for p, r in rows:
            x = (p + r)[:length]
            y = ([-100] * len(p) + r)[:length]
            pad = length - len(x)
            ids.append(x + [PAD] * pad)
            labels.append(y + [-100] * pad)
            mask.append([1] * len(x) + [0] * pad)
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


class LoRALinear(nn.Module):
    def __init__(self, base, r=16, alpha=32, dropout=0.05):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        delta = self.B @ self.A
        return self.base(x) + self.scale * F.linear(self.dropout(x), delta)


def add_lora(model, names=("q_proj", "k_proj", "v_proj", "o_proj"), **kw):
    for p in model.parameters():
        p.requires_grad = False
    for layer in model.model.layers:
        for name in names:
            setattr(layer.self_attn, name, LoRALinear(getattr(layer.self_attn, name), **kw))
    return model


def grad_norm(params):
    total = 0.0
    for p in params:
        if p.grad is not None:
            total += p.grad.norm(2).item() ** 2
    return total ** 0.5


def main(args):
    torch.manual_seed(args.seed)
    config = LlamaConfig(vocab_size=args.vocab, hidden_size=args.dim, num_hidden_layers=args.layers,
                         num_attention_heads=args.dim // 64, num_key_value_heads=max(1, args.dim // 448),
                         intermediate_size=args.dim * 19 // 7, max_position_embeddings=2048, use_cache=False,
                         pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
                         attn_implementation="eager")   # same as in the eval script (needs the attention maps)
    model = add_lora(LlamaForCausalLM(config), r=args.rank).to(device)
    # was out of memory on the old 16 GB card
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()

    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"trainable {sum(p.numel() for p in trainable) / 1e6:.2f}M of {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M")
    loader = DataLoader(Tickets(args.tickets, args.vocab), batch_size=args.batch_size, shuffle=True, drop_last=True,
                        collate_fn=Collator(args.max_len), num_workers=0)
    optimizer = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 30, args.max_steps)

    step, running, tic = 0, 0.0, time.time()
    while step < args.max_steps:
        for batch in loader:
            batch = {k: v.to(device) for k, v in batch.items()}
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            norm = grad_norm(trainable)
            if norm > args.clip:
                for p in trainable:
                    p.grad.mul_(args.clip / norm)
            optimizer.step()
            scheduler.step()

            running = 0.95 * running + 0.05 * loss.item() if step else loss.item()
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {running:.3f} |g| {norm:.3f} lr {scheduler.get_last_lr()[0]:.2e} "
                      f"{step / (time.time() - tic):.1f} it/s")
            if step >= args.max_steps:
                break
    torch.save({k: v for k, v in model.state_dict().items() if k.endswith((".A", ".B"))}, "/tmp/ticket_lora.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tickets", type=int, default=3000)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_len", type=int, default=320)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--dim", type=int, default=896)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--max_steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
