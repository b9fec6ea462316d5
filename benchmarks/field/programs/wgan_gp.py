"""WGAN-GP on 64x64 images; five critic steps, then one of the generator."""
import torch
import torch.nn as nn
from torch import autograd, optim

Z, CH, BATCH, N_CRITIC, LAMBDA = 128, 64, 64, 5, 10


def make_generator():
    layers, c = [nn.ConvTranspose2d(Z, CH * 8, 4, 1, 0, bias=False), nn.BatchNorm2d(CH * 8), nn.ReLU(True)], CH * 8
    for _ in range(3):
        layers += [nn.ConvTranspose2d(c, c // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(c // 2), nn.ReLU(True)]
        c //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Tanh())


def make_critic():
    layers, c = [nn.Conv2d(3, CH, 4, 2, 1), nn.LeakyReLU(0.2)], CH
    for _ in range(3):
        layers += [nn.Conv2d(c, c * 2, 4, 2, 1), nn.InstanceNorm2d(c * 2, affine=True), nn.LeakyReLU(0.2)]
        c *= 2
    return nn.Sequential(*layers, nn.Conv2d(c, 1, 4, 1, 0), nn.Flatten(0))


class Trainer:
    def __init__(self):
        self.G, self.D = make_generator().cuda(), make_critic().cuda()
        self.opt_g = optim.Adam(self.G.parameters(), lr=1e-4, betas=(0.0, 0.9))
        self.opt_d = optim.Adam(self.D.parameters(), lr=1e-4, betas=(0.0, 0.9))
        self.losses = {"G": [], "D": [], "GP": [], "norm": []}

    def gradient_penalty(self, real, fake):
        alpha = torch.rand(real.size(0), 1, 1, 1).expand_as(real).cuda()
        mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        prob = self.D(mixed)
        grads = autograd.grad(outputs=prob, inputs=mixed, grad_outputs=torch.ones(prob.size()).cuda(),
                              create_graph=True, retain_graph=True)[0].view(real.size(0), -1)
        self.losses["norm"].append(grads.norm(2, dim=1).mean().item())
        return LAMBDA * ((torch.sqrt(torch.sum(grads ** 2, dim=1) + 1e-12) - 1) ** 2).mean()

    def critic_step(self, real):
        fake = self.G(torch.randn(BATCH, Z, 1, 1).cuda()).detach()
        d_real, d_fake = self.D(real), self.D(fake)
        gp = self.gradient_penalty(real, fake)
        self.losses["GP"].append(gp.item())
        self.opt_d.zero_grad()
        loss = d_fake.mean() - d_real.mean() + gp
        loss.backward()
        self.opt_d.step()
        self.losses["D"].append(loss.item())

    def generator_step(self):
        self.opt_g.zero_grad()
        loss = -self.D(self.G(torch.randn(BATCH, Z, 1, 1).cuda())).mean()
        loss.backward()
        self.opt_g.step()
        self.losses["G"].append(loss.item())

    def train(self, data, steps):
        for i in range(steps):
            real = data[torch.randint(0, len(data), (BATCH,))].cuda()
            self.critic_step(real)
            if i % N_CRITIC == N_CRITIC - 1:
                self.generator_step()


torch.manual_seed(0)
trainer = Trainer()
trainer.train(torch.rand(2000, 3, 64, 64) * 2 - 1, steps=100)
print({k: round(v[-1], 3) for k, v in trainer.losses.items()})
