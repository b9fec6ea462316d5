"""The catalogue is one: names, groups, the advice it answers."""

from functools import partial

import pytest

from case_tables import cases
from opscope.advice.rules import rule_book
from opscope.errors import InputError
from opscope.trials.catalog import (
    CATALOG,
    ProgramTraits,
    _of_tensors,
    _require_no_waits,
    _scale_losses,
    change_of_file,
    changes_named,
)
from opscope.trials.hooks import Hooks, Switches


def test_every_change_has_a_name_of_its_own_and_answers_known_advice():
    assert len({one.name for one in CATALOG}) == len(CATALOG)
    known = {code.removeprefix("advice.") for code in rule_book().rules}
    assert {code for one in CATALOG for code in one.findings} <= known


@cases("facts", "names")
def test_what_applies_follows_from_the_program(facts, names):
    assert [one.name for one in CATALOG if one.applies(ProgramTraits(**facts)) is None] == names.split()


def test_a_change_of_the_users_own_is_a_file(tmp_path):
    file = tmp_path / "mine.py"
    for name, is_live in (("on", True), ("change", False)):
        file.write_text(f'def {name}(hooks):\n    """Fewer threads."""\n    hooks.torch.set_num_threads(1)\n')
        own = change_of_file(file)
        assert (own.name, own.title, own.is_live) == ("mine", "Fewer threads.", is_live)
    file.write_text("x = 1\n")
    with pytest.raises(InputError, match="no function 'on' or 'change'"):
        change_of_file(file)


def test_scaled_losses_leave_gradients_as_they_are_and_infinite_ones_out(torch, monkeypatch):
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, "cpu"))
    hooks, backward, losses = Hooks(Switches(torch)), torch.Tensor.backward, []

    def seen(loss, *args):
        losses.append(loss.item())
        return (loss, *args), {}

    hooks.wrap_arguments(torch.Tensor, "backward", seen)
    _scale_losses(hooks)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for factor, gradient in ((3.0, 3.0), (float("inf"), None), (3.0, 3.0)):
        optimizer.zero_grad()
        (weight * factor).sum().backward()
        hooks.stepping[0](optimizer)
        assert (None if weight.grad is None else weight.grad.item()) == gradient
        hooks.stepped[0]()
    hooks.off()
    assert torch.Tensor.backward is backward
    assert losses == [3.0, float("inf"), 3.0]


@pytest.mark.parametrize("kind", ["tensor", "named", "holds its loss"])
def test_autocast_leaves_losses_in_float32_as_around_them_it_would(torch, kind):
    switches = Switches(torch)
    hooks = Hooks(switches)
    next(one for one in CATALOG if one.name == "bf16_autocast").on(hooks)
    switches.on = [hooks]

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            logits = self.layer(x)
            return (
                logits if kind == "tensor" else {"logits": logits} | ({} if kind == "named" else {"loss": 0})
            )

    model, x = Model(), torch.randn(4, 8)
    output = switches._call(model, model, (x,), {})
    logits = output if kind == "tensor" else output["logits"]
    assert logits.dtype == (torch.bfloat16 if kind == "holds its loss" else torch.float32)
    with torch.no_grad():
        output = switches._call(model, model, (x,), {})
    assert (output if kind == "tensor" else output["logits"]).dtype == torch.bfloat16


def test_a_model_is_captured_with_its_tensors_alone_however_it_is_called(torch):

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2))

        def forward(self, x, factor, mask=None, *, more=None):
            return x * factor + more + self.weight

    model, x, more = Model(), torch.ones(2), torch.ones(2)
    given = (x, 3), {"mask": None, "more": more}, dict(model.named_parameters())
    leaf = torch.ones(2, requires_grad=True)
    result = _of_tensors(torch, model, *given)(x + 1, more * 5, leaf)
    assert result.tolist() == [12.0, 12.0]
    result.sum().backward()
    assert (leaf.grad.tolist(), model.weight.grad) == ([1.0, 1.0], None)
    model.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="have hooks, which a graph would not call"):
        _of_tensors(torch, model, *given)


@pytest.mark.parametrize("asks", ["always", "unless captured", "backward"])
def test_what_waits_for_the_device_is_not_captured(torch, asks, monkeypatch):
    mode = ["default"]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", mode.append)

    def asked():
        if mode[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            asked()
            return grad

    def model(x):
        if asks == "always" or (asks == "unless captured" and not torch.cuda.is_current_stream_capturing()):
            asked()
        return Asking.apply(x) if asks == "backward" else x

    capturing, inputs = torch.cuda.is_current_stream_capturing, (torch.ones(2, requires_grad=True),)
    if asks == "unless captured":
        _require_no_waits(torch, model, inputs)
    else:
        with pytest.raises(RuntimeError, match=r"waits for the device \(test_catalog.py:\d+\)"):
            _require_no_waits(torch, model, inputs)
    assert (mode[-1], torch.cuda.is_current_stream_capturing) == ("default", capturing)


def switched(change, model, *optimizers):
    torch = pytest.importorskip("torch")
    switches = Switches(torch)
    switches.models[id(model)] = model
    switches.optimizers.update({id(one): one for one in optimizers})
    hooks = Hooks(switches)
    next(one for one in CATALOG if one.name == change).on(hooks)
    return hooks


def test_an_optimizer_goes_on_in_another_form_and_back(torch):
    pairs = []
    for is_switched in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
        for number in range(6):
            model(torch.ones(2, 8) * number).sum().backward()
            hooks = switched("fused_optimizer", model, optimizer) if is_switched and number % 2 else None
            optimizer.step()
            if hooks is not None:
                assert optimizer.param_groups[0]["fused"] is True
                hooks.off()
        assert not optimizer.param_groups[0]["foreach"]
        pairs.append((model.weight, optimizer.state[model.weight]["step"]))
    assert torch.allclose(pairs[0][0], pairs[1][0])
    assert pairs[0][1] == pairs[1][1] == 6


@pytest.mark.parametrize(("change", "keeps"), [("channels_last", True), ("bf16_weights", False)])
def test_weights_take_another_form_in_the_same_memory_and_back(torch, change, keeps):
    model = torch.nn.Conv2d(4, 4, 3)
    before, data = model.weight.detach().clone(), model.weight.data_ptr()
    hooks = switched(change, model)
    address = model.weight.data_ptr()
    model.weight.data += 1
    hooks.off()
    assert model.weight.data_ptr() == data
    assert model.weight.dtype == torch.float32
    assert torch.equal(model.weight, before + keeps)
    next(one for one in CATALOG if one.name == change).on(hooks)
    assert model.weight.data_ptr() == address
    hooks.off()


def test_gradients_that_are_filled_lie_as_their_weights_after_another_layout(torch):
    model = torch.nn.Conv2d(4, 4, 3)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for is_on in (False, True, False, True):
        hooks = switched("channels_last", model, optimizer) if is_on else None
        optimizer.zero_grad(set_to_none=False)
        model(torch.ones(2, 4, 8, 8)).sum().backward()
        optimizer.step()
        assert model.weight.grad.stride() == model.weight.stride()
        assert model.weight.grad.stride()[1] == (1 if is_on else 9)
        if hooks is not None:
            hooks.off()


def test_compiled_code_that_no_longer_runs_is_no_result(torch, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # captured, not compiled
    model, given = torch.nn.Linear(4, 4), torch.ones(2, 4)
    (prepare,) = switched("compile", model).prepare
    run, other = prepare(model), prepare(model)
    for _ in range(2):
        assert torch.allclose(run(given), model(given))
    other(given)
    run(given)
    with torch.compiler.set_stance("force_eager"), pytest.raises(RuntimeError, match="no longer runs"):
        run(given)
    run(given)


def test_what_takes_minutes_is_tried_on_request_alone():
    assert "compile_max_autotune" not in {one.name for one in changes_named(None)}
    assert [one.name for one in changes_named(["compile_max_autotune", "tf32"])] == [
        "tf32",
        "compile_max_autotune",
    ]
    with pytest.raises(InputError, match="no change 'tf33'"):
        changes_named(["tf33"])
