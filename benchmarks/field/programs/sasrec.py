"""Self-attentive sequential recommendation, in the style of the well-known PyTorch port."""
import numpy as np
import torch

USERS, ITEMS, MAXLEN, HIDDEN, BLOCKS, HEADS, BATCH = 20000, 30000, 200, 64, 2, 1, 128
user_train = [np.random.randint(1, ITEMS + 1, np.random.randint(20, 300)).tolist() for _ in range(USERS)]


def random_neq(l, r, s):
    t = np.random.randint(l, r)
    while t in s:
        t = np.random.randint(l, r)
    return t


def sample():
    user = np.random.randint(0, USERS)
    seq, pos, neg = (np.zeros([MAXLEN], dtype=np.int32) for _ in range(3))
    nxt = user_train[user][-1]
    idx = MAXLEN - 1
    ts = set(user_train[user])
    for i in reversed(user_train[user][:-1]):
        seq[idx] = i
        pos[idx] = nxt
        neg[idx] = random_neq(1, ITEMS + 1, ts)
        nxt = i
        idx -= 1
        if idx == -1:
            break
    return user, seq, pos, neg


def next_batch():
    return [np.array(part) for part in zip(*[sample() for _ in range(BATCH)])]


class SASRec(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.item_emb = torch.nn.Embedding(ITEMS + 1, HIDDEN, padding_idx=0)
        self.pos_emb = torch.nn.Embedding(MAXLEN, HIDDEN)
        self.emb_dropout = torch.nn.Dropout(0.2)
        self.ln1 = torch.nn.ModuleList([torch.nn.LayerNorm(HIDDEN, eps=1e-8) for _ in range(BLOCKS)])
        self.att = torch.nn.ModuleList([torch.nn.MultiheadAttention(HIDDEN, HEADS, 0.2) for _ in range(BLOCKS)])
        self.ln2 = torch.nn.ModuleList([torch.nn.LayerNorm(HIDDEN, eps=1e-8) for _ in range(BLOCKS)])
        self.ff = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.ReLU(), torch.nn.Dropout(0.2),
                                                           torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Dropout(0.2)) for _ in range(BLOCKS)])
        self.last = torch.nn.LayerNorm(HIDDEN, eps=1e-8)

    def log2feats(self, log_seqs):
        seqs = self.item_emb(torch.LongTensor(log_seqs).cuda()) * HIDDEN ** 0.5
        positions = np.tile(np.array(range(MAXLEN)), [log_seqs.shape[0], 1])
        seqs = self.emb_dropout(seqs + self.pos_emb(torch.LongTensor(positions).cuda()))
        timeline_mask = torch.BoolTensor(log_seqs == 0).cuda()
        seqs = seqs * ~timeline_mask.unsqueeze(-1)
        attention_mask = ~torch.tril(torch.ones((MAXLEN, MAXLEN), dtype=torch.bool, device="cuda"))
        return self.encode(seqs, timeline_mask, attention_mask)

    def encode(self, seqs, timeline_mask, attention_mask):
        for ln1, att, ln2, ff in zip(self.ln1, self.att, self.ln2, self.ff):
            seqs = torch.transpose(seqs, 0, 1)
            q = ln1(seqs)
            out, _ = att(q, seqs, seqs, attn_mask=attention_mask)
            seqs = torch.transpose(q + out, 0, 1)
            seqs = ln2(seqs)
            seqs = (seqs + ff(seqs)) * ~timeline_mask.unsqueeze(-1)
        return self.last(seqs)

    def forward(self, log_seqs, pos_seqs, neg_seqs):
        feats = self.log2feats(log_seqs)
        pos, neg = self.item_emb(torch.LongTensor(pos_seqs).cuda()), self.item_emb(torch.LongTensor(neg_seqs).cuda())
        return (feats * pos).sum(dim=-1), (feats * neg).sum(dim=-1)


model = SASRec().cuda()
bce_criterion = torch.nn.BCEWithLogitsLoss()
adam_optimizer = torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.98))
for step in range(120):
    u, seq, pos, neg = next_batch()
    pos_logits, neg_logits = model(seq, pos, neg)
    pos_labels, neg_labels = torch.ones(pos_logits.shape, device="cuda"), torch.zeros(neg_logits.shape, device="cuda")
    adam_optimizer.zero_grad()
    indices = np.where(pos != 0)
    loss = bce_criterion(pos_logits[indices], pos_labels[indices])
    loss += bce_criterion(neg_logits[indices], neg_labels[indices])
    loss.backward()
    adam_optimizer.step()
    print("loss in iteration {}: {}".format(step, loss.item()))
