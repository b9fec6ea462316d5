"""Distil the ticket router: three fine-tuned BERT-like teachers -> one small student that fits the CPU pods.

Losses: CE with the label, KL with the teachers' softened mean (teachers that are right about a sample count more, as in CA-MKD),
and MSE between the pooled states. Run with --steps 20 for a smoke test; without --teachers, teachers have random weights.
"""
import argparse
import re
import string
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel, get_linear_schedule_with_warmup, set_seed

ap = argparse.ArgumentParser()
ap.add_argument("--tickets", type=int, default=6000)
ap.add_argument("--intents", type=int, default=77)
ap.add_argument("--max_length", type=int, default=192)
ap.add_argument("--batch_size", type=int, default=48)
ap.add_argument("--steps", type=int, default=240)
ap.add_argument("--lr", type=float, default=3e-4)
ap.add_argument("--temperature", type=float, default=3.0)
ap.add_argument("--alpha", type=float, default=0.7)
ap.add_argument("--beta", type=float, default=10.0)
ap.add_argument("--teacher_dims", default="768x12,768x12,512x8")
ap.add_argument("--student_dims", default="384x4")
args = ap.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
set_seed(13)


# ----------------------------------------------------------------------- data
class WordPieces:
    """Greedy longest match, like BERT's. Written out because the pods have no Rust tokenizers."""

    def __init__(self, words, size=20000):
        self.vocab = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])}
        for c in string.ascii_lowercase + string.digits + string.punctuation:
            self.vocab.setdefault(c, len(self.vocab))
            self.vocab.setdefault("##" + c, len(self.vocab))
        for w in words:
            for piece in (w[:4], "##" + w[4:], "##" + w[-3:]) if len(w) > 6 else (w,):
                if len(self.vocab) < size:
                    self.vocab.setdefault(piece, len(self.vocab))

    def pieces(self, word):
        out, start = [], 0
        while start < len(word):
            end = len(word)
            while end > start:
                piece = ("##" if start else "") + word[start:end]
                if piece in self.vocab:
                    out.append(self.vocab[piece])
                    break
                end -= 1
            else:
                return [1]
            start = end
        return out

    def __call__(self, texts, max_length):
        ids = np.zeros((len(texts), max_length), dtype=np.int64)
        mask = np.zeros((len(texts), max_length), dtype=np.int64)
        for n, text in enumerate(texts):
            tokens = [2]
            for word in re.findall(r"\w+|[^\w\s]", text.lower()):
                tokens.extend(self.pieces(word))
            tokens = tokens[: max_length - 1] + [3]
            ids[n, : len(tokens)] = tokens
            mask[n, : len(tokens)] = 1
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}


def make_tickets(n, n_intents):
    rng = np.random.default_rng(5)
    letters = np.array(list(string.ascii_lowercase))
    words = ["".join(rng.choice(letters, rng.integers(2, 12))) for _ in range(9000)]
    texts, labels = [], rng.integers(0, n_intents, n)
    for y in labels:
        length = int(np.clip(rng.lognormal(3.2, 0.55), 4, 110))
        zipf = np.minimum(rng.zipf(1.3, length), len(words) - 200) - 1
        topical = len(words) - 200 + (y * 2 + rng.integers(0, 2, length)) % 200
        at = np.where(rng.random(length) < 0.25, topical, zipf)
        texts.append(" ".join(words[i] for i in at).capitalize() + rng.choice([".", "!", "??"]))
    return words, texts, labels.tolist()


words, texts, labels = make_tickets(args.tickets, args.intents)
tokenizer = WordPieces(words)


def collate(rows):
    batch = tokenizer([texts[i] for i in rows], args.max_length)
    batch["labels"] = torch.tensor([labels[i] for i in rows])
    batch["row"] = torch.tensor(rows)
    return batch


# ----------------------------------------------------------------------- models
class Router(nn.Module):
    def __init__(self, dims, dropout=0.1):
        super().__init__()
        dim, layers = map(int, dims.split("x"))
        self.bert = BertModel(BertConfig(
            vocab_size=20000, hidden_size=dim, num_hidden_layers=layers, num_attention_heads=max(1, dim // 64), intermediate_size=4 * dim,
            max_position_embeddings=args.max_length, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        ), add_pooling_layer=False)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(dim, args.intents)

    def forward(self, input_ids, attention_mask):
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True).hidden_states[-1]
        m = attention_mask.unsqueeze(-1).float()
        pooled = (hidden * m).sum(1) / m.sum(1)
        return self.classifier(self.dropout(pooled)), pooled


teachers = [Router(d).to(device).eval() for d in args.teacher_dims.split(",")]
student = Router(args.student_dims).to(device)
t_dims = [int(d.split("x")[0]) for d in args.teacher_dims.split(",")]
projections = nn.ModuleList([nn.Linear(int(args.student_dims.split("x")[0]), d) for d in t_dims]).to(device)
print(f"teachers {[sum(p.numel() for p in t.parameters()) // 10 ** 6 for t in teachers]} M, student {sum(p.numel() for p in student.parameters()) / 1e6:.1f} M")

no_decay = ("bias", "LayerNorm.weight")
groups = [
    {"params": [p for n, p in student.named_parameters() if not n.endswith(no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in student.named_parameters() if n.endswith(no_decay)], "weight_decay": 0.0},
    {"params": list(projections.parameters()), "weight_decay": 0.01},
]
optimizer = torch.optim.AdamW(groups, lr=args.lr)
scheduler = get_linear_schedule_with_warmup(optimizer, args.steps // 10, args.steps)
loader = DataLoader(range(len(texts)), batch_size=args.batch_size, shuffle=True, drop_last=True, collate_fn=collate)


# ----------------------------------------------------------------------- training
def teacher_outputs(batch):
    outs = [t(batch["input_ids"], batch["attention_mask"]) for t in teachers]
    return [o[0].detach() for o in outs], [o[1].detach() for o in outs]


def distil_loss(logits, pooled, t_logits, t_pooled, y):
    T = args.temperature
    ce = torch.stack([F.cross_entropy(t, y, reduction="none") for t in t_logits])         # teachers x batch
    weight = (1 - ce.softmax(0)) / (len(t_logits) - 1)
    soft = torch.stack([F.softmax(t / T, dim=-1) for t in t_logits])
    target = (weight.unsqueeze(-1) * soft).sum(0)
    kd = F.kl_div(F.log_softmax(logits / T, dim=-1), target, reduction="batchmean") * T * T
    hidden = 0
    for w, proj, t in zip(weight, projections, t_pooled):
        hidden = hidden + (w * (F.normalize(proj(pooled), dim=-1) - F.normalize(t, dim=-1)).pow(2).mean(-1)).mean()
    hard = F.cross_entropy(logits, y)
    return args.alpha * kd + (1 - args.alpha) * hard + args.beta * hidden, kd, hard, hidden


step, running = 0, {"loss": 0.0, "kd": 0.0, "hard": 0.0, "hidden": 0.0, "acc": 0.0, "agree": 0.0}
student.train()
tic = time.time()
while step < args.steps:
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        t_logits, t_pooled = teacher_outputs(batch)
        logits, pooled = student(batch["input_ids"], batch["attention_mask"])
        loss, kd, hard, hidden = distil_loss(logits, pooled, t_logits, t_pooled, batch["labels"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(student.parameters()) + list(projections.parameters()), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

        pred = logits.argmax(-1)
        running["loss"] += loss.item()
        running["kd"] += kd.item()
        running["hard"] += hard.item()
        running["hidden"] += hidden.item()
        running["acc"] += (pred == batch["labels"]).float().mean().item()
        running["agree"] += np.mean([(pred == t.argmax(-1)).float().mean().item() for t in t_logits])
        step += 1
        if step % 20 == 0:
            print(f"{step:4d} " + " ".join(f"{k} {v / 20:.3f}" for k, v in running.items()) + f" lr {scheduler.get_last_lr()[0]:.1e} {(time.time() - tic) / step * 1000:.0f} ms/step", flush=True)
            running = dict.fromkeys(running, 0.0)
        if step == args.steps:
            break
