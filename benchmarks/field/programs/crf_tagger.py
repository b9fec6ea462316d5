# BiLSTM-CRF tagger for the pharmacovigilance notes (drug / dose / route / reaction ...), after Lample et al. 2016.
# The notes themselves stay in the clinic, so sentences are made up here from a word list with a tag chain.
import os
import random
import string
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SENTENCES = int(os.environ.get("SENTENCES", 8000))
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 32))
MAX_LEN, MAX_CHARS = 80, 14
WORD_DIM, CHAR_DIM, CHAR_OUT, HIDDEN = 128, 32, 64, 256
ENTITIES = ["DRUG", "DOSE", "ROUTE", "FREQ", "REACTION", "DATE", "PERSON"]
TAGS = ["O"] + [f"{p}-{e}" for e in ENTITIES for p in "BI"]
random.seed(11)
torch.manual_seed(11)


def make_corpus(n):
    rng = random.Random(4)
    words = {tag: ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 12))) for _ in range(9000 if tag == "O" else 300)] for tag in TAGS}
    corpus = []
    for _ in range(n):
        length = min(MAX_LEN, max(3, int(rng.lognormvariate(2.95, 0.5))))
        sentence, tag = [], "O"
        for _ in range(length):
            if tag != "O" and rng.random() < 0.45:
                tag = "I-" + tag[2:]
            else:
                tag = "B-" + rng.choice(ENTITIES) if rng.random() < 0.2 else "O"
            word = words["O" if rng.random() < 0.1 else tag]
            word = word[min(int(rng.expovariate(1 / 700)), len(word) - 1)]
            sentence.append((word.capitalize() if rng.random() < 0.08 else word, tag))
        corpus.append(sentence)
    return corpus


corpus = make_corpus(SENTENCES)
word_to_ix, char_to_ix = {"<pad>": 0, "<unk>": 1}, {"<pad>": 0, "<unk>": 1}
for sentence in corpus:
    for word, _ in sentence:
        word_to_ix.setdefault(word.lower(), len(word_to_ix))
        for c in word:
            char_to_ix.setdefault(c, len(char_to_ix))
tag_to_ix = {t: i for i, t in enumerate(TAGS)}


def prepare(sentence):
    words = [word_to_ix.get(w.lower(), 1) for w, _ in sentence] + [0] * (MAX_LEN - len(sentence))
    tags = [tag_to_ix[t] for _, t in sentence] + [0] * (MAX_LEN - len(sentence))
    chars = []
    for w, _ in sentence:
        ids = [char_to_ix.get(c, 1) for c in w[:MAX_CHARS]]
        chars.append(ids + [0] * (MAX_CHARS - len(ids)))
    chars += [[0] * MAX_CHARS] * (MAX_LEN - len(sentence))
    return words, chars, tags


def collate(sentences):
    sentences = sorted(sentences, key=len, reverse=True)
    rows = [prepare(s) for s in sentences]
    words, chars, tags = (torch.tensor(column) for column in zip(*rows))
    return words, chars, tags, [len(s) for s in sentences]


class CRF(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.start, self.end = nn.Parameter(torch.randn(k) * 0.1), nn.Parameter(torch.randn(k) * 0.1)
        self.trans = nn.Parameter(torch.randn(k, k) * 0.1)          # from, to

    def partition(self, feats, mask):
        alpha = self.start + feats[:, 0]
        for t in range(1, feats.size(1)):
            scores = alpha.unsqueeze(2) + self.trans.unsqueeze(0) + feats[:, t].unsqueeze(1)
            alpha = torch.where(mask[:, t].unsqueeze(1), torch.logsumexp(scores, dim=1), alpha)
        return torch.logsumexp(alpha + self.end, dim=1)

    def gold_score(self, feats, tags, lengths):
        out = []
        for b, n in enumerate(lengths):
            y = tags[b, :n]
            s = self.start[y[0]] + self.end[y[n - 1]]
            s = s + feats[b, torch.arange(n), y].sum()
            s = s + self.trans[y[:-1], y[1:]].sum()
            out.append(s)
        return torch.stack(out)

    def viterbi(self, feats, lengths):
        score, pointers = self.start + feats[:, 0], []
        history = [score]
        for t in range(1, feats.size(1)):
            best, where = (score.unsqueeze(2) + self.trans).max(1)
            score = best + feats[:, t]
            history.append(score)
            pointers.append(where)
        paths = []
        for b, n in enumerate(lengths):
            tag = (history[n - 1][b] + self.end).argmax()
            path = [tag.item()]
            for t in range(n - 2, -1, -1):
                tag = pointers[t][b][tag]
                path.append(tag.item())
            paths.append(path[::-1])
        return paths


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(len(word_to_ix), WORD_DIM, padding_idx=0)
        self.chars = nn.Embedding(len(char_to_ix), CHAR_DIM, padding_idx=0)
        self.char_conv = nn.Conv1d(CHAR_DIM, CHAR_OUT, 3, padding=1)
        self.lstm = nn.LSTM(WORD_DIM + CHAR_OUT, HIDDEN, num_layers=2, batch_first=True, bidirectional=True, dropout=0.3)
        self.dropout, self.hidden2tag = nn.Dropout(0.5), nn.Linear(2 * HIDDEN, len(TAGS))
        self.crf = CRF(len(TAGS))

    def features(self, words, chars, lengths):
        b, t, c = chars.shape
        spelled = self.char_conv(self.chars(chars).view(b * t, c, -1).transpose(1, 2)).max(2).values.view(b, t, -1)
        x = self.dropout(torch.cat([self.words(words), F.relu(spelled)], 2))
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=t)
        return self.hidden2tag(self.dropout(h))


def spans(path):
    found, start = set(), None
    for i, t in enumerate([TAGS[p] for p in path] + ["O"]):
        if start is not None and t != "I-" + start[1]:
            found.add((start[0], i, start[1]))
            start = None
        if t.startswith("B-"):
            start = (i, t[2:])
    return found


loader = DataLoader(corpus, batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=collate)
model = Tagger().to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
print(f"{len(corpus)} sentences, {len(word_to_ix)} words, {len(TAGS)} tags")

step, tic = 0, time.time()
total, right, predicted, actual = 0.0, 0, 0, 0
while step < STEPS:
    for words, chars, tags, lengths in loader:
        words, chars, tags = words.to(DEVICE), chars.to(DEVICE), tags.to(DEVICE)
        mask = words != 0
        feats = model.features(words, chars, lengths)
        loss = (model.crf.partition(feats, mask) - model.crf.gold_score(feats, tags, lengths)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        total += loss.item()
        # entity F1 on what it was trained on
        with torch.no_grad():
            paths = model.crf.viterbi(feats, lengths)
        for b, path in enumerate(paths):
            a, p = spans(tags[b, :lengths[b]].tolist()), spans(path)
            right, predicted, actual = right + len(a & p), predicted + len(p), actual + len(a)
        step += 1
        if step % 25 == 0:
            f1 = 2 * right / max(predicted + actual, 1)
            print(f"step {step} loss {total / 25:.3f} train F1 {f1:.3f} ({(time.time() - tic) / step * 1000:.0f} ms/step)", flush=True)
            total, right, predicted, actual = 0.0, 0, 0, 0
        if step == STEPS:
            break
