"""Time one call: cold, without waiting, with CUDA events, by opscope (guides 001 and 002: how to time?).

On a GPU a call returns when its kernel is queued, so a clock on the host that does not wait for the GPU sees
the launch and not the work. The first call also pays for loading and initialization. Look at how far apart
the lines are. On a CPU a call returns when it is done: there only the missing warm-up is wrong.
"""

import time

import torch

import opscope


def host_ms(function, x, *, synchronize: bool) -> float:
    start = time.perf_counter()
    function(x)
    if synchronize and x.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def event_ms(function, x) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function(x)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def main() -> None:
    device, size = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 1024)
    x = torch.randn(size, size, device=device)
    print(f"torch.square of {size} x {size} float32 on {device}")
    print(f"first call, not synchronized  {host_ms(torch.square, x, synchronize=False):8.3f} ms   wrong")
    for _ in range(5):
        torch.square(x)
    print(f"warm call, not synchronized   {host_ms(torch.square, x, synchronize=False):8.3f} ms", end="   ")
    print("wrong: only the launch" if x.is_cuda else "right, as a CPU is synchronous")
    print(f"warm call, synchronized       {host_ms(torch.square, x, synchronize=True):8.3f} ms   one sample")
    if x.is_cuda:
        print(f"warm call, CUDA events        {event_ms(torch.square, x):8.3f} ms   one sample")
    (row,) = opscope.bench({"square": torch.square}, inputs=x, time_budget_s=0.3, ceilings=False).rows
    low_ms, high_ms = (bound / 1e6 for bound in row.interval_ns)
    print(f"opscope.bench, median         {row.median_ns / 1e6:8.3f} ms   ", end="")
    print(f"95 % interval {low_ms:.3f}–{high_ms:.3f} ms of {len(row.samples_ns)} samples")


if __name__ == "__main__":
    main()
