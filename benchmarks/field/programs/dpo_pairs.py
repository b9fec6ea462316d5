"""Direct preference optimization of a small Llama with Accelerate, on pairs of answers of different lengths."""
import copy
import random
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

PAD = 0


@dataclass
class Arguments:
    hidden_size: int = field(default=1024)
    intermediate_size: int = field(default=2816)
    layers: int = field(default=8)
    heads: int = field(default=16)
    vocab_size: int = field(default=32000)
    max_length: int = field(default=512, metadata={"help": "pairs are padded or cut to this"})
    pairs: int = field(default=240)
    batch_size: int = field(default=8)
    epochs: int = field(default=2)
    beta: float = field(default=0.1)
    learning_rate: float = field(default=5e-6)
    max_grad_norm: float = field(default=1.0)
    logging_steps: int = field(default=10)
    mixed_precision: str = field(default="bf16")
    seed: int = field(default=42)


def make_pairs(args):
    """A prompt and two answers, as token ids; what a chat template and a tokenizer would leave."""
    rng = random.Random(args.seed)
    longest = args.max_length

    def tokens(low, high):
        return [rng.randrange(3, args.vocab_size) for _ in range(rng.randrange(longest * low // 100, longest * high // 100))]

    return [{"index": i, "prompt": tokens(5, 25), "chosen": tokens(10, 45), "rejected": tokens(10, 45)}
            for i in range(args.pairs)]


class PairCollator:
    def __init__(self, max_length):
        self.max_length = max_length

    def pad(self, prompts, answers):
        ids = torch.full((len(prompts), self.max_length), PAD)
        labels = torch.full((len(prompts), self.max_length), -100)
        for row, (prompt, answer) in enumerate(zip(prompts, answers)):
            sequence = torch.tensor((prompt + answer)[:self.max_length])
            ids[row, :len(sequence)] = sequence
            labels[row, len(prompt):len(sequence)] = sequence[len(prompt):]
        return ids, (ids != PAD).long(), labels

    def __call__(self, rows):
        batch = {"index": torch.tensor([row["index"] for row in rows])}
        for side in ("chosen", "rejected"):
            ids, mask, labels = self.pad([row["prompt"] for row in rows], [row[side] for row in rows])
            batch[f"{side}_input_ids"], batch[f"{side}_attention_mask"] = ids, mask
            batch[f"{side}_labels"] = labels
        return batch


def sequence_logps(model, ids, mask, labels):
    """Log probability of each answer, summed over its tokens."""
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    logits, labels = logits[:, :-1].float(), labels[:, 1:]
    logps = F.log_softmax(logits, dim=-1)
    token_logps = torch.gather(logps, 2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (token_logps * (labels != -100)).sum(-1)


def pair_logps(model, batch):
    chosen = sequence_logps(model, batch["chosen_input_ids"], batch["chosen_attention_mask"], batch["chosen_labels"])
    rejected = sequence_logps(model, batch["rejected_input_ids"], batch["rejected_attention_mask"],
                              batch["rejected_labels"])
    return chosen, rejected


def dpo_loss(policy, reference, beta):
    margins = beta * ((policy[0] - reference[0]) - (policy[1] - reference[1]))
    return -F.logsigmoid(margins).mean(), margins


def main():
    args = HfArgumentParser(Arguments).parse_args_into_dataclasses()[0]
    set_seed(args.seed)
    accelerator = Accelerator(mixed_precision=args.mixed_precision)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=args.vocab_size, hidden_size=args.hidden_size, intermediate_size=args.intermediate_size,
        num_hidden_layers=args.layers, num_attention_heads=args.heads, num_key_value_heads=args.heads,
        max_position_embeddings=args.max_length, pad_token_id=PAD))
    ref_model = copy.deepcopy(model).eval().to(accelerator.device)
    ref_model.requires_grad_(False)

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.0)
    pairs = make_pairs(args)
    loader = DataLoader(pairs, batch_size=args.batch_size, shuffle=True, drop_last=True,
                        collate_fn=PairCollator(args.max_length))
    total = args.epochs * len(loader)
    scheduler = get_cosine_schedule_with_warmup(optimizer, total // 10, total)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    step = 0
    for epoch in range(args.epochs):
        for batch in loader:
            policy = pair_logps(model, batch)
            with torch.no_grad():
                reference = pair_logps(ref_model, batch)
            loss, margins = dpo_loss(policy, reference, args.beta)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % args.logging_steps == 0:
                accuracy = (margins > 0).float().mean()
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f} margin {margins.mean().item():.4f} "
                                  f"accuracy {accuracy.item():.2f}")


if __name__ == "__main__":
    main()
