"""Diffusion policy for a robot arm: images of two cameras and joint states in, a chunk of actions out.

Demonstrations are kept on the GPU as bytes. A ResNet-18 (GroupNorm) looks at each image, a 1-D U-Net denoises the
action chunk. An averaged copy of the weights is kept for the roll-outs.
"""
import copy
import math
from dataclasses import dataclass

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    cameras: int = 2
    image: int = 96
    obs_steps: int = 2
    horizon: int = 16
    action_dim: int = 7
    state_dim: int = 9
    frames: int = 4000
    batch_size: int = 64
    train_steps: int = 80
    diffusion_steps: int = 100
    widths: tuple = (256, 512, 1024)
    lr: float = 1e-4
    ema_decay: float = 0.995
    log_every: int = 10
    device: str = "cuda"


class Demonstrations:
    def __init__(self, cfg):
        self.cfg, n = cfg, cfg.frames
        self.images = torch.randint(0, 256, (n, cfg.cameras, 3, cfg.image, cfg.image), dtype=torch.uint8, device=cfg.device)
        self.states = torch.randn(n, cfg.state_dim, device=cfg.device).cumsum(0) * 0.02
        self.actions = torch.randn(n, cfg.action_dim, device=cfg.device).cumsum(0).sin()

    def sample(self):
        cfg = self.cfg
        start = torch.randint(0, cfg.frames - cfg.horizon, (cfg.batch_size, 1), device=cfg.device)
        obs = start + torch.arange(cfg.obs_steps, device=cfg.device)
        return {"images": self.images[obs].float() / 127.5 - 1, "states": self.states[obs],
                "actions": self.actions[start + torch.arange(cfg.horizon, device=cfg.device)]}


class ConvBlock1d(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(nn.Conv1d(i, o, 5, padding=2), nn.GroupNorm(8, o), nn.Mish())


class FilmBlock(nn.Module):
    def __init__(self, i, o, cond):
        super().__init__()
        self.a, self.b = ConvBlock1d(i, o), ConvBlock1d(o, o)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(cond, 2 * o))
        self.skip = nn.Conv1d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, cond):
        scale, bias = self.film(cond)[..., None].chunk(2, 1)
        return self.b(self.a(x) * scale + bias) + self.skip(x)


class ActionUNet(nn.Module):
    def __init__(self, cfg, cond):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(128, 512), nn.Mish(), nn.Linear(512, 128))
        cond, w = cond + 128, cfg.widths
        ins = [cfg.action_dim, *w[:-1]]
        self.down = nn.ModuleList([nn.ModuleList([FilmBlock(i, o, cond), FilmBlock(o, o, cond)]) for i, o in zip(ins, w)])
        self.pool = nn.ModuleList([nn.Conv1d(o, o, 3, 2, 1) for o in w[:-1]])
        self.mid = nn.ModuleList([FilmBlock(w[-1], w[-1], cond), FilmBlock(w[-1], w[-1], cond)])
        ups = list(zip(w[::-1][:-1], w[::-1][1:]))
        self.grow = nn.ModuleList([nn.ConvTranspose1d(i, o, 4, 2, 1) for i, o in ups])
        self.up = nn.ModuleList([nn.ModuleList([FilmBlock(2 * o, o, cond), FilmBlock(o, o, cond)]) for _, o in ups])
        self.out = nn.Sequential(ConvBlock1d(w[0], w[0]), nn.Conv1d(w[0], cfg.action_dim, 1))

    def forward(self, x, t, cond):
        freq = torch.exp(torch.arange(64, device=x.device) * (-math.log(10000) / 63))
        angle = t[:, None] * freq
        cond = torch.cat([self.time(torch.cat([angle.sin(), angle.cos()], 1)), cond], 1)
        x, skips = x.transpose(1, 2), []
        for level, (a, b) in enumerate(self.down):
            x = b(a(x, cond), cond)
            if level < len(self.pool):
                skips.append(x)
                x = self.pool[level](x)
        for block in self.mid:
            x = block(x, cond)
        for grow, (a, b) in zip(self.grow, self.up):
            x = torch.cat([grow(x), skips.pop()], 1)
            x = b(a(x, cond), cond)
        return self.out(x).transpose(1, 2)


class DiffusionPolicy(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.vision = timm.create_model("resnet18", pretrained=False, num_classes=0,
                                        norm_layer=lambda c, **kw: nn.GroupNorm(c // 16, c, **kw))
        self.unet = ActionUNet(cfg, cfg.obs_steps * (512 * cfg.cameras + cfg.state_dim))
        beta = torch.linspace(0.0001, 0.02, cfg.diffusion_steps)
        self.register_buffer("alpha_bar", (1 - beta).cumprod(0))

    def observe(self, images, states):
        features = []
        for t in range(images.shape[1]):
            for camera in range(images.shape[2]):
                features.append(self.vision(images[:, t, camera]))
            features.append(states[:, t])
        return torch.cat(features, -1)

    def loss(self, batch):
        actions = batch["actions"]
        cond = self.observe(batch["images"], batch["states"])
        noise = torch.randn_like(actions)
        t = torch.randint(0, self.cfg.diffusion_steps, (len(actions),), device=actions.device)
        a = self.alpha_bar[t][:, None, None]
        noisy = a.sqrt() * actions + (1 - a).sqrt() * noise
        return F.mse_loss(self.unet(noisy, t, cond), noise)


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        new = model.state_dict()
        for name, value in self.model.state_dict().items():
            value.copy_(self.decay * value + (1 - self.decay) * new[name])


def grad_norm(model):
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.detach().norm(2).item() ** 2
    return total ** 0.5


def main(cfg=Config()):
    torch.manual_seed(0)
    demos = Demonstrations(cfg)
    policy = DiffusionPolicy(cfg).to(cfg.device)
    ema = EMA(policy, cfg.ema_decay)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=cfg.lr, betas=(0.95, 0.999), weight_decay=1e-6)
    history = []
    for step in range(cfg.train_steps):
        loss = policy.loss(demos.sample())
        optimizer.zero_grad()
        loss.backward()
        norm = grad_norm(policy)
        optimizer.step()
        ema.update(policy)
        history.append({"loss": loss.item(), "grad_norm": norm})
        if step % cfg.log_every == 0:
            print(step, {k: round(v, 4) for k, v in history[-1].items()})
    return history


if __name__ == "__main__":
    main()
