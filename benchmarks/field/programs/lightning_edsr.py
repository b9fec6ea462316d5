"""Super-resolution with EDSR in Lightning."""
import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SCALE, PATCH = 2, 64


class Div2kPatches(Dataset):
    """Random crops of a few pictures kept in memory, low resolution by averaging."""

    def __init__(self, length):
        self.length = length
        self.pictures = [np.random.randint(0, 256, (512, 768, 3), dtype=np.uint8) for _ in range(20)]

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        picture = self.pictures[i % len(self.pictures)]
        size = PATCH * SCALE
        y, x = np.random.randint(0, 512 - size), np.random.randint(0, 768 - size)
        hr = picture[y:y + size, x:x + size]
        if np.random.rand() < 0.5:
            hr = hr[:, ::-1]
        hr = np.rot90(hr, np.random.randint(4))
        hr = torch.from_numpy(np.ascontiguousarray(hr)).permute(2, 0, 1).float() / 255
        lr = F.avg_pool2d(hr[None], SCALE)[0]
        return lr, hr


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.ReLU(True), nn.Conv2d(c, c, 3, padding=1))

    def forward(self, x):
        return x + self.body(x) * 0.1


class EDSR(pl.LightningModule):
    def __init__(self, c=128, blocks=16):
        super().__init__()
        self.save_hyperparameters()
        self.head = nn.Conv2d(3, c, 3, padding=1)
        self.body = nn.Sequential(*[ResBlock(c) for _ in range(blocks)], nn.Conv2d(c, c, 3, padding=1))
        self.tail = nn.Sequential(nn.Conv2d(c, c * SCALE ** 2, 3, padding=1), nn.PixelShuffle(SCALE), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x):
        x = self.head(x)
        return self.tail(x + self.body(x))

    def training_step(self, batch, batch_idx):
        lr, hr = batch
        sr = self(lr)
        loss = F.l1_loss(sr, hr)
        psnr = -10 * torch.log10(F.mse_loss(sr.detach().clamp(0, 1), hr))
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_psnr", psnr, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1000)]


if __name__ == "__main__":
    pl.seed_everything(1)
    loader = DataLoader(Div2kPatches(32 * 150), batch_size=32, shuffle=True, drop_last=True)
    trainer = pl.Trainer(accelerator="gpu", devices=1, max_steps=150, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(EDSR(), loader)
