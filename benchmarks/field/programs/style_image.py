"""Neural style transfer (Gatys et al.): optimize the pixels of an image so that its VGG-19 features fit a content and a style image."""
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
import torchvision.models as models
import torchvision.transforms as transforms
from PIL import Image
from torchvision.utils import save_image

IMAGE_SIZE = 640
TOTAL_STEPS = 1200
LEARNING_RATE = 1e-2
CONTENT_WEIGHT = 1.0
STYLE_WEIGHT = 100.0
TV_WEIGHT = 1e-3
SAVE_EVERY = 300

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
folder = tempfile.mkdtemp(prefix="style_")


class VGG(nn.Module):
    """The layers before each block's pooling; the output of conv1_1, conv2_1, ... are returned."""

    def __init__(self):
        super().__init__()
        self.chosen_features = ["0", "5", "10", "19", "28"]
        self.model = models.vgg19(weights=None).features[:29]

    def forward(self, x):
        features = []
        for layer_num, layer in enumerate(self.model):
            x = layer(x)
            if str(layer_num) in self.chosen_features:
                features.append(x)
        return features


def make_pictures():
    """No pictures in the repo: draw one of smooth shapes and one of stripes."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:720, 0:960] / 720.0
    content = np.zeros((720, 960, 3))
    for _ in range(12):
        cx, cy, r = rng.uniform(0, 1.33), rng.uniform(0, 1), rng.uniform(0.05, 0.3)
        content[(x - cx) ** 2 + (y - cy) ** 2 < r ** 2] = rng.uniform(0, 1, 3)
    style = np.stack([0.5 + 0.5 * np.sin(40 * x + 9 * np.sin(7 * y + p)) for p in (0, 1.3, 2.1)], -1)
    style += 0.1 * rng.standard_normal(style.shape)
    for name, image in ("content.png", content), ("style.png", style):
        Image.fromarray((image.clip(0, 1) * 255).astype(np.uint8)).save(os.path.join(folder, name))


loader = transforms.Compose([
    transforms.Resize((IMAGE_SIZE, IMAGE_SIZE)),
    transforms.ToTensor(),
])


def load_image(name):
    image = Image.open(os.path.join(folder, name)).convert("RGB")
    return loader(image).unsqueeze(0).to(device)


def gram_matrix(x):
    batch_size, channel, height, width = x.shape
    f = x.view(channel, height * width)
    return f.mm(f.t()) / (channel * height * width)


def total_variation(x):
    return (x[:, :, 1:] - x[:, :, :-1]).abs().mean() + (x[:, :, :, 1:] - x[:, :, :, :-1]).abs().mean()


def main():
    torch.manual_seed(0)
    make_pictures()
    original_img = load_image("content.png")
    style_img = load_image("style.png")
    generated = original_img.clone().requires_grad_(True)

    model = VGG().to(device).eval()
    optimizer = optim.Adam([generated], lr=LEARNING_RATE)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1)

    history = []
    for step in range(TOTAL_STEPS):
        # Obtain the convolution features in specifically chosen layers
        generated_features = model((generated - mean) / std)
        original_img_features = model((original_img - mean) / std)
        style_features = model((style_img - mean) / std)

        style_loss = content_loss = 0

        # iterate through all the features for the chosen layers
        for gen_feature, orig_feature, style_feature in zip(generated_features, original_img_features, style_features):
            content_loss += torch.mean((gen_feature - orig_feature) ** 2)

            G = gram_matrix(gen_feature)
            A = gram_matrix(style_feature)
            style_loss += torch.mean((G - A) ** 2)

        tv_loss = total_variation(generated)
        total_loss = CONTENT_WEIGHT * content_loss + STYLE_WEIGHT * style_loss + TV_WEIGHT * tv_loss
        optimizer.zero_grad()
        total_loss.backward()
        optimizer.step()
        with torch.no_grad():
            generated.clamp_(0, 1)

        history.append((content_loss.item(), style_loss.item(), tv_loss.item()))
        if step % 50 == 0:
            print(f"step {step:5d}  content {history[-1][0]:.6f}  style {history[-1][1]:.8f}  tv {history[-1][2]:.4f}", flush=True)
        if step % SAVE_EVERY == 0:
            save_image(generated.detach(), os.path.join(folder, f"generated_{step}.png"))

    save_image(generated.detach(), os.path.join(folder, "generated_final.png"))
    np.save(os.path.join(folder, "history.npy"), np.array(history))
    print("saved to", folder)


if __name__ == "__main__":
    main()
