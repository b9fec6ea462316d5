# LambdaRank on synthetic web-search data (136 features per document, relevance 0..4)
import logging

import numpy as np
import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("ltr")

FEATURES, QUERIES, BATCH, STEPS, K = 136, 3000, 32, 150, 10


def make_queries(seed=7):
    rng = np.random.RandomState(seed)
    w = rng.randn(FEATURES) / np.sqrt(FEATURES)
    queries = []
    for _ in range(QUERIES):
        docs = rng.randint(40, 120)
        x = rng.randn(docs, FEATURES).astype(np.float32)
        rel = np.clip(np.floor(x @ w + rng.randn(docs) * 0.5 + 0.7), 0, 4)
        queries.append((torch.from_numpy(x), torch.from_numpy(rel.astype(np.float32))))
    return queries


class Scorer(nn.Module):
    def __init__(self, dims=(FEATURES, 1024, 512, 256)):
        super().__init__()
        layers = [nn.BatchNorm1d(dims[0])]
        for a, b in zip(dims, dims[1:]):
            layers += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.1)]
        self.net = nn.Sequential(*layers, nn.Linear(dims[-1], 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def ranks_of(scores):
    order = torch.argsort(scores, descending=True)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(scores), device=scores.device)
    return ranks


def lambda_loss(scores, rel):
    gain = 2.0 ** rel - 1
    discount = 1.0 / torch.log2(ranks_of(scores.detach()).float() + 2)
    positions = torch.arange(len(rel), device=rel.device).float()
    ideal = (torch.sort(gain, descending=True).values / torch.log2(positions + 2)).sum().clamp(min=1e-6)
    delta = ((gain[:, None] - gain[None, :]) * (discount[:, None] - discount[None, :])).abs() / ideal
    margin = scores[:, None] - scores[None, :]
    pairs = rel[:, None] > rel[None, :]
    return (nn.functional.softplus(-margin) * delta)[pairs].sum()


def ndcg(scores, rel, k=K):
    gain = 2.0 ** rel - 1
    top = gain[torch.argsort(scores, descending=True)][:k]
    best = torch.sort(gain, descending=True).values[:k]
    discounts = torch.log2(torch.arange(2, k + 2, device=rel.device).float())
    ideal = (best / discounts).sum()
    if ideal == 0:
        return 0.0
    return ((top / discounts).sum() / ideal).item()


torch.manual_seed(0)
np.random.seed(0)
queries = make_queries()
model = Scorer().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
running = []
for step in range(STEPS):
    chosen = np.random.choice(len(queries), BATCH, replace=False)
    sizes = [len(queries[i][1]) for i in chosen]
    x = torch.cat([queries[i][0] for i in chosen]).cuda()
    rel = torch.cat([queries[i][1] for i in chosen]).cuda()
    scores = model(x)
    loss, quality = 0.0, []
    for s, r in zip(scores.split(sizes), rel.split(sizes)):
        loss = loss + lambda_loss(s, r)
        quality.append(ndcg(s.detach(), r))
    loss = loss / BATCH
    opt.zero_grad()
    loss.backward()
    opt.step()
    running.append(np.mean(quality))
    if step % 50 == 49:
        log.info("step %d loss %.4f ndcg@%d %.4f", step + 1, loss.item(), K, np.mean(running[-50:]))
