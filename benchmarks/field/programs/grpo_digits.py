"""GRPO from scratch: a small GPT-2 learns to write tokens that sum to zero modulo ten."""
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
V, PROMPTS, GROUP, LP, LG = 128, 16, 8, 8, 20
policy = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=512, n_layer=6, n_head=8, n_positions=64,
                                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).cuda()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)


@torch.no_grad()
def rollout(prompt):
    ids, past, cur = prompt, None, prompt
    for _ in range(LG):
        out = policy(input_ids=cur, past_key_values=past, use_cache=True)
        past = out.past_key_values
        cur = torch.multinomial(F.softmax(out.logits[:, -1], -1), 1)
        ids = torch.cat([ids, cur], 1)
    return ids


def logprobs(ids):
    logits = policy(input_ids=ids, use_cache=False).logits[:, LP - 1:-1]
    return torch.log_softmax(logits, -1).gather(-1, ids[:, LP:, None]).squeeze(-1)


def reward_fn(completions):
    rewards = []
    for row in completions.tolist():
        total = sum(t % 10 for t in row)
        rewards.append(1.0 - (total % 10) / 10)
    return torch.tensor(rewards)


history = []
for it in range(30):
    prompt = torch.randint(0, V, (PROMPTS, LP)).repeat_interleave(GROUP, 0).cuda()
    ids = rollout(prompt)
    rewards = reward_fn(ids[:, LP:]).cuda()
    grouped = rewards.view(PROMPTS, GROUP)
    adv = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    lp = logprobs(ids)
    ratio = torch.exp(lp - lp.detach())
    loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    history.append(rewards.mean().item())
print(sum(history[-5:]) / 5)
