"""Text-conditional sampling: a latent U-Net with cross attention, classifier-free guidance, Heun steps over Karras sigmas."""
import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS, GUIDANCE, BATCH = 32, 5.0, 4


class CrossBlock(nn.Module):
    def __init__(self, c, ctx=768, heads=8):
        super().__init__()
        self.heads = heads
        self.n1, self.n2, self.n3 = nn.LayerNorm(c), nn.LayerNorm(c), nn.LayerNorm(c)
        self.q1, self.kv1, self.o1 = nn.Linear(c, c, bias=False), nn.Linear(c, 2 * c, bias=False), nn.Linear(c, c)
        self.q2, self.kv2, self.o2 = nn.Linear(c, c, bias=False), nn.Linear(ctx, 2 * c, bias=False), nn.Linear(c, c)
        self.ff = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))

    def attend(self, q, k, v):
        q, k, v = (z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in (q, k, v))
        sim = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return torch.matmul(sim.softmax(dim=-1), v).transpose(1, 2).flatten(2)

    def forward(self, x, ctx):
        b, c, h, w = x.shape
        y = x.flatten(2).transpose(1, 2)
        n = self.n1(y)
        y = y + self.o1(self.attend(self.q1(n), *self.kv1(n).chunk(2, -1)))
        y = y + self.o2(self.attend(self.q2(self.n2(y)), *self.kv2(ctx).chunk(2, -1)))
        y = y + self.ff(self.n3(y))
        return y.transpose(1, 2).reshape(b, c, h, w)


class Res(nn.Module):
    def __init__(self, i, o, emb=1024):
        super().__init__()
        self.a = nn.Sequential(nn.GroupNorm(32, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))
        self.emb = nn.Linear(emb, o)
        self.b = nn.Sequential(nn.GroupNorm(32, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1))
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, emb):
        return self.skip(x) + self.b(self.a(x) + self.emb(emb)[:, :, None, None])


class LatentUNet(nn.Module):
    def __init__(self, c=256):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(256, 1024), nn.SiLU(), nn.Linear(1024, 1024))
        self.register_buffer("freqs", torch.randn(128))
        self.inp, self.out = nn.Conv2d(4, c, 3, padding=1), nn.Sequential(nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 4, 3, padding=1))
        self.d1, self.d2, self.d3 = Res(c, c), Res(c, 2 * c), Res(2 * c, 4 * c)
        self.t1, self.t2, self.t3 = CrossBlock(c), CrossBlock(2 * c), CrossBlock(4 * c)
        self.u2, self.u1 = Res(6 * c, 2 * c), Res(3 * c, c)
        self.t4, self.t5 = CrossBlock(2 * c), CrossBlock(c)

    def forward(self, x, sigma, ctx):
        f = sigma.log()[:, None] / 4 * self.freqs * 2 * torch.pi
        emb = self.time(torch.cat([f.cos(), f.sin()], 1))
        h1 = self.t1(self.d1(self.inp(x), emb), ctx)
        h2 = self.t2(self.d2(F.avg_pool2d(h1, 2), emb), ctx)
        h = self.t3(self.d3(F.avg_pool2d(h2, 2), emb), ctx)
        h = self.t4(self.u2(torch.cat([F.interpolate(h, scale_factor=2), h2], 1), emb), ctx)
        h = self.t5(self.u1(torch.cat([F.interpolate(h, scale_factor=2), h1], 1), emb), ctx)
        return self.out(h)


def denoise(model, x, sigma, cond, uncond):
    s = torch.full((x.shape[0],), sigma.item()).to(x.device)
    c_in = 1 / (sigma ** 2 + 1) ** 0.5
    eps_cond = model(x * c_in, s, cond)
    eps_uncond = model(x * c_in, s, uncond)
    return x - sigma * (eps_uncond + GUIDANCE * (eps_cond - eps_uncond))


@torch.no_grad()
def sample(model, cond, uncond, images):
    ramp = torch.linspace(0, 1, STEPS)
    sigmas = (14.6 ** (1 / 7) + ramp * (0.03 ** (1 / 7) - 14.6 ** (1 / 7))) ** 7
    sigmas = torch.cat([sigmas, sigmas.new_zeros(1)]).cuda()
    for step in range(images * STEPS):
        i = step % STEPS
        if i == 0:
            x = torch.randn(BATCH, 4, 48, 48).cuda() * sigmas[0]
        denoised = denoise(model, x, sigmas[i], cond, uncond)
        d = (x - denoised) / sigmas[i]
        if sigmas[i + 1] == 0:
            x = denoised
            continue
        x_2 = x + d * (sigmas[i + 1] - sigmas[i])
        d_2 = (x_2 - denoise(model, x_2, sigmas[i + 1], cond, uncond)) / sigmas[i + 1]
        x = x + (d + d_2) / 2 * (sigmas[i + 1] - sigmas[i])
    return x


torch.manual_seed(3)
model = LatentUNet().cuda().eval()
text, empty = torch.randn(BATCH, 77, 768).cuda(), torch.randn(1, 77, 768).cuda().repeat(BATCH, 1, 1)
print(sample(model, text, empty, images=4).std().item())
