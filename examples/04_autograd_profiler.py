"""The autograd profiler, by itself and as opscope's engine (guides 001 and 003: torch.autograd.profiler).

The guides write `use_cuda=True`; that is `use_device="cuda"` today. With `engine="autograd"` opscope drives
the same profiler and reads the trace it writes. Look at both lists: the same operators, of which square
calls pow, and pow launches the kernel.
"""

import torch

import opscope


def main() -> None:
    device, size = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 1024)
    x = torch.randn(size, size, device=device)
    torch.square(x)

    with torch.autograd.profiler.profile(use_device=None if device == "cpu" else device) as recorded:
        torch.square(x)
    print("torch.autograd.profiler:")
    for event in recorded.key_averages():
        if event.key.startswith("aten::"):
            print(f"  {event.key:20} self CPU {event.self_cpu_time_total:9.1f} µs, calls {event.count}")

    with opscope.profile(warmup=1, active=1, engine="autograd") as profiler:
        for _ in range(profiler.total_steps):
            torch.square(x)
            profiler.step()
    print("opscope, engine autograd:")
    for operator in opscope.summarize(profiler.session).operators:
        cpu_us, device_us = operator.self_cpu_ns / 1e3, operator.self_device_ns / 1e3
        kernels = f"kernels {operator.kernel_launches}, {device_us:.1f} µs"
        print(f"  {operator.name:20} self CPU {cpu_us:9.1f} µs, calls {operator.calls}, {kernels}")


if __name__ == "__main__":
    main()
