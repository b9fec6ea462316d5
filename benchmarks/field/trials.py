"""What is edited in each script so that its changes can be switched (`switches`), and which are tried."""

# ruff: noqa: E501 - the scripts' own lines

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STANDARD = ("tf32", "bf16", "fused")
# Those that autocast around the step stops: a product of its own kind takes one type only.
WITHOUT_BF16 = ("tf32", "fused")


class Trial(NamedTuple):
    """The changes of one script.

    Attributes:
        changes: Each is switched on alone.
        edits: Texts of the script and what comes in their place; each stands in the script once.
        block: Steps of a block.
        lead_in: How many of them do not count.
        per_step: Calls of STEP in a step of the recording, or fewer than 1: steps of the recording in one call.
    """

    changes: Sequence[str]
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


CIFAR = "DataLoader(Cifar(), batch_size=128, shuffle=True)"
WORKERS = "num_workers=8, prefetch_factor=4, persistent_workers=True, pin_memory=True"


def workers(head: str, loader: str, dataset: str, options: str, block: int) -> Trial:
    """The change of a loader to one with workers; the batches that they have ready do not count."""
    made = f"advice_data_loading=lambda: DataLoader({dataset}, {options}, {WORKERS})"
    edit = head.format(loader), head.format(f"ENDLESS({loader}, {made})")
    return Trial(("advice.data_loading",), [edit], block=block, lead_in=block * 3 // 5)


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
    "lstm_lm": Trial((*WITHOUT_BF16, "advice.host_sync"), [
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
    "graph_attention": Trial((*WITHOUT_BF16, "advice.host_sync"), [
        looped("for step in range(50):"),
        ("    accuracy = (out.argmax(1) == y).float().mean().item()",
         "    accuracy = (out.argmax(1) == y).float().mean()\n"
         "    accuracy = accuracy if ON('advice.host_sync') else accuracy.item()"),
    ]),
    "point_cloud": Trial(STANDARD, [looped("for step in range(100):")]),
    "packed_gru": Trial(STANDARD, [("for row in lengths.tolist():", "for row in lengths.tolist() * 1000:\n    STEP()")]),
    "recommender_bags": Trial(("tf32", "bf16"), [looped("for step in range(100):")]),
    "gcn_full": Trial((*STANDARD, "advice.host_sync"), [
        looped("for epoch in range(40):"),
        ("opt = ", "train_index = train_mask.nonzero().squeeze(1)\nopt = "),
        ("    loss = F.cross_entropy(out[train_mask], y[train_mask])",
         "    chosen = train_index if ON('advice.host_sync') else train_mask\n"
         "    loss = F.cross_entropy(out[chosen], y[chosen])"),
        ("(out.argmax(-1) == y)[train_mask]", "(out.argmax(-1) == y)[chosen]"),
    ]),
    "gin_molecules": Trial(STANDARD, [loaded("loader")]),
    "two_tower": Trial((*STANDARD, "compile"), [
        ("in enumerate(loader):", "in enumerate(ENDLESS(loader)):"),
        ("opt = ", "models = [model, torch.compile(model, mode='reduce-overhead')]\nopt = "),
        ("    scores = model(", "    scores = models[ON('compile')]("),
    ], block=8, lead_in=3),
    "ppo_vec": Trial(WITHOUT_BF16, [looped("for iteration in range(12):")], block=3, lead_in=1, per_step=1 / 16),
    "dqn_atari": Trial((*STANDARD, "pinned", "advice.host_work"), [
        looped("for step in range(200):"),
        ("        i = np.random.randint(0, len(self.s) - 1, n)\n"
         "        return [torch.tensor(x, device=device) for x in (self.s[i], self.a[i], self.r[i], self.s[i + 1], self.d[i])]",
         "        ahead = AHEAD.pop() if AHEAD else POOL.submit(self.arrays, n)\n"
         "        arrays = ahead.result() if ON('advice.host_work') else self.arrays(n)\n"
         "        AHEAD.append(POOL.submit(self.arrays, n) if ON('advice.host_work') else ahead)\n"
         "        if ON('pinned'):\n"
         "            return [torch.from_numpy(x).pin_memory().to(device, non_blocking=True) for x in arrays]\n"
         "        return [torch.tensor(x, device=device) for x in arrays]\n\n"
         "    def arrays(self, n):\n        i = np.random.randint(0, len(self.s) - 1, n)\n"
         "        return self.s[i], self.a[i], self.r[i], self.s[i + 1], self.d[i]"),
        ("buffer = Replay()", "from concurrent.futures import ThreadPoolExecutor\n"
         "POOL, AHEAD = ThreadPoolExecutor(1), []\nbuffer = Replay()"),
    ]),
    "whisper_transcribe": Trial(("tf32", "bf16"), [looped("for clip in range(4):")], block=3, lead_in=1, per_step=1 / 48),
    "dit_sample": Trial(("tf32", "bf16", "advice.host_sync"), [
        looped("for i in range(50):", 8), ("        t = times[i]", "        i = i % 50\n        t = times[i]"),
        ("a, prev = alphas[t], alphas[times[i + 1]]",
         "at = (lambda k: alphas.gather(0, k[None])) if ON('advice.host_sync') else (lambda k: alphas[k])\n"
         "        a, prev = at(t), at(times[i + 1])"),
    ]),
    "hf_trainer": Trial(STANDARD, [
        ("max_steps=40", "max_steps=5000"),
        ("trainer.train()",
         "step_of = trainer.training_step\ndef timed(*a, **k):\n    STEP()\n    return step_of(*a, **k)\n"
         "trainer.training_step = timed\ntrainer.train()"),
    ]),
    "accelerate_gpt2": Trial((*STANDARD, "compile"), [
        ("in enumerate(data):", "in enumerate(ENDLESS(data)):"),
        ("model.train()\n", "model.train()\nmodels = [model, torch.compile(model)]\n"),
        ("        loss = model(", "        loss = models[ON('compile')]("),
    ], block=12, lead_in=4, per_step=4),
    "lightning_images": Trial(STANDARD, [
        ("return 4096", "return 409600"), ("max_steps=40", "max_steps=5000"),
        ("        x, y = batch\n", "        STEP()\n        x, y = batch\n"),
    ]),
    "cpu_augment": Trial((*STANDARD, "compile"), [
        (f" in enumerate({CIFAR}):", f" in enumerate(ENDLESS({CIFAR})):"),
        ("opt = ", "nets = [net, torch.compile(net, mode='reduce-overhead')]\nopt = "),
        ("    out = net(x)", "    out = nets[ON('compile')](x)"),
    ], block=10, lead_in=4),
    "seq2seq_attention": Trial(STANDARD, [looped("for step in range(30):")], block=6, lead_in=2),
    "video_r3d": Trial((*STANDARD, "pinned"), [
        looped("for step in range(30):"),
        ("    x, y = clips[i].cuda(), labels[i].cuda()",
         "    x, y = clips[i], labels[i]\n    if ON('pinned'):\n        x, y = x.pin_memory(), y.pin_memory()\n"
         "    x, y = x.cuda(non_blocking=ON('pinned')), y.cuda(non_blocking=ON('pinned'))"),
    ], block=8, lead_in=2),
    "pointnet_seg": Trial((*STANDARD, "pinned"), [
        looped("for step in range(50):"),
        ("torch.eye(self.k).to(x.device)", "moved(torch.eye(self.k))"),
        ("net = PointNetSeg()", "def moved(x):\n    return x.pin_memory().cuda(non_blocking=True) if ON('pinned') else x.cuda()\n\n\n"
         "net = PointNetSeg()"),
        ("torch.randn(32, 3, 2048).cuda()", "moved(torch.randn(32, 3, 2048))"),
        ("torch.randint(0, 50, (32, 2048)).cuda()", "moved(torch.randint(0, 50, (32, 2048)))"),
    ], block=8, lead_in=2),
    "gp_exact": Trial(("tf32", "fused"), [looped("for i in range(30):")], block=6, lead_in=2),
    "gp_sparse": Trial(("tf32", "fused"), [loaded("loader")]),
    "mixtral_like": Trial(("tf32",), [looped("for request in range(40):", 8)], block=6, lead_in=2),
    "gpt2_chat": Trial(("tf32", "bf16"), [looped("for prompt in range(3):")], block=2, lead_in=1, per_step=1 / 60),
    "ragged_tagger": Trial(STANDARD, [
        ("for x, y in DataLoader(data, batch_size=32, shuffle=True, collate_fn=collate):",
         "for x, y in ENDLESS(DataLoader(data, batch_size=32, shuffle=True, collate_fn=collate)):"),
    ], block=20, lead_in=4),
    "own_gelu": Trial((*STANDARD, "compile"), [
        looped("for step in range(40):"), ("opt = ", "bodies = [body, torch.compile(body)]\nopt = "),
        ("    x = body(", "    x = bodies[ON('compile')]("),
    ]),
    "inline_kernel": Trial(("tf32",), [
        looped("for step in range(40):"), ("    if moved.item() < 1e-4:\n        break", "    moved.item()"),
    ]),
    "neural_ode": Trial(STANDARD, [looped("for step in range(30):")], block=4, lead_in=1),
    "dcgan": Trial(("tf32", "fused", "pinned", "channels_last"), [
        looped("for step in range(40):"),
        ("data = torch.rand(",
         "import copy\nlast = [copy.deepcopy(net).to(memory_format=torch.channels_last) for net in (G, D)]\n"
         "both = [(G, D, optG, optD), (*last, *(torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999))"
         " for net in last))]\ndata = torch.rand("),
        ("    real = data[torch.randint(0, 1024, (128,))].cuda()",
         "    G, D, optG, optD = both[ON('channels_last')]\n    real = data[torch.randint(0, 1024, (128,))]\n"
         "    real = real.pin_memory().cuda(non_blocking=True) if ON('pinned') else real.cuda()\n"
         "    real = real.to(memory_format=torch.channels_last) if ON('channels_last') else real"),
    ]),
    "vit_finetune": Trial((*STANDARD, "pinned", "advice.host_work", "advice.attention_backend"), [
        looped("for step in range(40):"),
        ("torch.manual_seed(0)\n",
         "torch.manual_seed(0)\nfrom concurrent.futures import ThreadPoolExecutor\n"
         "POOL, SDPA, AHEAD = ThreadPoolExecutor(1), nn.functional.scaled_dot_product_attention, []\n"
         "def attention(q, k, v, **options):\n"
         "    if not ON('advice.attention_backend'):\n        return SDPA(q, k, v, **options)\n"
         "    return SDPA(q.bfloat16(), k.bfloat16(), v.bfloat16(), **options).to(v.dtype)\n"
         "nn.functional.scaled_dot_product_attention = attention\n"),
        ("x, y = torch.randn(48, 3, 224, 224), torch.randint(0, 100, (48,))",
         "y, shape = torch.randint(0, 100, (48,)), (48, 3, 224, 224)\n"
         "    x = (AHEAD.pop() if AHEAD else POOL.submit(torch.randn, shape)).result() "
         "if ON('advice.host_work') else torch.randn(shape)\n"
         "    if ON('advice.host_work'):\n        AHEAD.append(POOL.submit(torch.randn, shape))\n"
         "    if ON('pinned'):\n        x, y = x.pin_memory(), y.pin_memory()"),
        ("x, y = x.to(\"cuda\"), y.to(\"cuda\")",
         "x, y = x.to('cuda', non_blocking=ON('pinned')), y.to('cuda', non_blocking=ON('pinned'))"),
    ], block=8, lead_in=2),
    "vae_small": Trial(("tf32", "fused", "compile"), [
        loaded("loader", " in enumerate(", "):\n"),
        ("optimizer = ", "models = [model, torch.compile(model)]\noptimizer = "),
        ("    recon, mu, logvar = model(", "    recon, mu, logvar = models[ON('compile')]("),
    ], block=20, lead_in=5),
}  # fmt: skip

# Changes that take processes of their own.
MORE = {
    "cpu_augment": workers(" in enumerate({}):", CIFAR, "Cifar()", "batch_size=128, shuffle=True", 80),
    "gin_molecules": workers("for data in {}:", "loader", "graphs", "batch_size=64, shuffle=True", 120),
    "two_tower": workers("in enumerate({}):", "loader", "Clicks()", "batch_size=4096, shuffle=True", 80),
    "ragged_tagger": workers(
        "for x, y in {}:", "DataLoader(data, batch_size=32, shuffle=True, collate_fn=collate)", "data",
        "batch_size=32, shuffle=True, collate_fn=collate", 100,
    ),
    "vae_small": workers(
        "in enumerate({}):", "loader", "loader.dataset", "batch_size=128, shuffle=True", 200
    ),
    "gp_exact": Trial(("compile",), [
        looped("for i in range(30):"), ("opt = ", "models = [model, torch.compile(model)]\nopt = "),
        ("    output = model(", "    output = models[ON('compile')]("),
    ], block=6, lead_in=2),
    "gp_sparse": Trial(("compile",), [
        loaded("loader"), ("opt = ", "models = [model, torch.compile(model)]\nopt = "),
        ("-mll(model(xb), yb)", "-mll(models[ON('compile')](xb), yb)"),
    ]),
    "lightning_images": Trial(("pinned",), [
        ("return 4096", "return 409600"), ("max_steps=40", "max_steps=5000"),
        ("trainer.fit(Net(), loader)",
         "trainer.fit(Net(), ENDLESS(loader, pinned=lambda: DataLoader(Images(), batch_size=64, shuffle=True, "
         "num_workers=8, pin_memory=True)))"),
    ], block=40, lead_in=24),
}  # fmt: skip
