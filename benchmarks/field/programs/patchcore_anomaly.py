"""Find defects on product photos with PatchCore: patches far from everything in a memory bank of good parts.

usage: python patchcore_anomaly.py [--backbone wide_resnet50_2] [--bank 8192] [--images 480]
"""
import argparse
import time

import numpy as np
import timm
import torch
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter
from torch.utils.data import DataLoader, Dataset


class Parts(Dataset):
    """Photos of a textured part; every third test image has a scratch."""

    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    def __init__(self, n, size, defects, seed):
        g = torch.Generator().manual_seed(seed)
        self.textures = torch.randint(60, 200, (32, 3, size, size), generator=g, dtype=torch.uint8)
        self.which = torch.randint(0, 32, (n,), generator=g)
        self.corner = torch.randint(0, size - size // 8, (n, 2), generator=g)
        self.size, self.defects = size, defects

    def __len__(self):
        return len(self.which)

    def __getitem__(self, i):
        image, label = self.textures[self.which[i]].float() / 255, 0
        if self.defects and i % 3 == 0:
            y, x = self.corner[i].tolist()
            image[:, y:y + self.size // 8, x:x + self.size // 32] = 1.0
            label = 1
        return (image - self.mean) / self.std, label


class PatchCore:
    def __init__(self, args):
        self.args, self.features = args, {}
        self.net = timm.create_model(args.backbone, pretrained=False).cuda().eval()
        for name in ("layer2", "layer3"):
            getattr(self.net, name).register_forward_hook(self.keep(name))
        self.bank = None

    def keep(self, name):
        def hook(module, inputs, output):
            self.features[name] = output
        return hook

    @torch.no_grad()
    def embed(self, images):
        """Locally averaged features of every patch: (images * h * w) x channels."""
        self.net(images)
        fine, coarse = (F.avg_pool2d(self.features[n], 3, 1, 1) for n in ("layer2", "layer3"))
        coarse = F.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        both = torch.cat([fine, coarse], 1)
        self.grid = both.shape[-2:]
        return both.permute(0, 2, 3, 1).reshape(-1, both.shape[1])

    def fit(self, loader):
        patches = torch.cat([self.embed(images.cuda()) for images, _ in loader])
        self.bank = patches[torch.randperm(len(patches), device=patches.device)[:self.args.bank]].contiguous()

    @torch.no_grad()
    def predict(self, images):
        """A score for each image and a heat map as large as the image."""
        patches = self.embed(images)
        distances = torch.cdist(patches, self.bank)
        nearest = torch.sort(distances, dim=1)[0][:, :self.args.neighbours]
        scores = nearest.mean(1).view(len(images), *self.grid)
        maps = F.interpolate(scores[:, None], size=images.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
        maps = maps.cpu().numpy()
        maps = np.stack([gaussian_filter(m, sigma=4) for m in maps])
        return maps.reshape(len(maps), -1).max(1), maps


def auroc(scores, labels):
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    good, bad = (labels == 0).sum(), (labels == 1).sum()
    return (ranks[labels == 1].sum() - bad * (bad + 1) / 2) / max(good * bad, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backbone", default="wide_resnet50_2")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--bank", type=int, default=8192)
    parser.add_argument("--neighbours", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--images", type=int, default=480)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = PatchCore(args)
    good = Parts(args.bank // 256, args.size, defects=False, seed=1)
    model.fit(DataLoader(good, batch_size=args.batch_size))

    test = DataLoader(Parts(args.images, args.size, defects=True, seed=2), batch_size=args.batch_size)
    scores, labels, hot = [], [], []
    start = time.time()
    for step, (images, label) in enumerate(test):
        images = images.cuda()
        score, maps = model.predict(images)
        scores.append(score)
        labels.append(label.numpy())
        hot.append((maps > np.percentile(maps, 99.5)).reshape(len(maps), -1).mean(1))
        if step % 10 == 0:
            print(f"{step}/{len(test)} mean score {score.mean():.5f} ({time.time() - start:.1f}s)")
    scores, labels = np.concatenate(scores), np.concatenate(labels)
    print(f"image AUROC {auroc(scores, labels):.4f}, hot share {np.concatenate(hot).mean():.4f}")


if __name__ == "__main__":
    main()
