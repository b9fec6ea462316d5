# Sentiment of sentences from their parse trees: binary (constituency) Tree-LSTM, Tai et al. 2015, label at every node as in SST-5.
# Trees are random until the preprocessing with the Stanford parser is redone for the new corpus.
import argparse
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--vocab", type=int, default=18000)
parser.add_argument("--emb", type=int, default=300)
parser.add_argument("--hidden", type=int, default=168)
parser.add_argument("--classes", type=int, default=5)
parser.add_argument("--trees", type=int, default=3000)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=5e-4)
parser.add_argument("--seed", type=int, default=13)
args = parser.parse_args()

random.seed(args.seed)
torch.manual_seed(args.seed)
device = torch.device("cuda:0")


class Node:
    """Leaf: has a word. Inner node: has two children."""

    def __init__(self, label, word=None, left=None, right=None):
        self.label, self.word, self.left, self.right = label, word, left, right

    @property
    def is_leaf(self):
        return self.word is not None


def random_tree(words, mood):
    """Splits the sentence at random; labels drift from neutral (words) to the mood of the sentence (root)."""
    if len(words) == 1:
        return Node(words[0] % args.classes if words[0] % 7 == 0 else args.classes // 2, word=words[0])
    cut = random.randint(1, len(words) - 1)
    label = mood if random.random() < len(words) / 20 else args.classes // 2
    return Node(label, left=random_tree(words[:cut], mood), right=random_tree(words[cut:], mood))


def make_corpus(n):
    corpus = []
    for _ in range(n):
        length, mood = max(3, min(30, int(random.gauss(12, 5)))), random.randrange(args.classes)
        words = [int(args.vocab * random.random() ** 3) for _ in range(length)]
        corpus.append(random_tree(words, mood))
    return corpus


class BinaryTreeLSTMCell(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.leaf = nn.Linear(dim, 2 * hidden)
        self.inner = nn.Linear(2 * hidden, 5 * hidden)

    def from_word(self, x):
        c, o = self.leaf(x).chunk(2, dim=1)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, left, right):
        (h_l, c_l), (h_r, c_r) = left, right
        i, f_l, f_r, o, u = self.inner(torch.cat([h_l, h_r], dim=1)).chunk(5, dim=1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_l) * c_l + torch.sigmoid(f_r) * c_r
        return torch.sigmoid(o) * torch.tanh(c), c


class TreeSentiment(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(args.vocab, args.emb)
        nn.init.uniform_(self.emb.weight, -0.05, 0.05)
        self.cell = BinaryTreeLSTMCell(args.emb, args.hidden)
        self.out = nn.Linear(args.hidden, args.classes)
        self.criterion = nn.CrossEntropyLoss()

    def encode(self, node):
        """State of the node, and the summed loss of all nodes below and itself."""
        if node.is_leaf:
            word = torch.tensor([node.word], device=device)
            state = self.cell.from_word(self.emb(word))
            below = 0.0
        else:
            left, loss_l = self.encode(node.left)
            right, loss_r = self.encode(node.right)
            state = self.cell(left, right)
            below = loss_l + loss_r
        logits = self.out(state[0])
        loss = self.criterion(logits, torch.tensor([node.label], device=device))
        node.pred = logits
        return state, below + loss

    def forward(self, tree):
        _, loss = self.encode(tree)
        return loss, tree.pred


def count_nodes(node):
    return 1 if node.is_leaf else 1 + count_nodes(node.left) + count_nodes(node.right)


def l2(model):
    """Not on the embeddings."""
    return sum((p ** 2).sum() for name, p in model.named_parameters() if not name.startswith("emb"))


def train_batch(model, optimizer, trees):
    optimizer.zero_grad()
    total, correct = 0, 0
    for tree in trees:
        loss, pred = model(tree)
        total = total + loss
        if pred.argmax(dim=1).item() == tree.label:
            correct += 1
    total = total / len(trees) + 1e-4 * l2(model)
    total.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    return total.item(), correct


def main():
    corpus = make_corpus(args.trees)
    print(f"{len(corpus)} trees, {sum(map(count_nodes, corpus)) / len(corpus):.1f} nodes each")
    model = TreeSentiment().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        model.train()
        random.shuffle(corpus)
        start, seen, right, running = time.time(), 0, 0, 0.0
        for b in range(0, len(corpus) - args.batch + 1, args.batch):
            loss, correct = train_batch(model, optimizer, corpus[b:b + args.batch])
            seen, right, running = seen + args.batch, right + correct, running + loss
            if (b // args.batch) % 25 == 0:
                print(f"epoch {epoch} {seen}/{len(corpus)} loss {running / (b // args.batch + 1):.3f} root acc {right / seen:.3f}", flush=True)
        print(f"epoch {epoch} took {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
