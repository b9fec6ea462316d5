"""Calls that the installed torch records itself: none of them contradicts itself, most have a rule."""

import json
import warnings

import pytest

from opscope.operators.arguments import parse_arguments
from opscope.operators.operator_table import OPERATORS, cost_by_rules

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Calls of a training step of a small network with convolutions, attention, norms and losses."""
    torch = pytest.importorskip("torch")
    profiler = pytest.importorskip("torch.profiler")
    path = tmp_path_factory.mktemp("recorded") / "trace.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = _step(torch)
        activities = [profiler.ProfilerActivity.CPU]
        with profiler.profile(activities=activities, record_shapes=True) as profile:
            step()
        profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [_call(event) for event in events if event.get("cat") == "cpu_op"]


def _step(torch):
    nn, functional = torch.nn, torch.nn.functional
    convolution = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    layers = nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 8))
    encoder = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    table, head = nn.Embedding(11, 8), nn.Linear(8, 5)
    modules = (layers, encoder, table, head)
    optimizer = torch.optim.AdamW([p for module in modules for p in module.parameters()], foreach=True)

    def step():
        seen = layers(torch.rand(2, 3, 16, 16)).flatten(2).transpose(1, 2)
        tokens = torch.cat([table(torch.arange(6).expand(2, 6)), seen], 1)
        scores = head(encoder(tokens)).mean(1)
        loss = functional.cross_entropy(scores, torch.tensor([1, 2]))
        loss = loss + functional.mse_loss(functional.silu(scores), scores.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores.detach().topk(2)
        scores.detach().argmax(1).float().clamp_min(0.5).sum().item()

    return step


def _call(event):
    keys = {"shapes": "Dims", "types": "type", "strides": "Strides"}
    columns = {name: event["args"].get(f"Input {key}") for name, key in keys.items()}
    return parse_arguments(event["name"], **columns, concrete=event["args"].get("Concrete Inputs"))


def test_no_recorded_call_contradicts_itself(recorded):
    reasons = {
        (call.name, cost.reason)
        for call in recorded
        if (cost := cost_by_rules(call)) is not None and "contradict" in (cost.reason or "")
    }
    assert not reasons


def test_what_has_a_rule_has_a_cost(recorded):
    """But lists of tensors, whose types are not recorded, and ranges that a child writes."""
    operators = {name for name, one in OPERATORS.items() if one.results is not None}
    ruled = [call for call in recorded if call.stem in operators and not call.has_unrecorded_list]
    silent = {
        call.name
        for call in ruled
        if (cost := cost_by_rules(call)) is None
        or (cost.min_bytes is None and "list" not in (cost.reason or ""))
    }
    assert len({call.name for call in ruled}) > 30
    assert silent <= {"aten::arange"}
