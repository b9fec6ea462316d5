"""Two steps of a program are watched on a device: it computes what it does alone, and the findings hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import opscope
from opscope.analysis.watched_steps import dataflow
from opscope.model.sidecar import read_sidecar

pytestmark = pytest.mark.gpu

# What is the same in each step, what is worked out twice in one, rounds that need not wait, a forward pass
# that runs again, and what looks like all that and is not.
PROGRAM = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(64, 64), nn.Linear(64, 64), nn.LayerNorm(64)
    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu().exp().tanh())

net, frozen = Net().cuda(), Net().cuda().requires_grad_(False)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
prompt = torch.randn(64, 64, device="cuda")

def step():
    table = torch.outer(torch.arange(64, device="cuda"), torch.arange(64, device="cuda")).cos()
    basis = torch.tensor([0.25] * 64, device="cuda").exp().cos()
    filled = torch.tensor([[0.5] * 64] * 64, device="cuda")
    text = frozen(prompt) * basis
    given = torch.randn(64, 64, device="cuda")
    accuracy = (given > 0).float().mean()
    noise = torch.distributions.Normal(given, 1.0).rsample()
    probe = nn.functional.scaled_dot_product_attention(*3 * [given[None, None]])
    hidden = checkpoint(net, given + text, use_reentrant=False) * table
    total, state = 0.0, torch.zeros(64, 64, device="cuda")
    for part in hidden.split([16, 16, 16, 8, 8]):
        scores = torch.softmax(part @ part.T + 1, -1)
        total = total + (scores @ part).tanh().square().sum()
    for _ in range(4):
        key = net.first(given).relu()
        state = torch.tanh(net.second(state) + key)
    loss = total + noise.mean() + state.square().mean() + (hidden @ filled).mean()
    for shift in (0.0, 1.0, 2.0):
        nn.functional.silu(net.first(given + shift).sin().cos()).mean().backward()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

for number in range(30):
    loss = step()
print(loss.item(), sum(one.double().sum().item() for one in net.parameters()))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "program.py").write_text(PROGRAM)
    alone, watched = (
        subprocess.run(
            [sys.executable, *command, "program.py"], cwd=folder, capture_output=True, text=True, check=False
        )
        for command in ([], ["-m", "opscope", "run", "--output-dir", "out"])
    )
    assert alone.returncode == watched.returncode == 0, alone.stderr + watched.stderr
    assert watched.stdout == alone.stdout
    return folder / "out"


def test_what_is_worked_out_again_is_seen(recorded: Path) -> None:
    found = read_sidecar(recorded / "trace.opscope.json").dataflow
    assert found is not None
    told = {(one.since.value, (one.text or "").partition(" = ")[0]) for one in found.repeated}
    assert {("step", one) for one in ("table", "basis", "filled", "text")} <= told
    assert {("call", "key"), ("forward", "")} <= told
    assert not {text for _, text in told} & {"given", "hidden", "state", "loss"}
    # And the operators are found again in what was recorded: whether they are worth a word, the host decides.
    with opscope.load(recorded / "trace.json") as session:
        watched = dataflow(session, session.scalar("SELECT trace_id FROM traces"), left_out=[])
        assert watched is not None
        made = [one.operators for one in found.repeated if not one.is_from_host]
        assert all(watched.found(operators).device_ns > 0 for operators in made)


def test_what_nothing_reads_is_seen(recorded: Path) -> None:
    found = read_sidecar(recorded / "trace.opscope.json").dataflow
    assert found is not None
    checked, unused = (
        [one for one in found.unused if one.line is not None and one.is_checked is of] for of in (True, False)
    )
    assert {(one.text or "").partition(" = ")[0] for one in unused} == {"accuracy", "probe"}
    assert all(one.is_whole for one in unused)
    assert [(one.text or "").partition(" = ")[0] for one in checked] == ["noise"]
    assert checked[0].is_of_distributions


def test_rounds_that_need_not_wait_are_told_from_others(recorded: Path) -> None:
    found = read_sidecar(recorded / "trace.opscope.json").dataflow
    assert found is not None
    loops = [(len(one.rounds), one.is_ragged, one.has_backward) for one in found.rounds if one.module is None]
    # Three parts of five are of one size.
    assert sorted(loops) == [(3, False, False), (3, False, True)]
