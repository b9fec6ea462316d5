"""Token classification with transformers' Trainer, mixed precision and the fused optimizer."""
import torch
from transformers import (AutoModelForTokenClassification, RobertaConfig, Trainer,
                          TrainingArguments)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, n, labels):
        g = torch.Generator().manual_seed(0)
        self.rows = [torch.randint(5, 50000, (256,), generator=g) for _ in range(n)]
        self.labels = labels

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids = self.rows[i]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids % self.labels}


config = RobertaConfig(vocab_size=50265, num_hidden_layers=6, num_labels=9, max_position_embeddings=514, type_vocab_size=1)
model = AutoModelForTokenClassification.from_config(config)
training_args = TrainingArguments(
    output_dir="ner",
    per_device_train_batch_size=32,
    learning_rate=3e-5,
    weight_decay=0.01,
    warmup_steps=10,
    max_steps=60,
    bf16=True,
    optim="adamw_torch_fused",
    dataloader_num_workers=4,
    dataloader_pin_memory=True,
    logging_steps=50,
    save_strategy="no",
    eval_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=training_args, train_dataset=Sentences(2000, 9))
result = trainer.train()
print(result.metrics["train_samples_per_second"])
