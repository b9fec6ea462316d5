# Model-agnostic meta-learning for few-shot regression, with torch.func
import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
device = 'cuda'
K, N_TASKS, INNER_STEPS, ALPHA = 10, 64, 3, 0.03

net = nn.Sequential(nn.Linear(1, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
params = dict(net.named_parameters())
opt = torch.optim.Adam(params.values(), lr=1e-3)


def sample_tasks(outer_batch_size, inner_batch_size):
    amps = torch.rand(outer_batch_size, 1) * 4.9 + 0.1
    phases = torch.rand(outer_batch_size, 1) * math.pi
    xs = torch.rand(outer_batch_size, 2 * inner_batch_size) * 10 - 5
    ys = amps * torch.sin(xs + phases)
    x1, x2 = xs.split(inner_batch_size, 1)
    y1, y2 = ys.split(inner_batch_size, 1)
    return [t.unsqueeze(-1).to(device) for t in (x1, y1, x2, y2)]


def loss_fn(p, x, y):
    return nn.functional.mse_loss(functional_call(net, p, (x,)), y)


def task_loss(p, x1, y1, x2, y2):
    for _ in range(INNER_STEPS):
        grads = grad(loss_fn)(p, x1, y1)
        p = {k: p[k] - ALPHA * grads[k] for k in p}
    return loss_fn(p, x2, y2)


def outer_loss(p, *batch):
    return vmap(task_loss, in_dims=(None, 0, 0, 0, 0))(p, *batch).mean()


losses = []
for it in range(100):
    batch = sample_tasks(N_TASKS, K)
    loss = outer_loss(params, *batch)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    if it % 25 == 0:
        print(f'Iteration {it} -- Outer Loss: {loss.item():.4f}')
