"""Divided space-time attention for video clips, trained from scratch."""
import torch
from einops import rearrange, repeat
from torch import einsum, nn


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.fn, self.norm = fn, nn.LayerNorm(dim)

    def forward(self, x, *args, **kwargs):
        return self.fn(self.norm(x), *args, **kwargs)


class GEGLU(nn.Module):
    def forward(self, x):
        x, gates = x.chunk(2, dim=-1)
        return x * nn.functional.gelu(gates)


def attn(q, k, v):
    sim = einsum('b i d, b j d -> b i j', q, k)
    return einsum('b i j, b j d -> b i d', sim.softmax(dim=-1), v)


class Attention(nn.Module):
    def __init__(self, dim, dim_head=64, heads=8):
        super().__init__()
        self.heads, self.scale = heads, dim_head ** -0.5
        self.to_qkv = nn.Linear(dim, dim_head * heads * 3, bias=False)
        self.to_out = nn.Linear(dim_head * heads, dim)

    def forward(self, x, einops_from, einops_to, **einops_dims):
        h = self.heads
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: rearrange(t, 'b n (h d) -> (b h) n d', h=h), (q, k, v))
        q = q * self.scale
        (cls_q, q_), (cls_k, k_), (cls_v, v_) = map(lambda t: (t[:, :1], t[:, 1:]), (q, k, v))
        cls_out = attn(cls_q, k, v)
        q_, k_, v_ = map(lambda t: rearrange(t, f'{einops_from} -> {einops_to}', **einops_dims), (q_, k_, v_))
        r = q_.shape[0] // cls_k.shape[0]
        cls_k, cls_v = map(lambda t: repeat(t, 'b () d -> (b r) () d', r=r), (cls_k, cls_v))
        out = attn(q_, torch.cat((cls_k, k_), dim=1), torch.cat((cls_v, v_), dim=1))
        out = rearrange(out, f'{einops_to} -> {einops_from}', **einops_dims)
        out = rearrange(torch.cat((cls_out, out), dim=1), '(b h) n d -> b n (h d)', h=h)
        return self.to_out(out)


class TimeSformer(nn.Module):
    def __init__(self, dim=512, num_frames=8, num_classes=174, image_size=224, patch_size=16, depth=6):
        super().__init__()
        self.patch_size, n = patch_size, (image_size // patch_size) ** 2
        self.to_patch = nn.Linear(3 * patch_size ** 2, dim)
        self.pos = nn.Embedding(n * num_frames + 1, dim)
        self.cls = nn.Parameter(torch.randn(1, dim))
        self.layers = nn.ModuleList([nn.ModuleList([
            PreNorm(dim, Attention(dim)), PreNorm(dim, Attention(dim)),
            PreNorm(dim, nn.Sequential(nn.Linear(dim, dim * 8), GEGLU(), nn.Linear(dim * 4, dim)))]) for _ in range(depth)])
        self.to_out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_classes))

    def forward(self, video):
        b, f, _, h, w = video.shape
        p = self.patch_size
        tokens = self.to_patch(rearrange(video, 'b f c (h p1) (w p2) -> b (f h w) (p1 p2 c)', p1=p, p2=p))
        x = torch.cat((repeat(self.cls, 'n d -> b n d', b=b), tokens), dim=1)
        x = x + self.pos(torch.arange(x.shape[1], device=video.device))
        n = (h // p) * (w // p)
        for time_attn, spatial_attn, ff in self.layers:
            x = time_attn(x, 'b (f n) d', '(b n) f d', n=n) + x
            x = spatial_attn(x, 'b (f n) d', '(b f) n d', f=f) + x
            x = ff(x) + x
        return self.to_out(x[:, 0])


torch.manual_seed(0)
model = TimeSformer().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-4)
crit = nn.CrossEntropyLoss()
for i in range(30):
    video = torch.randn(4, 8, 3, 224, 224)
    label = torch.randint(0, 174, (4,))
    pred = model(video.cuda())
    loss = crit(pred, label.cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (i + 1) % 10 == 0:
        print('iter', i + 1, 'loss', loss.item())
