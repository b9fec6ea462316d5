"""Embeds every protein of a FASTA file with an ESM-2 (150M) and saves the mean representation of some layers, one file each."""
import argparse
import os
import tempfile
import time

import numpy as np
import torch
from transformers import EsmConfig, EsmModel

ALPHABET = ["<cls>", "<pad>", "<eos>", "<unk>"] + list("LAGVSERTIDPKQNFYWMHCXBUZO.-") + ["<null_1>", "<mask>"]
TO_ID = {token: i for i, token in enumerate(ALPHABET)}


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fasta", default=None, help="made up when missing")
    parser.add_argument("--out", default=None)
    parser.add_argument("--proteins", type=int, default=4500)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--max-length", type=int, default=1022)
    parser.add_argument("--layers", type=int, nargs="+", default=[20, 30])
    return parser.parse_args()


def make_fasta(path, n):
    rng = np.random.default_rng(7)
    letters = np.array(list("LAGVSERTIDPKQNFYWMHC"))
    with open(path, "w") as f:
        for i in range(n):
            length = int(np.clip(rng.lognormal(5.7, 0.6), 30, 1500))
            seq = "".join(rng.choice(letters, length))
            f.write(f">sp|P{i:05d}|PROT{i} synthetic OS=None\n")
            for at in range(0, length, 60):
                f.write(seq[at:at + 60] + "\n")


def read_fasta(path):
    records, name, lines = [], None, []
    with open(path) as f:
        for line in f:
            line = line.strip()
            if line.startswith(">"):
                if name is not None:
                    records.append((name, "".join(lines)))
                name, lines = line[1:].split()[0].replace("|", "_"), []
            else:
                lines.append(line)
    records.append((name, "".join(lines)))
    return records


def tokenize(seqs):
    """<cls> residues <eos>, padded to the longest of the batch."""
    longest = max(len(s) for s in seqs) + 2
    ids = torch.full((len(seqs), longest), TO_ID["<pad>"], dtype=torch.long)
    for i, seq in enumerate(seqs):
        tokens = [TO_ID["<cls>"]] + [TO_ID.get(c, TO_ID["<unk>"]) for c in seq] + [TO_ID["<eos>"]]
        ids[i, :len(tokens)] = torch.tensor(tokens)
    return ids, (ids != TO_ID["<pad>"]).long()


def build_model():
    # facebook/esm2_t30_150M_UR50D
    config = EsmConfig(
        vocab_size=33, mask_token_id=32, pad_token_id=1, hidden_size=640, num_hidden_layers=30, num_attention_heads=20,
        intermediate_size=2560, max_position_embeddings=1026, position_embedding_type="rotary", token_dropout=True,
        emb_layer_norm_before=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-5)
    return EsmModel(config, add_pooling_layer=False)


def main():
    args = parse_args()
    torch.manual_seed(0)
    folder = tempfile.mkdtemp(prefix="esm_")
    fasta = args.fasta or os.path.join(folder, "proteins.fasta")
    out_dir = args.out or os.path.join(folder, "embeddings")
    os.makedirs(out_dir, exist_ok=True)
    if args.fasta is None:
        make_fasta(fasta, args.proteins)

    model = build_model().cuda()
    model.eval()

    records = [(name, seq[:args.max_length]) for name, seq in read_fasta(fasta)]
    print(f"{len(records)} proteins, {sum(len(s) for _, s in records)} residues -> {out_dir}")

    start, residues = time.time(), 0
    with torch.no_grad():
        for at in range(0, len(records), args.batch_size):
            batch = records[at:at + args.batch_size]
            ids, mask = tokenize([seq for _, seq in batch])
            ids, mask = ids.cuda(), mask.cuda()
            out = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            for i, (name, seq) in enumerate(batch):
                result = {"label": name, "mean_representations": {}}
                for layer in args.layers:
                    # without <cls> and <eos>
                    result["mean_representations"][layer] = out.hidden_states[layer][i, 1:len(seq) + 1].mean(0).cpu()
                torch.save(result, os.path.join(out_dir, f"{name}.pt"))
                residues += len(seq)
            if at // args.batch_size % 20 == 0:
                print(f"{at + len(batch)}/{len(records)}  {residues / (time.time() - start):.0f} residues/s", flush=True)
    print(f"done in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
