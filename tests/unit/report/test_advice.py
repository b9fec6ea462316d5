"""What the first screen says of a change: its gain if that is known, its code if that is whole."""

from __future__ import annotations

import pytest

from opscope.advice.rules import rule_book
from opscope.model.finding import Finding, Severity
from opscope.report.advice import gain_text, short_edit


def finding(change: str | None = None, interval: tuple[float, float] | None = None) -> Finding:
    return Finding(
        "advice.x",
        Severity.INFO,
        "A message.",
        estimated_gain_ns_per_step=2e6,
        gain_interval_ns_per_step=interval,
        change=change,
    )


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (None, "−2.00 ms a step"),
        ((1e6, 3e6), "−2.00 ms a step"),
        ((1e6, 3.1e6), "unknown, try it"),
        ((0.0, 3e6), "unknown, try it"),
    ],
)
def test_a_gain_known_to_no_better_than_a_factor_of_three_is_no_number(
    interval: tuple[float, float] | None, text: str
) -> None:
    assert gain_text(finding(interval=interval), "a step") == text


@pytest.mark.parametrize(
    ("rule", "edit"),
    [
        ("foreach_optimizer", "optimizer = torch.optim.AdamW(model.parameters(), ..., fused=True)"),
        ("layout_copies", "model = torch.compile(model)"),
        ("launch_bound", 'model = torch.compile(model, mode="reduce-overhead")'),
        ("reduced_precision", 'with torch.autocast("cuda", dtype=torch.bfloat16): loss = model(batch)'),
        (
            "pageable_copy",
            'loader = DataLoader(dataset, ..., pin_memory=True); batch = batch.to("cuda", non_blocking=True)',
        ),
        (
            "layout_conversion",
            "model = model.to(memory_format=torch.channels_last); "
            "batch = batch.to(memory_format=torch.channels_last)",
        ),
        ("host_copies", None),
        ("host_sync", None),
        ("recompilation", None),
    ],
)
def test_code_is_whole_or_not_there(rule: str, edit: str | None) -> None:
    assert short_edit(finding(rule_book().rules[f"advice.{rule}"].change)) == edit
