"""How much faster is each layer of a convolutional network in channels-last order? Needs a CUDA device.

    python benchmarks/gpu_layouts.py --output FILE.json
    python benchmarks/gpu_layouts.py --output FILE.json --device cpu      # a rehearsal, small

Forward, and forward with backward, of layers as networks hold them, in both orders and three types, measured
in turns: what a model of the gain of channels-last has to reproduce. Nothing in a recording says what the
kernels of the other order would take.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

from gpu_setup import as_it_is, environment_facts, in_turns, parser_of, tf32, write

Step = Callable[[], object]
ROUNDS, LEAST_S = 7, 0.02


def layers(scale: int) -> dict[str, tuple[Callable[[], Any], tuple[int, ...]]]:
    """Layers and the shapes of their inputs, as networks of images hold them."""
    from torch import nn

    batch = max(1, 64 // scale)

    def image(channels: int, pixels: int) -> tuple[int, ...]:
        return (batch, channels, max(8, pixels // scale), max(8, pixels // scale))

    return {
        "conv3x3 64": (lambda: nn.Conv2d(64, 64, 3, padding=1), image(64, 56)),
        "conv3x3 128": (lambda: nn.Conv2d(128, 128, 3, padding=1), image(128, 56)),
        "conv3x3 256": (lambda: nn.Conv2d(256, 256, 3, padding=1), image(256, 28)),
        "conv3x3 512": (lambda: nn.Conv2d(512, 512, 3, padding=1), image(512, 14)),
        "conv3x3 1024": (lambda: nn.Conv2d(1024, 1024, 3, padding=1), image(1024, 7)),
        "conv3x3 512 stride 2": (lambda: nn.Conv2d(512, 512, 3, 2, 1), image(512, 28)),
        "conv1x1 256": (lambda: nn.Conv2d(256, 64, 1), image(256, 56)),
        "conv1x1 512": (lambda: nn.Conv2d(512, 128, 1), image(512, 14)),
        "conv1x1 1024": (lambda: nn.Conv2d(1024, 2048, 1), image(1024, 7)),
        "conv1x1 2048": (lambda: nn.Conv2d(2048, 1024, 1), image(2048, 7)),
        "conv7x7 stem": (lambda: nn.Conv2d(3, 64, 7, stride=2, padding=3), image(3, 224)),
        "grouped 3x3 of 16": (lambda: nn.Conv2d(224, 224, 3, padding=1, groups=14), image(224, 56)),
        "depthwise 3x3": (lambda: nn.Conv2d(192, 192, 3, padding=1, groups=192), image(192, 56)),
        "depthwise 3x3 stride 2": (lambda: nn.Conv2d(96, 96, 3, 2, 1, groups=96), image(96, 112)),
        "depthwise 5x5": (lambda: nn.Conv2d(240, 240, 5, padding=2, groups=240), image(240, 28)),
        "depthwise 7x7": (lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), image(96, 56)),
        "batch norm 64": (lambda: nn.BatchNorm2d(64), image(64, 112)),
        "batch norm 128": (lambda: nn.BatchNorm2d(128), image(128, 56)),
        "batch norm 256": (lambda: nn.BatchNorm2d(256), image(256, 56)),
        "batch norm 512 of 28": (lambda: nn.BatchNorm2d(512), image(512, 28)),
        "batch norm 512": (lambda: nn.BatchNorm2d(512), image(512, 14)),
        "group norm 128": (lambda: nn.GroupNorm(32, 128), image(128, 64)),
        "batch norm 2048": (lambda: nn.BatchNorm2d(2048), image(2048, 7)),
        "relu": (nn.ReLU, image(64, 112)),
        "silu": (nn.SiLU, image(192, 56)),
        "max pool": (lambda: nn.MaxPool2d(3, 2, 1), image(64, 112)),
        "average pool": (lambda: nn.AdaptiveAvgPool2d(1), image(512, 7)),
        "upsample": (lambda: nn.Upsample(scale_factor=2), image(128, 32)),
    }


def step_of(make: Callable[[], Any], shape: tuple[int, ...], device: str, dtype: Any, *, last: bool,
            train: bool) -> Step:  # fmt: skip
    """A layer's forward, and backward if it trains, on an input of one order."""
    import torch

    order = torch.channels_last if last else torch.contiguous_format
    layer = make().to(device, dtype).to(memory_format=order).train(train)
    images = torch.randn(*shape, device=device, dtype=dtype).to(memory_format=order).requires_grad_(train)
    with torch.no_grad():
        gradient = torch.randn_like(layer(images)).contiguous(memory_format=order)

    def forward() -> object:
        with torch.no_grad():
            return layer(images)

    def both() -> object:
        output = layer(images)
        output.backward(gradient)
        return output

    return both if train else forward


def main() -> None:
    """Measure all layers and write."""
    import torch

    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    is_cuda = options.device.startswith("cuda")
    types = {"tf32": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
    results = []
    for (name, (make, shape)), (kind, dtype), train in itertools.product(
        layers(1 if is_cuda else 8).items(), types.items(), (False, True)
    ):
        torch.backends.cudnn.allow_tf32 = False
        with tf32() if kind == "tf32" else as_it_is():
            first, second = (
                step_of(make, shape, options.device, dtype, last=last, train=train) for last in (False, True)
            )
            samples = in_turns(first, second, as_it_is, rounds=ROUNDS, least_s=LEAST_S)
        contiguous_ns, last_ns = map(statistics.median, samples)
        results.append(
            {
                "layer": name,
                "shape": shape,
                "type": kind,
                "train": train,
                "contiguous_ns": contiguous_ns,
                "channels_last_ns": last_ns,
            }
        )
        print(
            f"{name:24} {kind:9} {'training' if train else 'forward':9} {contiguous_ns / 1e3:9.1f} us, "
            f"channels last {last_ns / contiguous_ns:.3f} of it"
        )
    write(options.output, {"environment": environment_facts(), "layers": results})


if __name__ == "__main__":
    main()
