"""Loops of the program's own, part by part."""

from __future__ import annotations

from typing import Any

from case_tables import cases

from .conftest import MS, Program, codes, host, told, trace


@cases("case", "is_told")
def test_a_loop_over_parts_is_told(advise_on: Program, case: dict[str, Any], is_told: bool) -> None:
    program, phase, last = trace(), case.get("phase"), case.get("last", "aten::index")
    for number in range(2):
        began = 5_000 * number
        program.step(number + 1, began, 4_000).operator("aten::linear", began + 5, 20)
        at = began + 100
        if phase is not None:
            program.event("user_annotation", phase, at - 5, 3_000, 1, {})
        for _ in range(case.get("rounds", 16)):
            for name in ("aten::sub", "aten::exp", "aten::sum", last):
                program.operator(name, at, 20).launch(at + 5).kernel("kernel", at + 20, 2)
                at += 40
    found = advise_on(program, hosts=[host(case.get("device_ms", 1) * MS, 3 * MS, launches=64, steps=2)])
    assert ("loop" in codes(found)) is is_told
    if is_told:
        words = (
            "16 rounds of the same 4 operators (aten::sub, aten::exp, aten::sum and aten::index)",
            "results = function(parts)",
        )
        assert not told(found, "loop", *words, has_gain=True).is_gain_known
