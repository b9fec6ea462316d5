"""Sampling with a key-value cache: GPT-2, one prompt at a time, float32."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config()).to("cuda").eval()
for prompt in range(3):
    ids = torch.randint(0, 50000, (1, 24 + prompt), device="cuda")
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, min_new_tokens=60,
                         do_sample=True, top_k=50, temperature=0.8, pad_token_id=50256)
    print(out[0, -5:].tolist())
