"""Train an EfficientNet of timm with mixup, EMA and the optimizer of its recipe."""
import time

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter, ModelEmaV2, accuracy

BATCH, CLASSES, STEPS = 96, 100, 100


def fake_batches(n):
    """Decoded images of a few files, in memory."""
    images = torch.randint(0, 256, (512, 3, 224, 224), dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (512,))
    for _ in range(n):
        idx = torch.randint(0, 512, (BATCH,))
        yield images[idx], labels[idx]


def main():
    torch.manual_seed(42)
    model = timm.create_model("efficientnet_b0", pretrained=False, num_classes=CLASSES, drop_rate=0.2, drop_path_rate=0.2)
    model.cuda()
    model_ema = ModelEmaV2(model, decay=0.9998)
    optimizer = create_optimizer_v2(model, opt="rmsproptf", lr=0.016, weight_decay=1e-5, momentum=0.9)
    mixup_fn = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5, num_classes=CLASSES)
    criterion = SoftTargetCrossEntropy()
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1) * 255
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1) * 255

    losses_m, top1_m, batch_time = AverageMeter(), AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    for batch_idx, (images, labels) in enumerate(fake_batches(STEPS)):
        images = ((images.float() - mean) / std).cuda()
        labels = labels.cuda()
        mixed, target = mixup_fn(images, labels)
        output = model(mixed)
        loss = criterion(output, target)
        losses_m.update(loss.item(), images.size(0))
        top1_m.update(accuracy(output, labels)[0].item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        model_ema.update(model)
        batch_time.update(time.time() - end)
        end = time.time()
        if batch_idx % 10 == 0:
            print(f"Train: [{batch_idx}/{STEPS}] loss {losses_m.val:.3f} ({losses_m.avg:.3f}) top1 {top1_m.avg:.2f} "
                  f"time {batch_time.val:.3f}s, {images.size(0) / batch_time.val:.0f}/s")


if __name__ == "__main__":
    main()
