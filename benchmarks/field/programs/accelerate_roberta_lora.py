"""Sentence-pair classification: RoBERTa with LoRA adapters, in the manner of run_glue_no_trainer."""
import torch
from accelerate import Accelerator
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import RobertaConfig, RobertaForSequenceClassification, get_scheduler

per_device_train_batch_size, max_train_steps, max_length = 32, 150, 128


class Pairs(Dataset):
    """Tokenized ahead, of different lengths."""

    def __init__(self, n):
        self.rows = [(torch.randint(4, 30000, (int(torch.randint(20, max_length, ())),)).tolist(), int(torch.randint(0, 2, ())))
                     for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad(rows):
    longest = max(len(ids) for ids, _ in rows)
    ids = [row + [1] * (longest - len(row)) for row, _ in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row, _ in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor([y for _, y in rows])}


def main():
    torch.manual_seed(0)
    accelerator = Accelerator()
    config = RobertaConfig(vocab_size=30000, max_position_embeddings=514, num_labels=2)
    model = RobertaForSequenceClassification(config)
    peft_config = LoraConfig(task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["query", "value"])
    model = get_peft_model(model, peft_config)
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=10, num_training_steps=max_train_steps)
    dataset = Pairs(per_device_train_batch_size * max_train_steps)
    train_dataloader = DataLoader(dataset, shuffle=True, collate_fn=pad, batch_size=per_device_train_batch_size)
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(model, optimizer, train_dataloader, lr_scheduler)

    model.train()
    total_loss, correct, seen = 0, 0, 0
    for step, batch in enumerate(train_dataloader):
        outputs = model(**batch)
        loss = outputs.loss
        total_loss += loss.detach().float()
        accelerator.backward(loss)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        predictions = outputs.logits.argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
        correct += (predictions == references).sum().item()
        seen += references.shape[0]
    print(f"train loss {total_loss.item() / max_train_steps:.4f}, accuracy {correct / seen:.4f}")


if __name__ == "__main__":
    main()
