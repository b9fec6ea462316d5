#!/usr/bin/env python3
"""Fine-tune a wav2vec 2.0 encoder (from its configuration) for characters with CTC; word and character errors as it goes."""
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

SR = 16000
ALPHABET = "|'abcdefghijklmnopqrstuvwxyz"
CHAR2ID = {c: i + 1 for i, c in enumerate(ALPHABET)}
ID2CHAR = {i: c for c, i in CHAR2ID.items()}
WORDS = ["the", "house", "river", "of", "and", "morning", "seven", "light", "by", "under", "people", "to", "walk", "green", "stone"]


class Speech(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        seconds = rng.uniform(4.0, 9.0)
        wave = rng.standard_normal(int(seconds * SR), dtype=np.float32)
        text = "|".join(rng.choice(WORDS, int(seconds * 2)))
        return wave, text


def collate(batch):
    waves, texts = zip(*batch)
    longest = max(len(w) for w in waves)
    values = torch.zeros(len(waves), longest)
    mask = torch.zeros(len(waves), longest, dtype=torch.long)
    for i, w in enumerate(waves):
        w = (w - w.mean()) / np.sqrt(w.var() + 1e-7)
        values[i, :len(w)] = torch.from_numpy(w)
        mask[i, :len(w)] = 1
    labels = [torch.tensor([CHAR2ID[c] for c in t]) for t in texts]
    labels = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    return {"input_values": values, "attention_mask": mask, "labels": labels}, texts


def greedy(ids):
    out, last = [], 0
    for i in ids:
        if i != last and i != 0:
            out.append(ID2CHAR[i])
        last = i
    return "".join(out)


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i in range(1, len(a) + 1):
        diagonal, row[0] = row[0], i
        for j in range(1, len(b) + 1):
            insert_or_delete = min(row[j], row[j - 1]) + 1
            diagonal, row[j] = row[j], min(insert_or_delete, diagonal + (a[i - 1] != b[j - 1]))
    return row[-1]


def main():
    random.seed(0)
    torch.manual_seed(0)
    config = Wav2Vec2Config(vocab_size=len(ALPHABET) + 1, hidden_size=512, num_hidden_layers=8, num_attention_heads=8,
                            intermediate_size=2048, num_conv_pos_embeddings=64, mask_time_prob=0.065, mask_time_length=10,
                            layerdrop=0.0, ctc_loss_reduction="mean", ctc_zero_infinity=True, pad_token_id=0)
    model = Wav2Vec2ForCTC(config).to("cuda")
    model.freeze_feature_encoder()
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-5, weight_decay=0.005)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5000))
    loader = DataLoader(Speech(16 * 90), batch_size=16, shuffle=True, collate_fn=collate, num_workers=6)
    errors = chars = 0
    for step, (inputs, texts) in enumerate(loader):
        inputs = {k: v.to("cuda") for k, v in inputs.items()}
        out = model(**inputs)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        predictions = out.logits.argmax(-1).cpu().numpy()
        for ids, text in zip(predictions, texts):
            errors += edit_distance(greedy(ids), text)
            chars += len(text)
        if step % 10 == 0:
            print(f"step {step:4d} loss {out.loss.item():.3f} cer {errors / chars:.3f}")


if __name__ == "__main__":
    main()
