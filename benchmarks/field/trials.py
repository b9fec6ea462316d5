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
    "hetero_scholar": Trial((*STANDARD, "advice.host_sync"), [
        looped("for epoch in range(1, 61):"),
        ("optimizer = ", "SPLITS = ('train_mask', 'val_mask', 'test_mask')\n"
         "INDEX = {split: data['paper'][split].nonzero().squeeze(1) for split in SPLITS}\noptimizer = "),
        ("mask = data['paper'].train_mask", "mask = INDEX['train_mask'] if ON('advice.host_sync') else data['paper'].train_mask"),
        ("    return float(loss)", "    return loss.detach() if ON('advice.host_sync') else float(loss)"),
        ("    model.eval()\n", "    model.eval()\n    torch.clear_autocast_cache()\n"),
        ("        mask = data['paper'][split]\n",
         "        if ON('advice.host_sync'):\n            mask = INDEX[split]\n"
         "            accs.append((pred[mask] == data['paper'].y[mask]).sum() / len(mask))\n            continue\n"
         "        mask = data['paper'][split]\n"),
    ]),
    "qm9_mpnn_dense": Trial((*STANDARD, "pinned", "advice.host_sync", "compile"), [
        (" in enumerate(loader):",
         " in enumerate(ENDLESS(loader, pinned=lambda: DataLoader(train_set, batch_size=args.batch_size, "
         "shuffle=True, drop_last=True, pin_memory=True))):"),
        ("nodes, edges, adj, mask, y = nodes.cuda(), edges.cuda(), adj.cuda(), mask.cuda(), y.cuda()",
         "nodes, edges, adj, mask, y = (x.cuda(non_blocking=ON('pinned')) for x in (nodes, edges, adj, mask, y))"),
        ("    opt = ", "    models = [model, torch.compile(model)]\n    opt = "),
        ("pred = model(", "pred = models[ON('compile')]("),
        ("        mae += (pred.detach() - y).abs().mean().item()",
         "        error = (pred.detach() - y).abs().mean()\n"
         "        mae += error if ON('advice.host_sync') else error.item()"),
    ], block=8, lead_in=2),
    "ft_transformer": Trial(("compile",), [
        looped("for step in range(c.steps):"), ("opt = ", "models = [model, torch.compile(model)]\nopt = "),
        ("        logits = model(", "        logits = models[ON('compile')]("),
    ], block=20, lead_in=4),
    "bpr_mf": Trial((*STANDARD, "pinned", "advice.host_work", "advice.host_sync"), [
        looped("for it in range(100):"),
        ("model = BPR()", "from concurrent.futures import ThreadPoolExecutor\n"
         "POOL, AHEAD = ThreadPoolExecutor(1), []\nmodel = BPR()"),
        ("    u, i, j = sample_batch(16384)",
         "    ahead = AHEAD.pop() if AHEAD else POOL.submit(sample_batch, 16384)\n"
         "    u, i, j = ahead.result() if ON('advice.host_work') else sample_batch(16384)\n"
         "    AHEAD.append(POOL.submit(sample_batch, 16384) if ON('advice.host_work') else ahead)"),
        ("    u, i, j = torch.LongTensor(u).cuda(), torch.LongTensor(i).cuda(), torch.LongTensor(j).cuda()",
         "    u, i, j = torch.LongTensor(u), torch.LongTensor(i), torch.LongTensor(j)\n"
         "    if ON('pinned'):\n        u, i, j = u.pin_memory(), i.pin_memory(), j.pin_memory()\n"
         "    u, i, j = (x.cuda(non_blocking=ON('pinned')) for x in (u, i, j))"),
        ("losses.append(loss.item())", "losses.append(loss.detach() if ON('advice.host_sync') else loss.item())"),
    ], block=20, lead_in=5),
    "sac_continuous": Trial((*STANDARD, "pinned", "advice.host_sync"), [
        looped("for global_step in range(100):"),
        ("[0].cpu().numpy()", "[0].float().cpu().numpy()"),
        ("torch.tensor(rb[k][idx], device=device) for",
         "torch.from_numpy(rb[k][idx]).pin_memory().to(device, non_blocking=True) if ON('pinned') "
         "else torch.tensor(rb[k][idx], device=device) for"),
        ("    alpha = log_alpha.exp().item()",
         "    alpha = log_alpha.exp().detach() if ON('advice.host_sync') else log_alpha.exp().item()"),
        ("    qf_loss = ", "    torch.clear_autocast_cache()\n    qf_loss = "),
        ("    pi, logp = actor(s)", "    torch.clear_autocast_cache()\n    pi, logp = actor(s)"),
    ]),
    "grpo_digits": Trial((*STANDARD, "compile"), [
        looped("for it in range(30):"), ("optimizer = ", "policies = [policy, torch.compile(policy)]\noptimizer = "),
        ("    logits = policy(", "    torch.clear_autocast_cache()\n    logits = policies[ON('compile')]("),
    ], block=4, lead_in=1),
    "rssm_world_model": Trial((*STANDARD, "pinned", "advice.host_work", "compile"), [
        looped("for step in range(50):"),
        ("replay = Replay()", "from concurrent.futures import ThreadPoolExecutor\n"
         "POOL, AHEAD, CELLS = ThreadPoolExecutor(1), [], [rssm, torch.compile(rssm)]\nreplay = Replay()"),
        ('    obs, act, rew = (torch.as_tensor(x, device="cuda") for x in replay.sample())',
         "    ahead = AHEAD.pop() if AHEAD else POOL.submit(replay.sample)\n"
         "    arrays = ahead.result() if ON('advice.host_work') else replay.sample()\n"
         "    AHEAD.append(POOL.submit(replay.sample) if ON('advice.host_work') else ahead)\n"
         "    obs, act, rew = (torch.from_numpy(x).pin_memory().to('cuda', non_blocking=True) if ON('pinned')\n"
         "                     else torch.as_tensor(x, device='cuda') for x in arrays)"),
        ("qs = rssm(h, s,", "qs = CELLS[ON('compile')](h, s,"),
    ], block=6, lead_in=2),
    "conformer_ctc": Trial(STANDARD, [
        ("Utterances(args.steps * args.batch)", "Utterances(960000)"), loaded("loader", " in enumerate(", "):\n"),
    ]),
    "hifigan_vocoder": Trial((*STANDARD, "pinned"), [
        looped("for steps in range(40):"),
        ("    y = waves[torch.randint(0, 256, (16,))].cuda(", "    y = waves[torch.randint(0, 256, (16,))]\n"
         "    y = (y.pin_memory() if ON('pinned') else y).cuda("),
        ("F.pad(y.squeeze(1), (384", "F.pad(y.squeeze(1).float(), (384"),
        ("    optim_d.step()\n", "    optim_d.step()\n    torch.clear_autocast_cache()\n"),
    ], block=6, lead_in=2),
    "flow_matching": Trial(("tf32", "fused", "channels_last", "compile", "foreach_ema"), [
        looped("for step in range(60):"),
        ("images = torch.randint(",
         "last = copy.deepcopy(net).to(memory_format=torch.channels_last)\n"
         "sets = {'channels_last': (last, last, copy.deepcopy(last).requires_grad_(False), "
         "torch.optim.AdamW(last.parameters(), lr=2e-4, weight_decay=0))}\n"
         "sets[''] = (net, net, ema, opt)\nsets['compile'] = (torch.compile(net), net, ema, opt)\n"
         "images = torch.randint("),
        ("    x1 = images[",
         "    called, net, ema, opt = sets['channels_last' if ON('channels_last') else 'compile' if ON('compile') else '']\n"
         "    x1 = images["),
        ("        v = net(xt, t)",
         "        v = called(xt.contiguous(memory_format=torch.channels_last) if ON('channels_last') else xt, t)"),
        ("    update_ema(ema, net)\n    if",
         "    if ON('foreach_ema'):\n        with torch.no_grad():\n"
         "            torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 1 - 0.9999)\n"
         "    else:\n        update_ema(ema, net)\n    if"),
    ], block=8, lead_in=2),
    "peft_llama": Trial((*STANDARD, "pinned"), [
        ("in enumerate(loader):",
         "in enumerate(ENDLESS(loader, pinned=lambda: DataLoader(examples, batch_size=4, shuffle=True, "
         "collate_fn=collate, pin_memory=True))):"),
        ('v.to("cuda")', "v.to('cuda', non_blocking=ON('pinned'))"),
    ], block=6, lead_in=2),
    "lightning_forecast": Trial(STANDARD, [
        ("length=60000", "length=600000"), ("max_steps=80", "max_steps=100000"),
        ("        x, y = batch\n", "        STEP()\n        x, y = batch\n"),
    ]),
    "accelerate_vit": Trial(("tf32", "fused", "compile"), [
        ('CONFIG["steps"] * CONFIG["batch_size"]', "3200000"), loaded("loader"),
        ("    model.train()\n", "    model.train()\n    models = [model, torch.compile(model)]\n"),
        ("criterion(model(images), target)", "criterion(models[ON('compile')](images), target)"),
    ], block=12, lead_in=4),
    "trainer_ner": Trial(("tf32", "compile"), [
        ("max_steps=60", "max_steps=100000"), ("Sentences(2000, 9)", "Sentences(60000, 9)"),
        ("result = trainer.train()",
         "step_of, models = trainer.training_step, []\ndef timed(model, *a, **k):\n    STEP()\n"
         "    models.extend([] if models else [model, torch.compile(model)])\n"
         "    return step_of(models[ON('compile')], *a, **k)\n"
         "trainer.training_step = timed\nresult = trainer.train()"),
    ]),
    "timesformer": Trial((*STANDARD, "pinned", "advice.host_work", "advice.attention_backend"), [
        looped("for i in range(30):"),
        ("def attn(q, k, v):\n",
         "def attn(q, k, v):\n    if ON('advice.attention_backend'):\n"
         "        return nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], scale=1.0)[:, 0]\n"),
        ("model = TimeSformer()", "from concurrent.futures import ThreadPoolExecutor\n"
         "POOL, AHEAD = ThreadPoolExecutor(1), []\nmodel = TimeSformer()"),
        ("    video = torch.randn(4, 8, 3, 224, 224)\n",
         "    shape = (4, 8, 3, 224, 224)\n"
         "    video = (AHEAD.pop() if AHEAD else POOL.submit(torch.randn, shape)).result() "
         "if ON('advice.host_work') else torch.randn(shape)\n"
         "    if ON('advice.host_work'):\n        AHEAD.append(POOL.submit(torch.randn, shape))\n"),
        ("    pred = model(video.cuda())",
         "    if ON('pinned'):\n        video, label = video.pin_memory(), label.pin_memory()\n"
         "    pred = model(video.cuda(non_blocking=ON('pinned')))"),
        ("label.cuda()", "label.cuda(non_blocking=ON('pinned'))"),
    ], block=5, lead_in=2),
    "nerf_rays": Trial((*STANDARD, "pinned", "advice.host_work", "compile"), [
        looped("for it in range(60):"),
        ("def get_rays(", "def moved(x):\n"
         "    return x.pin_memory().cuda(non_blocking=True) if ON('pinned') else x.cuda()\n\n\ndef get_rays("),
        ("rays_d.to(c2w.device)", "moved(rays_d)"),
        ("optimizer = ", "from concurrent.futures import ThreadPoolExecutor\n"
         "POOL, AHEAD, models = ThreadPoolExecutor(1), [], [model, torch.compile(model)]\n"
         "chosen = lambda: np.random.choice(H * W, size=[N_RAND], replace=False)\n"
         "READY = [(torch.Tensor(x).cuda(), *get_rays(torch.Tensor(p).cuda())) for x, p in zip(images, poses)]\n"
         "optimizer = "),
        ("    target, pose = torch.Tensor(images[img_i]).cuda(), torch.Tensor(poses[img_i]).cuda()\n"
         "    rays_o, rays_d = get_rays(pose)\n"
         "    select = np.random.choice(H * W, size=[N_RAND], replace=False)\n"
         "    rows, cols = torch.from_numpy(select // W).cuda(), torch.from_numpy(select % W).cuda()\n",
         "    ahead = AHEAD.pop() if AHEAD else POOL.submit(chosen)\n"
         "    if ON('advice.host_work'):\n"
         "        (target, rays_o, rays_d), select = READY[img_i], ahead.result()\n"
         "        AHEAD.append(POOL.submit(chosen))\n"
         "    else:\n"
         "        AHEAD.append(ahead)\n"
         "        target, pose = moved(torch.Tensor(images[img_i])), moved(torch.Tensor(poses[img_i]))\n"
         "        rays_o, rays_d = get_rays(pose)\n"
         "        select = chosen()\n"
         "    rows, cols = moved(torch.from_numpy(select // W)), moved(torch.from_numpy(select % W))\n"),
        ("torch.linspace(NEAR, FAR, N_SAMPLES).cuda()", "moved(torch.linspace(NEAR, FAR, N_SAMPLES))"),
        ("torch.rand(z.shape).cuda()", "moved(torch.rand(z.shape))"),
        ("    raw = model(", "    raw = models[ON('compile')]("),
    ], block=8, lead_in=2),
    "splat_image": Trial((*STANDARD, "compile"), [
        looped("for step in range(60):"),
        ("pixels = ", "renders = [render_tile, torch.compile(render_tile)]\npixels = "),
        ("out = render_tile(", "out = renders[ON('compile')]("),
    ]),
    "speculative_gpt2": Trial(("tf32", "advice.host_sync"), [
        looped("    for _ in range(rounds):", 8),
        ("        ids, n = model(",
         "        if ids.shape[1] > 400:\n"
         "            ids, draft_cache, target_cache = ids[:, :32], DynamicCache(), DynamicCache()\n"
         "        ids, n = model("),
        ("        for i in range(GAMMA):\n",
         "        if ON('advice.host_sync'):\n"
         "            ratios = q[0, :GAMMA].gather(1, seq[0, start:, None]) / torch.cat(probs)\n"
         "            drawn = torch.rand(GAMMA, 1, device=ids.device) < ratios.clamp(max=1.0) * 2\n"
         "            accepted = int(drawn.long().cumprod(0).sum())\n"
         "        for i in [] if ON('advice.host_sync') else range(GAMMA):\n"),
    ], block=20, lead_in=4),
    "triton_rmsnorm": Trial(("compile",), [
        looped("for step in range(60):"), ("optimizer = ", "models = [model, torch.compile(model)]\noptimizer = "),
        ("        logits = model(", "        logits = models[ON('compile')]("),
    ]),
    "pil_unet": Trial(("tf32", "pinned", "channels_last", "advice.host_sync"), [
        ("CarvanaLike(batch_size * steps)", "CarvanaLike(800000)"), loaded("loader"),
        ("    scaler = ",
         "    import copy\n    last = copy.deepcopy(model).to(memory_format=torch.channels_last)\n"
         "    both = [(model, optimizer), (last, torch.optim.RMSprop(last.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.9))]\n"
         "    scaler = "),
        ('        images, masks = images.to("cuda"), masks.to("cuda")\n',
         "        model, optimizer = both[ON('channels_last')]\n"
         "        images = images.to('cuda', non_blocking=ON('pinned'))\n"
         "        masks = masks.to('cuda', non_blocking=ON('pinned'))\n"
         "        images = images.to(memory_format=torch.channels_last) if ON('channels_last') else images\n"),
        ("epoch_loss += loss.item()", "epoch_loss += loss.detach() if ON('advice.host_sync') else loss.item()"),
    ], block=8, lead_in=3),
    "fno_darcy": Trial(("tf32", "pinned", "advice.host_work", "advice.host_sync"), [
        ("for ep in range(3):", "for ep in range(1):"),
        ("    for x, y in loader:",
         "    for x, y in ENDLESS(loader, pinned=lambda: torch.utils.data.DataLoader("
         "loader.dataset, batch_size=20, shuffle=True, pin_memory=True)):"),
        ("        x, y = x.cuda(), y.cuda()",
         "        x, y = x.cuda(non_blocking=ON('pinned')), y.cuda(non_blocking=ON('pinned'))"),
        ("        b, nx, ny = shape",
         "        if ON('advice.host_work') and hasattr(self, 'grid'):\n            return self.grid\n"
         "        b, nx, ny = shape"),
        ("        return torch.cat((gx, gy), dim=-1).to(device)",
         "        self.grid = torch.cat((gx, gy), dim=-1).to(device)\n        return self.grid"),
        ("train_l2 += loss.item()", "train_l2 += loss.detach() if ON('advice.host_sync') else loss.item()"),
    ]),
    "pinn_burgers": Trial(STANDARD, [looped("        for epoch in range(n_iter):", 12)]),
    "md_argon": Trial(("tf32", "advice.host_sync"), [
        looped("for step in range(100):"),
        ("        r2 = r2[r2 < self.cutoff ** 2]\n",
         "        if ON('advice.host_sync'):\n            s6 = (self.sigma ** 2 / r2) ** 3\n"
         "            return 4 * self.eps * torch.where(r2 < self.cutoff ** 2, s6 ** 2 - s6, 0.0).sum()\n"
         "        r2 = r2[r2 < self.cutoff ** 2]\n"),
        ("    temperature = (2 * kinetic / (3 * len(pos) * 0.0019872)).item()\n"
         "    trajectory.append((e.item(), temperature))\n",
         "    temperature = 2 * kinetic / (3 * len(pos) * 0.0019872)\n"
         "    trajectory.append((e, temperature) if ON('advice.host_sync') else (e.item(), temperature.item()))\n"),
    ], block=20, lead_in=4),
    "distill_resnet": Trial((*STANDARD, "channels_last", "advice.host_sync"), [
        ("FakeData(3200,", "FakeData(640000,"), loaded("train_loader", " in enumerate(", "):\n"),
        ("    losses, top1,",
         "    import copy\n"
         "    last = [copy.deepcopy(net).to(memory_format=torch.channels_last) for net in (teacher, student.train())]\n"
         "    both = [(teacher, student, optimizer), (*last, torch.optim.SGD("
         "last[1].parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4))]\n"
         "    losses, top1,"),
        ("        images = images.cuda(non_blocking=True)\n",
         "        teacher, student, optimizer = both[ON('channels_last')]\n"
         "        number = (lambda x: x.detach()) if ON('advice.host_sync') else (lambda x: x.item())\n"
         "        images = images.cuda(non_blocking=True)\n"
         "        images = images.to(memory_format=torch.channels_last) if ON('channels_last') else images\n"),
        ("loss.item()", "number(loss)"), ("acc1.item()", "number(acc1)"), ("acc5.item()", "number(acc5)"),
    ], block=8, lead_in=3),
    "detect_nms": Trial(("tf32", "bf16", "pinned", "channels_last", "advice.host_work", "compile"), [
        looped("    for n in range(60):", 8),
        ("model = Detector()", "import copy\nfrom concurrent.futures import ThreadPoolExecutor\n"
         "POOL, AHEAD = ThreadPoolExecutor(1), []\n"
         "def frame(n):\n    return torch.from_numpy(frames[n % 16].transpose(0, 3, 1, 2).copy())\n\n\n"
         "model = Detector()"),
        ("count, began", "last, compiled = copy.deepcopy(model).to(memory_format=torch.channels_last), torch.compile(model)\n"
         "count, began"),
        ("        img = torch.from_numpy(frames[n % 16].transpose(0, 3, 1, 2).copy()).cuda().float()\n",
         "        ahead = AHEAD.pop() if AHEAD else POOL.submit(frame, n)\n"
         "        img = ahead.result() if ON('advice.host_work') else frame(n)\n"
         "        AHEAD.append(POOL.submit(frame, n + 1) if ON('advice.host_work') else ahead)\n"
         "        img = (img.pin_memory().cuda(non_blocking=True) if ON('pinned') else img.cuda()).float()\n"
         "        img = img.to(memory_format=torch.channels_last) if ON('channels_last') else img\n"
         "        net = last if ON('channels_last') else compiled if ON('compile') else model\n"),
        ("non_max_suppression(model(img))", "non_max_suppression(net(img))"),
    ], block=8, lead_in=2),
    "wgan_gp": Trial((*STANDARD, "pinned", "advice.host_work", "advice.host_sync"), [
        ("            real = data[torch.randint(0, len(data), (BATCH,))].cuda()\n",
         "            real = moved(data[torch.randint(0, len(data), (BATCH,))])\n"),
        ("        for i in range(steps):", "        for i in range(10**9):\n            STEP()"),
        ("class Trainer:",
         "def moved(x):\n    return x.pin_memory().cuda(non_blocking=True) if ON('pinned') else x.cuda()\n\n\n"
         "def made(make, *shape):\n"
         "    return make(shape, device='cuda') if ON('advice.host_work') else moved(make(shape))\n\n\n"
         "def number(x):\n    return x.detach() if ON('advice.host_sync') else x.item()\n\n\nclass Trainer:"),
        ("torch.rand(real.size(0), 1, 1, 1).expand_as(real).cuda()", "made(torch.rand, real.size(0), 1, 1, 1).expand_as(real)"),
        ("torch.ones(prob.size()).cuda()", "made(torch.ones, *prob.size())"),
        ("torch.randn(BATCH, Z, 1, 1).cuda()).detach()", "made(torch.randn, BATCH, Z, 1, 1)).detach()"),
        ("torch.randn(BATCH, Z, 1, 1).cuda())).mean()", "made(torch.randn, BATCH, Z, 1, 1))).mean()"),
        ("grads.norm(2, dim=1).mean().item()", "number(grads.norm(2, dim=1).mean())"),
        ("gp.item()", "number(gp)"),
        ("        self.opt_d.step()\n        self.losses[\"D\"].append(loss.item())",
         "        self.opt_d.step()\n        torch.clear_autocast_cache()\n        self.losses[\"D\"].append(number(loss))"),
        ("self.losses[\"G\"].append(loss.item())", "self.losses[\"G\"].append(number(loss))"),
    ], block=10, lead_in=5),
    "maml_sines": Trial((*STANDARD, "pinned", "advice.host_work", "advice.host_sync"), [
        looped("for it in range(100):"),
        ("def sample_tasks(outer_batch_size, inner_batch_size):\n",
         "def sample_tasks(outer_batch_size, inner_batch_size):\n"
         "    torch.set_default_device(device if ON('advice.host_work') else None)\n"),
        ("    return [t.unsqueeze(-1).to(device) for",
         "    torch.set_default_device(None)\n"
         "    return [t.unsqueeze(-1).pin_memory().to(device, non_blocking=True) if ON('pinned') "
         "else t.unsqueeze(-1).to(device) for"),
        ("losses.append(loss.item())", "losses.append(loss.detach() if ON('advice.host_sync') else loss.item())"),
    ]),
    "bart_beams": Trial(("tf32", "bf16"), [
        ("for start in range(0, len(documents), 8):\n",
         "for start in [*range(0, len(documents), 8)] * 1000:\n    STEP()\n"),
    ], block=4, lead_in=1, per_step=1 / 30),
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
    "qm9_mpnn_dense": workers(
        " in enumerate({}):", "loader", "train_set", "batch_size=args.batch_size, shuffle=True, drop_last=True", 80
    ),
    "conformer_ctc": Trial(("advice.data_loading",), [
        ("Utterances(args.steps * args.batch)", "Utterances(960000)"),
        *workers(
            " in enumerate({}):", "loader", "loader.dataset",
            "batch_size=args.batch, shuffle=True, collate_fn=Collate()", 80,
        ).edits,
    ], block=80, lead_in=48),
    "lightning_forecast": Trial(("advice.data_loading",), [
        ("length=60000", "length=600000"), ("max_steps=80", "max_steps=100000"),
        ("trainer.fit(Forecaster(), train_loader)",
         "trainer.fit(Forecaster(), ENDLESS(train_loader, advice_data_loading=lambda: DataLoader("
         f"train_loader.dataset, batch_size=256, shuffle=True, {WORKERS})))"),
    ], block=60, lead_in=36),
    "timesformer": Trial(("compile",), [
        looped("for i in range(30):"), ("opt = ", "models = [model, torch.compile(model)]\nopt = "),
        ("    pred = model(", "    pred = models[ON('compile')]("),
    ], block=6, lead_in=2),
    "pil_unet": Trial(("advice.data_loading",), [
        ("CarvanaLike(batch_size * steps)", "CarvanaLike(800000)"),
        *workers("in {}:", "loader", "loader.dataset", "batch_size=batch_size, shuffle=True", 60).edits,
    ], block=60, lead_in=36),
    "distill_resnet": Trial(("advice.data_loading",), [
        ("FakeData(3200,", "FakeData(640000,"),
        (" in enumerate(train_loader):",
         " in enumerate(ENDLESS(train_loader, advice_data_loading=lambda: DataLoader(data, batch_size=64, shuffle=True, "
         "drop_last=True, num_workers=15, prefetch_factor=4, persistent_workers=True, pin_memory=True))):"),
    ], block=120, lead_in=72),
    "fno_darcy": Trial(("compile",), [
        ("for ep in range(3):", "for ep in range(1):"), ("    for x, y in loader:", "    for x, y in ENDLESS(loader):"),
        ("optimizer = ", "models = [model, torch.compile(model)]\noptimizer = "),
        ("        out = model(", "        out = models[ON('compile')]("),
    ]),
    "maml_sines": Trial(("compile",), [
        looped("for it in range(100):"),
        ("losses = []", "functions = [outer_loss, torch.compile(outer_loss)]\nlosses = []"),
        ("    loss = outer_loss(", "    loss = functions[ON('compile')]("),
    ]),
    "hifigan_vocoder": Trial(("compile",), [
        looped("for steps in range(40):"),
        ("optim_g = ", "generators = [generator, torch.compile(generator)]\noptim_g = "),
        ("    y_hat = generator(", "    y_hat = generators[ON('compile')]("),
    ], block=6, lead_in=2),
    "peft_llama": Trial(("compile",), [
        loaded("loader", " in enumerate(", "):\n"),
        ("optimizer = ", "models = [model, torch.compile(model)]\noptimizer = "),
        ("    outputs = model(", "    outputs = models[ON('compile')]("),
    ], block=6, lead_in=2),
    "sac_continuous": Trial(("compile",), [
        looped("for global_step in range(100):"),
        ("    obs = envs.s.copy()\n",
         "    actor, qf1, qf2, qf1_target, qf2_target = NETS[ON('compile')]\n    obs = envs.s.copy()\n"),
        ('rb = {"s"', 'NETS = [(actor, qf1, qf2, qf1_target, qf2_target)]\n'
         'NETS.append(tuple(torch.compile(net) for net in NETS[0]))\nrb = {"s"'),
    ]),
}  # fmt: skip
