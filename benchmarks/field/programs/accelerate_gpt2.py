"""Language model training with accelerate: gradient accumulation, clipping, cosine schedule."""
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

torch.manual_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=4)
model = GPT2LMHeadModel(GPT2Config(n_embd=512, n_layer=8, n_head=8))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
data = DataLoader(TensorDataset(torch.randint(0, 50257, (1600, 256))), batch_size=8, shuffle=True)
schedule = get_cosine_schedule_with_warmup(optimizer, 10, 400)
model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
model.train()
for step, (ids,) in enumerate(data):
    with accelerator.accumulate(model):
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if step % 20 == 0:
        accelerator.print(step, loss.item())
