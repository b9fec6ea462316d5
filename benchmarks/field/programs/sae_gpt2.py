"""TopK sparse autoencoder on GPT-2 small residual activations (layer 6).

Tokens are harvested on the fly into a mixing buffer; dead latents get an auxiliary loss. Random weights offline.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import trange
from transformers import GPT2Config, GPT2LMHeadModel


@dataclass
class Cfg:
    layer: int = 6
    d_sae: int = 16384
    k: int = 32
    k_aux: int = 256
    ctx: int = 256
    prompts: int = 16
    batch: int = 4096
    buffer: int = 65536
    steps: int = 300
    lr: float = 3e-4
    dead_after: int = 40
    device: str = "cuda"


class TopKSAE(nn.Module):
    def __init__(self, d_model, cfg):
        super().__init__()
        self.k, self.k_aux = cfg.k, cfg.k_aux
        self.W_enc = nn.Parameter(torch.randn(d_model, cfg.d_sae) / d_model ** 0.5)
        self.W_dec = nn.Parameter(self.W_enc.data.t().clone())
        self.b_enc = nn.Parameter(torch.zeros(cfg.d_sae))
        self.b_dec = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("since_fired", torch.zeros(cfg.d_sae))
        self.normalize_decoder()

    @torch.no_grad()
    def normalize_decoder(self):
        self.W_dec.data = self.W_dec.data / self.W_dec.data.norm(dim=1, keepdim=True)

    @torch.no_grad()
    def project_grad(self):
        """Removes what is parallel to the decoder's directions."""
        along = (self.W_dec.grad * self.W_dec.data).sum(1, keepdim=True)
        self.W_dec.grad -= along * self.W_dec.data

    def keep_top(self, pre, k):
        values, index = pre.topk(k, dim=-1)
        return torch.zeros_like(pre).scatter(-1, index, F.relu(values))

    def forward(self, x, dead_after):
        pre = (x - self.b_dec) @ self.W_enc + self.b_enc
        z = self.keep_top(pre, self.k)
        recon = z @ self.W_dec + self.b_dec
        with torch.no_grad():
            fired = (z > 0).any(0)
            self.since_fired += 1
            self.since_fired[fired] = 0
            dead = self.since_fired > dead_after
        aux = torch.zeros((), device=x.device)
        n_dead = int(dead.sum().item())
        if n_dead > self.k_aux:
            z_aux = self.keep_top(pre.masked_fill(~dead, -1e9), self.k_aux)
            e = (x - recon).detach()
            aux = F.mse_loss(z_aux @ self.W_dec, e) / e.pow(2).mean()
        return recon, z, aux, n_dead


class Activations:
    """Ring of activations that mixes prompts; each step adds as much as it takes."""

    def __init__(self, lm, cfg):
        self.lm, self.cfg, self.at = lm, cfg, 0
        self.zipf = 1.0 / torch.arange(1, lm.config.vocab_size + 1).float()
        self.store = torch.empty(cfg.buffer, lm.config.n_embd)
        while self.at + cfg.prompts * (cfg.ctx - 1) <= cfg.buffer:
            self.add(self.harvest())

    @torch.no_grad()
    def harvest(self):
        ids = torch.multinomial(self.zipf, self.cfg.prompts * self.cfg.ctx, replacement=True)
        ids = ids.view(self.cfg.prompts, self.cfg.ctx).to(self.cfg.device)
        out = self.lm(ids, output_hidden_states=True)
        acts = out.hidden_states[self.cfg.layer]
        return acts[:, 1:].reshape(-1, acts.shape[-1]).cpu()          # drop the first position

    def add(self, acts):
        if self.at + len(acts) > len(self.store):
            self.at = 0
        self.store[self.at:self.at + len(acts)] = acts
        self.at += len(acts)

    def next(self):
        self.add(self.harvest())
        index = torch.randint(0, len(self.store) - self.cfg.ctx * self.cfg.prompts, (self.cfg.batch,))
        return self.store[index].to(self.cfg.device)


def main(cfg=Cfg()):
    torch.manual_seed(49)
    lm = GPT2LMHeadModel(GPT2Config()).to(cfg.device).eval()
    data = Activations(lm, cfg)
    sae = TopKSAE(lm.config.n_embd, cfg).to(cfg.device)
    opt = torch.optim.Adam(sae.parameters(), lr=cfg.lr, betas=(0.9, 0.999))
    bar = trange(cfg.steps)
    history = []
    for step in bar:
        x = data.next()
        x = x * (x.shape[-1] ** 0.5 / x.norm(dim=-1, keepdim=True).mean())
        recon, z, aux, n_dead = sae(x, cfg.dead_after)
        mse = F.mse_loss(recon, x)
        loss = mse + aux / 32
        opt.zero_grad()
        loss.backward()
        sae.project_grad()
        nn.utils.clip_grad_norm_(sae.parameters(), 1.0)
        opt.step()
        sae.normalize_decoder()
        with torch.no_grad():
            fvu = (recon - x).pow(2).sum() / (x - x.mean(0)).pow(2).sum()
            l0 = (z > 0).float().sum(-1).mean()
        history.append((mse.item(), fvu.item(), l0.item()))
        bar.set_postfix(mse=f"{history[-1][0]:.4f}", fvu=f"{history[-1][1]:.3f}", dead=n_dead)
    mse, fvu, l0 = torch.tensor(history[-20:]).mean(0).tolist()
    print(f"mse {mse:.4f}  fraction unexplained {fvu:.4f}  L0 {l0:.1f}  dead {n_dead}/{cfg.d_sae}")


if __name__ == "__main__":
    main()
