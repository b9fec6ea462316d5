import argparse
import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import DistilBertConfig, DistilBertForMaskedLM, get_linear_schedule_with_warmup

# SPLADE: every query and every passage becomes a sparse vector over the vocabulary,
#   w_j = max over tokens i of log(1 + relu(logit_ij))
# Trained with triples (query, positive, hard negative), margins of a cross-encoder, and the FLOPS regularizer.

PAD, CLS, SEP = 0, 101, 102


class Triples(Dataset):
    def __init__(self, n, vocab, seed=0):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            topic = [rng.randrange(1000, vocab) for _ in range(40)]
            def text(low, high, share):
                return [rng.choice(topic) if rng.random() < share else rng.randrange(1000, vocab)
                        for _ in range(rng.randint(low, high))]
            # passages are short for the most part, with a long tail
            self.rows.append((text(3, 14, 0.9), text(25, rng.choice([70, 90, 120, 160]), 0.6),
                              text(25, rng.choice([70, 90, 120, 160]), 0.3), rng.uniform(1, 9)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Collate:
    def __init__(self, q_len, d_len):
        self.q_len, self.d_len = q_len, d_len

    def pad(self, texts, length):
        texts = [[CLS] + t[:length - 2] + [SEP] for t in texts]
        ids = torch.tensor([t + [PAD] * (length - len(t)) for t in texts])
        return {"input_ids": ids, "attention_mask": (ids != PAD).long()}

    def __call__(self, rows):
        q, p, n, margin = zip(*rows)
        return {"query": self.pad(q, self.q_len), "pos": self.pad(p, self.d_len), "neg": self.pad(n, self.d_len),
                "margin": torch.tensor(margin)}


class Splade(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.mlm = DistilBertForMaskedLM(config)

    def forward(self, input_ids, attention_mask):
        logits = self.mlm(input_ids=input_ids, attention_mask=attention_mask).logits
        weights = torch.log(1 + torch.relu(logits)) * attention_mask.unsqueeze(-1)
        return weights.max(dim=1).values


def flops_reg(reps):
    return (reps.abs().mean(0) ** 2).sum()


def sparsity(reps):
    reps = reps.detach().float().cpu().numpy()
    return float(np.mean([np.count_nonzero(r > 1e-3) for r in reps]))


def main(args):
    accelerator = Accelerator()
    torch.manual_seed(args.seed)
    config = DistilBertConfig(vocab_size=args.vocab, n_layers=args.layers, dim=args.dim, n_heads=args.dim // 64,
                              hidden_dim=4 * args.dim)
    model = Splade(config)
    data = Triples(args.triples, args.vocab)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True,
                        collate_fn=Collate(args.query_length, args.passage_length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = get_linear_schedule_with_warmup(optimizer, 20, args.max_steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()

    step, q_nnz, d_nnz = 0, [], []
    while step < args.max_steps:
        for batch in loader:
            q = model(**batch["query"])
            p = model(**batch["pos"])
            n = model(**batch["neg"])

            scores = q @ torch.cat([p, n]).T
            nce = F.cross_entropy(scores, torch.arange(len(q), device=scores.device))
            margin_mse = F.mse_loss((q * p).sum(1) - (q * n).sum(1), batch["margin"])
            ramp = min(1.0, step / 50) ** 2
            reg = args.lambda_q * flops_reg(q) + args.lambda_d * (flops_reg(p) + flops_reg(n)) / 2
            loss = nce + 0.05 * margin_mse + ramp * reg

            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()

            q_nnz.append(sparsity(q))
            d_nnz.append((sparsity(p) + sparsity(n)) / 2)
            if math.isnan(loss.item()):
                raise RuntimeError("loss is nan")
            torch.cuda.empty_cache()   # OOM without it on the 24 GB card

            step += 1
            if step % 20 == 0:
                accelerator.print(f"[{step}] loss {loss.item():.3f} nce {nce.item():.3f} mse {margin_mse.item():.3f} "
                                  f"nnz q {np.mean(q_nnz[-20:]):.0f} d {np.mean(d_nnz[-20:]):.0f}")
            if step >= args.max_steps:
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--triples", type=int, default=800)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--query_length", type=int, default=32)
    parser.add_argument("--passage_length", type=int, default=192)
    parser.add_argument("--vocab", type=int, default=30522)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--lambda_q", type=float, default=3e-4)
    parser.add_argument("--lambda_d", type=float, default=1e-4)
    parser.add_argument("--max_steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
