"""Speech recognition: log-mel features on the GPU, strided convolutions, a transformer, CTC."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Recognizer(nn.Module):
    def __init__(self, d=512):
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("mel", torch.rand(201, 80))
        self.conv = nn.Sequential(nn.Conv1d(80, d, 3, 2, 1), nn.GELU(), nn.Conv1d(d, d, 3, 2, 1), nn.GELU())
        layer = nn.TransformerEncoderLayer(d, 8, 2048, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.head = nn.Linear(d, 100)

    def forward(self, wave):
        spectrum = torch.stft(wave, 400, 160, window=self.window, return_complex=True).abs().pow(2)
        x = torch.log(spectrum.transpose(1, 2) @ self.mel + 1e-6)
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.head(self.encoder(x)).log_softmax(-1)


model = Recognizer().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(50):
    wave = torch.randn(16, 160000).cuda()
    text = torch.randint(1, 100, (16, 60)).cuda()
    out = model(wave)
    lengths = torch.full((16,), out.shape[1], dtype=torch.long)
    loss = F.ctc_loss(out.transpose(0, 1), text, lengths, torch.full((16,), 60, dtype=torch.long))
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 5 == 0:
        print(f"{step}: {loss.item():.3f}")
