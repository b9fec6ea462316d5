"""Summaries of long documents with BART, beam search; documents sorted by length and padded per batch."""
import torch
from transformers import BartConfig, BartForConditionalGeneration

torch.manual_seed(0)
config = BartConfig(encoder_layers=6, decoder_layers=6, d_model=768, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
                    encoder_attention_heads=12, decoder_attention_heads=12)
device = torch.device("cuda")
model = BartForConditionalGeneration(config).to(device)
model.eval()

documents = sorted((torch.randint(4, 50000, (int(n),)) for n in torch.randint(200, 900, (32,))), key=len, reverse=True)
summaries = []
for start in range(0, len(documents), 8):
    batch = documents[start:start + 8]
    width = max(len(d) for d in batch)
    input_ids = torch.full((len(batch), width), config.pad_token_id)
    attention_mask = torch.zeros(len(batch), width, dtype=torch.long)
    for row, doc in enumerate(batch):
        input_ids[row, :len(doc)] = doc
        attention_mask[row, :len(doc)] = 1
    with torch.no_grad():
        out = model.generate(input_ids=input_ids.to(device), attention_mask=attention_mask.to(device), num_beams=4,
                             min_new_tokens=30, max_new_tokens=30, length_penalty=2.0, no_repeat_ngram_size=3)
    summaries.extend(out.cpu().tolist())
print(len(summaries), sum(len(s) for s in summaries) / len(summaries))
