"""Label the words of scanned forms (question / answer / header / other) with LayoutLMv3 and the Trainer of transformers.

The forms are made here: words in rows of a page with their boxes, and a rendered grey "scan".
"""
import random
from collections import Counter

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import Dataset
from transformers import (LayoutLMv3Config, LayoutLMv3ForTokenClassification, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

LABELS = ["O", "B-HEADER", "I-HEADER", "B-QUESTION", "I-QUESTION", "B-ANSWER", "I-ANSWER"]
PAGE_W, PAGE_H = 762, 1000
MAX_LEN = 512
NUM_FORMS = 64
VOCAB = 50265
BOS, PAD, EOS = 0, 1, 2


def random_form(rng):
    words = []
    y = 30
    for _ in range(rng.randint(10, 32)):
        x = rng.randint(20, 120)
        kind = rng.choice(["HEADER", "QUESTION", "ANSWER", "O"])
        for i in range(rng.randint(2, 10)):
            w = rng.randint(25, 90)
            if x + w > PAGE_W - 20:
                break
            label = "O" if kind == "O" else ("B-" if i == 0 else "I-") + kind
            words.append({"box": [x, y, x + w, y + 18], "label": label,
                          "pieces": [rng.randint(10, VOCAB - 1) for _ in range(rng.choice([1, 1, 1, 2, 3]))]})
            x += w + 8
        y += 30
    return words


def scan_of(words):
    page = Image.new("RGB", (PAGE_W, PAGE_H), "white")
    draw = ImageDraw.Draw(page)
    for word in words:
        draw.rectangle(word["box"], fill=(90, 90, 90))
    return page


class FormDataset(Dataset):
    def __init__(self, num_forms, seed):
        rng = random.Random(seed)
        self.forms = [random_form(rng) for _ in range(num_forms)]
        self.scans = [scan_of(words) for words in self.forms]
        self.label2id = {name: i for i, name in enumerate(LABELS)}

    def __len__(self):
        return len(self.forms)

    def image_of(self, index):
        image = self.scans[index].convert("RGB").resize((224, 224), Image.BILINEAR)
        image = np.asarray(image).astype(np.float64) / 255.0
        image = (image - np.array([0.5, 0.5, 0.5])) / np.array([0.5, 0.5, 0.5])
        return torch.tensor(image.transpose(2, 0, 1), dtype=torch.float32)

    def normalize_box(self, box):
        return [int(1000 * box[0] / PAGE_W), int(1000 * box[1] / PAGE_H),
                int(1000 * box[2] / PAGE_W), int(1000 * box[3] / PAGE_H)]

    def text_of(self, index):
        ids, boxes, labels = [BOS], [[0, 0, 0, 0]], [-100]
        for word in self.forms[index]:
            for i, piece in enumerate(word["pieces"]):
                ids.append(piece)
                boxes.append(self.normalize_box(word["box"]))
                labels.append(self.label2id[word["label"]] if i == 0 else -100)
        ids, boxes, labels = ids[:MAX_LEN - 1] + [EOS], boxes[:MAX_LEN - 1] + [[0, 0, 0, 0]], labels[:MAX_LEN - 1] + [-100]
        return ids, boxes, labels

    def __getitem__(self, index):
        ids, boxes, labels = self.text_of(index)
        mask = [1] * len(ids)
        while len(ids) < MAX_LEN:
            ids.append(PAD)
            boxes.append([0, 0, 0, 0])
            labels.append(-100)
            mask.append(0)
        return {"input_ids": torch.tensor(ids), "bbox": torch.tensor(boxes), "attention_mask": torch.tensor(mask),
                "labels": torch.tensor(labels), "pixel_values": self.image_of(index)}


def collate(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


class FormTrainer(Trainer):
    """Loss with weights of the classes, and counts for the training F1."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.counts = Counter()

    def count(self, predicted, labels):
        for row_p, row_l in zip(predicted.tolist(), labels.tolist()):
            for p, l in zip(row_p, row_l):
                if l == -100:
                    continue
                if p == l and l != 0:
                    self.counts["tp"] += 1
                elif p != l:
                    self.counts["fp"] += p != 0
                    self.counts["fn"] += l != 0

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weights = torch.tensor([0.5] + [1.0] * (len(LABELS) - 1)).to(labels.device)
        loss = nn.functional.cross_entropy(outputs.logits.view(-1, len(LABELS)), labels.view(-1), weight=weights)
        self.count(outputs.logits.argmax(-1), labels)
        return (loss, outputs) if return_outputs else loss


class PrintF1(TrainerCallback):
    trainer = None

    def on_log(self, args, state, control, **kwargs):
        c = self.trainer.counts
        f1 = 2 * c["tp"] / max(1, 2 * c["tp"] + c["fp"] + c["fn"])
        print(f"step {state.global_step}: training F1 of the words so far {f1:.3f}")


if __name__ == "__main__":
    set_seed(42)
    config = LayoutLMv3Config(vocab_size=VOCAB, num_hidden_layers=6, num_labels=len(LABELS),
                              pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    model = LayoutLMv3ForTokenClassification(config)
    arguments = TrainingArguments(
        output_dir="/tmp/forms", per_device_train_batch_size=8, max_steps=80, learning_rate=3e-5,
        logging_steps=10, save_strategy="no", report_to=[],
        remove_unused_columns=False, dataloader_drop_last=True, optim="adamw_torch")
    callback = PrintF1()
    trainer = FormTrainer(model=model, args=arguments, train_dataset=FormDataset(NUM_FORMS, 1),
                          data_collator=collate, callbacks=[callback])
    callback.trainer = trainer
    trainer.train()
