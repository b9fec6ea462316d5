"""Classification with transformers' Trainer, default arguments, BERT-base without pretrained weights."""
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)


class Reviews(torch.utils.data.Dataset):
    def __init__(self, n=640):
        self.ids = torch.randint(5, 30000, (n, 128))
        self.labels = torch.randint(0, 2, (n,))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones_like(self.ids[i]), "labels": self.labels[i]}


args = TrainingArguments(output_dir="out", per_device_train_batch_size=16, max_steps=40, report_to=[],
                         save_strategy="no", logging_steps=10, disable_tqdm=True)
trainer = Trainer(model=BertForSequenceClassification(BertConfig()), args=args, train_dataset=Reviews())
trainer.train()
