#!/usr/bin/env python
"""REINVENT-like molecule generation: an RNN agent writes SMILES token by token and is pulled towards a score, near a prior.

Olivecrona et al. 2017, ported from the old repository. Scores are similarities of token fragments to a set of actives,
because rdkit is not installed on this machine.
"""
import argparse
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = ["GO", "EOS", "C", "c", "N", "n", "O", "o", "S", "s", "F", "L", "R", "[nH]", "[N+]", "[O-]", "[C@H]", "[C@@H]", "P", "I",
         "(", ")", "=", "#", "-", "/", "\\", "1", "2", "3", "4", "5", "6"]
GO, EOS = 0, 1


class MultiGRU(nn.Module):
    """Three GRU cells with an embedding before and a linear layer after."""

    def __init__(self, voc_size, hidden):
        super().__init__()
        self.embedding = nn.Embedding(voc_size, 128)
        self.gru_1 = nn.GRUCell(128, hidden)
        self.gru_2 = nn.GRUCell(hidden, hidden)
        self.gru_3 = nn.GRUCell(hidden, hidden)
        self.linear = nn.Linear(hidden, voc_size)

    def forward(self, x, h):
        x = self.embedding(x)
        h_out = torch.zeros_like(h)
        x = h_out[0] = self.gru_1(x, h[0])
        x = h_out[1] = self.gru_2(x, h[1])
        x = h_out[2] = self.gru_3(x, h[2])
        return self.linear(x), h_out

    def init_h(self, batch_size, device):
        return torch.zeros(3, batch_size, self.linear.in_features, device=device)


def nll_of(log_prob, target):
    """Minus the log probability of each row's target, by a one-hot mask as in the paper's code."""
    one_hot = torch.zeros(log_prob.size(), device=log_prob.device)
    one_hot.scatter_(1, target.view(-1, 1), 1.0)
    return -torch.sum(one_hot * log_prob, 1)


class RNN:
    def __init__(self, voc_size, hidden, device):
        self.rnn, self.device = MultiGRU(voc_size, hidden).to(device), device

    def likelihood(self, target):
        batch_size, length = target.size()
        start = torch.full((batch_size, 1), GO, dtype=torch.long, device=self.device)
        x = torch.cat((start, target[:, :-1]), 1)
        h = self.rnn.init_h(batch_size, self.device)
        log_probs = torch.zeros(batch_size, device=self.device)
        for step in range(length):
            logits, h = self.rnn(x[:, step], h)
            log_probs = log_probs - nll_of(F.log_softmax(logits, dim=1), target[:, step])
        return log_probs

    def sample(self, batch_size, max_length):
        x = torch.full((batch_size,), GO, dtype=torch.long, device=self.device)
        h = self.rnn.init_h(batch_size, self.device)
        sequences, log_probs = [], torch.zeros(batch_size, device=self.device)
        finished = torch.zeros(batch_size, dtype=torch.bool, device=self.device)
        for step in range(max_length):
            logits, h = self.rnn(x, h)
            log_prob = F.log_softmax(logits, dim=1)
            x = torch.multinomial(F.softmax(logits, dim=1), 1).view(-1)
            x = torch.where(finished, torch.full_like(x, EOS), x)
            sequences.append(x.view(-1, 1))
            log_probs = log_probs - nll_of(log_prob, x) * (~finished).float()
            finished = finished | (x == EOS)
            if finished.all():
                break
        return torch.cat(sequences, 1), log_probs


# ------------------------------------------------------------------ scoring
def fragments(tokens):
    return {tuple(tokens[i:i + n]) for n in (1, 2, 3) for i in range(len(tokens) - n + 1)}


class Similarity:
    def __init__(self, actives):
        self.actives = [fragments(a) for a in actives]

    def __call__(self, tokens):
        mine = fragments(tokens)
        best = 0.0
        for other in self.actives:
            union = len(mine | other)
            best = max(best, len(mine & other) / union if union else 0.0)
        depth = balance = 0
        for t in tokens:
            depth += (t == "(") - (t == ")")
            balance += depth < 0
        rings = sum(tokens.count(d) % 2 for d in "123456")
        return 2 * best - 1 - 0.05 * min(abs(depth) + balance + rings, 10)


def to_tokens(row):
    tokens = []
    for i in row:
        if i == EOS:
            break
        tokens.append(VOCAB[i])
    return tokens


def unique(seqs):
    rows = seqs.cpu().numpy()
    _, first = np.unique(rows, axis=0, return_index=True)
    return np.sort(first)


class Experience:
    """The best molecules so far."""

    def __init__(self, size=200):
        self.size, self.memory = size, []

    def add(self, rows, scores, prior):
        known = {tuple(m[0]) for m in self.memory}
        for row, s, p in zip(rows, scores, prior):
            row = [i for i in row if i != EOS] + [EOS]
            if tuple(row) not in known:
                self.memory.append((row, s, p))
        self.memory = sorted(self.memory, key=lambda m: m[1], reverse=True)[:self.size]

    def sample(self, n, device):
        chosen = random.sample(self.memory, min(n, len(self.memory)))
        longest = max(len(m[0]) for m in chosen)
        rows = torch.tensor([m[0] + [EOS] * (longest - len(m[0])) for m in chosen], device=device)
        return rows, torch.tensor([m[1] for m in chosen], device=device), torch.tensor([m[2] for m in chosen], device=device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prior", default="prior.ckpt")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--max-length", type=int, default=56)
    parser.add_argument("--replay", type=int, default=24)
    parser.add_argument("--actives", type=int, default=40)
    parser.add_argument("--sigma", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    random.seed(1)
    prior, agent = RNN(len(VOCAB), args.hidden, device), RNN(len(VOCAB), args.hidden, device)
    if os.path.exists(args.prior):
        prior.rnn.load_state_dict(torch.load(args.prior, map_location=device))
    agent.rnn.load_state_dict(prior.rnn.state_dict())
    optimizer = torch.optim.Adam(agent.rnn.parameters(), lr=0.0001)
    actives = [random.choices(VOCAB[2:12] + VOCAB[20:23] + ["1", "c", "c", "C", "C"], k=random.randint(15, 40)) for _ in range(args.actives)]
    scoring, experience = Similarity(actives), Experience()
    tic = time.time()

    for step in range(args.steps):
        seqs, agent_likelihood = agent.sample(args.batch_size, args.max_length)
        kept = torch.from_numpy(unique(seqs)).to(device)
        seqs, agent_likelihood = seqs[kept], agent_likelihood[kept]
        prior_likelihood = prior.likelihood(seqs)
        rows = seqs.tolist()
        score = torch.tensor([scoring(to_tokens(row)) for row in rows], device=device)

        augmented = prior_likelihood + args.sigma * score
        loss = torch.pow(augmented - agent_likelihood, 2)
        penalized = agent_likelihood
        if len(experience.memory) > 4:
            exp_seqs, exp_score, exp_prior = experience.sample(args.replay, device)
            exp_likelihood = agent.likelihood(exp_seqs)
            exp_augmented = exp_prior + args.sigma * exp_score
            loss = torch.cat((loss, torch.pow(exp_augmented - exp_likelihood, 2)), 0)
            penalized = torch.cat((penalized, exp_likelihood), 0)
        experience.add(rows, score.tolist(), prior_likelihood.tolist())
        loss = loss.mean() - 5e3 * (1 / penalized).mean()       # probable sequences are punished

        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.rnn.parameters(), 10.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4d} loss {loss.item():.1f} score {score.mean().item():.3f} best {experience.memory[0][1]:.3f} "
                  f"agent {agent_likelihood.mean().item():.1f} prior {prior_likelihood.mean().item():.1f} {time.time() - tic:.1f} s", flush=True)
            print("   ", "".join(to_tokens(rows[0])), flush=True)


if __name__ == "__main__":
    main()
