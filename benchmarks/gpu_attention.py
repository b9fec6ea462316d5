"""How long does one kernel of attention take, by type, mask, head size and length? Needs a CUDA device.

    python benchmarks/gpu_attention.py --output FILE.json
    python benchmarks/gpu_attention.py --output FILE.json --device cpu      # a rehearsal, small

scaled_dot_product_attention forward, and forward with backward, as its own choice of a kernel runs it: what a
model of the gain of one kernel in place of composed attention has to reproduce. A mask is one for all of a
batch, added to the scores, and needs no gradient.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

from gpu_setup import environment_facts, loop_ns, parser_of, release, steps_of_a_sample, write

ROUNDS, LEAST_S = 3, 0.015
TOKENS, HEADS = 1 << 18, 16  # of all heads together, so that a call fills the device at any length
LENGTHS, HEAD_SIZES = (128, 196, 256, 512, 1024, 2048), (32, 64, 128)


def attention(dtype: Any, device: str, *, length: int, size: int, tokens: int, masked: bool,
              train: bool) -> Callable[[], object]:  # fmt: skip
    """A call of attention on random operands, with its gradients if it trains."""
    import torch

    shape = (max(1, tokens // length // HEADS), HEADS, length, size)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=train) for _ in range(3))
    mask = torch.randn(1, HEADS, length, length, device=device, dtype=dtype) if masked else None
    gradient = torch.randn(shape, device=device, dtype=dtype)

    def step() -> object:
        output = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if train:
            output.backward(gradient)
        return output

    return step


def main() -> None:
    """Measure all calls and write."""
    import torch

    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    is_cuda, results = options.device.startswith("cuda"), []
    tokens, lengths = (TOKENS, LENGTHS) if is_cuda else (1024, (32, 49))
    types = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    for (kind, dtype), masked, size, length in itertools.product(
        types.items(), (False, True), HEAD_SIZES, lengths
    ):
        times_ns = []
        for train in (False, True):
            step = attention(
                dtype, options.device, length=length, size=size, tokens=tokens, masked=masked, train=train
            )
            count = steps_of_a_sample(step, LEAST_S)
            times_ns.append(statistics.median(loop_ns(step, count) for _ in range(ROUNDS)))
        heads = max(1, tokens // length // HEADS) * HEADS
        entry = {"type": kind, "masked": masked, "head_size": size, "length": length, "heads": heads}
        results.append(entry | {"forward_ns": times_ns[0], "backward_ns": times_ns[1] - times_ns[0]})
        print(
            f"{kind:9} {'mask' if masked else '':4} {heads:5} heads of {length:4} x {size:3}: "
            f"{times_ns[0] / 1e3:9.1f} us, backward {results[-1]['backward_ns'] / 1e3:9.1f} us"
        )
        release()
    write(options.output, {"environment": environment_facts(), "calls": results})


if __name__ == "__main__":
    main()
