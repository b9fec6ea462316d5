"""All probes together: on a machine of files, and when probes fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from opscope.toolchain.doctor import gather
from opscope.toolchain.doctor.diagnosis import diagnose
from opscope.toolchain.doctor.facts import CounterFacts, DriverFacts, Facts, TorchFacts
from opscope.toolchain.doctor.gpu_probes import DeviceInventory
from opscope.toolchain.doctor.surroundings import Surroundings

Make = Callable[..., Surroundings]


def _no_versions(capability: str) -> tuple[str | None, str | None]:
    return None, None


def test_a_machine_with_nothing(surroundings: Make) -> None:
    facts = gather.gather_facts(surroundings(python="/nonexistent/python"), _no_versions)
    assert (facts.torch, facts.devices, facts.failed_probes) == (None, (), {})
    assert facts.counters.failure == "there is no GPU"
    assert facts.build.compiler.path is None
    assert not diagnose(facts).can_profile


@pytest.fixture
def gpu_probes(gpu_machine: Facts, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Probes that find the machine with a GPU, and the order they were asked in."""
    order: list[str] = []

    def give(name: str, value: Any) -> None:
        def probe(*arguments: Any) -> Any:
            order.append(name)
            return value

        monkeypatch.setattr(gather, name, probe)

    give("probe_devices", DeviceInventory(gpu_machine.devices, "580.95.05", gpu_machine.driver.smi))
    give("ask_driver", gpu_machine.driver)
    give("probe_packages", gpu_machine.packages)
    give("probe_torch", gpu_machine.torch)
    give("probe_counters", gpu_machine.counters)
    return order


def test_gpus_are_looked_at_first_and_counted_last(surroundings: Make, gpu_probes: list[str]) -> None:
    facts = gather.gather_facts(surroundings(), _no_versions)
    assert (gpu_probes[0], gpu_probes[-1]) == ("probe_devices", "probe_counters")
    assert facts.counters.is_readable
    assert facts.devices[0].is_visible


def test_counters_are_not_tried_where_no_kernel_runs(
    surroundings: Make, gpu_probes: list[str], monkeypatch: pytest.MonkeyPatch, gpu_machine: Facts
) -> None:
    monkeypatch.setattr(
        gather, "ask_driver", lambda *arguments: DriverFacts(devices=gpu_machine.driver.devices)
    )
    facts = gather.gather_facts(surroundings(), _no_versions)
    assert facts.counters == CounterFacts(failure="no kernel runs on the GPU")
    assert "probe_counters" not in gpu_probes


def test_a_probe_that_raises_is_named_and_the_others_answer(
    surroundings: Make, gpu_probes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*arguments: Any) -> TorchFacts:
        raise ValueError("unexpected")

    monkeypatch.setattr(gather, "probe_torch", defect)
    facts = gather.gather_facts(surroundings(), _no_versions)
    assert facts.failed_probes == {"torch": "ValueError: unexpected"}
    assert facts.torch is None
    assert facts.driver.launched


def test_a_probe_that_hangs_is_left_behind(
    surroundings: Make, gpu_probes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(here: Surroundings) -> tuple[()]:
        time.sleep(2)
        return ()

    monkeypatch.setattr(gather, "probe_folders", hang)
    monkeypatch.setattr(gather, "_FOLDER_LIMIT_S", 0.2)
    facts = gather.gather_facts(surroundings(), _no_versions)
    assert facts.failed_probes == {"folders": "gave no answer within 0.2 s"}
    assert facts.folders == ()
