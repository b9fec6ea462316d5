"""Load forecasting with a GRU encoder-decoder; pytorch-lightning, several metrics each step."""
import warnings

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn as nn
import torchmetrics
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


class Windows(Dataset):
    def __init__(self, length=60000, past=96, future=24, channels=12):
        t = np.arange(length)[:, None]
        self.series = np.sin(t * 2 * np.pi / (24 * (1 + np.arange(channels)))) + 0.1 * np.random.randn(length, channels)
        self.past, self.future = past, future

    def __len__(self):
        return len(self.series) - self.past - self.future

    def __getitem__(self, i):
        window = self.series[i:i + self.past + self.future]
        mean, std = window[:self.past].mean(0), window[:self.past].std(0) + 1e-6
        window = ((window - mean) / std).astype(np.float32)
        return torch.from_numpy(window[:self.past]), torch.from_numpy(window[self.past:])


class Forecaster(pl.LightningModule):
    def __init__(self, channels=12, hidden=256, layers=2, future=24, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.GRU(channels, hidden, layers, batch_first=True, dropout=0.1)
        self.decoder = nn.GRUCell(channels, hidden)
        self.out = nn.Linear(hidden, channels)
        self.mae = torchmetrics.MeanAbsoluteError()
        self.mse = torchmetrics.MeanSquaredError()
        self.mape = torchmetrics.SymmetricMeanAbsolutePercentageError()

    def forward(self, x):
        _, h = self.encoder(x)
        h, y, ys = h[-1], x[:, -1], []
        for _ in range(self.hparams.future):
            h = self.decoder(y, h)
            y = self.out(h)
            ys.append(y)
        return torch.stack(ys, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        pred = self(x)
        loss = nn.functional.smooth_l1_loss(pred, y)
        self.mae(pred, y)
        self.mse(pred, y)
        self.mape(pred, y)
        self.log("train/loss", loss, prog_bar=True)
        self.log_dict({"train/mae": self.mae, "train/mse": self.mse, "train/smape": self.mape}, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10)}


pl.seed_everything(1)
train_loader = DataLoader(Windows(), batch_size=256, shuffle=True)
trainer = pl.Trainer(max_steps=80, accelerator="auto", devices=1, gradient_clip_val=1.0, logger=False,
                     enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Forecaster(), train_loader)
print({k: round(v.item(), 4) for k, v in trainer.callback_metrics.items()})
