"""Fine-tune T5 on (synthetic) summarization pairs with Adafactor, as in many notebooks."""
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Adafactor, T5Config, T5ForConditionalGeneration

DEVICE = "cuda"
MAX_IN, MAX_OUT = 256, 64


class NewsSummaries(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(idx)
        n_src = int(torch.randint(80, MAX_IN, (), generator=g))
        n_tgt = int(torch.randint(16, MAX_OUT, (), generator=g))
        source = torch.zeros(MAX_IN, dtype=torch.long)
        source[:n_src] = torch.randint(3, 32000, (n_src,), generator=g)
        target = torch.zeros(MAX_OUT, dtype=torch.long)
        target[:n_tgt] = torch.randint(3, 32000, (n_tgt,), generator=g)
        return {"source_ids": source, "source_mask": (source != 0).long(), "target_ids": target}


def train(epoch, model, loader, optimizer):
    model.train()
    total = 0.0
    for step, data in enumerate(loader, 0):
        y = data["target_ids"].to(DEVICE, dtype=torch.long)
        labels = y.clone()
        labels[y == 0] = -100
        ids = data["source_ids"].to(DEVICE, dtype=torch.long)
        mask = data["source_mask"].to(DEVICE, dtype=torch.long)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        total += loss.item()
        if step % 20 == 0:
            print(f"Epoch: {epoch}, step {step}, loss: {loss.item():.4f}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return total / len(loader)


def main():
    torch.manual_seed(0)
    config = T5Config(vocab_size=32128, d_model=768, d_kv=64, d_ff=2048, num_layers=8, num_heads=12,
                      feed_forward_proj="gated-gelu", decoder_start_token_id=0, pad_token_id=0)
    model = T5ForConditionalGeneration(config).to(DEVICE)
    optimizer = Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)
    loader = DataLoader(NewsSummaries(16 * 80), batch_size=16, shuffle=True, num_workers=0)
    print("mean loss", train(0, model, loader, optimizer))


if __name__ == "__main__":
    main()
