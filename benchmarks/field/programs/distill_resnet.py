import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader

T, ALPHA = 4.0, 0.9


def kd_loss(student_logits, teacher_logits, labels):
    soft = F.kl_div(F.log_softmax(student_logits / T, dim=1), F.softmax(teacher_logits / T, dim=1), reduction="batchmean")
    return ALPHA * T * T * soft + (1 - ALPHA) * F.cross_entropy(student_logits, labels)


class Average:
    def __init__(self):
        self.sum = self.n = 0

    def update(self, value, n):
        self.sum += value * n
        self.n += n


def accuracy(output, target, topk=(1, 5)):
    _, pred = output.topk(max(topk), 1)
    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
    return [correct[:k].reshape(-1).float().sum(0) * 100.0 / target.size(0) for k in topk]


def main():
    torch.manual_seed(3)
    torch.backends.cudnn.benchmark = True
    data = torchvision.datasets.FakeData(3200, (3, 160, 160), 100, torchvision.transforms.ToTensor())
    train_loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=8, pin_memory=True, drop_last=True)
    teacher = torchvision.models.resnet101(num_classes=100).cuda()
    student = torchvision.models.resnet18(num_classes=100).cuda()
    teacher.eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    losses, top1, top5 = Average(), Average(), Average()
    student.train()
    for i, (images, target) in enumerate(train_loader):
        images = images.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        with torch.no_grad():
            teacher_logits = teacher(images)
        logits = student(images)
        loss = kd_loss(logits, teacher_logits, target)
        acc1, acc5 = accuracy(logits, target)
        losses.update(loss.item(), images.size(0))
        top1.update(acc1.item(), images.size(0))
        top5.update(acc5.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {losses.sum / losses.n:.3f} top1 {top1.sum / top1.n:.2f} top5 {top5.sum / top5.n:.2f}")


if __name__ == "__main__":
    main()
