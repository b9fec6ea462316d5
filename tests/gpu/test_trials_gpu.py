"""Every change of the catalogue on a device: it takes hold, and numbers stay what they were."""

import pytest

torch = pytest.importorskip("torch")

from opscope.model.trial import Correctness, TrialVerdict  # noqa: E402
from opscope.trials.catalog import CATALOG  # noqa: E402
from opscope.trials.outcome import TrialPlan  # noqa: E402
from opscope.trials.rounds import TrialRequest  # noqa: E402
from opscope.trials.trying import Trial  # noqa: E402

pytestmark = pytest.mark.gpu

MODEL = """
import torch
from torch import nn
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 256), nn.GELU(), nn.Linear(256, 10),
).cuda()
"""
TRAINING = (
    MODEL
    + """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
data = torch.utils.data.TensorDataset(torch.randn(640, 3, 32, 32), torch.randint(0, 10, (640,)))
for _ in range(10_000):
    for images, target in torch.utils.data.DataLoader(data, batch_size=64):
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(images.cuda()), target.cuda())
        loss.backward()
        optimizer.step()
"""
)
INFERENCE = (
    MODEL
    + """
images = torch.randn(64, 3, 32, 32, device="cuda")
model.eval()
def infer():
    with torch.no_grad():
        return model(images)
for _ in range(1_000_000):
    infer()
"""
)
ELSEWHERE = {"sdpa"}
OF_TRAINING = {"fused_optimizer", "set_to_none", "loader_workers"}
OF_INFERENCE = {"bf16_weights", "inference_mode"}


@pytest.mark.parametrize(
    ("program", "steps", "others"),
    [(TRAINING, "optimizer", OF_INFERENCE), (INFERENCE, "infer", OF_TRAINING)],
    ids=["training", "inference"],
)
def test_every_change_takes_hold(tmp_path, program, steps, others):
    script = tmp_path / "program.py"
    script.write_text(program)
    request = TrialRequest(kind="script", target=str(script), steps=steps)
    # What each process runs with is tried where advice expects something of it, or on request.
    asked = tuple(OF_TRAINING - others)
    result = Trial(TrialPlan(request, CATALOG, asked=asked, budget_s=400)).run()
    kept = {Correctness.IDENTICAL, Correctness.WITHIN_ROUNDING}
    wrong = [
        (one.name, one.verdict, one.correctness, one.reason, one.error)
        for one in result.variants
        if one.verdict is TrialVerdict.FAILED or one.correctness not in kept or not one.process_ratios
    ]
    assert wrong == [], "\n".join(map(str, wrong))
    assert len(result.variants) + len(result.not_tried) == len(CATALOG)
    not_tried = {one.name: one.reason for one in result.not_tried}
    assert set(not_tried) == ELSEWHERE | others, not_tried
