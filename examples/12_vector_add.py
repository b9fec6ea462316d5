"""Profile an extension, bare and by a schedule (guide 004, (a) and (b): the vector addition).

The bare recording has one call, the first ever: its launch loads the kernel, which takes far longer than the
kernel. The schedule leaves the first calls out and records seven. Look at the two launch times, and at how
little the seven kernels differ. The extension is vector_add/add.cu, on a machine without a GPU add.cpp;
registered with torch, it is an operator, and its kernel is attributed to it.
"""

import torch

import opscope
from vector_add import load_add

SQL = """
SELECT min(d.duration_ns) / 1e3, max(d.duration_ns) / 1e3, count(DISTINCT o.operator_id),
    avg(o.duration_ns) / 1e3, avg(r.duration_ns) / 1e3
FROM operators o LEFT JOIN device_activities d ON d.operator_id = o.operator_id
LEFT JOIN runtime_calls r ON r.runtime_call_id = d.runtime_call_id
WHERE o.name IN ('vector_add::add', 'aten::add')"""


def say(title: str, session: opscope.Session) -> None:
    shortest_us, longest_us, calls, host_us, launch_us = session.query(SQL)[0]
    print(f"{title}: {calls} of {host_us:.1f} µs each on the host", end="")
    if launch_us is not None:
        print(f", the launch {launch_us:.1f} µs; kernels of {shortest_us:.2f}–{longest_us:.2f} µs", end="")
    print()


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add = load_add(device)
    input1, input2 = torch.randn(2, 1024000, device=device)

    with opscope.profile(wait=0, warmup=0, active=1) as profiler:
        output = add(input1, input2)
    say("bare", profiler.session)
    assert torch.equal(output, input1 + input2)

    with opscope.profile(wait=1, warmup=1, active=7) as profiler:
        for _ in range(10):
            add(input1, input2)
            profiler.step()
    say("by a schedule", profiler.session)
    for kernel in opscope.summarize(profiler.session).kernels:
        source = kernel.facts.location.file if kernel.facts and kernel.facts.location else "unknown"
        print(f"{kernel.name}: {kernel.calls} launches, source {source}")


if __name__ == "__main__":
    main()
