"""A small Evoformer trunk: MSA + pair track, distogram and masked-MSA heads, one recycle. AlphaFold-2 numbers scaled down."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

N_SEQ, N_RES, C_M, C_Z, BLOCKS, STEPS = 96, 192, 128, 128, 6, 110
DIST_BINS, AA = 64, 22


class Attention(nn.Module):
    """Gated attention over the last but one axis with an optional pair bias."""

    def __init__(self, c_in, heads, c=32):
        super().__init__()
        self.h, self.c = heads, c
        self.q, self.k, self.v = (nn.Linear(c_in, heads * c, bias=False) for _ in range(3))
        self.g, self.o = nn.Linear(c_in, heads * c), nn.Linear(heads * c, c_in)

    def forward(self, x, bias=None):
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.h, self.c).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = torch.matmul(q * self.c ** -0.5, k.transpose(-1, -2))
        if bias is not None:
            a = a + bias
        a = torch.softmax(a, dim=-1)
        o = torch.matmul(a, v).transpose(1, 2).reshape(b, n, -1)
        return self.o(torch.sigmoid(self.g(x)) * o)


class RowAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm_z = nn.LayerNorm(C_M), nn.LayerNorm(C_Z)
        self.bias, self.attn = nn.Linear(C_Z, 8, bias=False), Attention(C_M, 8)

    def forward(self, m, z):
        return self.attn(self.norm(m), self.bias(self.norm_z(z)).permute(2, 0, 1)[None])


class TriangleAttention(nn.Module):
    def __init__(self, ending):
        super().__init__()
        self.ending = ending
        self.norm, self.bias, self.attn = nn.LayerNorm(C_Z), nn.Linear(C_Z, 4, bias=False), Attention(C_Z, 4)

    def forward(self, z):
        if self.ending:
            z = z.transpose(0, 1)
        z = self.norm(z)
        z = self.attn(z, self.bias(z).permute(2, 0, 1)[None])
        return z.transpose(0, 1) if self.ending else z


class TriangleMultiplication(nn.Module):
    def __init__(self, outgoing):
        super().__init__()
        self.outgoing = outgoing
        self.norm_in, self.norm_out = nn.LayerNorm(C_Z), nn.LayerNorm(C_Z)
        self.a_p, self.a_g, self.b_p, self.b_g = (nn.Linear(C_Z, C_Z) for _ in range(4))
        self.g, self.out = nn.Linear(C_Z, C_Z), nn.Linear(C_Z, C_Z)

    def forward(self, z):
        z = self.norm_in(z)
        a = torch.sigmoid(self.a_g(z)) * self.a_p(z)
        b = torch.sigmoid(self.b_g(z)) * self.b_p(z)
        x = torch.einsum("ikc,jkc->ijc" if self.outgoing else "kic,kjc->ijc", a, b)
        return torch.sigmoid(self.g(z)) * self.out(self.norm_out(x))


class Transition(nn.Sequential):
    def __init__(self, c, n=4):
        super().__init__(nn.LayerNorm(c), nn.Linear(c, n * c), nn.ReLU(), nn.Linear(n * c, c))


class OuterProductMean(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.norm, self.a, self.b, self.out = nn.LayerNorm(C_M), nn.Linear(C_M, c), nn.Linear(C_M, c), nn.Linear(c * c, C_Z)

    def forward(self, m):
        m = self.norm(m)
        o = torch.einsum("sic,sjd->ijcd", self.a(m), self.b(m)) / m.shape[0]
        return self.out(o.flatten(2))


def drop_rows(x, p, training, dim=0):
    """Dropout whose mask is shared along one axis."""
    if not training:
        return x
    shape = list(x.shape)
    shape[dim] = 1
    return x * F.dropout(torch.ones(shape, device=x.device), p)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.row, self.col_norm, self.col = RowAttention(), nn.LayerNorm(C_M), Attention(C_M, 8)
        self.m_trans, self.opm, self.z_trans = Transition(C_M), OuterProductMean(), Transition(C_Z)
        self.tri_out, self.tri_in = TriangleMultiplication(True), TriangleMultiplication(False)
        self.att_start, self.att_end = TriangleAttention(False), TriangleAttention(True)

    def forward(self, m, z):
        m = m + drop_rows(self.row(m, z), 0.15, self.training)
        m = m + self.col(self.col_norm(m).transpose(0, 1)).transpose(0, 1)
        m = m + self.m_trans(m)
        z = z + self.opm(m)
        z = z + drop_rows(self.tri_out(z), 0.25, self.training)
        z = z + drop_rows(self.tri_in(z), 0.25, self.training)
        z = z + drop_rows(self.att_start(z), 0.25, self.training)
        z = z + drop_rows(self.att_end(z), 0.25, self.training, dim=1)
        return m, z + self.z_trans(z)


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.msa_in, self.left, self.right = nn.Linear(AA + 1, C_M), nn.Linear(AA, C_Z), nn.Linear(AA, C_Z)
        self.relpos = nn.Linear(65, C_Z)
        self.rec_m, self.rec_z = nn.LayerNorm(C_M), nn.LayerNorm(C_Z)
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.dist, self.masked = nn.Linear(C_Z, DIST_BINS), nn.Linear(C_M, AA)

    def embed(self, msa, mask):
        onehot = F.one_hot(msa, AA).float()
        m = self.msa_in(torch.cat([onehot * ~mask[..., None], mask[..., None].float()], -1))
        target = onehot[0]
        z = self.left(target)[:, None] + self.right(target)[None]
        index = torch.arange(msa.shape[1])
        offset = (index[:, None] - index[None]).clamp(-32, 32) + 32
        return m, z + self.relpos(F.one_hot(offset, 65).float().to(msa.device))

    def forward(self, msa, mask, recycles=1):
        m_prev = z_prev = None
        for cycle in range(recycles + 1):
            with torch.set_grad_enabled(cycle == recycles):
                m, z = self.embed(msa, mask)
                if m_prev is not None:
                    m = torch.cat([m[:1] + self.rec_m(m_prev[:1]), m[1:]])
                    z = z + self.rec_z(z_prev)
                for block in self.blocks:
                    m, z = checkpoint(block, m, z, use_reentrant=False)
                m_prev, z_prev = m, z
        return self.dist(z + z.transpose(0, 1)), self.masked(m)


def fake_protein(g):
    """A random walk in space and an alignment that mutates one sequence."""
    xyz = torch.cumsum(F.normalize(torch.randn(N_RES, 3, generator=g), dim=-1) * 3.8, 0)
    bins = (torch.cdist(xyz, xyz) / 1.0).long().clamp(max=DIST_BINS - 1)
    query = torch.randint(0, 20, (N_RES,), generator=g)
    mutated = torch.rand(N_SEQ, N_RES, generator=g) < 0.3
    msa = torch.where(mutated, torch.randint(0, 21, (N_SEQ, N_RES), generator=g), query)
    msa[0] = query
    return msa, torch.rand(N_SEQ, N_RES, generator=g) < 0.15, bins


g = torch.Generator().manual_seed(7)
torch.manual_seed(7)
model = Trunk().to("cuda")
ema = {k: v.detach().clone() for k, v in model.state_dict().items()}
opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-6)
for step in range(STEPS):
    for group in opt.param_groups:
        group["lr"] = 1e-3 * min(1.0, (step + 1) / 1000)
    msa, mask, bins = (x.to("cuda") for x in fake_protein(g))
    dist, masked = model(msa, mask)
    loss_dist = F.cross_entropy(dist.reshape(-1, DIST_BINS), bins.reshape(-1))
    loss_msa = F.cross_entropy(masked[mask], msa[mask])
    loss = 0.3 * loss_dist + 2.0 * loss_msa
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()
    with torch.no_grad():
        for k, v in model.state_dict().items():
            ema[k].copy_(0.999 * ema[k] + (1 - 0.999) * v)
    if step % 10 == 0:
        print(f"step {step}  distogram {loss_dist:.3f}  msa {loss_msa:.3f}")
