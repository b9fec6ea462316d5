"""Images under Lightning: ResNet-50, loader workers that augment, metrics logged each step."""
import logging
import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy
from torchvision import models, transforms

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.manual_seed(0)


class Images(Dataset):
    def __init__(self):
        self.images = torch.randint(0, 255, (256, 3, 256, 256), dtype=torch.uint8)
        self.t = transforms.Compose([transforms.RandomResizedCrop(224, antialias=True),
                                     transforms.RandomHorizontalFlip(), transforms.ConvertImageDtype(torch.float32),
                                     transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])

    def __len__(self):
        return 4096

    def __getitem__(self, i):
        return self.t(self.images[i % 256]), i % 1000


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = models.resnet50(weights=None)
        self.acc = MulticlassAccuracy(1000)

    def training_step(self, batch, _):
        x, y = batch
        out = self.net(x)
        loss = F.cross_entropy(out, y)
        self.log("loss", loss)
        self.log("acc", self.acc(out, y))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


loader = DataLoader(Images(), batch_size=64, shuffle=True, num_workers=8)
trainer = L.Trainer(max_steps=40, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                    enable_model_summary=False, enable_progress_bar=False)
trainer.fit(Net(), loader)
