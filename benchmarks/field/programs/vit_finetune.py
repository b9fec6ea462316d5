"""Fine-tuning of timm's ViT-S at 224, Adam, label on the host, accuracy each step."""
import timm
import torch
from torch import nn

torch.manual_seed(0)
model = timm.create_model("vit_small_patch16_224", num_classes=100).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 40)
hits = 0
for step in range(40):
    x, y = torch.randn(48, 3, 224, 224), torch.randint(0, 100, (48,))
    x, y = x.to("cuda"), y.to("cuda")
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    hits += (out.argmax(1) == y).sum().item()
print(hits)
