"""Knowledge graph embedding: RotatE with self-adversarial negatives, head and tail batches in turn."""
import logging

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
NENTITY, NRELATION, HIDDEN, NEGATIVES, BATCH, GAMMA, ALPHA = 14951, 1345, 500, 128, 512, 24.0, 1.0
EPSILON = 2.0


class TrainDataset(Dataset):
    def __init__(self, triples, mode):
        self.triples, self.mode = triples, mode
        self.true, self.count = {}, {}
        for h, r, t in triples:
            key, value = ((r, t), h) if mode == "head-batch" else ((h, r), t)
            self.true.setdefault(key, set()).add(value)
            self.count[key] = self.count.get(key, 4) + 1
        self.true = {key: np.array(list(values)) for key, values in self.true.items()}

    def __len__(self):
        return len(self.triples)

    def __getitem__(self, idx):
        h, r, t = self.triples[idx]
        key = (r, t) if self.mode == "head-batch" else (h, r)
        weight = torch.sqrt(1 / torch.Tensor([self.count[key]]))
        found, size = [], 0
        while size < NEGATIVES:
            sample = np.random.randint(NENTITY, size=NEGATIVES * 2)
            sample = sample[np.isin(sample, self.true[key], invert=True)]
            found.append(sample)
            size += sample.size
        negative = torch.LongTensor(np.concatenate(found)[:NEGATIVES])
        return torch.LongTensor([h, r, t]), negative, weight

    def collate(self, data):
        return (torch.stack([d[0] for d in data]), torch.stack([d[1] for d in data]), torch.cat([d[2] for d in data]), self.mode)


class RotatE(nn.Module):
    def __init__(self):
        super().__init__()
        self.range = (GAMMA + EPSILON) / HIDDEN
        self.entity = nn.Parameter(torch.empty(NENTITY, 2 * HIDDEN).uniform_(-self.range, self.range))
        self.relation = nn.Parameter(torch.empty(NRELATION, HIDDEN).uniform_(-self.range, self.range))

    def forward(self, positive, negative, mode):
        pick = lambda table, index: torch.index_select(table, 0, index.reshape(-1)).view(*index.shape, -1)
        head, tail = positive[:, :1], positive[:, 2:]
        if negative is not None:
            head, tail = (negative, tail) if mode == "head-batch" else (head, negative)
        re_head, im_head = pick(self.entity, head).chunk(2, 2)
        re_tail, im_tail = pick(self.entity, tail).chunk(2, 2)
        phase = pick(self.relation, positive[:, 1:2]) / (self.range / np.pi)
        re_rel, im_rel = torch.cos(phase), torch.sin(phase)
        if mode == "head-batch":
            re, im = re_rel * re_tail + im_rel * im_tail - re_head, re_rel * im_tail - im_rel * re_tail - im_head
        else:
            re, im = re_head * re_rel - im_head * im_rel - re_tail, re_head * im_rel + im_head * re_rel - im_tail
        return GAMMA - torch.stack([re, im], 0).norm(dim=0).sum(dim=2)


def alternate(first, second):
    while True:
        for a, b in zip(first, second):
            yield a
            yield b


np.random.seed(0)
triples = list(zip(np.random.randint(0, NENTITY, 80000).tolist(), np.random.randint(0, NRELATION, 80000).tolist(), np.random.randint(0, NENTITY, 80000).tolist()))
loaders = [DataLoader(s, batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=s.collate)
           for s in (TrainDataset(triples, "head-batch"), TrainDataset(triples, "tail-batch"))]
model = RotatE().cuda()
optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-4)
iterator, logs = alternate(*loaders), []
for step in range(400):
    model.train()
    optimizer.zero_grad()
    positive, negative, weight, mode = next(iterator)
    positive, negative, weight = positive.cuda(), negative.cuda(), weight.cuda()
    score = model(positive, negative, mode)
    score = (F.softmax(score * ALPHA, dim=1).detach() * F.logsigmoid(-score)).sum(dim=1)
    positive_score = F.logsigmoid(model(positive, None, mode)).squeeze(dim=1)
    positive_loss, negative_loss = -(weight * positive_score).sum() / weight.sum(), -(weight * score).sum() / weight.sum()
    loss = (positive_loss + negative_loss) / 2
    loss.backward()
    optimizer.step()
    logs.append({"positive": positive_loss.item(), "negative": negative_loss.item(), "loss": loss.item()})
    if step % 50 == 0:
        logging.info("step %d: %s", step, {k: round(sum(log[k] for log in logs) / len(logs), 4) for k in logs[0]})
