"""Self-play of Connect Four with tree search: many games side by side, one network call per simulation."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

GAMES, SIMS, ROWS, COLS = 96, 32, 6, 7


class Net(nn.Module):
    def __init__(self, c=128, blocks=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU())
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(),
                                                   nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)) for _ in range(blocks)])
        self.pi = nn.Sequential(nn.Conv2d(c, 32, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * ROWS * COLS, COLS))
        self.v = nn.Sequential(nn.Conv2d(c, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3 * ROWS * COLS, 1), nn.Tanh())

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = F.relu(x + block(x))
        return F.softmax(self.pi(x), 1), self.v(x)


class Node:
    __slots__ = ("prior", "visits", "value_sum", "children")

    def __init__(self, prior):
        self.prior, self.visits, self.value_sum, self.children = prior, 0, 0.0, {}

    def select(self):
        best, best_score = None, -1e9
        for move, child in self.children.items():
            q = -child.value_sum / child.visits if child.visits else 0.0
            score = q + 1.5 * child.prior * math.sqrt(self.visits) / (1 + child.visits)
            if score > best_score:
                best, best_score = move, score
        return best, self.children[best]


def play(board, move):
    """Drop a stone of the mover; the board is seen from the other side afterwards."""
    row = np.flatnonzero(board[:, move] == 0)[-1]
    board[row, move] = 1
    return -board


def encode(board):
    return np.stack([board == 1, board == -1]).astype(np.float32)


@torch.no_grad()
def simulate(net, roots, boards):
    paths, leaves = [], []
    for root, board in zip(roots, boards):
        node, board, path = root, board.copy(), [root]
        while node.children:
            move, node = node.select()
            board = play(board, move)
            path.append(node)
        paths.append(path)
        leaves.append(board)
    states = torch.tensor(np.array([encode(board) for board in leaves])).cuda()
    policy, value = net(states)
    for i, path in enumerate(paths):
        moves = np.flatnonzero(leaves[i][0] == 0)
        p, v = policy[i].cpu().numpy(), value[i].item()
        for move in moves:
            path[-1].children[move] = Node(p[move])
        for node in reversed(path):
            node.visits += 1
            node.value_sum += v
            v = -v


torch.manual_seed(0)
net = Net().cuda().eval()
boards = [np.zeros((ROWS, COLS), dtype=np.int8) for _ in range(GAMES)]
roots = [Node(1.0) for _ in range(GAMES)]
for sim in range(16 * SIMS):
    simulate(net, roots, boards)
    if (sim + 1) % SIMS == 0:
        for g in range(GAMES):
            visits = {move: child.visits for move, child in roots[g].children.items()}
            boards[g] = play(boards[g], max(visits, key=visits.get))
            if not (boards[g] == 0)[0].any() or (boards[g] != 0).sum() > 20:
                boards[g] = np.zeros((ROWS, COLS), dtype=np.int8)
            roots[g] = Node(1.0)
        print("move", (sim + 1) // SIMS, "stones", int(sum((b != 0).sum() for b in boards)))
