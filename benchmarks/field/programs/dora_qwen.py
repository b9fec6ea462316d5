"""Instruction tuning of a small Qwen2 with DoRA adapters (peft). Prompts are masked out of the loss."""
import os
import random

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, get_cosine_schedule_with_warmup

os.environ["TOKENIZERS_PARALLELISM"] = "false"
MAX_LENGTH, PAD, IGNORE = 512, 0, -100
STEPS, BATCH = 80, 8


class Instructions(Dataset):
    """Prompt and answer as ids; most are far shorter than MAX_LENGTH."""

    def __init__(self, n, vocab):
        rng = random.Random(0)
        self.rows = []
        for _ in range(n):
            prompt = [rng.randrange(3, vocab) for _ in range(rng.randint(20, 90))]
            answer = [rng.randrange(3, vocab) for _ in range(rng.randint(15, 160))]
            self.rows.append((prompt, answer))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        prompt, answer = self.rows[i]
        ids = (prompt + answer + [2])[:MAX_LENGTH]
        labels = ([IGNORE] * len(prompt) + answer + [2])[:MAX_LENGTH]
        return {"input_ids": ids, "labels": labels}


def pad_to_max(features):
    """Pad every example to MAX_LENGTH so that shapes stay the same."""
    batch = {"input_ids": [], "attention_mask": [], "labels": []}
    for f in features:
        missing = MAX_LENGTH - len(f["input_ids"])
        batch["input_ids"].append(f["input_ids"] + [PAD] * missing)
        batch["attention_mask"].append([1] * len(f["input_ids"]) + [0] * missing)
        batch["labels"].append(f["labels"] + [IGNORE] * missing)
    return {k: torch.tensor(v) for k, v in batch.items()}


torch.manual_seed(42)
config = Qwen2Config(vocab_size=16000, hidden_size=896, intermediate_size=2432, num_hidden_layers=10, num_attention_heads=14,
                     num_key_value_heads=2, max_position_embeddings=1024, use_cache=False, tie_word_embeddings=True)
base = Qwen2ForCausalLM(config)
base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
base.enable_input_require_grads()
lora = LoraConfig(task_type=TaskType.CAUSAL_LM, r=16, lora_alpha=32, lora_dropout=0.05, use_dora=True,
                  target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
model = get_peft_model(base, lora)
model.print_trainable_parameters()
model.to("cuda")
model.train()

loader = DataLoader(Instructions(STEPS * BATCH, config.vocab_size), batch_size=BATCH, shuffle=True, collate_fn=pad_to_max)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
scheduler = get_cosine_schedule_with_warmup(optimizer, 10, 10000)
losses = []
for step, batch in enumerate(loader):
    batch = {k: v.to(model.device) for k, v in batch.items()}
    loss = model(**batch).loss
    loss.backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    if step % 20 == 0:
        print({"step": step, "loss": round(losses[-1], 4), "grad_norm": round(grad_norm.item(), 3), "lr": scheduler.get_last_lr()[0]})
print("mean loss", sum(losses) / len(losses))
