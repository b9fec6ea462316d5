"""Contrastive pretraining of pictures and captions: CLIP from its configuration, pictures decoded by PIL, accelerate's loop."""
import io
import logging
import random
import re

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPConfig, CLIPModel

logging.basicConfig(level=logging.INFO)
logger = logging.getLogger("clip")

SIZE, CONTEXT, BATCH, STEPS = 224, 48, 32, 90
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)
SUBJECTS = ["a dog", "two cats", "an old red bicycle", "the harbour at night", "a plate of pasta", "snow-covered mountains", "a child's drawing"]
MANNERS = ["in black and white", "seen from above", "on a wooden table", "with friends", "close-up", "under heavy rain, blurred"]


def jpeg(rng):
    small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    buffer = io.BytesIO()
    small.resize((320, 240), Image.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


class Captions(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(0)
        self.files = [jpeg(rng) for _ in range(128)]
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.files[i % len(self.files)], f"A photo of {random.choice(SUBJECTS)} {random.choice(MANNERS)}, {random.choice(MANNERS)}."


class WordTokenizer:
    """Words, and letters of those that are not known."""

    pattern = re.compile(r"[a-z]+|[0-9]|[^\sa-z0-9]")

    def __init__(self):
        words = sorted({w for text in SUBJECTS + MANNERS for w in self.pattern.findall(text)} | {"photo", "of", "a"})
        pieces = list("abcdefghijklmnopqrstuvwxyz,.'-") + words[::2]
        self.vocab = {p: i + 3 for i, p in enumerate(pieces)}

    def __call__(self, text):
        ids = [1]
        for word in self.pattern.findall(text.lower()):
            if word in self.vocab:
                ids.append(self.vocab[word])
            else:
                ids.extend(self.vocab.get(c, 0) for c in word)
        return ids[:CONTEXT - 1] + [2]


tokenizer = WordTokenizer()


def augment(image):
    w, h = image.size
    scale = random.uniform(0.5, 1.0)
    cw, ch = int(w * scale), int(h * scale)
    left, top = random.randint(0, w - cw), random.randint(0, h - ch)
    image = image.crop((left, top, left + cw, top + ch)).resize((SIZE, SIZE), Image.BICUBIC)
    if random.random() < 0.5:
        image = image.transpose(Image.FLIP_LEFT_RIGHT)
    return ImageEnhance.Brightness(image).enhance(random.uniform(0.8, 1.2))


def to_pixels(image):
    x = np.asarray(image).astype(np.float32) / 255.0
    x = (x - MEAN) / STD
    return torch.from_numpy(x.transpose(2, 0, 1).copy())


def collate(rows):
    pixels = torch.stack([to_pixels(augment(Image.open(io.BytesIO(data)).convert("RGB"))) for data, _ in rows])
    ids = [tokenizer(text) for _, text in rows]
    input_ids = torch.zeros(len(ids), CONTEXT, dtype=torch.long)
    mask = torch.zeros(len(ids), CONTEXT, dtype=torch.long)
    for i, row in enumerate(ids):
        input_ids[i, :len(row)] = torch.tensor(row)
        mask[i, :len(row)] = 1
    return {"pixel_values": pixels, "input_ids": input_ids, "attention_mask": mask}


def main():
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=1)
    config = CLIPConfig(
        text_config=dict(vocab_size=100, hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=6,
                         max_position_embeddings=CONTEXT, eos_token_id=2, bos_token_id=1, pad_token_id=0),
        vision_config=dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8, image_size=SIZE, patch_size=16),
        projection_dim=256)
    model = CLIPModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), weight_decay=0.2)
    loader = DataLoader(Captions(BATCH * STEPS), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=collate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50000)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    hits, seen = 0, 0
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            out = model(**batch, return_loss=True)
            accelerator.backward(out.loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        target = torch.arange(len(out.logits_per_image), device=accelerator.device)
        hits += accelerator.gather_for_metrics((out.logits_per_image.argmax(1) == target).sum()).sum().item()
        seen += len(target)
        if step % 20 == 0:
            logger.info("step %d loss %.3f top1 %.3f", step, out.loss.item(), hits / seen)


if __name__ == "__main__":
    main()
