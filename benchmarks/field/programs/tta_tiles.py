"""
Land cover maps of Sentinel scenes with our U-Net: overlapping tiles, Gaussian weights, test-time augmentation by flips.
Used for the maps of the report (inference only, the weights come from train.py).
"""
import os
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SCENE = int(os.environ.get("SCENE", 512))
TILE = int(os.environ.get("TILE", 256))
STRIDE = TILE // 2
NUM_SCENES = int(os.environ.get("NUM_SCENES", 200))
BANDS, CLASSES = 4, 6
WIDTH = int(os.environ.get("WIDTH", 48))
NAMES = ["water", "forest", "grass", "crops", "built", "bare"]
WEIGHTS = "unet_landcover.pt"


class Block(nn.Module):
    def __init__(self, c_in, c, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, c, 3, stride, 1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c)
        self.down = None
        if stride != 1 or c_in != c:
            self.down = nn.Sequential(nn.Conv2d(c_in, c, 1, stride, bias=False), nn.BatchNorm2d(c))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.down is None else self.down(x)))


class Up(nn.Module):
    def __init__(self, c_in, c_skip, c):
        super().__init__()
        self.block = Block(c_in + c_skip, c)

    def forward(self, x, skip):
        x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
        return self.block(torch.cat([x, skip], 1))


class UNet(nn.Module):
    def __init__(self, c=WIDTH):
        super().__init__()
        self.stem = Block(BANDS, c)
        self.down1 = nn.Sequential(Block(c, 2 * c, 2), Block(2 * c, 2 * c))
        self.down2 = nn.Sequential(Block(2 * c, 4 * c, 2), Block(4 * c, 4 * c))
        self.down3 = nn.Sequential(Block(4 * c, 8 * c, 2), Block(8 * c, 8 * c))
        self.up3, self.up2, self.up1 = Up(8 * c, 4 * c, 4 * c), Up(4 * c, 2 * c, 2 * c), Up(2 * c, c, c)
        self.head = nn.Conv2d(c, CLASSES, 1)

    def forward(self, x):
        s0 = self.stem(x)
        s1 = self.down1(s0)
        s2 = self.down2(s1)
        x = self.down3(s2)
        return self.head(self.up1(self.up2(self.up3(x, s2), s1), s0))


def load_scene(seed):
    """Stands in for rasterio.open(path).read()."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(200, 4000, (BANDS, SCENE // 32, SCENE // 32))
    scene = np.kron(coarse, np.ones((1, 32, 32))) + rng.normal(0, 120, (1, SCENE, SCENE))
    return scene.clip(0, 10000).astype(np.uint16)


def normalize(tile):
    """Stretch each band between its 2nd and 98th percentile, as in training."""
    out = np.zeros(tile.shape, dtype=np.float32)
    for band in range(tile.shape[0]):
        low, high = np.percentile(tile[band], (2, 98))
        out[band] = np.clip((tile[band] - low) / (high - low + 1e-6), 0, 1)
    return out


def gaussian(size, sigma_scale=1 / 8):
    """Weight of a tile's pixels: less at its borders."""
    center, sigma = (size - 1) / 2, size * sigma_scale
    y, x = np.mgrid[:size, :size]
    weight = np.exp(-((y - center) ** 2 + (x - center) ** 2) / (2 * sigma ** 2))
    weight = weight / weight.max()
    weight[weight < 1e-3] = 1e-3
    return weight.astype(np.float32)


FLIPS = [(), (2,), (3,), (2, 3)]


def predict_tile(model, tile):
    """Mean class probabilities over the flips."""
    x = torch.from_numpy(tile).unsqueeze(0).to(DEVICE)
    mean = np.zeros((CLASSES, TILE, TILE), dtype=np.float32)
    for dims in FLIPS:
        logits = model(torch.flip(x, dims))
        probs = F.softmax(torch.flip(logits, dims), dim=1)
        mean += probs[0].detach().cpu().numpy() / len(FLIPS)
    return mean


def predict_scene(model, scene):
    total = np.zeros((CLASSES, SCENE, SCENE), dtype=np.float32)
    weights = np.zeros((SCENE, SCENE), dtype=np.float32)
    for top in range(0, SCENE - TILE + 1, STRIDE):
        for left in range(0, SCENE - TILE + 1, STRIDE):
            tile = normalize(scene[:, top:top + TILE, left:left + TILE])
            probs = predict_tile(model, tile)
            weight = gaussian(TILE)
            total[:, top:top + TILE, left:left + TILE] += probs * weight
            weights[top:top + TILE, left:left + TILE] += weight
    probs = total / weights
    return probs.argmax(0), probs.max(0)


torch.manual_seed(0)
model = UNet().to(DEVICE)
if os.path.exists(WEIGHTS):
    model.load_state_dict(torch.load(WEIGHTS, map_location=DEVICE))
else:
    print("no weights found, maps will be nonsense", file=sys.stderr)
model.eval()

scenes = [load_scene(seed) for seed in range(12)]
areas, unsure, tic = np.zeros(CLASSES), [], time.time()
for n in range(NUM_SCENES):
    classes, confidence = predict_scene(model, scenes[n % len(scenes)])
    areas += np.bincount(classes.ravel(), minlength=CLASSES)
    unsure.append((confidence < 0.5).mean())
    if (n + 1) % 20 == 0:
        shares = ", ".join(f"{name} {a:.1%}" for name, a in zip(NAMES, areas / areas.sum()))
        print(f"{n + 1}/{NUM_SCENES} scenes, {(time.time() - tic) / (n + 1):.3f} s each: {shares}; unsure {np.mean(unsure):.1%}", flush=True)
print("done")
