import argparse
import torch
import torch.nn as nn
import torchaudio
from torch.utils.data import DataLoader, Dataset


class Utterances(Dataset):
    """Waveforms of 3 to 8 seconds, 16 kHz; transcripts of characters."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(1)
        self.seconds = torch.rand(n, generator=g) * 5 + 3
        self.noise = torch.randn(16000 * 8, generator=g)

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, i):
        length = int(self.seconds[i] * 16000)
        wave = self.noise[:length] * 0.1 + torch.sin(torch.arange(length) * (0.01 + 0.001 * (i % 50)))
        return wave, torch.randint(1, 29, (int(self.seconds[i] * 10),))


class Collate:
    def __init__(self):
        self.mel = torchaudio.transforms.MelSpectrogram(16000, n_fft=512, win_length=400, hop_length=160, n_mels=80)

    def __call__(self, batch):
        feats = [torch.log(self.mel(w) + 1e-6).T for w, _ in batch]
        lengths = torch.tensor([len(f) for f in feats])
        targets = torch.cat([t for _, t in batch])
        target_lengths = torch.tensor([len(t) for _, t in batch])
        return nn.utils.rnn.pad_sequence(feats, batch_first=True), lengths, targets, target_lengths


class Recognizer(nn.Module):
    def __init__(self, d=256, layers=8):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv1d(80, d, 3, 2, 1), nn.ReLU(), nn.Conv1d(d, d, 3, 2, 1), nn.ReLU())
        self.encoder = torchaudio.models.Conformer(d, 4, 4 * d, layers, depthwise_conv_kernel_size=31, dropout=0.1)
        self.out = nn.Linear(d, 29)

    def forward(self, x, lengths):
        x = self.sub(x.transpose(1, 2)).transpose(1, 2)
        lengths = ((lengths + 1) // 2 + 1) // 2
        x, lengths = self.encoder(x, lengths)
        return self.out(x).log_softmax(-1), lengths


def main(args):
    torch.manual_seed(0)
    loader = DataLoader(Utterances(args.steps * args.batch), batch_size=args.batch, shuffle=True, collate_fn=Collate(),
                        num_workers=args.workers, pin_memory=True)
    model = Recognizer().cuda()
    optim = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(optim, 5e-4, total_steps=100000)
    ctc = nn.CTCLoss(zero_infinity=True)
    for i, (x, lengths, targets, target_lengths) in enumerate(loader):
        x, lengths = x.cuda(non_blocking=True), lengths.cuda(non_blocking=True)
        targets, target_lengths = targets.cuda(non_blocking=True), target_lengths.cuda(non_blocking=True)
        logp, out_lengths = model(x, lengths)
        loss = ctc(logp.transpose(0, 1), targets, out_lengths, target_lengths)
        optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optim.step()
        sched.step()
        if i % 20 == 0:
            print(f"step {i} loss {loss.item():.3f} lr {sched.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=4)
    main(parser.parse_args())
