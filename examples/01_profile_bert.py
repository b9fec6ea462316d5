"""Profile a configuration of BERT and read its statistics file (guide 000: which operators take the time?).

`opscope profile bert` leaves three files per configuration: statistics (JSON), a report (Markdown) and the
trace. The first is read below as the guide reads it. On a machine without a GPU the model is small, `cuda_*`
times are 0 and operators are ranked by CPU time. Look at the file that each operator comes from. A folder
for the files can be given; without one they go into a temporary one.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

from opscope.cli import main as opscope


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="opscope-example-"))
    batch_size, seq_len, size = 8, 128, []
    if not torch.cuda.is_available():
        batch_size, seq_len, size = 2, 32, ["--param", "layers=2", "hidden=128"]
    sizes = ["--batch-sizes", str(batch_size), "--seq-lens", str(seq_len), *size]
    code = opscope(["profile", "bert", *sizes, "--skip-benchmark", "--output-dir", str(folder), "--force"])
    if code:
        sys.exit(code)

    stats = json.loads((folder / f"profiling_stats_bs{batch_size}_seq{seq_len}.json").read_text("utf-8"))
    side = "cuda" if stats["summary"]["total_cuda_time_ms"] else "cpu"
    print(f"\nTotal {side} time: {stats['summary'][f'total_{side}_time_ms']:.2f} ms")
    for rank, operator in enumerate(stats["top_aten_operators"][:3], 1):
        print(f"{rank}. {operator['name']}: {operator[f'{side}_time_total_ms']:.2f} ms")
        print(f"   file: {operator['potential_cuda_file'] or operator['native_function']['file']}")
        print(f"   native function: {operator['native_function']['schema'][:90]}")
    for category, total in list(stats["operator_categories"].items())[:3]:
        print(f"{category}: {total['fraction']:.1%}")


if __name__ == "__main__":
    main()
