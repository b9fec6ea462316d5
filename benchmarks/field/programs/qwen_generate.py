"""Sample answers with a small Qwen2 for best-of-n, with a watcher of banned words and repetitions."""
import torch
from transformers import (LogitsProcessor, LogitsProcessorList, Qwen2Config, Qwen2ForCausalLM, StoppingCriteria,
                          StoppingCriteriaList)

NEW_TOKENS, N = 32, 16


class NoRecentRepeats(LogitsProcessor):
    """Lower what was said within the last tokens, row by row."""

    def __init__(self, window=24, penalty=4.0):
        self.window, self.penalty = window, penalty

    def __call__(self, input_ids, scores):
        for row in range(input_ids.shape[0]):
            for token in set(input_ids[row, -self.window:].tolist()):
                scores[row, token] -= self.penalty
        return scores


class BannedSeen(StoppingCriteria):
    def __init__(self, banned, prompt_len):
        self.banned, self.prompt_len = banned, prompt_len
        self.hits = 0

    def __call__(self, input_ids, scores, **kwargs):
        for token in input_ids[:, -1]:
            if token.item() in self.banned:
                self.hits += 1
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


torch.manual_seed(0)
config = Qwen2Config(vocab_size=50000, hidden_size=896, intermediate_size=3072, num_hidden_layers=16,
                     num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=1024,
                     bos_token_id=None, eos_token_id=None, pad_token_id=0)
model = Qwen2ForCausalLM(config).to("cuda", dtype=torch.float16).eval()
processors = LogitsProcessorList([NoRecentRepeats()])
banned = set(range(100, 164))

answers = []
for question in range(16):
    prompt = torch.randint(200, 50000, (1, 96)).repeat(N, 1).to("cuda")
    criteria = BannedSeen(banned, prompt.shape[1])
    with torch.no_grad():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=50, temperature=0.8,
                             max_new_tokens=NEW_TOKENS, logits_processor=processors,
                             stopping_criteria=StoppingCriteriaList([criteria]))
    answers.append(out[:, prompt.shape[1]:].cpu())
    print(f"question {question}: {criteria.hits} banned words, answers of {out.shape[1] - 96} tokens")
print(torch.stack(answers).shape)
