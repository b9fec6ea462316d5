"""DETR on a synthetic shapes data set: ResNet-50 features, transformer, 100 object queries, Hungarian matching, auxiliary losses."""
import argparse
import math
import time
from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet50
from torchvision.ops import box_convert, generalized_box_iou


def get_args_parser():
    parser = argparse.ArgumentParser("Set transformer detector", add_help=True)
    parser.add_argument("--lr", default=1e-4, type=float)
    parser.add_argument("--lr_backbone", default=1e-5, type=float)
    parser.add_argument("--batch_size", default=8, type=int)
    parser.add_argument("--weight_decay", default=1e-4, type=float)
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--images", default=1600, type=int)
    parser.add_argument("--image_size", default=448, type=int)
    parser.add_argument("--num_queries", default=100, type=int)
    parser.add_argument("--num_workers", default=6, type=int)
    parser.add_argument("--clip_max_norm", default=0.1, type=float)
    parser.add_argument("--eos_coef", default=0.1, type=float)
    return parser


class Shapes(Dataset):
    """Up to 20 discs and rectangles of 8 colours on noise; boxes are cx, cy, w, h in [0, 1]."""

    def __init__(self, n, size):
        self.n, self.size = n, size
        self.noise = np.random.default_rng(0).random((size * 2, size * 2, 3), dtype=np.float32) * 0.4
        self.colors = np.random.default_rng(1).random((8, 3), dtype=np.float32)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng, s = np.random.default_rng(i), self.size
        oy, ox = rng.integers(0, s, 2)
        img = self.noise[oy:oy + s, ox:ox + s].copy()
        boxes, labels = [], []
        for _ in range(rng.integers(3, 21)):
            w, h = rng.integers(s // 16, s // 4, 2)
            x, y, c = rng.integers(0, s - w), rng.integers(0, s - h), rng.integers(0, 16)
            if c % 2:
                img[y:y + h, x:x + w] = self.colors[c // 2]
            else:
                yy, xx = np.ogrid[:h, :w]
                img[y:y + h, x:x + w][((xx - w / 2) / (w / 2)) ** 2 + ((yy - h / 2) / (h / 2)) ** 2 < 1] = self.colors[c // 2]
            boxes.append([(x + w / 2) / s, (y + h / 2) / s, w / s, h / s])
            labels.append(c)
        if rng.random() < 0.5:
            img = img[:, ::-1].copy()
            boxes = [[1 - b[0], *b[1:]] for b in boxes]
        img = (img - np.array([0.485, 0.456, 0.406], np.float32)) / np.array([0.229, 0.224, 0.225], np.float32)
        return torch.from_numpy(img).permute(2, 0, 1), {"labels": torch.tensor(labels), "boxes": torch.tensor(boxes, dtype=torch.float32)}


def collate_fn(batch):
    images, targets = zip(*batch)
    return torch.stack(images), targets


class EncoderLayer(nn.Module):
    def __init__(self, d, heads=8, ff=2048, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d, heads, dropout=dropout)
        self.linear1, self.linear2 = nn.Linear(d, ff), nn.Linear(ff, d)
        self.norm1, self.norm2, self.dropout = nn.LayerNorm(d), nn.LayerNorm(d), nn.Dropout(dropout)

    def forward(self, src, pos):
        q = k = src + pos
        src2 = self.self_attn(q, k, value=src)[0]
        src = self.norm1(src + self.dropout(src2))
        src2 = self.linear2(self.dropout(F.relu(self.linear1(src))))
        return self.norm2(src + self.dropout(src2))


class DecoderLayer(nn.Module):
    def __init__(self, d, heads=8, ff=2048, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d, heads, dropout=dropout)
        self.cross_attn = nn.MultiheadAttention(d, heads, dropout=dropout)
        self.linear1, self.linear2 = nn.Linear(d, ff), nn.Linear(ff, d)
        self.norm1, self.norm2, self.norm3, self.dropout = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d), nn.Dropout(dropout)

    def forward(self, tgt, memory, pos, query_pos):
        q = k = tgt + query_pos
        tgt = self.norm1(tgt + self.dropout(self.self_attn(q, k, value=tgt)[0]))
        tgt2 = self.cross_attn(tgt + query_pos, memory + pos, value=memory)[0]
        tgt = self.norm2(tgt + self.dropout(tgt2))
        tgt2 = self.linear2(self.dropout(F.relu(self.linear1(tgt))))
        return self.norm3(tgt + self.dropout(tgt2))


class PositionEmbeddingSine(nn.Module):
    def __init__(self, num_pos_feats=128, temperature=10000):
        super().__init__()
        self.num_pos_feats, self.temperature = num_pos_feats, temperature

    def forward(self, x):
        not_mask = torch.ones(x.shape[0], *x.shape[-2:], device=x.device)
        out = []
        for axis in (1, 2):
            embed = not_mask.cumsum(axis)
            embed = embed / (embed.amax(axis, keepdim=True) + 1e-6) * 2 * math.pi
            dim_t = torch.arange(self.num_pos_feats, dtype=torch.float32, device=x.device)
            dim_t = self.temperature ** (2 * (dim_t // 2) / self.num_pos_feats)
            p = embed[:, :, :, None] / dim_t
            out.append(torch.stack((p[..., 0::2].sin(), p[..., 1::2].cos()), dim=4).flatten(3))
        return torch.cat(out, dim=3).permute(0, 3, 1, 2)


class DETR(nn.Module):
    def __init__(self, num_classes, num_queries, d=256):
        super().__init__()
        net = resnet50(weights=None)
        self.backbone = nn.Sequential(*list(net.children())[:-2])
        self.position = PositionEmbeddingSine(d // 2)
        self.input_proj = nn.Conv2d(2048, d, 1)
        self.encoder = nn.ModuleList(EncoderLayer(d) for _ in range(6))
        self.decoder = nn.ModuleList(DecoderLayer(d) for _ in range(6))
        self.norm = nn.LayerNorm(d)
        self.query_embed = nn.Embedding(num_queries, d)
        self.class_embed = nn.Linear(d, num_classes + 1)
        self.bbox_embed = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 4))

    def forward(self, images):
        src = self.input_proj(self.backbone(images))
        pos = self.position(src).flatten(2).permute(2, 0, 1)
        memory = src.flatten(2).permute(2, 0, 1)
        for layer in self.encoder:
            memory = layer(memory, pos)
        query = self.query_embed.weight.unsqueeze(1).repeat(1, images.shape[0], 1)
        tgt, hs = torch.zeros_like(query), []
        for layer in self.decoder:
            tgt = layer(tgt, memory, pos, query)
            hs.append(self.norm(tgt))
        hs = torch.stack(hs).transpose(1, 2)
        logits, boxes = self.class_embed(hs), self.bbox_embed(hs).sigmoid()
        return [{"pred_logits": a, "pred_boxes": b} for a, b in zip(logits, boxes)]


def giou(a, b):
    return generalized_box_iou(box_convert(a.float(), "cxcywh", "xyxy"), box_convert(b, "cxcywh", "xyxy"))


class HungarianMatcher(nn.Module):
    @torch.no_grad()
    def forward(self, outputs, targets):
        bs, num_queries = outputs["pred_logits"].shape[:2]
        out_prob = outputs["pred_logits"].flatten(0, 1).softmax(-1)
        out_bbox = outputs["pred_boxes"].flatten(0, 1)
        tgt_ids = torch.cat([v["labels"] for v in targets])
        tgt_bbox = torch.cat([v["boxes"] for v in targets])
        C = 5 * torch.cdist(out_bbox, tgt_bbox, p=1) - out_prob[:, tgt_ids] - 2 * giou(out_bbox, tgt_bbox)
        C = C.view(bs, num_queries, -1).cpu()
        sizes = [len(v["boxes"]) for v in targets]
        indices = [linear_sum_assignment(c[i]) for i, c in enumerate(C.split(sizes, -1))]
        return [(torch.as_tensor(i, dtype=torch.int64), torch.as_tensor(j, dtype=torch.int64)) for i, j in indices]


class SetCriterion(nn.Module):
    def __init__(self, num_classes, eos_coef):
        super().__init__()
        self.num_classes, self.matcher = num_classes, HungarianMatcher()
        empty_weight = torch.ones(num_classes + 1)
        empty_weight[-1] = eos_coef
        self.register_buffer("empty_weight", empty_weight)

    def losses_of(self, outputs, targets, indices, num_boxes):
        batch_idx = torch.cat([torch.full_like(src, i) for i, (src, _) in enumerate(indices)])
        src_idx = torch.cat([src for src, _ in indices])
        logits = outputs["pred_logits"]
        target_classes_o = torch.cat([t["labels"][j] for t, (_, j) in zip(targets, indices)])
        target_classes = torch.full(logits.shape[:2], self.num_classes, dtype=torch.int64, device=logits.device)
        target_classes[(batch_idx, src_idx)] = target_classes_o
        loss_ce = F.cross_entropy(logits.transpose(1, 2), target_classes, self.empty_weight)
        src_boxes = outputs["pred_boxes"][(batch_idx, src_idx)]
        target_boxes = torch.cat([t["boxes"][j] for t, (_, j) in zip(targets, indices)])
        loss_bbox = F.l1_loss(src_boxes, target_boxes, reduction="none").sum() / num_boxes
        loss_giou = (1 - torch.diag(giou(src_boxes, target_boxes))).sum() / num_boxes
        error = 100 - 100 * (logits[(batch_idx, src_idx)].argmax(-1) == target_classes_o).float().mean()
        return {"loss_ce": loss_ce, "loss_bbox": loss_bbox, "loss_giou": loss_giou, "class_error": error}

    def forward(self, outputs, targets):
        num_boxes = max(sum(len(t["labels"]) for t in targets), 1)
        losses = {}
        for layer, out in enumerate(outputs):
            indices = self.matcher(out, targets)
            losses.update({f"{k}_{layer}": v for k, v in self.losses_of(out, targets, indices, num_boxes).items()})
        return losses


WEIGHTS = {"loss_ce": 1, "loss_bbox": 5, "loss_giou": 2, "class_error": 0}


def main(args):
    torch.manual_seed(42)
    device = torch.device("cuda")
    dataset = Shapes(args.images, args.image_size)
    data_loader = DataLoader(dataset, args.batch_size, shuffle=True, drop_last=True, collate_fn=collate_fn, num_workers=args.num_workers)
    model = DETR(16, args.num_queries).to(device)
    criterion = SetCriterion(16, args.eos_coef).to(device)
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in model.named_parameters() if "backbone" not in n]},
        {"params": [p for n, p in model.named_parameters() if "backbone" in n], "lr": args.lr_backbone},
    ], lr=args.lr, weight_decay=args.weight_decay)
    for epoch in range(args.epochs):
        model.train()
        meters, start = defaultdict(list), time.time()
        for step, (samples, targets) in enumerate(data_loader):
            samples = samples.to(device)
            targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
            outputs = model(samples)
            loss_dict = criterion(outputs, targets)
            losses = sum(v * WEIGHTS[k.rsplit("_", 1)[0]] for k, v in loss_dict.items())
            loss_value = losses.item()
            if not math.isfinite(loss_value):
                raise SystemExit(f"Loss is {loss_value}, stopping training")
            optimizer.zero_grad()
            losses.backward()
            if args.clip_max_norm > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_max_norm)
            optimizer.step()
            for k, v in loss_dict.items():
                meters[k].append(v.item())
            if step % 20 == 0:
                print(f"Epoch: [{epoch}] [{step}/{len(data_loader)}] loss {loss_value:.4f} ce {np.mean(meters['loss_ce_5']):.4f} "
                      f"class_error {np.mean(meters['class_error_5']):.2f} {(time.time() - start) / (step + 1):.3f} s/it", flush=True)


if __name__ == "__main__":
    main(get_args_parser().parse_args())
