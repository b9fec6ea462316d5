"""Record parts of each step (guide 004, (c): toggle_collection_dynamic, and its types one to four).

Each step makes two inputs and adds them. `p.off()` records nothing of its block, `p.only("cuda")` kernels
without the operators that launch them, `p.only("cpu")` operators without their kernels. Look at what each
type lacks, and at the findings: what is recorded by half cannot be put together again. The guide's type four
switches on what is on already, so it records everything.
"""

from contextlib import nullcontext

import torch

import opscope
from vector_add import load_add

TYPES = {
    "off, then only CUDA": (lambda p: p.off(), lambda p: p.only("cuda")),
    "1: off": (lambda p: p.off(), lambda p: p.off()),
    "2: off, then only CPU": (lambda p: p.off(), lambda p: p.only("cpu")),
    "3: off, then both": (lambda p: p.off(), lambda p: nullcontext()),
    "4: both": (lambda p: nullcontext(), lambda p: nullcontext()),
}
CALLS = "SELECT name, count(*) FROM operators WHERE depth = 0 GROUP BY name ORDER BY name"
KERNELS = "SELECT count(*), count(operator_id) FROM device_activities"


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add = load_add(device)
    for title, (while_making, while_adding) in TYPES.items():
        with opscope.profile(wait=1, warmup=1, active=7) as profiler:
            for _ in range(10):
                with while_making(profiler):
                    input1 = torch.randn(1024000, device=device)
                    input2 = torch.randn(1024000, device=device)
                with while_adding(profiler):
                    add(input1, input2)
                profiler.step()
        calls = (
            ", ".join(f"{count} × {name}" for name, count in profiler.session.query(CALLS)) or "no operators"
        )
        kernels, attributed = profiler.session.query(KERNELS)[0]
        print(f"{title:20} {calls}; {kernels} kernels, {attributed} of them with an operator")
        for finding in profiler.session.findings():
            if finding.code == "capture.partial_collection":
                print(f"{'':20} {finding.severity.value}: {finding.message}")


if __name__ == "__main__":
    main()
