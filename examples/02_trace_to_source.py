"""From a recorded trace to its top operators, and from an operator to its code (guide 000, steps 2 and 3).

The trace was recorded on an H200 and comes with opscope; `opscope.load` reads any other trace of
torch.profiler too. This takes neither torch nor a GPU. Look at how much device time has an operator and what
the rest is (here: kernels launched before the recording began), then at how one softmax kernel parallelizes,
with the numbers of this very run.
"""

import sys

import opscope
from opscope.cli import main as command_line


def main() -> None:
    trace = opscope.example_trace()
    with opscope.load(trace) as session:
        summary = opscope.summarize(session)
        assert all(check.holds for check in session.check())  # the sums agree to the nanosecond
    print(
        f"Device time {summary.device_time_ns / 1e6:.2f} ms, {summary.attributed_fraction:.1%} of operators"
    )
    for reason, time_ns in summary.unattributed_ns.items():
        print(f"  {time_ns / 1e6:.2f} ms without one: {reason}")
    for rank, operator in enumerate(summary.operators[:5], 1):
        where = operator.source.file if operator.source else "unknown"
        print(f"{rank}. {operator.name:24} {operator.self_device_fraction:6.1%}  {where}")
    print()
    sys.exit(command_line(["explain", "aten::_softmax", "--trace", str(trace)]))


if __name__ == "__main__":
    main()
