"""Video classification: torchvision's R3D-18, clips of 16 frames, SGD."""
import torch
from torch import nn
from torchvision.models.video import r3d_18

torch.manual_seed(0)
model = r3d_18(num_classes=101).cuda().train()
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
criterion = nn.CrossEntropyLoss()
clips = torch.randn(64, 3, 16, 112, 112)
labels = torch.randint(0, 101, (64,))
for step in range(30):
    i = torch.randint(0, 64, (8,))
    x, y = clips[i].cuda(), labels[i].cuda()
    loss = criterion(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
