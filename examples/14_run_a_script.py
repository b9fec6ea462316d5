"""Profile a script without changing it: `opscope run` (guides 001, 003 and 004, editing nothing).

The script below knows nothing of opscope. Its steps are recognized by `optimizer.step`: the first is never
recorded, two more warm the profiler up, the next six are recorded. Its exit code is passed on, and what was
recorded is kept even if it fails. A folder for the files can be given. Look at the six steps.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(9):
    x = torch.randn(512, 64, device=device)
    loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"the script's own output: loss {loss.item():.1f}")
"""


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="opscope-example-"))
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    options = ["--quiet", "--force", "--output-dir", str(folder / "recorded")]
    print("$ opscope run train.py", flush=True)
    code = subprocess.run(
        [sys.executable, "-m", "opscope", "run", *options, str(script)], check=False
    ).returncode
    print(f"exit code {code}")
    analysis = json.loads((folder / "recorded" / "analysis.json").read_text("utf-8"))
    for step in analysis["steps"]:
        duration_ms, device_ms = step["duration_ns"] / 1e6, step["device_ns"] / 1e6
        print(f"step {step['step']}: {duration_ms:.2f} ms, of the GPU {device_ms:.2f} ms")
    for operator in analysis["top_operators"][:3]:
        print(f"{operator['name']}: {operator['calls']} calls")


if __name__ == "__main__":
    main()
