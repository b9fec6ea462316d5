"""Do gains come true? Records programs, reads advice, makes each change and times it. Needs a CUDA device.

    python benchmarks/gpu_gains.py --output FILE.json [--programs NAME …] [--traces FOLDER]
    python benchmarks/gpu_gains.py --output FILE.json --device cpu      # a rehearsal: small, no advice
    python benchmarks/gpu_gains.py --output FILE.json --again FOLDER    # today's advice on the traces of a
    run

Every program is recorded with `opscope.profile`, as a user would; then each change that this file knows how
to make is made and both are timed without a recorder, in turns. A change that advice says nothing of counts
as a gain of 0 said; it is right where the true gain is below 2 % of a step. `fitted` programs were looked at
while cost models were made; the others (`held_out`) are the proof.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_setup import (
    Step,
    as_it_is,
    captured,
    environment_facts,
    in_turns,
    loop_ns,
    parser_of,
    steps_of_a_sample,
    tf32,
    write,
)

Settings = Callable[[], contextlib.AbstractContextManager[None]]
ACTIVE = 3
ROUNDS = 5
LEAST_S = 0.15  # of steps in one sample
MOST_S = 120  # for one program
TOLERANCE = 0.3
LEAST_GAIN = 0.02  # of a step: rules say nothing of less


@dataclass(frozen=True)
class Remedy:
    """One change: the advice that suggests it, and the step with it (built when it is its turn)."""

    code: str
    build: Callable[[], Step] | None = None
    settings: Settings = as_it_is


@dataclass(frozen=True)
class Program:
    """A step to advise on, and the changes that can be made to it."""

    build: Callable[[], Step]
    remedies: tuple[Remedy, ...]
    held_out: bool = True
    note: str = field(default="")


@dataclass(frozen=True)
class Size:
    """Where, and whether small."""

    device: str

    @property
    def is_cuda(self) -> bool:
        """Whether there is anything to advise on."""
        return self.device.startswith("cuda")

    def of(self, large: int, small: int) -> int:
        """A size on the GPU, and in a rehearsal."""
        return large if self.is_cuda else small


def training(
    model: Any, batch: Any, target: Any, size: Size, *, optimizer: dict[str, Any] | None = None,
    autocast: bool = False, sgd: bool = False, item: bool = False, loss: Callable[[Any, Any], Any] | None =
        None,
) -> Step:  # fmt: skip
    """A training step; options as the changes need them."""
    import torch
    from torch import nn

    model.train()
    make = torch.optim.SGD if sgd else torch.optim.AdamW
    update = make(model.parameters(), lr=1e-4, **(optimizer or {}))
    criterion = loss or nn.functional.cross_entropy

    def step() -> object:
        update.zero_grad(set_to_none=True)
        with torch.autocast(size.device.split(":")[0], dtype=torch.bfloat16, enabled=autocast):
            value = criterion(model(batch), target)
        value.backward()
        update.step()
        return value.item() if item else value

    return step


def inference(model: Any, *inputs: Any) -> Step:
    """A forward pass without gradients."""
    import torch

    model.eval()

    def step() -> object:
        with torch.inference_mode():
            return model(*inputs)

    return step


def vision(name: str, size: Size, *, batch: int, train: bool, channels_last: bool = False, dtype: Any = None,
           **options: Any) -> Step:  # fmt: skip
    """A timm model on images."""
    import timm
    import torch

    layout = torch.channels_last if channels_last else torch.contiguous_format
    pixels = 224 if size.is_cuda else 64
    arguments = {} if "vit" not in name else {"img_size": pixels}
    model = timm.create_model(name, num_classes=1000, **arguments).to(size.device).to(memory_format=layout)
    images = torch.randn(size.of(batch, 2), 3, pixels, pixels, device=size.device).to(memory_format=layout)
    if dtype is not None:
        model, images = model.to(dtype), images.to(dtype)
    if not train:
        return inference(model, images)
    return training(
        model, images, torch.randint(0, 1000, (len(images),), device=size.device), size, **options
    )


def language(kind: str, size: Size, *, batch: int, length: int, train: bool, attention: str = "sdpa",
             dtype: Any = None, **options: Any) -> Step:  # fmt: skip
    """A transformers model of random weights on random tokens."""
    import torch
    import transformers

    layers, hidden = size.of(12, 2), size.of(768, 64)
    configurations = {
        "gpt2": lambda: transformers.GPT2Config(n_layer=layers, n_embd=hidden, n_head=hidden // 64),
        "llama": lambda: transformers.LlamaConfig(
            num_hidden_layers=layers, hidden_size=size.of(1024, 64), num_attention_heads=size.of(16, 1),
            num_key_value_heads=size.of(16, 1), intermediate_size=size.of(2816, 128),
            vocab_size=size.of(32000, 100),
        ),
        "bert": lambda: transformers.BertConfig(num_hidden_layers=layers, hidden_size=hidden,
                                                num_attention_heads=hidden // 64, intermediate_size=4 *
                                                hidden),
        "roberta": lambda: transformers.RobertaConfig(max_position_embeddings=514, num_hidden_layers=layers,
                                                      hidden_size=hidden,
                                                      num_attention_heads=hidden // 64, intermediate_size=4 *
                                                      hidden),
        "opt": lambda: transformers.OPTConfig(num_hidden_layers=layers, hidden_size=hidden,
                                              word_embed_proj_dim=hidden,
                                              num_attention_heads=hidden // 64, ffn_dim=4 * hidden),
        "qwen2": lambda: transformers.Qwen2Config(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 64, intermediate_size=4 * hidden, vocab_size=size.of(32000, 100),
        ),
    }  # fmt: skip
    configuration = configurations[kind]()
    configuration.update({"use_cache": False})
    if not train:
        for name in list(configuration.to_dict()):
            if "drop" in name and isinstance(getattr(configuration, name, None), float):
                setattr(configuration, name, 0.0)
    makers = {"bert": transformers.AutoModelForMaskedLM, "roberta": transformers.AutoModelForMaskedLM}
    maker = makers.get(kind, transformers.AutoModelForCausalLM)
    model = maker.from_config(configuration, attn_implementation=attention).to(size.device)
    if dtype is not None:
        model = model.to(dtype)
    vocabulary = min(configuration.vocab_size, 1000)
    tokens = torch.randint(0, vocabulary, (size.of(batch, 2), size.of(length, 16)), device=size.device)
    if not train:
        return inference(model, tokens)

    def loss(output: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())

    return training(model, tokens, tokens, size, loss=loss, **options)


def perceptron(size: Size, *, width: int, depth: int, batch: int, **options: Any) -> Step:
    """A small dense network, trained."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(size.device)
    x = torch.randn(batch, width, device=size.device)
    return training(model, x, torch.randint(0, 10, (batch,), device=size.device), size, **options)


def loading(size: Size, *, pinned: bool) -> Step:
    """A step that copies its batch from host memory."""
    import torch
    from torch import nn

    width = size.of(4096, 64)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(size.device)
    batches = [torch.randn(size.of(4096, 16), width) for _ in range(4)]
    if pinned and size.is_cuda:
        batches = [batch.pin_memory() for batch in batches]
    turn = iter(range(1 << 60))

    def step() -> object:
        batch = batches[next(turn) % len(batches)].to(size.device, non_blocking=pinned)
        with torch.inference_mode():
            return model(batch)

    return step


def unet(size: Size, *, channels_last: bool = False, autocast: bool = False) -> Step:
    """A small U-Net of a diffusion model, one denoising step."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.GroupNorm(8, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1),
                nn.GroupNorm(8, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1),
            )  # fmt: skip
            self.skip = nn.Conv2d(inner, outer, 1)

        def forward(self, x: Any) -> Any:
            return self.body(x) + self.skip(x)

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(4, width, 3, padding=1)
            self.down = nn.ModuleList(
                [Block(width, width), Block(width, 2 * width), Block(2 * width, 4 * width)]
            )
            self.middle = Block(4 * width, 4 * width)
            self.up = nn.ModuleList(
                [Block(8 * width, 2 * width), Block(4 * width, width), Block(2 * width, width)]
            )
            self.last = nn.Conv2d(width, 4, 3, padding=1)

        def forward(self, x: Any) -> Any:
            x, kept = self.first(x), []
            for block in self.down:
                x = block(x)
                kept.append(x)
                x = nn.functional.avg_pool2d(x, 2)
            x = self.middle(x)
            for block in self.up:
                x = nn.functional.interpolate(x, scale_factor=2.0)
                x = block(torch.cat([x, kept.pop()], dim=1))
            return self.last(x)

    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = UNet(size.of(128, 8)).to(size.device).to(memory_format=layout).eval()
    x = torch.randn(size.of(8, 1), 4, size.of(64, 16), size.of(64, 16), device=size.device).to(
        memory_format=layout
    )

    def step() -> object:
        with (
            torch.inference_mode(),
            torch.autocast(size.device.split(":")[0], torch.bfloat16, enabled=autocast),
        ):
            return model(x)

    return step


def recurrent(size: Size, *, item: bool) -> Step:
    """A loop of small products that asks the device for a number in each round, or does not."""
    import torch

    width = size.of(2048, 16)
    weight = torch.randn(width, width, device=size.device) / width**0.5
    x = torch.randn(64, width, device=size.device)

    def step() -> object:
        y, total = x, 0.0
        with torch.inference_mode():
            for _ in range(20):
                y = torch.tanh(y @ weight)
                total = total + (y.sum().item() if item else y.sum())
        return total

    return step


def pointwise(size: Size, *, compiled: bool) -> Step:
    """A chain of pointwise operators on a large tensor."""
    import torch

    x = torch.randn(size.of(1 << 25, 1 << 10), device=size.device)

    def chain(x: Any) -> Any:
        y = x * 2.0 + 1.0
        y = torch.sigmoid(y) * torch.tanh(x)
        return (y - 0.5).abs() * x

    function = torch.compile(chain) if compiled and size.is_cuda else chain

    def step() -> object:
        with torch.inference_mode():
            return function(x)

    return step


def programs(size: Size) -> dict[str, Program]:  # noqa: C901 - a table
    """Every program by name."""
    import torch

    bf16 = torch.bfloat16

    def of_vision(name: str, batch: int, *, train: bool, held_out: bool = True) -> Program:
        def build(**options: Any) -> Callable[[], Step]:
            return lambda: vision(name, size, batch=batch, train=train, **options)

        half = {"autocast": True} if train else {"dtype": bf16}
        remedies = [Remedy("advice.reduced_precision", build(**half))]
        if "vit" in name or "deit" in name:
            remedies.append(Remedy("advice.tf32_off", settings=tf32))
        else:
            remedies.append(Remedy("advice.layout_conversion", build(channels_last=True)))
        if train:
            remedies.append(Remedy("advice.foreach_optimizer", build(optimizer={"fused": True})))
        return Program(build(), tuple(remedies), held_out)

    def of_language(
        kind: str, batch: int, length: int, *, train: bool, attention: str = "eager", held_out: bool = True,
        dtype: Any = None, graph: bool = False,
    ) -> Program:  # fmt: skip
        base = {"attention": attention, "dtype": dtype}

        def build(**options: Any) -> Callable[[], Step]:
            return lambda: language(
                kind, size, batch=batch, length=length, train=train, **{**base, **options}
            )

        remedies = []
        if attention == "eager":
            remedies.append(Remedy("advice.eager_attention", build(attention="sdpa")))
        if dtype is None:
            half = {"autocast": True} if train else {"dtype": bf16}
            remedies += [
                Remedy("advice.reduced_precision", build(**half)),
                Remedy("advice.tf32_off", settings=tf32),
            ]
        if train:
            remedies.append(Remedy("advice.foreach_optimizer", build(optimizer={"fused": True})))
        if graph and size.is_cuda:
            remedies.append(Remedy("advice.launch_bound", lambda: captured(build()())))
        return Program(build(), tuple(remedies), held_out)

    small = {"width": size.of(512, 16), "depth": 8, "batch": 64}
    return {
        "resnet50 train": of_vision("resnet50", 64, train=True, held_out=False),
        "vit train": of_vision("vit_base_patch16_224", 64, train=True, held_out=False),
        "llama train": of_language("llama", 8, 512, train=True, held_out=False),
        "gpt2 forward bs1": of_language("gpt2", 1, 128, train=False, attention="sdpa", dtype=torch.float16,
                                        graph=True, held_out=False),
        "convnext train": of_vision("convnext_tiny", 64, train=True),
        "efficientnet infer": of_vision("efficientnet_b0", 128, train=False),
        "regnet train": of_vision("regnety_032", 64, train=True),
        "deit train": of_vision("deit_small_patch16_224.fb_in1k", 64, train=True),
        "bert train": of_language("bert", 16, 256, train=True),
        "roberta infer": of_language("roberta", 16, 512, train=False),
        "opt train": of_language("opt", 8, 512, train=True),
        "qwen2 forward bs1": of_language("qwen2", 1, 64, train=False, attention="sdpa", dtype=bf16,
                                         graph=True),
        "gpt2 train": of_language("gpt2", 8, 512, train=True, attention="sdpa"),
        "unet denoise": Program(
            lambda: unet(size),
            (
                Remedy("advice.reduced_precision", lambda: unet(size, autocast=True)),
                Remedy("advice.layout_conversion", lambda: unet(size, channels_last=True)),
            ),
        ),
        "mlp train per-tensor": Program(
            lambda: perceptron(size, optimizer={"foreach": False}, **small),
            (
                Remedy("advice.per_tensor_optimizer",
                       lambda: perceptron(size, optimizer={"fused": True}, **small)),
                *(
                    [Remedy("advice.launch_bound", lambda: captured(
                        perceptron(size, optimizer={"foreach": False, "capturable": True}, **small)))]
                    if size.is_cuda else []
                ),
            ),
        ),
        "mlp train item": Program(
            lambda: perceptron(size, sgd=True, item=True, width=size.of(4096, 16), depth=8, batch=size.of(512,
                4)), ( Remedy("advice.host_sync", lambda: perceptron( size, sgd=True, width=size.of(4096, 16),
                depth=8, batch=size.of(512, 4))), Remedy("advice.tf32_off", settings=tf32),
            ),
        ),
        "item in loop": Program(
            lambda: recurrent(size, item=True),
            (Remedy("advice.host_sync", lambda: recurrent(size, item=False)),),
        ),
        "pageable loader": Program(
            lambda: loading(size, pinned=False),
            (Remedy("advice.pageable_copy", lambda: loading(size, pinned=True)),),
        ),
        "pointwise chain": Program(
            lambda: pointwise(size, compiled=False),
            (Remedy("advice.unfused_pointwise", lambda: pointwise(size, compiled=True)),),
        ),
    }  # fmt: skip


def measure(name: str, program: Program, size: Size, folder: Path) -> dict[str, Any]:
    """What advice promises for each change of a program, and what the change brings."""
    result: dict[str, Any] = {"program": name, "held_out": program.held_out, "changes": []}
    before = program.build()
    summary, result["trace"] = advised(before, folder)
    result["step_ns"] = steady_ns(before)
    described(result, summary)
    for remedy in program.remedies:
        entry: dict[str, Any] = {"code": remedy.code}
        result["changes"].append(entry)
        try:
            after = before if remedy.build is None else remedy.build()
            before_ns, after_ns = in_turns(before, after, remedy.settings, rounds=ROUNDS, least_s=LEAST_S)
        except Exception as error:  # noqa: BLE001 - one change that fails must not cost the others
            entry["error"] = traceback.format_exc()[-3000:]
            print(f"  {remedy.code}: FAILED {type(error).__name__}: {str(error)[:200]}")
            continue
        entry |= {"before_ns": before_ns, "after_ns": after_ns, "gain_ns": before_ns - after_ns}
        compared(entry, summary)
        del after
        release()
    return result


def compared(entry: dict[str, Any], summary: Any) -> None:
    """What was said of a change beside what it brought.

    A host's speed wanders by up to a half between minutes, so a gain is said of the step as it was beside the
    change: the share of the simulated step that it takes away.
    """
    said = [one for one in summary.advice or () if one.code == entry["code"]]
    step_ns = summary.typical_step.step_ns if summary.typical_step is not None else 0.0
    scale = entry["before_ns"] / step_ns if step_ns else 1.0
    gain_ns, least_ns = entry["gain_ns"], LEAST_GAIN * entry["before_ns"]
    said_ns = scale * max((one.estimated_gain_ns_per_step or 0.0 for one in said), default=0.0)
    found = next((one.gain_interval_ns_per_step for one in said if one.gain_interval_ns_per_step), None)
    interval = None if found is None else [scale * edge for edge in found]
    is_close = gain_ns > 0 and abs(said_ns / gain_ns - 1) <= TOLERANCE
    is_inside = interval is not None and interval[0] <= gain_ns <= interval[1]
    within = is_close or is_inside if gain_ns >= least_ns else said_ns <= 2 * least_ns or is_inside
    entry |= {"said_ns": said_ns, "interval_ns": interval, "within": within}
    shown = "–" if interval is None else f"{interval[0] / 1e6:.3f} to {interval[1] / 1e6:.3f}"
    code = entry["code"].removeprefix("advice.")
    print(
        f"  {code:22} true {gain_ns / 1e6:8.3f}, said {said_ns / 1e6:8.3f} ({shown}) "
        f"{'ok' if within else 'OFF'}"
    )


def described(result: dict[str, Any], summary: Any) -> None:
    """The step that the recording tells of, and all advice."""
    step, timed = summary.typical_step, summary.measured_step.unrecorded_ns
    result["timed_ns"] = None if timed is None else timed.median
    if step is not None:
        result["recorded_ns"], result["simulated_ns"] = step.recorded_ns, step.step_ns
        result["unrecorded_error"] = step.unrecorded_error
        result["timed_over_true"] = None if timed is None else timed.median / result["step_ns"]
    result["best_set"] = None if summary.best_set is None else summary.best_set.estimated_gain_ns_per_step
    result["ranked"] = [
        [one.code, one.estimated_gain_ns_per_step, one.gain_interval_ns_per_step]
        for one in summary.advice or ()
    ]
    print(
        f"{result['program']}: "
        f"{', '.join(f'{name} {(result.get(name) or 0) / 1e6:.3f} ms' for name in _SHOWN)}"
    )


_SHOWN = ("step_ns", "timed_ns", "simulated_ns", "recorded_ns")


def again(folder: Path) -> list[dict[str, Any]]:
    """The results of a run with today's advice on its traces; what was timed stays."""
    import opscope
    from opscope.advice import assess

    results = []
    for path in sorted(folder.glob("*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        trace = next(one for one in sorted((path.parent / "recording").glob("trace.json*")) if one.is_file())
        with opscope.load(str(trace)) as session:
            summary = assess(session)
        described(result, summary)
        for entry in result["changes"]:
            if "gain_ns" in entry:
                compared(entry, summary)
        results.append({key: value for key, value in result.items() if key != "trace"})
    return results


def advised(step: Step, folder: Path) -> tuple[Any, str]:
    """The Summary of a recording of some steps with its advice, and the trace's file."""
    import opscope
    from opscope.advice import assess

    for _ in range(5):
        step()
    with opscope.profile(str(folder), warmup=2, active=ACTIVE, with_stack=False) as profiler:
        for _ in range(2 + ACTIVE):
            step()
            profiler.step()
        for _ in range(12):
            step()
            profiler.step()
    with profiler.session as session:
        summary = assess(session)
    return summary, summary.traces[0]


def steady_ns(step: Step) -> float:
    """Median time of a step, without a profiler."""
    count = steps_of_a_sample(step, LEAST_S)
    return statistics.median(loop_ns(step, count) for _ in range(ROUNDS))


def release() -> None:
    """Give cached memory back."""
    from opscope.workloads.runtime import release_memory

    gc.collect()
    release_memory()


def summed_up(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many gains came true, of the held-out programs and of all."""
    summary = {}
    for title, chosen in (("held_out", [one for one in results if one.get("held_out")]), ("all", results)):
        known = [one for result in chosen for one in result.get("changes", ()) if "gain_ns" in one]
        told = [one for one in known if one["said_ns"] > 0 and one["gain_ns"] > LEAST_GAIN * one["before_ns"]]
        errors = [abs(one["timed_over_true"] - 1) for one in chosen if one.get("timed_over_true")]
        summary[title] = {
            "programs": len(chosen),
            "gains": len(known),
            "within": sum(one["within"] for one in known),
            "beyond_twice": sum(not 0.5 <= one["said_ns"] / one["gain_ns"] <= 2 for one in told),
            "wrong_sign": sum(
                one["said_ns"] > 0 > one["gain_ns"] + LEAST_GAIN * one["before_ns"] for one in known
            ),
            "median_timed_error": statistics.median(errors) if errors else None,
            "most_timed_error": max(errors, default=None),
        }
    return summary


def measured_apart(name: str, size: Size, folder: Path) -> dict[str, Any]:
    """A program in a process of its own: one that loses the device must not cost the others."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "result.json"
    began = time.perf_counter()

    def measure_and_write() -> None:
        write(output, measure(name, programs(size)[name], size, folder / "recording"))

    process = multiprocessing.get_context("fork").Process(target=measure_and_write)
    process.start()
    process.join(MOST_S)
    if process.is_alive():
        process.kill()
    if not output.exists():
        print(f"{name}: FAILED with {process.exitcode}")
        return {"program": name, "error": f"exit code {process.exitcode}"}
    result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return result | {"seconds": time.perf_counter() - began}


def preload() -> None:
    """Import what the forked processes need; none of it touches the device."""
    import timm
    import torch
    import transformers

    import opscope.advice

    del timm, torch, transformers, opscope


def main() -> None:
    """Measure and write."""
    parser = parser_of(__doc__)
    parser.add_argument("--programs", nargs="+")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--again", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    size = Size(options.device)
    if options.again:
        environment = json.loads((options.again / "environment.json").read_text(encoding="utf-8"))
        results = again(options.again)
        write(
            options.output, {"environment": environment, "summary": summed_up(results), "programs": results}
        )
        print(summed_up(results))
        return
    preload()
    with tempfile.TemporaryDirectory() as work:
        folder = options.traces or Path(work)
        results = [
            measured_apart(name, size, folder / f"{number:02}_{name.replace(' ', '_')}")
            for number, name in enumerate(programs(size))
            if not options.programs or name in options.programs
        ]
        write(folder / "environment.json", environment_facts())
    document = {"environment": environment_facts(), "summary": summed_up(results), "programs": results}
    write(options.output, document)
    print(document["summary"])


if __name__ == "__main__":
    main()
