"""Inference of a one-stage detector over video frames: feature pyramid, decoding, NMS per image."""
import time

import numpy as np
import torch
import torchvision
from torch import nn


class Detector(nn.Module):
    def __init__(self, classes=80, anchors=3):
        super().__init__()
        net = torchvision.models.resnet34()
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, net.layer1)
        self.stages = nn.ModuleList([net.layer2, net.layer3, net.layer4])
        self.lateral = nn.ModuleList([nn.Conv2d(c, 128, 1) for c in (128, 256, 512)])
        self.heads = nn.ModuleList([nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.SiLU(),
                                                  nn.Conv2d(128, anchors * (5 + classes), 1)) for _ in range(3)])
        self.no, self.na, self.strides = classes + 5, anchors, (8, 16, 32)
        self.register_buffer("anchors", torch.tensor([[10, 13, 16, 30, 33, 23], [30, 61, 62, 45, 59, 119],
                                                      [116, 90, 156, 198, 373, 326]]).float().view(3, 3, 2))

    def forward(self, x):
        x, feats, out = self.stem(x), [], []
        for stage, lateral in zip(self.stages, self.lateral):
            x = stage(x)
            feats.append(lateral(x))
        for i in (1, 0):
            feats[i] = feats[i] + nn.functional.interpolate(feats[i + 1], scale_factor=2)
        for i, (f, head) in enumerate(zip(feats, self.heads)):
            p = head(f)
            b, _, h, w = p.shape
            p = p.view(b, self.na, self.no, h, w).permute(0, 1, 3, 4, 2).sigmoid()
            yv, xv = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            grid = torch.stack((xv, yv), 2).float().to(p.device)
            xy = (p[..., 0:2] * 2 - 0.5 + grid) * self.strides[i]
            wh = (p[..., 2:4] * 2) ** 2 * self.anchors[i].view(1, self.na, 1, 1, 2)
            out.append(torch.cat((xy, wh, p[..., 4:]), -1).view(b, -1, self.no))
        return torch.cat(out, 1)


def non_max_suppression(prediction, conf_thres=0.3, iou_thres=0.45, max_det=300):
    candidates = prediction[..., 4] > conf_thres
    output = []
    for xi, x in enumerate(prediction):
        x = x[candidates[xi]]
        x[:, 5:] *= x[:, 4:5]
        box = torchvision.ops.box_convert(x[:, :4], "cxcywh", "xyxy")
        conf, j = x[:, 5:].max(1, keepdim=True)
        x = torch.cat((box, conf, j.float()), 1)[conf.view(-1) > 0.05]
        x = x[x[:, 4].argsort(descending=True)[:3000]]
        i = torchvision.ops.nms(x[:, :4] + x[:, 5:6] * 7680, x[:, 4], iou_thres)[:max_det]
        output.append(x[i])
    return output


torch.manual_seed(0)
model = Detector().cuda().eval()
frames = np.random.randint(0, 255, (16, 4, 384, 640, 3), dtype=np.uint8)
count, began = 0, time.time()
with torch.no_grad():
    for n in range(60):
        img = torch.from_numpy(frames[n % 16].transpose(0, 3, 1, 2).copy()).cuda().float()
        img /= 255
        detections = non_max_suppression(model(img))
        for det in detections:
            for *xyxy, conf, cls in det[:20].cpu().numpy():
                count += conf > 0.1
print(f"{count} boxes, {60 * 4 / (time.time() - began):.1f} frames/s")
