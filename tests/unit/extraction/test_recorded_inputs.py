"""What a watched step was given comes back in the files of the calls that were recorded after it."""

import json
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from case_tables import cases  # noqa: E402
from fakes import TraceBuilder, sidecar, watched  # noqa: E402
from opscope import load  # noqa: E402
from opscope.analysis.summary import Summary  # noqa: E402
from opscope.capture import dataflow  # noqa: E402
from opscope.capture.dataflow import DataflowWatch  # noqa: E402
from opscope.capture.given_calls import GivenCalls  # noqa: E402
from opscope.errors import InputError  # noqa: E402
from opscope.extraction.alone_calls import alone_calls, calls_of_file, chosen_call, extracted  # noqa: E402
from opscope.extraction.starts import StartKind  # noqa: E402
from opscope.model.sidecar import RecordedDataflow, sidecar_path, write_sidecar  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that gives the file of a call of a step, recorded here, and what that makes."""
    monkeypatch.setattr(dataflow, "_has_compiled", lambda: False)
    trace, file = tmp_path / "trace.json", tmp_path / "call.py"

    def write(step, wanted, **options):
        found = watched(step)
        with torch.profiler.profile(record_shapes=True) as profiler:
            step()
        profiler.export_chrome_trace(str(trace))
        content = json.loads(trace.read_text())
        operators = [one for one in content["traceEvents"] if one.get("cat") == "cpu_op"]
        for number, one in enumerate(operators, 1):
            common = {"ph": "X", "pid": one["pid"], "tid": one["tid"], "dur": 0.1}
            args = {"correlation": number, "External id": one["args"]["External id"]}
            at = one["ts"] + one["dur"] / 2
            launch = {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "args": args}
            kernel = {"cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": at + 1e6 + number, "args": args}
            content["traceEvents"] += [launch, {**common, **kernel}]
        trace.write_text(json.dumps(content))
        write_sidecar(sidecar_path(trace), sidecar(trace=trace.name, dataflow=found))
        with load(trace) as session:
            calls = alone_calls(session, Summary(session).efficiency)
            made = extracted(1, chosen_call(calls, wanted, session), start=StartKind.ATEN, **options).file
        if isinstance(made, InputError):
            raise made
        file.write_text(made.text)
        names = runpy.run_path(str(file))
        inputs = names["make_inputs"](torch.device("cpu"), 0)
        return made.text, inputs, names["reference"](*inputs)

    return write


def test_integers_are_spread_as_they_were(written):
    weight, tokens = torch.randn(5000, 8), torch.randint(0, 40, (30, 50)) * 100
    tokens[:, 25:] = 0
    _, (_, made), _ = written(lambda: functional.embedding(tokens, weight), "embedding")
    assert made.shape == tokens.shape and int(made.max()) <= 3900
    assert len(made.unique()) <= 41
    assert float((made == 0).double().mean()) == pytest.approx(float((tokens == 0).double().mean()), abs=0.05)


def test_labels_to_be_ignored_stay_below_0(written):
    labels = torch.randint(0, 9, (1000,))
    labels[::4] = -100
    step = lambda: functional.nll_loss(torch.zeros(1000, 9), labels)  # noqa: E731
    _, (_, made), _ = written(step, "nll_loss")
    assert {int(one) for one in made.unique()} == {-100, *range(9)}
    assert float((made < 0).double().mean()) == pytest.approx(0.25, abs=0.05)


def test_short_integers_are_what_they_were(written):
    weight, bag, offsets = torch.randn(9, 4), torch.arange(6), torch.tensor([0, 1, 5])
    step = lambda: functional.embedding_bag(bag, weight, offsets)  # noqa: E731
    _, made, _ = written(step, "embedding_bag")
    assert made[1].tolist() == bag.tolist() and made[2].tolist() == offsets.tolist()


def test_a_list_with_gaps_and_a_mask_of_as_many(written):
    x, mask = torch.randn(40, 50, 6), torch.rand(40, 50) < 0.9
    at = torch.randint(0, 6, (700,))
    text, (_, made), _ = written(lambda: x[:, :, at], "aten::index 40")
    assert "[\n        None,\n        None,\n" in text and len(made) == 3
    _, (_, made), _ = written(lambda: x.masked_fill(mask[..., None], 0.5), "masked_fill")
    assert float(made.double().mean()) == pytest.approx(0.9, abs=0.03)


def test_texts_and_numbers_are_known(written):
    text, _, _ = written(lambda: functional.gelu(torch.ones(8), approximate="tanh"), "gelu")
    assert "torch.ops.aten.gelu.default(self, approximate='tanh')" in text and "no texts" not in text
    text, _, _ = written(lambda: torch.ones(8) * 1.702, "mul")
    assert "torch.ops.aten.mul.Tensor(self, other=1.702)" in text and "stands for it" not in text


def test_memory_that_arguments_share_and_where_it_begins(written):
    packed = torch.randn(2, 9, 3, 4, 8)
    query, key, value = packed.transpose(1, 3).unbind(2)
    assert key.storage_offset() == 32
    step = lambda: functional.scaled_dot_product_attention(query, key, value)  # noqa: E731
    _, made, result = written(step, "scaled_dot")
    assert len({one.untyped_storage().data_ptr() for one in made}) == 1
    assert [one.storage_offset() for one in made] == [0, 32, 64]
    assert [one.stride() for one in made] == [one.stride() for one in (query, key, value)]
    assert result.shape == query.shape
    x = torch.randn(65)[1:]  # 4 bytes past where memory begins
    _, (made, _), _ = written(lambda: x.add(x), "aten::add 64")
    assert made.data_ptr() % 8 == 4


def test_lists_of_an_optimizer(written):
    weights = [
        torch.randn(50, 4, requires_grad=True),
        *(torch.randn(3, requires_grad=True) for _ in range(40)),
    ]
    optimizer = torch.optim.AdamW(weights, foreach=True)

    def step():
        optimizer.zero_grad()
        (weights[0][:10].sum() + sum(one.sum() for one in weights[1:])).backward()
        optimizer.step()

    step()
    text, (moments, one, other), _ = written(step, "_foreach_addcmul_")
    assert one is other and len(moments) == 41
    assert "    tensor2 = tensor1\n" in text and "for shape in [" in text
    assert float((moments[0] == 0).all(1).double().mean()) == pytest.approx(0.8, abs=0.2)


class Wrapped(torch.Tensor):
    pass


def test_other_kinds_of_tensors_are_refused(written):
    given = [torch.randn(4, 8).as_subclass(Wrapped) for _ in range(40)]
    for many in (given, given[:4]):  # of more than 30 nothing is recorded
        with pytest.raises(InputError, match="_foreach_mul_: it was given a Wrapped, not a plain tensor"):
            written(lambda of=many: torch._foreach_mul_(of, 2.0), "_foreach_mul_")
    parallel = pytest.importorskip("torch.distributed.tensor")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    given = parallel.distribute_tensor(torch.randn(8, 4), parallel.init_device_mesh("cpu", (1,)))
    with pytest.raises(InputError, match="tanh: it was given a DTensor, not a plain tensor"):
        written(given.tanh, "tanh")
    with pytest.raises(InputError, match="'input' is of the kind DTensor: only plain tensors can be written"):
        written(lambda: functional.linear(given, given), "linear")
    torch.distributed.destroy_process_group()


@cases("step", "wanted", "line")
def test_where_a_result_goes_and_what_decides_its_size(written, step, wanted, line):
    assert line in written(partial(eval, step, {"torch": torch, "x": torch.eye(8)}), wanted)[0]


def test_below_autocast_types_say_it_and_above_the_file_does(written):
    x, weight = torch.randn(8, 6), torch.randn(4, 6)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            functional.linear(x, weight), torch.tensordot(x, weight, ([1], [1]))

    text, made, result = written(step, "linear")
    assert {one.dtype for one in (*made, result)} == {torch.bfloat16} and "autocast" not in text
    text, made, result = written(step, "tensordot")
    assert {one.dtype for one in made} == {torch.float32} and result.dtype == torch.bfloat16
    assert "    with torch.autocast(DEVICE, dtype=torch.bfloat16):\n        return torch.ops" in text


def test_an_operator_that_calls_others_is_given_what_needs_gradients(written):
    weight, tokens = torch.randn(9, 4, requires_grad=True), torch.arange(6)
    step = lambda: functional.embedding_bag(tokens, weight, tokens)  # noqa: E731
    _, (made, *_), result = written(step, "embedding_bag")
    assert made.requires_grad and result[0].grad_fn is not None
    _, (made, *_), _ = written(weight.tanh, "tanh")
    assert not made.requires_grad  # which changes no kernel of it
    head, x = torch.nn.Linear(4, 6), torch.randn(5, 3, 4, requires_grad=True).transpose(0, 1)
    _, made, _ = written(lambda: head(x).sum().backward(), "linear")
    assert [one.requires_grad for one in made] == [True] * 3


def test_a_call_is_made_smaller(written, tmp_path):
    file = tmp_path / "smaller.py"
    x, weight = torch.randn(16, 3, 8), torch.randn(8, 8)
    text, made, result = written(lambda: functional.linear(x, weight), "linear", scale=0.25)
    assert [one.shape for one in made] == [(4, 3, 8), (8, 8)] and result.shape == (4, 3, 8)
    assert "Made smaller (--scale 0.25): 4 in the dimension of 16." in text
    file.write_text(text)
    with pytest.raises(InputError, match="what a step would gain by it is not known"):
        calls_of_file([], file)
    with pytest.raises(InputError, match=r"inputs take 1\.79 kB, and this GPU has 1\.00 kB.*--scale 0\.3"):
        written(lambda: functional.linear(x, weight), "linear", memory_bytes=1000)
    given = torch.randn(10, 7), torch.randint(0, 7, (10,))
    _, made, _ = written(lambda: functional.nll_loss(*given), "nll_loss", scale=0.5)
    assert [one.shape for one in made] == [(5, 7), (5,)]
    _, made, result = written(lambda: x.expand(16, 3, 8).transpose(0, 1).reshape(48, 8), "reshape", scale=0.5)
    assert result.shape == (32, 8)  # 2 of the 3 in the first dimension
    with pytest.raises(InputError, match="no dimension of it can be made smaller"):
        written(lambda: torch.ones(1).tanh(), "tanh", scale=0.5)


def test_a_kernel_of_ones_own_is_written_with_its_launch(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    script, trace, file = tmp_path / "own.py", tmp_path / "trace.json", tmp_path / "call.py"
    script.write_text(Path(__file__).with_name("own_kernels.py.txt").read_text())
    names, seen, x = runpy.run_path(str(script)), GivenCalls(), torch.randn(101)[1:]
    watch = DataflowWatch()
    watch._is_on, watch._steps, watch._calls = True, [[], []], seen
    ran = []
    run = watch._launching(
        lambda function, *args, **kwargs: ran.append((args, kwargs.pop("grid")({}), kwargs))
    )
    kernel, grid = names["scale"], lambda meta: (7,)
    run(kernel, x, x.clone(), 100, 1.5, BLOCK=16, grid=grid, warmup=False, num_warps=1)
    assert len(ran) == 1 and ran[0][1:] == ((7,), {"BLOCK": 16, "warmup": False, "num_warps": 1})
    run(object(), x, grid=grid)  # of another Triton: it is launched, and nothing is watched any more
    assert (len(ran), watch._is_on) == (2, False)
    seen.note_launch(names["unwritable"], (x,), {}, (1,))
    calls = [one for one in seen if one.grid == (7, 1, 1)], [one for one in seen if one.grid == (1, 1, 1)]
    built = TraceBuilder().launch(2).kernel("scale", 20, 5, grid=[7, 1, 1]).launch(3)
    built.kernel("unwritable", 30, 4, grid=[1, 1, 1]).write(trace)
    found = RecordedDataflow((), calls=msgspec.json.encode([*calls[0], *calls[1]]).decode())
    write_sidecar(sidecar_path(trace), sidecar(trace=trace.name, dataflow=found))
    with load(trace) as session:
        scaled, other = alone_calls(session, Summary(session).efficiency)
    assert (scaled.name, scaled.times, scaled.shapes) == ("scale", 1, "100, 100")
    with pytest.raises(InputError, match="reads what is neither a number, a module nor a kernel"):
        raise extracted(2, other).file
    file.write_text(extracted(1, scaled).file.text)
    assert (
        "    scale[(7, 1, 1)](x=x, out=out, n=100, factor=1.5, BLOCK=16, num_warps=1)\n" in file.read_text()
    )
    check = "import runpy, sys, torch; of = runpy.run_path(sys.argv[1]); x, out = of['make_inputs']('cpu', 0)"
    check += "; torch.testing.assert_close(of['reference'](x, out)[1], 1.5 * x); assert x.data_ptr() % 8 == 4"
    subprocess.run([sys.executable, "-c", check, file], check=True)
