"""Speculative decoding by hand: a small draft proposes five tokens, the large model checks them at once."""
import torch
from torch import nn
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

GAMMA = 5


class Speculator(nn.Module):
    def __init__(self):
        super().__init__()
        self.draft = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=384, n_head=6))
        self.target = GPT2LMHeadModel(GPT2Config(n_layer=24, n_embd=1024, n_head=16))

    def forward(self, ids, draft_cache, target_cache):
        """One round; returns the longer sequence and how many proposals were taken."""
        start, seq, probs = ids.shape[1], ids, []
        for _ in range(GAMMA):
            logits = self.draft(seq[:, draft_cache.get_seq_length():], past_key_values=draft_cache).logits[:, -1]
            p = torch.softmax(logits, -1)
            token = torch.multinomial(p, 1)
            probs.append(p.gather(1, token))
            seq = torch.cat([seq, token], 1)
        logits = self.target(seq[:, target_cache.get_seq_length():], past_key_values=target_cache).logits
        q = torch.softmax(logits[:, -GAMMA - 1:], -1)
        accepted = 0
        for i in range(GAMMA):
            token = seq[:, start + i]
            ratio = q[0, i, token] / probs[i][0]
            if torch.rand(1, device=ids.device) < ratio.clamp(max=1.0) * 2:
                accepted += 1
            else:
                break
        extra = torch.multinomial(q[:, accepted], 1)
        out = torch.cat([seq[:, :start + accepted], extra], 1)
        for cache in (draft_cache, target_cache):
            wrong = cache.get_seq_length() - start - accepted
            if wrong > 0:
                cache.crop(-wrong)
        return out, accepted


torch.manual_seed(0)
model = Speculator().half().cuda().eval()
ids = torch.randint(0, 50257, (1, 32), device="cuda")
draft_cache, target_cache, taken, rounds = DynamicCache(), DynamicCache(), 0, 60
with torch.inference_mode():
    for _ in range(rounds):
        ids, n = model(ids, draft_cache, target_cache)
        taken += n
print(ids.shape[1], "tokens,", taken / rounds, "taken per round")
