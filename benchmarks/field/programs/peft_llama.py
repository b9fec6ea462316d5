import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

torch.manual_seed(42)
config = LlamaConfig(vocab_size=32000, hidden_size=1536, intermediate_size=4096, num_hidden_layers=12,
                     num_attention_heads=12, num_key_value_heads=4, max_position_embeddings=2048)
base = LlamaForCausalLM(config).to(torch.bfloat16)
lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, bias="none", task_type="CAUSAL_LM",
                  target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
model = get_peft_model(base, lora)
model.print_trainable_parameters()
model.to("cuda")
model.train()

# instruction data: prompt of 64 to 200 tokens, answer up to 384
examples = []
for _ in range(200):
    n, m = int(torch.randint(64, 200, ())), int(torch.randint(40, 184, ()))
    examples.append((torch.randint(3, 32000, (n + m,)), n))


def collate(batch):
    ids = torch.full((len(batch), 384), 2)
    labels = torch.full((len(batch), 384), -100)
    mask = torch.zeros(len(batch), 384, dtype=torch.long)
    for i, (tokens, n) in enumerate(batch):
        ids[i, :len(tokens)] = tokens
        labels[i, n:len(tokens)] = tokens[n:]
        mask[i, :len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


loader = DataLoader(examples, batch_size=4, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
scheduler = get_linear_schedule_with_warmup(optimizer, 5, 10000)
total_loss = 0
for step, batch in enumerate(loader):
    batch = {k: v.to("cuda") for k, v in batch.items()}
    outputs = model(**batch)
    loss = outputs.loss
    total_loss += loss.detach().float()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
print("train loss", (total_loss / len(loader)).item())
