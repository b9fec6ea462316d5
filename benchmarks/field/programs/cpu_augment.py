"""A data pipeline on the host without workers: numpy crops, flips and noise per image, a small ResNet."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18


class Cifar(Dataset):
    def __init__(self, n=5000):
        rng = np.random.default_rng(0)
        self.x = rng.integers(0, 255, (n, 32, 32, 3), dtype=np.uint8)
        self.y = rng.integers(0, 10, n)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        img = np.pad(self.x[i], ((4, 4), (4, 4), (0, 0)))
        r, c = np.random.randint(0, 9, 2)
        img = img[r:r + 32, c:c + 32]
        if np.random.rand() < 0.5:
            img = img[:, ::-1]
        img = img.astype(np.float32) / 255 + np.random.randn(32, 32, 3).astype(np.float32) * 0.01
        return torch.from_numpy(np.ascontiguousarray(img.transpose(2, 0, 1))), int(self.y[i])


torch.manual_seed(0)
net = resnet18(num_classes=10).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
loss_fn = nn.CrossEntropyLoss()
running = 0.0
for i, (x, y) in enumerate(DataLoader(Cifar(), batch_size=128, shuffle=True)):
    x, y = x.cuda(), y.cuda()
    out = net(x)
    loss = loss_fn(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    running += loss.item()
print(running)
