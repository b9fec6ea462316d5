"""What is edited in each script so that its changes can be switched (`switches`), and which of them are tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LOOP = "for step in range({count}):"
MODEL_CALL = "h = m(input_ids=ids, attention_mask=mask).last_hidden_state"
STANDARD = ("tf32", "bf16", "fused")


class Trial(NamedTuple):
    """The changes of one script.

    Attributes:
        arms: Changes, each switched on alone.
        edits: Texts of the script and what comes in their place; each stands in the script once.
        block: Steps of a block.
        lead_in: How many of them do not count.
        per_step: Calls of STEP in a step of the recording, or fewer than 1: steps of the recording in one call.
    """

    arms: Sequence[str]
    edits: Sequence[tuple[str, str]]
    block: int = 10
    lead_in: int = 3
    per_step: float = 1


def looped(head: str, indent: int = 4) -> tuple[str, str]:
    """The edit of a loop that goes on until enough was measured, and says where its steps begin."""
    before, count = head.rsplit("range(", 1)[0], head.rsplit("range(", 1)[1]
    assert count.endswith("):")
    return head, f"{before}range(10**9):\n{' ' * indent}STEP()"


def loaded(loader: str, before: str = " in ", after: str = ":\n") -> tuple[str, str]:
    """The edit of a loop over a loader: endless, and a step begins where the next batch is asked for."""
    return f"{before}{loader}{after}", f"{before}ENDLESS({loader}){after}"


TRIALS = {
    "moe_loop": Trial(STANDARD, [looped("for _ in range(30):")], block=8),
    "lora_lightning": Trial(STANDARD, [
        ("(400, 512)", "(40000, 512)"), ("max_steps=40", "max_steps=5000"),
        ("        loss = self.m(", "        STEP(); loss = self.m("),
    ]),
    "encode_list": Trial(("tf32", "bf16"), [
        ("for i in range(0, 1600, 32):", "for i in [*range(0, 1600, 32)] * 1000:\n        STEP()"),
        (".cpu().numpy())", ".float().cpu().numpy())"),
    ], block=50, lead_in=10),
    "t5_generate": Trial(("compile",), [
        (".half().eval()", ".half().eval(); models = [m, torch.compile(m)]"),
        looped("for _ in range(3):", 8), ("        m.generate(", "        models[ON('compile')].generate("),
    ], block=3, lead_in=1, per_step=1 / 40),
    "unet3d": Trial(STANDARD, [looped("for step in range(40):")]),
    "lstm_lm": Trial((*STANDARD, "advice.host_sync"), [
        looped("for step in range(50):"),
        ("data = torch.randint(0, VOCAB, (4000, 64))", "data = torch.randint(0, VOCAB, (4000, 64)).pin_memory()"),
        ("    x, y = data[i : i + 70].cuda(), data[i + 1 : i + 71].cuda()",
         "    i, pin = i % 3900, ON('advice.host_sync')\n"
         "    x, y = data[i:i + 70], data[i + 1:i + 71]\n"
         "    x, y = (x, y) if pin else (x.clone(), y.clone())\n"
         "    x, y = x.cuda(non_blocking=pin), y.cuda(non_blocking=pin)"),
    ]),
    "dlrm": Trial(("tf32", "bf16", "advice.host_work"), [
        looped("for step in range(60):"),
        ("    dense = torch.rand(8192, 13)\n    sparse = torch.randint(0, 100000, (8192, 26, 3))\n"
         "    clicked = torch.randint(0, 2, (8192,)).float()\n",
         "    if step == 0 or not ON('advice.host_work'):\n"
         "        dense = torch.rand(8192, 13)\n        sparse = torch.randint(0, 100000, (8192, 26, 3))\n"
         "        clicked = torch.randint(0, 2, (8192,)).float()\n"),
    ]),
    "ddpm_sample": Trial(("tf32", "bf16", "channels_last"), [
        looped("for step in range(100):", 8), ("    t = 99 - step", "    t = 99 - step % 100"),
        ("model = UNet().cuda().eval()",
         "import copy\nmodel = UNet().cuda().eval()\n"
         "models = [model, copy.deepcopy(model).to(memory_format=torch.channels_last)]"),
        ("    noise = model(images,", "    last = ON('channels_last')\n        noise = models[last](images.contiguous("
         "memory_format=torch.channels_last if last else torch.contiguous_format),"),
    ]),
    "speech_ctc": Trial((*STANDARD, "advice.host_work"), [
        looped("for step in range(50):"),
        ("    wave = torch.randn(16, 160000).cuda()",
         "    host = host if step and ON('advice.host_work') else torch.randn(16, 160000)\n    wave = host.cuda()"),
    ]),
    "graph_attention": Trial((*STANDARD, "advice.host_sync"), [
        looped("for step in range(50):"),
        ("    accuracy = (out.argmax(1) == y).float().mean().item()",
         "    accuracy = (out.argmax(1) == y).float().mean()\n"
         "    accuracy = accuracy if ON('advice.host_sync') else accuracy.item()"),
    ]),
    "point_cloud": Trial(STANDARD, [looped("for step in range(100):")]),
    "packed_gru": Trial(STANDARD, [("for row in lengths.tolist():", "for row in lengths.tolist() * 1000:\n    STEP()")]),
    "recommender_bags": Trial(("tf32", "bf16"), [looped("for step in range(100):")]),
    "gcn_full": Trial(STANDARD, [looped("for epoch in range(40):")]),
    "gin_molecules": Trial(STANDARD, [loaded("loader")]),
    "two_tower": Trial(STANDARD, [
        ("in enumerate(loader):", "in enumerate(ENDLESS(loader)):"),
    ], block=6, lead_in=2),
    "ppo_vec": Trial(("tf32", "bf16", "fused"), [
        looped("for iteration in range(12):"),
    ], block=3, lead_in=1, per_step=1 / 16),
    "dqn_atari": Trial(STANDARD, [looped("for step in range(200):")]),
    "whisper_transcribe": Trial(("tf32", "bf16"), [looped("for clip in range(4):")], block=3, lead_in=1, per_step=1 / 48),
    "dit_sample": Trial(("tf32", "bf16"), [
        looped("for i in range(50):", 8), ("        t = times[i]", "        i = i % 50\n        t = times[i]"),
    ]),
    "hf_trainer": Trial(STANDARD, [
        ("max_steps=40", "max_steps=5000"),
        ("trainer.train()",
         "step_of = trainer.training_step\ndef timed(*a, **k):\n    STEP()\n    return step_of(*a, **k)\n"
         "trainer.training_step = timed\ntrainer.train()"),
    ]),
    "accelerate_gpt2": Trial(STANDARD, [("in enumerate(data):", "in enumerate(ENDLESS(data)):")], block=12, lead_in=4),
    "lightning_images": Trial(STANDARD, [
        ("return 4096", "return 409600"), ("max_steps=40", "max_steps=5000"),
        ("        x, y = batch\n", "        STEP()\n        x, y = batch\n"),
    ]),
    "cpu_augment": Trial(STANDARD, [
        (" in enumerate(DataLoader(Cifar(), batch_size=128, shuffle=True)):",
         " in enumerate(ENDLESS(DataLoader(Cifar(), batch_size=128, shuffle=True))):"),
    ], block=8, lead_in=2),
    "seq2seq_attention": Trial(STANDARD, [looped("for step in range(30):")], block=6, lead_in=2),
    "video_r3d": Trial(STANDARD, [looped("for step in range(30):")], block=8, lead_in=2),
    "pointnet_seg": Trial(STANDARD, [looped("for step in range(50):")], block=8, lead_in=2),
    "gp_exact": Trial(("tf32", "fused"), [looped("for i in range(30):")], block=6, lead_in=2),
    "gp_sparse": Trial(("tf32", "fused"), [loaded("loader")]),
    "mixtral_like": Trial(("tf32",), [looped("for request in range(40):", 8)], block=6, lead_in=2),
    "gpt2_chat": Trial(("tf32", "bf16"), [looped("for prompt in range(3):")], block=2, lead_in=1, per_step=1 / 60),
    "ragged_tagger": Trial(STANDARD, [
        ("for x, y in DataLoader(data, batch_size=32, shuffle=True, collate_fn=collate):",
         "for x, y in ENDLESS(DataLoader(data, batch_size=32, shuffle=True, collate_fn=collate)):"),
    ], block=20, lead_in=4),
    "own_gelu": Trial(STANDARD, [looped("for step in range(40):")]),
    "inline_kernel": Trial(("tf32",), [looped("for step in range(40):")]),
    "neural_ode": Trial(STANDARD, [looped("for step in range(30):")], block=4, lead_in=1),
    "dcgan": Trial(STANDARD, [looped("for step in range(40):")]),
    "vit_finetune": Trial(STANDARD, [looped("for step in range(40):")], block=8, lead_in=2),
    "vae_small": Trial(STANDARD, [loaded("loader", " in enumerate(", "):\n")], block=20, lead_in=5),
}  # fmt: skip
