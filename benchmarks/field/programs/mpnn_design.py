"""Sequence design for backbones of mini-binders, own small ProteinMPNN: k nearest residues, message passing, decoding in random order.

Backbones come from the diffusion run (here: random compact chains, so that the script runs anywhere), four sequences for each.
Scores and sequences go to a fasta file when --fasta is given.
"""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--backbones", type=int, default=300)
parser.add_argument("--length", type=int, default=40)
parser.add_argument("--num-seq", type=int, default=4)
parser.add_argument("--neighbors", type=int, default=24)
parser.add_argument("--hidden", type=int, default=128)
parser.add_argument("--temperature", type=float, default=0.2)
parser.add_argument("--weights", default="")
parser.add_argument("--fasta", default="")
parser.add_argument("--seed", type=int, default=37)
args = parser.parse_args()

ALPHABET = "ACDEFGHIKLMNPQRSTVWY"
device = torch.device("cuda")
torch.manual_seed(args.seed)


def fake_backbone(length, rng):
    """N, CA, C, O of a chain that curls up."""
    steps = rng.normal(0, 1, (length, 3))
    ca = np.zeros((length, 3))
    for i in range(1, length):
        step = steps[i] + 0.8 * steps[i - 1] - 0.05 * ca[i - 1]
        ca[i] = ca[i - 1] + 3.8 * step / np.linalg.norm(step)
    return ca[:, None] + rng.normal(0, 1, (length, 4, 3)) * np.array([1.2, 0.05, 1.2, 2.0])[:, None]


def rbf(d, low=2.0, high=22.0, count=16):
    mu = torch.linspace(low, high, count, device=d.device)
    return torch.exp(-(((d[..., None] - mu) / ((high - low) / count)) ** 2))


def gather(nodes, idx):
    """nodes: batch x L x h, idx: batch x L x K -> batch x L x K x h"""
    flat = idx.reshape(idx.shape[0], -1, 1).expand(-1, -1, nodes.shape[2])
    return torch.gather(nodes, 1, flat).view(*idx.shape, nodes.shape[2])


class MessageLayer(nn.Module):
    def __init__(self, hidden, incoming):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(hidden + incoming, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, h, messages):
        own = h.unsqueeze(-2).expand(*messages.shape[:-1], -1)
        m = self.w3(F.gelu(self.w2(F.gelu(self.w1(torch.cat([own, messages], -1))))))
        h = self.norm1(h + m.sum(-2) / 30)
        return self.norm2(h + self.down(F.gelu(self.up(h))))


class Designer(nn.Module):
    def __init__(self, hidden, layers=3):
        super().__init__()
        self.position = nn.Embedding(65, 16)
        self.edge = nn.Linear(16 * 16 + 16, hidden)
        self.norm_edge = nn.LayerNorm(hidden)
        self.letter = nn.Embedding(len(ALPHABET), hidden)
        self.encoder = nn.ModuleList([MessageLayer(hidden, 2 * hidden) for _ in range(layers)])
        self.decoder = nn.ModuleList([MessageLayer(hidden, 3 * hidden) for _ in range(layers)])
        self.out = nn.Linear(hidden, len(ALPHABET))

    def features(self, X):
        ca = X[:, :, 1]
        dist = torch.sqrt(((ca[:, :, None] - ca[:, None]) ** 2).sum(-1) + 1e-6)
        _, idx = torch.topk(dist, min(args.neighbors, X.shape[1]), dim=-1, largest=False)
        parts = []
        for a in range(4):
            for b in range(4):
                d = torch.sqrt(((X[:, :, None, a] - X[:, None, :, b]) ** 2).sum(-1) + 1e-6)
                parts.append(rbf(torch.gather(d, 2, idx)))
        offset = torch.arange(X.shape[1], device=X.device)
        offset = (idx - offset[None, :, None]).clamp(-32, 32) + 32
        return self.norm_edge(self.edge(torch.cat([*parts, self.position(offset)], -1))), idx

    def encode(self, X):
        E, idx = self.features(X)
        h = torch.zeros(X.shape[0], X.shape[1], E.shape[-1], device=X.device)
        for layer in self.encoder:
            h = layer(h, torch.cat([E, gather(h, idx)], -1))
        return h, E, idx

    def decode(self, h_enc, E, idx, S, order):
        """Logits of each residue given those before it in the order; the others are seen as the encoder has them."""
        rank = torch.argsort(order, dim=1)
        before = (gather(rank[..., None], idx)[..., 0] < rank[:, :, None]).unsqueeze(-1).float()
        seq = gather(self.letter(S), idx)
        ahead = (1 - before) * torch.cat([E, torch.zeros_like(seq), gather(h_enc, idx)], -1)
        h = h_enc
        for layer in self.decoder:
            h = layer(h, before * torch.cat([E, seq, gather(h, idx)], -1) + ahead)
        return self.out(h)

    def sample(self, X, temperature):
        h_enc, E, idx = self.encode(X)
        L = X.shape[1]
        order = torch.randperm(L, device=X.device)[None]
        S = torch.zeros(1, L, dtype=torch.long, device=X.device)
        score = 0.0
        for t in range(L):
            i = order[0, t].item()
            logits = self.decode(h_enc, E, idx, S, order)[:, i]
            probs = F.softmax(logits / temperature, dim=-1)
            S[:, i] = torch.multinomial(probs, 1)[:, 0]
            score -= torch.log_softmax(logits, -1)[0, S[0, i]].item() / L
        return "".join(ALPHABET[k] for k in S[0].tolist()), score


model = Designer(args.hidden).to(device)
if args.weights:
    model.load_state_dict(torch.load(args.weights, map_location=device))
model.eval()
rng = np.random.default_rng(args.seed)
backbones = [fake_backbone(args.length, rng) for _ in range(args.backbones)]
fasta, tic = [], time.time()
for n, xyz in enumerate(backbones):
    X = torch.tensor(xyz, dtype=torch.float32, device=device)[None]
    designs = []
    for k in range(args.num_seq):
        seq, score = model.sample(X, args.temperature)
        designs.append((score, seq))
    designs.sort()
    fasta += [f">backbone_{n} design={k} score={score:.4f}\n{seq}\n" for k, (score, seq) in enumerate(designs)]
    if n % 10 == 0:
        print(f"{n:4d} best {designs[0][0]:.3f} {designs[0][1]}  {(time.time() - tic) / (n + 1):.3f} s per backbone", flush=True)
if args.fasta:
    with open(args.fasta, "w") as f:
        f.writelines(fasta)
