# Variational autoencoder of single-cell RNA counts (scVI): zero-inflated negative binomial likelihood,
# batch-corrected, trained with Lightning on a sparse cell x gene matrix as scanpy holds it.
import warnings

import lightning as L
import numpy as np
import scipy.sparse as sp
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
N_CELLS, N_GENES, N_BATCHES, N_TYPES = 16_000, 4_000, 4, 12
BATCH_SIZE, MAX_STEPS, WARMUP = 256, 120, 400


def simulate(seed=0):
    """Counts of cells of a dozen types; about 5 % of the entries are not zero."""
    rng = np.random.default_rng(seed)
    types = rng.integers(0, N_TYPES, N_CELLS)
    programs = rng.integers(0, N_GENES, (N_TYPES, N_GENES // 8))
    per_cell = rng.integers(N_GENES // 40, N_GENES // 14, N_CELLS)
    cells = np.repeat(np.arange(N_CELLS), per_cell)
    genes = rng.integers(0, N_GENES, len(cells))
    from_program = rng.random(len(cells)) < 0.6
    chosen = programs[types[cells], rng.integers(0, programs.shape[1], len(cells))]
    genes = np.where(from_program, chosen, genes)
    counts = (1 + rng.poisson(1.5, len(cells))).astype(np.float32)
    return sp.csr_matrix((counts, (cells, genes)), shape=(N_CELLS, N_GENES)), rng.integers(0, N_BATCHES, N_CELLS)


class CellDataset(Dataset):
    def __init__(self, counts, batch):
        self.counts, self.batch = counts, batch

    def __len__(self):
        return self.counts.shape[0]

    def __getitem__(self, index):
        x = self.counts[index].toarray().squeeze(0)
        return {"x": torch.from_numpy(x), "batch": torch.tensor(self.batch[index])}


def log_zinb(x, mu, theta, pi, eps=1e-8):
    """Log likelihood of counts under a zero-inflated negative binomial; pi are logits of dropout."""
    softplus_pi = F.softplus(-pi)
    log_theta_eps, log_theta_mu_eps = torch.log(theta + eps), torch.log(theta + mu + eps)
    pi_theta_log = -pi + theta * (log_theta_eps - log_theta_mu_eps)
    case_zero = F.softplus(pi_theta_log) - softplus_pi
    case_non_zero = (-softplus_pi + pi_theta_log + x * (torch.log(mu + eps) - log_theta_mu_eps)
                     + torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1))
    return torch.where(x < eps, case_zero, case_non_zero)


def fully_connected(n_in, n_out, n_layers=2, dropout=0.1):
    layers = []
    for _ in range(n_layers):
        layers += [nn.Linear(n_in, n_out), nn.BatchNorm1d(n_out, momentum=0.01, eps=1e-3), nn.ReLU(),
                   nn.Dropout(dropout)]
        n_in = n_out
    return nn.Sequential(*layers)


class SCVI(L.LightningModule):
    def __init__(self, n_genes, n_batches, n_hidden=128, n_latent=20, lr=1e-3):
        super().__init__()
        self.n_batches, self.lr = n_batches, lr
        self.encoder = fully_connected(n_genes + n_batches, n_hidden)
        self.z_mean, self.z_var = nn.Linear(n_hidden, n_latent), nn.Linear(n_hidden, n_latent)
        self.decoder = fully_connected(n_latent + n_batches, n_hidden)
        self.px_scale, self.px_dropout = nn.Linear(n_hidden, n_genes), nn.Linear(n_hidden, n_genes)
        self.px_r = nn.Parameter(torch.randn(n_genes))

    def inference(self, x, one_hot):
        h = self.encoder(torch.cat([torch.log1p(x), one_hot], 1))
        return Normal(self.z_mean(h), torch.exp(self.z_var(h)).sqrt() + 1e-4)

    def generative(self, z, library, one_hot):
        h = self.decoder(torch.cat([z, one_hot], 1))
        scale = F.softmax(self.px_scale(h), dim=-1)
        return torch.exp(library) * scale, self.px_dropout(h)

    def training_step(self, batch, batch_idx):
        x, one_hot = batch["x"], F.one_hot(batch["batch"], self.n_batches).float()
        library = torch.log(x.sum(1, keepdim=True) + 1)
        qz = self.inference(x, one_hot)
        z = qz.rsample()
        mu, pi = self.generative(z, library, one_hot)
        reconstruction = -log_zinb(x, mu, torch.exp(self.px_r), pi).sum(-1)
        prior = Normal(torch.zeros_like(z), torch.ones_like(z))
        kl = kl_divergence(qz, prior).sum(-1)
        kl_weight = min(1.0, self.global_step / WARMUP)
        loss = (reconstruction + kl_weight * kl).mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("reconstruction", reconstruction.mean(), on_step=True, on_epoch=True)
        self.log("kl_local", kl.mean(), on_step=True, on_epoch=True)
        self.log("kl_weight", kl_weight)
        self.log("library", library.mean(), on_step=True, on_epoch=True)
        if batch_idx % 20 == 0:
            print(f"{batch_idx}: {loss.item():.2f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, eps=0.01, weight_decay=1e-6)


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    counts, batch = simulate()
    dataset = CellDataset(counts, batch)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
    model = SCVI(N_GENES, N_BATCHES)
    trainer = L.Trainer(max_steps=MAX_STEPS, accelerator="cuda", devices=1, gradient_clip_val=10.0, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
