"""What is told of two steps: work that gives the same again, and rounds that need not wait for each other."""

import os
import sys
import time
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import fakes  # noqa: E402
from opscope.capture import dataflow  # noqa: E402
from opscope.capture.dataflow import DataflowWatch  # noqa: E402
from opscope.capture.profiler import Profiler  # noqa: E402
from opscope.model.sidecar import read_sidecar  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.gettrace() is not None, reason="nothing is watched beside a debugger"),
]

# Values on the host are compared byte by byte; on `meta`, as on a GPU, by what made them.
both_devices = pytest.mark.parametrize("device", ["cpu", "meta"])


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """Whatever other tests have compiled in this process."""
    monkeypatch.setattr(dataflow, "_has_compiled", lambda: False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu().exp())


def angles(device):
    return torch.outer(torch.arange(8, device=device), 1.0 / torch.arange(1, 9, device=device)).cos()


def watched(step):
    step()
    return fakes.watched(step)


def repeated(found):
    """Since when, and what the line says."""
    return {(one.since.value, one.text or "") for one in found.repeated}


def rounds(found):
    return [(len(one.rounds), one.module, one.is_ragged) for one in found.rounds]


def test_lines_hold_what_they_call_themselves_and_who_called_them():
    def part(x):
        return x.sin()

    def step():
        x = torch.ones(4)
        for _ in range(3):
            for _ in range(2):
                x = part(x)
            x = x.exp()
        return x

    begin = step.__code__.co_firstlineno
    lines = watched(step).lines
    found = [one for one in lines if one.line.endswith((" step", " part"))]
    at = {int(one.line.partition(":")[2].split()[0]) - begin: one for one in found}
    counts = {line: (one.times, sum(b - a for a, b in one.operators)) for line, one in at.items()}
    assert counts == {1: (1, 1), 4: (6, 0), -2: (6, 6), 5: (3, 3)}
    assert lines[at[-2].caller] is at[4]
    assert all(one.caller < number for number, one in enumerate(lines))


@both_devices
def test_what_both_steps_work_out_alike_is_told_by_the_outermost_line(device):
    net = Net().to(device)

    def step():
        table = angles(device)
        (net(torch.randn(8, 8, device=device)) * table).sum().backward()

    found = watched(step)
    assert repeated(found) == {("step", "table = angles(device)")}
    (one,) = found.repeated
    assert one.line is not None and one.line.endswith(
        f"test_dataflow.py:{step.__code__.co_firstlineno + 1} step"
    )
    names = found.threads[0].names
    order = [names[int(number)] for number in found.threads[0].order.split()]
    assert [order[place] for start, end in one.operators for place in range(start, end)] == [
        "aten::arange", "aten::arange", "aten::reciprocal", "aten::mul", "aten::mul", "aten::cos",
    ]  # fmt: skip


def test_a_part_of_what_a_line_calls_is_told_without_its_text():
    """As of layers that prepare the same for each input."""
    table = torch.ones(8, 8)

    def step():
        for _ in range(3):
            (torch.randn(8, 8) * table.exp().sin().exp().sin().exp().sin().exp().sin()).exp().sum()

    (by_step,) = watched(step).repeated
    assert (by_step.since.value, by_step.text) == ("step", None)
    assert sum(end - begin for begin, end in by_step.operators) == 24


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.from_numpy(np.hanning(8)).to("meta"),
        lambda: torch.tensor([0.5] * 8).to("meta"),
        lambda: torch.hann_window(8, device="meta"),
    ],
)
def test_what_python_makes_on_the_host_alike_is_told(made):
    def step():
        window = made()
        (torch.randn(8, 8, device="meta") * window).sum()

    (one,) = watched(step).repeated
    assert one.text == "window = made()"
    assert one.is_from_host == ("hann_window" not in made.__code__.co_names)


def test_a_norm_that_is_evaluated_changes_nothing():
    net, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to("meta"), torch.ones(8, 8, device="meta")

    def step():
        y = net(x)
        (y + torch.randn(8, 8, device="meta")).relu()

    assert repeated(watched(step)) == set()
    net.eval()
    assert repeated(watched(step)) == {("step", "y = net(x)")}


@both_devices
def test_what_one_step_works_out_twice_is_told_but_for_the_first_time(device):
    net, kept = Net().to(device), torch.zeros(8, 8, device=device)

    def step():
        given = torch.randn(8, 8, device=device)
        state = kept
        for _ in range(4):
            key = net.first(given).relu()
            state = torch.tanh(net.second(state) + key)

    found = watched(step)
    assert repeated(found) == {("call", "key = net.first(given).relu()")}
    assert sum(end - start for start, end in found.repeated[0].operators) == 3 * 2


@both_devices
def test_random_numbers_and_changed_weights_are_never_the_same(device):
    net = Net().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batch = torch.ones(8, 8, device=device)

    def step():
        loss = nn.functional.dropout(net(batch), 0.5).sum() * torch.rand(8, device=device).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert not repeated(watched(step))


def test_memory_of_the_host_is_compared_by_its_bytes():
    buffer = torch.zeros(64)
    seen = buffer.numpy()
    state = {"number": 0}

    def step():
        state["number"] += 1
        seen[0] = state["number"]  # no operator writes here
        changed = (buffer + 1).exp()
        same = (buffer[1:] + 1).exp()
        assert changed.numel() > same.numel()

    assert repeated(watched(step)) == {("step", "same = (buffer[1:] + 1).exp()")}


def test_memory_that_nobody_has_written_holds_anything():
    def step():
        unwritten = torch.empty(8, device="meta")
        unwritten.exp()
        written = torch.empty(8, device="meta").fill_(1.0)
        written.exp()

    found = watched(step)
    filled = 'written = torch.empty(8, device="meta").fill_(1.0)'
    assert repeated(found) == {("step", filled), ("step", "written.exp()")}


def test_what_a_step_writes_to_afterwards_is_not_to_be_kept():
    def step():
        sums = torch.zeros(8, 8, device="meta")
        sums.index_add_(0, torch.arange(8, device="meta"), torch.randn(8, 8, device="meta"))
        rows = [torch.ones(8, device="meta") for _ in range(3)]
        rows[2][:2] = sums[0, 0]
        torch.stack(rows).exp()

    assert repeated(watched(step)) == set()


def unused(found):
    """What the line says of work that nothing reads, and whether that is all of it."""
    return {(one.text or "", one.is_whole) for one in found.unused}


def test_work_whose_result_nothing_reads_is_told():
    net, head = Net().to("meta"), nn.Linear(8, 8).to("meta")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def both(x):
        hidden = net.first(x)
        return hidden, net.second(hidden.relu())

    def step():
        given = torch.randn(8, 8, device="meta")
        accuracy = (given > 0).float().mean()
        hidden, _ = both(given)
        loss = head(hidden).sum()
        optimizer.zero_grad()
        head.zero_grad()
        loss.backward()
        optimizer.step()
        del accuracy

    found = watched(step)
    assert unused(found) == {
        ("accuracy = (given > 0).float().mean()", True),
        ("return hidden, net.second(hidden.relu())", True),
        ("", False),  # the gradient of the head, which no optimizer takes
    }


@pytest.mark.parametrize(
    "use",
    [
        lambda made, kept: kept.append(made.detach()),
        lambda made, kept: kept[0].add_(made.detach()),
        lambda made, kept: kept.__setitem__(0, made.detach()),
        lambda made, _: made.sum().backward(),
    ],
    ids=["kept", "written", "read by the next step", "differentiated"],
)
def test_what_may_still_be_read_is_not_unused(use):
    net, kept = Net().to("meta"), [torch.zeros(8, 8, device="meta")]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        use(net(torch.randn(8, 8, device="meta") + kept[0]), kept)
        optimizer.step()
        optimizer.zero_grad()

    assert not unused(watched(step))


@pytest.mark.parametrize(
    ("reads", "is_unread"),
    [
        (lambda _: None, True),
        (lambda net: net.zero_grad(), True),
        (lambda net: (nn.utils.clip_grad_norm_(net.parameters(), 1.0), net.zero_grad()), True),
        (lambda net: nn.utils.clip_grad_norm_(net.parameters(), 1.0), False),
        (lambda net: torch.optim.SGD(net.parameters()).step(), False),
        (lambda net: [one.detach().sub_(one.grad) for one in net.parameters()], False),
    ],
    ids=["nothing", "zeroed", "clipped in vain", "clipped and kept", "an optimizer", "an update by hand"],
)
def test_gradients_of_weights_that_nobody_trains_are_told(reads, *, is_unread):
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    net = nn.Sequential(*layers).to("meta")
    picture = torch.randn(1, 3, 16, 16, device="meta").requires_grad_()
    optimizer = torch.optim.Adam([picture], lr=0.1)
    pictures = []

    def step():
        if len(pictures) == 2:  # the first step that is watched saves one
            pictures[0].detach().mul(255).add_(0.5).clamp_(0, 255)
        pictures.append(picture)
        loss = (net(picture) - net(torch.randn_like(picture))).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reads(net)

    step()
    found = watched(step)
    names = [found.threads[0].names[int(one)] for one in found.threads[0].order.split()]
    convolutions = {
        one.is_of_weights: sum(
            names[begin:end].count("aten::convolution_backward") for begin, end in one.operators
        )
        for one in found.unused
    }
    # Of three for the picture only the weights' part; those for what nobody trains altogether.
    assert convolutions == ({True: 3, False: 3} if is_unread else {})


@pytest.mark.parametrize(("is_read", "said"), [(True, []), (False, [None])])
def test_gradients_that_are_summed_with_older_ones_and_dropped_are_told(is_read, said):
    net, x = Net().to("meta"), torch.randn(8, 8, device="meta").requires_grad_()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        net(x).sum().backward()  # on top of those of the step before
        if is_read:
            optimizer.step()
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    assert [one.line for one in watched(step).unused] == said


def test_sparse_and_nested_tensors_and_storages_are_no_error(monkeypatch):
    table = nn.Embedding(8, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    parts = [torch.ones(3, 4), torch.ones(20, 4)]
    monkeypatch.setattr(torch.UntypedStorage, "__getitem__", None)  # which reads one from the device

    def step():
        torch.nested.nested_tensor(parts, layout=torch.jagged).to("meta")
        padded([3, 9, 20], 32).to_sparse().to("meta")
        torch.empty(0).set_(parts[0].untyped_storage(), 0, (3, 4))
        table(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    assert not watched(step).padded


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_pass_that_runs_again_is_told(*, use_reentrant):
    net = Net()

    def step():
        given = torch.randn(8, 8, requires_grad=True)
        checkpoint(net, given, use_reentrant=use_reentrant).sum().backward()

    (one,) = watched(step).repeated
    assert (one.since.value, one.line) == ("forward", None)
    # One of the two stops before the last operator, whose result the backward pass does not need.
    assert sum(end - start for start, end in one.operators) == 5 - (not use_reentrant)


@both_devices
@pytest.mark.parametrize(
    ("parts", "is_ragged"), [([8, 8, 8], False), ([5, 9, 4], True)], ids=["of one size", "ragged"]
)
def test_a_loop_whose_rounds_need_nothing_of_each_other(device, parts, *, is_ragged):
    def step():
        total = torch.zeros((), device=device)
        for rows in [torch.randn(size, 8, device=device) for size in parts]:
            scores = torch.softmax(rows @ rows.T + torch.arange(len(rows), device=device), -1)
            total = total + (scores @ rows).tanh().sum()

    assert rounds(watched(step)) == [(3, None, is_ragged)]


def test_a_loop_whose_rounds_have_weights_of_their_own():
    nets = [Net() for _ in range(4)]
    found = watched(lambda: [net(torch.ones(16, 8)).exp() for net in nets])
    assert [(len(one.rounds), one.has_weights) for one in found.rounds] == [(4, True)]
    assert not any(
        one.has_weights for one in watched(lambda: [nets[0](torch.randn(2, 8)) for _ in range(4)]).rounds
    )


def means_of(x, labels):
    means = torch.zeros(5, 8)
    for group in range(5):
        means[group] = x[labels == group].mean(0)


def experts_of(x, labels):
    out = torch.zeros_like(x)
    for number, expert in enumerate(EXPERTS):
        rows, _ = torch.where(labels[:, None] == number)
        if rows.numel():
            out.index_add_(0, rows, expert(x[rows]))


def others_of(x, labels):
    for number in range(5):
        x[(labels + number * x[:, 0].long()) == number].mean(0).exp()


EXPERTS = [Net() for _ in range(5)]


@pytest.mark.parametrize(("loop", "is_told"), [(means_of, True), (experts_of, True), (others_of, False)])
def test_a_loop_over_groups_that_masks_pick(loop, *, is_told):
    labels = torch.tensor([0, 1, 2, 3, 4, 4, 3, 4])
    torch.manual_seed(0)  # of some numbers all masks compare the same
    found = watched(lambda: loop(torch.randn(8, 8), labels + 0))
    assert [(len(one.rounds), one.is_selected) for one in found.rounds] == [(5, True)] * is_told


def test_calls_of_one_module_through_functions():
    """Each run of a function calls it once; what it asks of its inputs is no number for the other call."""

    class Asking(Net):
        def forward(self, x):
            return super().forward(x) if x.isfinite().all() else x

    net = Asking()

    def likelihood(given):
        return net(given).sum(1)

    def pair(given):
        return likelihood(given), likelihood(given * 0.5)

    found = watched(lambda: pair(torch.randn(8, 8)))
    assert rounds(found) == [(2, "Asking", False)]
    assert found.rounds[0].line.endswith(" pair")


def test_rounds_that_update_models_of_their_own_on_one_choice_of_rows():
    nets, rows, losses = [Net() for _ in range(3)], torch.randn(64, 8), []

    def step():
        order = np.random.default_rng().permutation(64)[:16]
        for net in nets:
            loss = net(rows[order].exp()).square().mean()
            losses.append(loss.item())
            net.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    assert [(len(one.rounds), one.has_weights, one.has_backward) for one in watched(step).rounds] == [
        (3, True, True)
    ]


def laplacian(x):
    return x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1) - 4 * x


def react(u):
    return u + 0.1 * laplacian(u) + 0.1 * laplacian(u * u) - u


def test_parts_are_what_modules_and_functions_of_the_step_launch():
    net = Net().to("meta")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def trained():
        laplacian(torch.ones(8, 8))  # on the host, nothing is launched
        react(net(torch.randn(8, 8, device="meta"))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    parts = {one.name.split(" ")[-1]: one.is_module for one in watched(trained).parts}
    assert parts == {"Net": True, "react": False, "laplacian": False}


def test_what_is_worked_out_again_on_the_host_does_not_tie_rounds_that_are_given_new_data():
    def step():
        for _ in range(4):
            table = angles("cpu")  # again and again, where Python could read it
            given = torch.randn(8, 8, device="meta")
            (given * table.to("meta")).exp().sum(0).sqrt()

    assert rounds(watched(step)) == [(4, None, False)]


@pytest.mark.parametrize("lengths", [torch.tensor([10, 9]), torch.tensor([10, 9], dtype=torch.int32)])
def test_a_watched_loss_takes_lengths_on_the_host_as_it_does_unwatched(lengths):
    """Beside a mode torch itself would hand them to the kernel, which wants them on its device."""
    made = torch.ctc_loss

    def step():
        given = torch.randn(10, 2, 5, requires_grad=True).log_softmax(2)
        targets, of_targets = torch.tensor([[1, 2], [3, 1]]), torch.tensor([2, 1])
        losses.append(nn.functional.ctc_loss(given, targets, lengths, of_targets, reduction="none"))

    losses = []
    watched(step)
    assert torch.ctc_loss is made
    assert {one.grad_fn.name() for one in losses} == {"CtcLossBackward0"}


class Signs(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        loss = closure and closure()
        for one in self.param_groups[0]["params"]:
            one.sub_(self.way(one.grad))
        return loss

    def way(self, gradient):
        return gradient.sign() * 0.1


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, partial(Signs, defaults={})], ids=["torch's", "own"])
def test_an_optimizers_work_has_no_line_and_its_closure_is_the_programs(optimizer):
    net = Net()
    optimizer = optimizer(net.parameters())

    def closure():
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = react(net(torch.randn(8, 8))).square().mean()
        loss.backward()
        return loss

    functions = {one.line.split()[1] for one in watched(lambda: optimizer.step(closure)).lines}
    assert "laplacian" in functions or isinstance(optimizer, Signs)
    assert "way" not in functions


def some_of_one_size():
    net = Net()
    for part in torch.randn(28, 8).split([2, 2, 6, 6, 6, 6]):
        net(part).exp().sum()


def pairs_that_add_up():
    """The first sums of a row are numbers."""
    place, pushed, hits = torch.randn(8, 5, 2), [torch.zeros(8, 2)] * 5, [0.0] * 5
    for one in range(5):
        for other in range(one + 1, 5):
            apart = place[:, one] - place[:, other]
            far = torch.sqrt(apart.square().sum(1)).clamp(min=1e-4).exp().neg().tanh()
            pushed[one] = pushed[one] + apart / far[:, None]
            hits[other] = hits[other] + (far < 0.3).float()


@pytest.mark.parametrize(("step", "count"), [(some_of_one_size, 4), (pairs_that_add_up, 6)])
def test_of_rounds_of_several_sizes_most_of_one_size_are_put_together(step, count):
    assert rounds(watched(step)) == [(count, None, False)]


def follow_each_other(net, batch):
    state = torch.zeros_like(batch)
    for _ in range(4):
        state = torch.tanh(net(state) + net.second(batch)) * 2


def are_told_by_what_came_out_before(net, batch):
    low, high = 0.0, 1.0
    for _ in range(4):
        middle = (low + high) / 2
        if net(batch * middle).sum().item() > 0:
            high = middle
        else:
            low = middle


def come_back_through_the_host(net, batch):
    for _ in range(4):
        values = net(batch).detach().numpy() / 2
        batch = torch.from_numpy(values)


def each_change_a_tensor_of_their_own(_, batch):
    for kept in KEPT:
        kept.mul_(0.9).add_(batch.sum()).clamp_(-1, 1).abs_()


def change_what_the_step_has_made(net, batch):
    net(batch).sum().backward()
    for weight in [net.first.weight, net.second.weight, net.norm.weight]:
        norm = weight.grad.norm(2)
        weight.grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))


def differ_in_gradients(net, batch):
    net(batch).sum().backward()
    with torch.no_grad():
        net(batch * 2)


def take_one_batch_at_sizes_of_their_own(net, batch):
    for size in (2, 4, 8, 16):
        net(nn.functional.adaptive_avg_pool2d(batch[None], (size, 8)).exp()).sum()


def look_at_the_whole_batch(_, batch):
    for part in batch.chunk(4):
        NORMED(part).exp().sum()


def discount_what_came_before(_, batch):
    carried = torch.zeros(8)
    for part in batch.chunk(4):
        alive = 1.0 - part.tanh().sum(0).sigmoid()
        carried = part.mean(0).exp() - alive + 0.9 * alive * carried


KEPT = [torch.zeros(8) for _ in range(4)]
NORMED = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())


@pytest.mark.parametrize(
    "loop",
    [
        follow_each_other,
        are_told_by_what_came_out_before,
        come_back_through_the_host,
        each_change_a_tensor_of_their_own,
        change_what_the_step_has_made,
        differ_in_gradients,
        take_one_batch_at_sizes_of_their_own,
        look_at_the_whole_batch,
        discount_what_came_before,
    ],
)
def test_rounds_that_cannot_run_at_once(loop):
    net = Net()
    assert not rounds(watched(lambda: loop(net, torch.randn(16, 8))))


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_long_work_of_python_is_told_by_the_line_that_goes_on():
    net = Net().to("meta")

    def step():
        time.sleep(0.005)
        x = torch.randn(8, 8).to("meta").T
        net(x)
        time.sleep(0.003)
        (x * x).relu()

    found = {one.line.rpartition(":")[2]: one.duration_ns for one in watched(step).python}
    begin = step.__code__.co_firstlineno
    assert found[f"{begin + 2} step"] >= 5_000_000
    assert found[f"{begin + 5} step"] >= 3_000_000


def padded(rows, columns, filler=0):
    """Numbers that are not the filler, as many in each row."""
    filled = torch.arange(columns)[None] < torch.tensor(rows)[:, None]
    return torch.where(filled, torch.randint(1, 99, filled.shape), filler)


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([padded([3, 9, 20], 32), padded([8, 24, 4], 32)], [(32, 24, 12.0, False)]),
        (
            [padded([3, 9, 20], 32).flip(1), padded([8, 24, 4], 32, filler=-100).flip(1)],
            [(32, 24, 12.0, True)],
        ),
        # Filled up batch by batch, it is the longest row that decides.
        ([padded([3, 9, 20], 20), padded([8, 24, 4], 24)], [(24, 24, 12.0, False)]),
        ([padded([3, 9, 20], 32)[..., None].expand(3, 32, 4) * 1.5] * 2, [(32, 20, 32 / 3, False)]),
        ([torch.ones(32, 32).tril()] * 2, []),  # a mask of who may see whom
        ([padded([3, 9, 0], 32)] * 2, []),
        ([padded([5, 5, 5], 32), padded([6, 6, 6], 32)], []),  # a canvas that is filled cell by cell
        ([torch.eye(32)[:8]] * 2, []),
        ([torch.ones(8, 32, dtype=torch.bool)] * 2, []),
        ([padded([3, 9], 12)] * 2, []),
    ],
)
def test_rows_of_a_batch_that_are_filled_up(batches, found):
    given, layer = iter([batches[0], *batches]), nn.Linear(4, 4).to("meta")

    def step():
        there = next(given).to("meta")
        layer(torch.randn(*there.shape[:2], 4, device="meta")).sum()
        torch.ones(5, 4, device="meta").exp()

    paddings = watched(step).padded
    assert [(one.columns, one.longest, one.mean, one.is_left) for one in paddings] == [
        (columns, longest, pytest.approx(mean), is_left) for columns, longest, mean, is_left in found
    ]
    for one in paddings:
        assert one.lines[0].endswith(" step")
        # All but what is of another size.
        assert sum(end - start for start, end in one.operators) == 3


def test_nothing_is_watched_where_a_mode_or_the_compiler_is_at_work(monkeypatch):
    with Counting():
        (watch := DataflowWatch()).start()
        assert watch.stop() is None
        assert watch.why_not == "the program has a dispatch mode of its own"
    monkeypatch.setattr(dataflow, "_has_compiled", lambda: True)
    (watch := DataflowWatch()).start()
    assert watch.stop() is None
    assert watch.why_not == "the program is compiled"


def test_a_mode_that_the_program_enters_stays_and_a_child_is_not_watched():
    (watch := DataflowWatch()).start()
    watch.next_step()
    with Counting() as own:
        assert watch.stop() is not None
        torch.ones(2).exp()
    assert own.count >= 2
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    (watch := DataflowWatch()).start()
    if (child := os.fork()) == 0:
        os._exit(0 if torch.utils._python_dispatch._get_current_dispatch_mode() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    watch.next_step()
    assert watch.stop() is not None


def test_an_error_of_ours_ends_the_watching_alone(monkeypatch):
    watch = DataflowWatch()
    watch.start()
    monkeypatch.setattr(watch, "_value", lambda _: 1 / 0)
    assert torch.ones(2).exp().shape == (2,)
    watch.next_step()
    assert watch.stop() is None
    assert watch.why_not == "ZeroDivisionError: division by zero"
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.fixture
def watching(tmp_path, monkeypatch):
    monkeypatch.setattr(dataflow, "has_device", lambda: True)
    profiler = Profiler(tmp_path, wait=1, warmup=2, active=1)
    profiler.watches_dataflow = True
    return profiler


def test_the_last_two_steps_of_the_warm_up_are_watched(watching):
    with watching:
        for _ in range(watching.total_steps):
            torch.ones(4, 4).exp()
            watching.step()
    found = read_sidecar(watching.cycles[0].sidecar_path).dataflow
    assert found is not None
    assert repeated(found) == {("step", "torch.ones(4, 4).exp()")}


@pytest.mark.parametrize(("why_not", "gaps"), [("too many operators", 1), (dataflow.COMPILED, 0)])
def test_a_recording_says_why_nothing_was_watched(watching, why_not, gaps):
    with watching:
        for number in range(watching.total_steps):
            watching.step()
            if number == 0:
                watching._watch.why_not = why_not
    assert len(read_sidecar(watching.cycles[0].sidecar_path).gaps) == gaps


def test_a_block_that_ends_before_leaves_torch_as_it_was(watching):
    with pytest.raises(ZeroDivisionError), watching:
        watching.step()
        raise ZeroDivisionError
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.parametrize("count", [8, 16])
def test_rounds_of_one_operator_are_a_loop_where_there_are_many(count):
    """As sessions are gathered one after the other."""
    given, places = (
        torch.randn(count, 5, 8, device="meta"),
        torch.zeros(count, 5, dtype=torch.long, device="meta"),
    )

    def step():
        hidden = given.exp()
        return torch.stack([hidden[at][places[at]] for at in torch.arange(count)])

    assert [len(one.rounds) for one in watched(step).rounds] == ([count] if count >= 16 else [])
