import json
import sys

import pytest

from case_tables import cases

torch = pytest.importorskip("torch")

from opscope.errors import DependencyError, InputError  # noqa: E402
from opscope.workloads.models import Bert  # noqa: E402
from opscope.workloads.target import resolve  # noqa: E402
from opscope.workloads.workload import WorkloadOptions  # noqa: E402

pytestmark = pytest.mark.torch
exhaustive = pytest.mark.exhaustive(few=False)


def tiny(name="bert", **options):
    return resolve(name, WorkloadOptions(device="cpu", layers=1, hidden=64, **options)).build(2, 8)


def operators(step):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        step()
    return {event.key for event in profile.key_averages()}


def test_bert_base_has_the_published_size():
    with torch.device("meta"):
        assert sum(p.numel() for p in Bert().parameters()) == 109_482_240


def test_a_step_returns_the_hidden_states_without_grad():
    workload = tiny()
    hidden, pooled = workload.step()
    assert hidden.shape == (2, 8, 64)
    assert pooled.shape == (2, 64)
    assert hidden.is_inference()
    assert workload.parameter_count == workload.description["parameters"]
    json.dumps(workload.description)


def test_attention_paths_compute_the_same_by_other_operators_each_time():
    eager, _ = tiny(attn_implementation="eager").step()
    fused, _ = tiny(attn_implementation="sdpa").step()
    torch.testing.assert_close(eager, fused)
    eager = operators(tiny(attn_implementation="eager").step)
    fused = operators(tiny(attn_implementation="sdpa").step)
    assert {"aten::bmm", "aten::softmax"} <= eager
    assert "aten::scaled_dot_product_attention" in fused - eager
    torch.testing.assert_close(tiny().step()[0], tiny().step()[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bert", "bf16"),
        ("transformer", "fp32"),
        *(pytest.param(*one, marks=exhaustive) for one in (("bert", "fp32"), ("transformer", "bf16"))),
    ],
)
def test_training_lowers_the_loss(name, dtype):
    workload = tiny(name, train=True, dtype=dtype)
    losses = [float(workload.step()) for _ in range(40)]
    assert sum(losses[-5:]) < sum(losses[:5])  # means: bf16 tells losses of 10 apart only by 0.06
    assert {"aten::_foreach_add_", "Optimizer.step#AdamW.step"} & operators(workload.step)


@pytest.mark.parametrize("name", ["bert", "transformer"])
def test_low_precision_inference(name):
    output = tiny(name, dtype="bf16").step()
    hidden = output[0] if isinstance(output, tuple) else output
    assert hidden.dtype == torch.bfloat16
    assert torch.isfinite(hidden).all()


def test_transformer_takes_the_fused_layer_in_inference():
    # Only with an even number of heads: torch.nn.TransformerEncoderLayer.forward.
    workload = resolve("transformer", WorkloadOptions(device="cpu", layers=1, hidden=128)).build(2, 8)
    assert workload.step().shape == (2, 8, 128)
    assert "aten::_transformer_encoder_layer_fwd" in operators(workload.step)


def test_a_longer_sequence_gets_more_positions():
    spec = resolve("bert", WorkloadOptions(device="cpu", layers=1, hidden=64))
    assert spec.build(1, 513).parameter_count - spec.build(1, 512).parameter_count == 64


@cases("name", "options", "message")
def test_options_that_cannot_be_served_are_refused_at_once(name, options, message):
    with pytest.raises(InputError, match=message):
        resolve(name, WorkloadOptions(device="cpu", **options))


@cases("name", "options", "message")
def test_sizes_that_do_not_fit(name, options, message):
    spec = resolve(name, WorkloadOptions(device="cpu", **options))
    if message is None:
        assert spec.build(1, 4).description["hidden"] == 130
    else:
        with pytest.raises(InputError, match=message):
            spec.build(1, 4)
    with pytest.raises(InputError, match="not a batch"):
        spec.build(0, 4)


@exhaustive  # transformers take seconds to import
class TestRealBert:
    @pytest.fixture(autouse=True)
    def load(self):
        pytest.importorskip("transformers")

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_it_is_built_offline_and_has_the_plain_ones_size(self, attention):
        real = tiny(use_real_bert=True, attn_implementation=attention)
        assert real.parameter_count == tiny().parameter_count
        assert real.description["implementation"] == "transformers"
        assert real.step().last_hidden_state.shape == (2, 8, 64)
        used = operators(real.step)
        assert ("aten::scaled_dot_product_attention" in used) == (attention == "sdpa")

    def test_a_local_checkpoint_is_loaded(self, tmp_path):
        import transformers

        config = transformers.BertConfig(
            num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=99
        )
        transformers.BertModel(config).save_pretrained(tmp_path)
        options = WorkloadOptions(device="cpu", weights=str(tmp_path))
        workload = resolve("bert", options).build(1, 4)
        assert workload.description["hidden"] == 32
        assert workload.step().last_hidden_state.shape == (1, 4, 32)
        with pytest.raises(InputError, match="at most 512 tokens"):
            resolve("bert", options).build(1, 600)

    def test_a_hub_that_cannot_be_reached_is_explained(self, monkeypatch):
        import transformers

        def refuse(*args, **kwargs):
            raise OSError("We couldn't connect to the hub\nat length")

        monkeypatch.setattr(transformers.BertModel, "from_pretrained", refuse)
        spec = resolve("bert", WorkloadOptions(device="cpu", weights="some/bert"))
        with pytest.raises(
            InputError, match=r"'some/bert' cannot be loaded \(We couldn't connect to the hub\)"
        ):
            spec.build(1, 4)

    def test_without_transformers_the_install_line_is_given(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(DependencyError, match=r"opscope\[transformers\]"):
            tiny(use_real_bert=True)
