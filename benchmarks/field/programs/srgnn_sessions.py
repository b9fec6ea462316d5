"""Session-based recommendation with gated graph networks (SR-GNN, Wu et al. 2019).

Sessions are synthetic here (random walks on a catalogue with popular items); everything else follows the usual port.
"""
import argparse
import datetime
import math
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import Module, Parameter

parser = argparse.ArgumentParser()
parser.add_argument("--n_node", type=int, default=37484, help="items, 0 is the padding")
parser.add_argument("--sessions", type=int, default=40000)
parser.add_argument("--batchSize", type=int, default=256)
parser.add_argument("--hiddenSize", type=int, default=128)
parser.add_argument("--epoch", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--lr_dc_step", type=int, default=3)
parser.add_argument("--l2", type=float, default=1e-5)
parser.add_argument("--step", type=int, default=2, help="gnn propagation steps")
opt = parser.parse_args()


def trans_to_cuda(variable):
    return variable.cuda() if torch.cuda.is_available() else variable


def make_sessions(n, n_node, seed):
    rng = np.random.default_rng(seed)
    start = (n_node * rng.random(n) ** 2).astype(np.int64)
    lengths = np.minimum(2 + rng.geometric(0.16, n), 40)
    inputs, targets = [], []
    for s, m in zip(start, lengths):
        hops = rng.integers(-25, 26, m + 1)
        walk = 1 + (s + np.cumsum(hops)) % (n_node - 1)
        back = rng.random(m + 1) < 0.25                          # people go back to what they have seen
        for i in np.flatnonzero(back):
            walk[i] = walk[rng.integers(0, i + 1)]
        inputs.append(walk[:-1].tolist())
        targets.append(int(walk[-1]))
    return inputs, targets


class Data:
    def __init__(self, data, shuffle=False):
        inputs, targets = data
        self.len_max = max(len(s) for s in inputs)
        self.inputs = np.asarray([s + [0] * (self.len_max - len(s)) for s in inputs])
        self.mask = np.asarray([[1] * len(s) + [0] * (self.len_max - len(s)) for s in inputs])
        self.targets = np.asarray(targets)
        self.length = len(inputs)
        self.shuffle = shuffle

    def generate_batch(self, batch_size):
        if self.shuffle:
            order = np.random.permutation(self.length)
            self.inputs, self.mask, self.targets = self.inputs[order], self.mask[order], self.targets[order]
        n_batch = self.length // batch_size
        return np.split(np.arange(n_batch * batch_size), n_batch)

    def get_slice(self, i):
        inputs, mask, targets = self.inputs[i], self.mask[i], self.targets[i]
        items, n_node, A, alias_inputs = [], [], [], []
        for u_input in inputs:
            n_node.append(len(np.unique(u_input)))
        max_n_node = np.max(n_node)
        for u_input in inputs:
            node = np.unique(u_input)
            items.append(node.tolist() + (max_n_node - len(node)) * [0])
            u_A = np.zeros((max_n_node, max_n_node))
            for i in np.arange(len(u_input) - 1):
                if u_input[i + 1] == 0:
                    break
                u = np.where(node == u_input[i])[0][0]
                v = np.where(node == u_input[i + 1])[0][0]
                u_A[u][v] = 1
            u_sum_in = np.sum(u_A, 0)
            u_sum_in[np.where(u_sum_in == 0)] = 1
            u_A_in = np.divide(u_A, u_sum_in)
            u_sum_out = np.sum(u_A, 1)
            u_sum_out[np.where(u_sum_out == 0)] = 1
            u_A_out = np.divide(u_A.transpose(), u_sum_out)
            u_A = np.concatenate([u_A_in, u_A_out]).transpose()
            A.append(u_A)
            alias_inputs.append([np.where(node == i)[0][0] for i in u_input])
        return alias_inputs, A, items, mask, targets


class GNN(Module):
    def __init__(self, hidden_size, step=1):
        super().__init__()
        self.step = step
        self.hidden_size = hidden_size
        self.w_ih = Parameter(torch.empty(3 * hidden_size, 2 * hidden_size))
        self.w_hh = Parameter(torch.empty(3 * hidden_size, hidden_size))
        self.b_ih = Parameter(torch.empty(3 * hidden_size))
        self.b_hh = Parameter(torch.empty(3 * hidden_size))
        self.b_iah = Parameter(torch.empty(hidden_size))
        self.b_oah = Parameter(torch.empty(hidden_size))
        self.linear_edge_in = nn.Linear(hidden_size, hidden_size)
        self.linear_edge_out = nn.Linear(hidden_size, hidden_size)

    def cell(self, A, hidden):
        n = A.shape[1]
        input_in = torch.matmul(A[:, :, :n], self.linear_edge_in(hidden)) + self.b_iah
        input_out = torch.matmul(A[:, :, n:2 * n], self.linear_edge_out(hidden)) + self.b_oah
        inputs = torch.cat([input_in, input_out], 2)
        gi = F.linear(inputs, self.w_ih, self.b_ih)
        gh = F.linear(hidden, self.w_hh, self.b_hh)
        i_r, i_i, i_n = gi.chunk(3, 2)
        h_r, h_i, h_n = gh.chunk(3, 2)
        resetgate = torch.sigmoid(i_r + h_r)
        inputgate = torch.sigmoid(i_i + h_i)
        newgate = torch.tanh(i_n + resetgate * h_n)
        return newgate + inputgate * (hidden - newgate)

    def forward(self, A, hidden):
        for _ in range(self.step):
            hidden = self.cell(A, hidden)
        return hidden


class SessionGraph(Module):
    def __init__(self, opt, n_node):
        super().__init__()
        h = self.hidden_size = opt.hiddenSize
        self.embedding = nn.Embedding(n_node, h)
        self.gnn = GNN(h, step=opt.step)
        self.linear_one = nn.Linear(h, h)
        self.linear_two = nn.Linear(h, h)
        self.linear_three = nn.Linear(h, 1, bias=False)
        self.linear_transform = nn.Linear(2 * h, h)
        self.loss_function = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.parameters(), lr=opt.lr, weight_decay=opt.l2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=opt.lr_dc_step, gamma=0.1)
        for weight in self.parameters():
            weight.data.uniform_(-1 / math.sqrt(h), 1 / math.sqrt(h))

    def compute_scores(self, hidden, mask):
        ht = hidden[torch.arange(mask.shape[0]).long(), torch.sum(mask, 1) - 1]
        q1 = self.linear_one(ht).view(ht.shape[0], 1, ht.shape[1])
        q2 = self.linear_two(hidden)
        alpha = self.linear_three(torch.sigmoid(q1 + q2))
        a = torch.sum(alpha * hidden * mask.view(mask.shape[0], -1, 1).float(), 1)
        a = self.linear_transform(torch.cat([a, ht], 1))
        b = self.embedding.weight[1:]
        return torch.matmul(a, b.transpose(1, 0))

    def forward(self, inputs, A):
        return self.gnn(A, self.embedding(inputs))


def forward(model, i, data):
    alias_inputs, A, items, mask, targets = data.get_slice(i)
    alias_inputs = trans_to_cuda(torch.Tensor(alias_inputs).long())
    items = trans_to_cuda(torch.Tensor(items).long())
    A = trans_to_cuda(torch.Tensor(np.array(A)).float())
    mask = trans_to_cuda(torch.Tensor(mask).long())
    hidden = model(items, A)
    get = lambda i: hidden[i][alias_inputs[i]]
    seq_hidden = torch.stack([get(i) for i in torch.arange(len(alias_inputs)).long()])
    return targets, model.compute_scores(seq_hidden, mask)


def train(model, data):
    model.train()
    total_loss, tic = 0.0, time.time()
    slices = data.generate_batch(opt.batchSize)
    for j, i in enumerate(slices):
        model.optimizer.zero_grad()
        targets, scores = forward(model, i, data)
        targets = trans_to_cuda(torch.Tensor(targets).long())
        loss = model.loss_function(scores, targets - 1)
        loss.backward()
        model.optimizer.step()
        total_loss += loss.item()
        if j % int(len(slices) / 5 + 1) == 0:
            print("[%d/%d] Loss: %.4f  %.1f s" % (j, len(slices), loss.item(), time.time() - tic))
    print("\tLoss:\t%.3f" % total_loss)
    model.scheduler.step()


@torch.no_grad()
def test(model, data):
    model.eval()
    hit, mrr = [], []
    for i in data.generate_batch(opt.batchSize):
        targets, scores = forward(model, i, data)
        sub_scores = scores.topk(20)[1].cpu().numpy()
        for score, target in zip(sub_scores, targets):
            hit.append(np.isin(target - 1, score))
            at = np.where(score == target - 1)[0]
            mrr.append(0 if len(at) == 0 else 1 / (at[0] + 1))
    return np.mean(hit) * 100, np.mean(mrr) * 100


if __name__ == "__main__":
    torch.manual_seed(7)
    np.random.seed(7)
    train_data = Data(make_sessions(opt.sessions, opt.n_node, 0), shuffle=True)
    test_data = Data(make_sessions(max(opt.sessions // 20, opt.batchSize), opt.n_node, 1))
    model = trans_to_cuda(SessionGraph(opt, opt.n_node))
    for epoch in range(opt.epoch):
        print("-------------------------------------------------------\nepoch:", epoch, datetime.datetime.now())
        train(model, train_data)
        print("\tRecall@20:\t%.4f\tMRR@20:\t%.4f" % test(model, test_data))
