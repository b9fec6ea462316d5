from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

from opscope.capture.program_recorder import ForwardSteps, FunctionSteps, OptimizerSteps, step_source  # noqa: E402
from opscope.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def steps():
    return []


@pytest.fixture
def watched(steps):
    """Watches a source until the test ends."""
    sources = []

    def watch(source):
        sources.append(source)
        source.watch(lambda: steps.append(1))
        return source

    yield watch
    for source in sources:
        source.stop()


def optimizer():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return torch.optim.SGD([weight], lr=0.1)


def test_the_first_optimizer_that_steps_counts(watched, steps):
    first, second = optimizer(), optimizer()
    source = watched(OptimizerSteps())
    for _ in range(3):
        first.step()
        second.step()
    assert len(steps) == 3
    source.stop()
    first.step()
    assert len(steps) == 3


def test_a_forward_counts_from_the_second_call_of_a_module(watched, steps):
    encoder, model = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    before = torch.nn.Module.__call__
    source = watched(ForwardSteps())
    encoder(torch.ones(2))
    model(torch.ones(2))
    assert steps == []
    model(torch.ones(2))
    assert len(steps) == 2  # the first one, known now to have been one, and this
    encoder(torch.ones(2))
    model(torch.ones(2))
    assert len(steps) == 3
    source.stop()
    assert torch.nn.Module.__call__ is before


def test_layers_run_with_torch_as_it_is(watched):
    seen = []

    class Model(torch.nn.Module):
        def forward(self, x):
            seen.append(torch.nn.Module.__call__)
            return x

    original = torch.nn.Module.__call__
    watched(ForwardSteps())
    Model()(torch.ones(1))
    assert seen == [original]


def test_a_forward_that_fails_is_no_step(watched, steps):
    class Model(torch.nn.Module):
        def forward(self, x):
            raise ValueError("forward")

    model = Model()
    watched(ForwardSteps())
    for _ in range(3):
        with pytest.raises(ValueError, match="forward"):
            model(1)
    assert len(steps) == 1


def test_a_compiled_model_counts(watched, steps):
    watched(ForwardSteps())
    model = torch.nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(2))
    assert len(steps) == 3


def test_functions_and_methods_of_a_module_count(watched, steps):
    class Trainer:
        @classmethod
        def make(cls):
            return cls

        def step(self):
            return 3

    module = types.SimpleNamespace(Trainer=Trainer, run=lambda x: x + 1)
    for name in ("Trainer.step", "Trainer.make", "run", "absent", "absent.step"):
        watched(FunctionSteps("somewhere", name)).wrap_in(module)
    assert module.run(1) == 2
    assert Trainer().step() == 3
    assert Trainer.make() is Trainer
    assert len(steps) == 3


def test_what_cannot_be_called_stays():
    assert FunctionSteps("m", "x").wrapped(5) == 5


def test_names_of_sources():
    assert step_source("none") is None
    assert isinstance(step_source("optimizer"), OptimizerSteps)
    assert isinstance(step_source("forward"), ForwardSteps)
    own, other = step_source("infer"), step_source("package.module:Trainer.step")
    assert (own.module, own.function) == ("__main__", "infer")
    assert (other.module, other.function) == ("package.module", "Trainer.step")


@pytest.mark.parametrize("name", ["", ":f", "m:", "a b", "3", "m:f:g", "-x"])
def test_names_that_tell_no_steps(name):
    with pytest.raises(InputError, match="tells no steps"):
        step_source(name)
