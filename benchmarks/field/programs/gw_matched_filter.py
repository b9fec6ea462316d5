"""Search strain data of a gravitational-wave detector for binary mergers: matched filtering with a template bank.

Each segment is whitened by its own noise spectrum and correlated with every template; for each template the loudest
signal-to-noise ratio is kept. Segments come from page-locked memory, and nothing is read back before the end.
"""
import argparse
import math
import time

import torch
import torch.nn.functional as F

RATE = 4096.0          # Hz
SUN = 4.925491e-6      # mass of the sun in seconds


def template_bank(count, samples, f_low, device):
    """Conjugates of stationary-phase inspirals on positive frequencies, all with the amplitude f^(-7/6)."""
    half = samples // 2
    f = torch.arange(half, device=device, dtype=torch.float64) * (RATE / samples)
    inside = f >= f_low
    f = f.clamp(min=f_low)
    chirp = torch.linspace(1.0, 2.6, count, device=device, dtype=torch.float64) * SUN
    amplitude = torch.where(inside, f ** (-7 / 6), 0).float()
    amplitude /= amplitude.max()
    bank = torch.empty(count, half, dtype=torch.complex64, device=device)
    for part in torch.arange(count, device=device).split(256):
        phase = (3 / 128) * (math.pi * chirp[part, None] * f) ** (-5 / 3)
        phase = torch.remainder(phase, 2 * math.pi).float()
        bank[part] = torch.polar(amplitude.expand_as(phase), phase)
    return bank, amplitude


class MatchedFilter:
    def __init__(self, bank, amplitude, samples, chunk):
        self.bank, self.power, self.samples, self.chunk = bank, amplitude ** 2, samples, chunk
        # Negative frequencies stay zero: the correlation is complex, and its modulus needs no search over phase.
        self.spectrum = torch.zeros(chunk, samples, dtype=torch.complex64, device=bank.device)
        self.window = torch.hann_window(samples // 8, device=bank.device)

    def noise(self, strain):
        """Power spectrum by Welch's method, on the frequencies of the bank."""
        pieces = strain.unfold(0, len(self.window), len(self.window) // 2) * self.window
        psd = torch.fft.rfft(pieces).abs().square_().mean(0)
        return F.interpolate(psd[None, None, :-1], size=self.samples // 2, mode="linear")[0, 0]

    def loudest(self, strain, out):
        """The largest modulus of the correlation with each template."""
        psd = self.noise(strain)
        data = torch.fft.rfft(strain)[:-1] / psd
        data *= torch.rsqrt((self.power / psd).sum())
        for first in range(0, len(self.bank), self.chunk):
            rows = slice(first, first + self.chunk)
            torch.mul(self.bank[rows], data, out=self.spectrum[:, :self.samples // 2])
            series = torch.fft.ifft(self.spectrum, norm="forward")
            torch.linalg.vector_norm(series, math.inf, dim=1, out=out[rows])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--templates", type=int, default=4096)
    p.add_argument("--seconds", type=int, default=32)
    p.add_argument("--segments", type=int, default=150)
    p.add_argument("--chunk", type=int, default=1024)
    p.add_argument("--f-low", type=float, default=20.0)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()

    torch.manual_seed(0)
    samples = int(args.seconds * RATE)
    bank, amplitude = template_bank(args.templates, samples, args.f_low, args.device)
    segments = torch.randn(args.segments, samples)
    injected = torch.fft.irfft(F.pad(bank[args.templates // 3].conj().resolve_conj(), (0, 1)), n=samples)
    segments[args.segments // 2] += 12 * (injected / injected.norm()).cpu()
    segments = segments.pin_memory()

    search = MatchedFilter(bank, amplitude, samples, args.chunk)
    loudest = torch.empty(args.segments, args.templates, device=args.device)
    start = time.time()
    with torch.inference_mode():
        for i in range(args.segments):
            strain = segments[i].to(args.device, non_blocking=True)
            search.loudest(strain, loudest[i])
    values, templates = loudest.max(1)
    best = values.topk(3)
    print(f"{args.segments} segments in {time.time() - start:.2f} s")
    for value, segment in zip(best.values.tolist(), best.indices.tolist()):
        print(f"segment {segment} template {templates[segment].item()} loudness {value:.2f}")


if __name__ == "__main__":
    main()
