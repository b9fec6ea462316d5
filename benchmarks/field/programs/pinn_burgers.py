"""Physics-informed network for Burgers' equation, as most tutorials have it."""
import numpy as np
import torch

torch.manual_seed(1234)
np.random.seed(1234)
device = torch.device('cuda')
nu = 0.01 / np.pi


class DNN(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        mods = []
        for i in range(len(layers) - 2):
            mods += [torch.nn.Linear(layers[i], layers[i + 1]), torch.nn.Tanh()]
        mods.append(torch.nn.Linear(layers[-2], layers[-1]))
        self.net = torch.nn.Sequential(*mods)

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


def grad(y, x):
    return torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y), retain_graph=True, create_graph=True)[0]


class PhysicsInformedNN:
    def __init__(self, X_u, u, X_f, layers):
        self.x_u = torch.tensor(X_u[:, 0:1]).float().to(device)
        self.t_u = torch.tensor(X_u[:, 1:2]).float().to(device)
        self.x_f = torch.tensor(X_f[:, 0:1], requires_grad=True).float().to(device)
        self.t_f = torch.tensor(X_f[:, 1:2], requires_grad=True).float().to(device)
        self.u = torch.tensor(u).float().to(device)
        self.dnn = DNN(layers).to(device)
        self.optimizer = torch.optim.Adam(self.dnn.parameters(), lr=1e-3)

    def net_f(self, x, t):
        u = self.dnn(x, t)
        u_t, u_x = grad(u, t), grad(u, x)
        return u_t + u * u_x - nu * grad(u_x, x)

    def train(self, n_iter):
        for epoch in range(n_iter):
            loss_u = torch.mean((self.u - self.dnn(self.x_u, self.t_u)) ** 2)
            loss_f = torch.mean(self.net_f(self.x_f, self.t_f) ** 2)
            loss = loss_u + loss_f
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if epoch % 10 == 0:
                print('It: %d, Loss: %.3e, u: %.3e, f: %.3e' % (epoch, loss.item(), loss_u.item(), loss_f.item()))


x0 = np.random.uniform(-1, 1, (400, 1))
X_u = np.hstack([x0, np.zeros_like(x0)])
X_f = np.hstack([np.random.uniform(-1, 1, (20000, 1)), np.random.uniform(0, 1, (20000, 1))])
PhysicsInformedNN(X_u, -np.sin(np.pi * x0), X_f, [2, 64, 64, 64, 64, 64, 64, 1]).train(100)
