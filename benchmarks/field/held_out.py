"""Trials of the third set, in the form of `trials`.

Scripts that no result names have not run. Nobody looks at them before: only a first run is a proof.
"""

# ruff: noqa: E501 - the scripts' own lines

from __future__ import annotations

from trials import STANDARD, WITHOUT_BF16, WORKERS, Trial, loaded, looped, workers

TRIALS = {
    # Adafactor has no fused form.
    "t5_adafactor": Trial(("tf32", "bf16", "pinned", "advice.host_sync"), [
        ("in enumerate(loader, 0):",
         "in enumerate(ENDLESS(loader, pinned=lambda: DataLoader(loader.dataset, batch_size=16, shuffle=True, pin_memory=True)), 0):"),
        ('data["target_ids"].to(DEVICE,', 'data["target_ids"].to(DEVICE, non_blocking=ON("pinned"),'),
        ('data["source_ids"].to(DEVICE,', 'data["source_ids"].to(DEVICE, non_blocking=ON("pinned"),'),
        ('data["source_mask"].to(DEVICE,', 'data["source_mask"].to(DEVICE, non_blocking=ON("pinned"),'),
        ("        total += loss.item()", "        total += loss.detach() if ON('advice.host_sync') else loss.item()"),
    ], block=8, lead_in=2),
    # A step of the recording may be a token (per_step) - one call of STEP is an answer of 32 tokens.
    "qwen_generate": Trial(("advice.host_sync", "batched"), [
        looped("for question in range(16):"),
        ("        for row in range(input_ids.shape[0]):\n",
         "        if ON('batched'):\n            recent = input_ids[:, -self.window:]\n"
         "            return scores.scatter(1, recent, scores.gather(1, recent) - self.penalty)\n"
         "        for row in range(input_ids.shape[0]):\n"),
        ("        for token in input_ids[:, -1]:\n",
         "        if ON('advice.host_sync'):\n            self.hits += torch.isin(input_ids[:, -1], TABLE).sum()\n"
         "        for token in [] if ON('advice.host_sync') else input_ids[:, -1]:\n"),
        ("banned = set(range(100, 164))", "banned = set(range(100, 164))\nTABLE = torch.tensor(sorted(banned)).to(model.device)"),
    ], block=2, lead_in=1, per_step=1 / 32),
    # Not compiled: the dense batches of its attention differ in size each step and are asked of the device.
    "gps_zinc": Trial((*STANDARD, "pinned", "advice.host_sync"), [
        ("for data in train_loader:",
         "for data in ENDLESS(train_loader, pinned=lambda: DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True, pin_memory=True)):"),
        ("data = data.to(device)", "data = data.to(device, non_blocking=ON('pinned'))"),
        ("total_loss += loss.item() * data.num_graphs",
         "total_loss += (loss.detach() if ON('advice.host_sync') else loss.item()) * data.num_graphs"),
    ], block=12, lead_in=3),
    "vgae_links": Trial((*WITHOUT_BF16, "advice.host_sync", "advice.host_work", "cached_norm"), [
        ("for epoch in range(1, 151):\n",
         "for epoch in range(1, 10**9):\n    STEP()\n"
         "    for conv in (model.encoder.conv1, model.encoder.conv_mu, model.encoder.conv_logstd):\n"
         "        conv.cached = ON('cached_norm')\n"
         "        if not conv.cached:\n            conv._cached_edge_index = None\n"),
        ("    neg = negative_sampling(train_pos, num_nodes=NODES, num_neg_samples=EDGES)\n",
         "    if ON('advice.host_work'):\n        neg = torch.randint(0, NODES, (2, EDGES), device=x.device)\n"
         "    else:\n        neg = negative_sampling(train_pos, num_nodes=NODES, num_neg_samples=EDGES)\n"),
        ("    return float(loss)", "    return loss.detach() if ON('advice.host_sync') else float(loss)"),
        ("    return float((pos > neg).float().mean())",
         "    return (pos > neg).float().mean() if ON('advice.host_sync') else float((pos > neg).float().mean())"),
    ], block=6, lead_in=2),
    # RMSpropTF of timm has neither a fused nor a foreach form.
    "timm_effnet": Trial(("bf16", "channels_last", "pinned", "advice.host_work", "advice.host_sync", "foreach_ema"), [
        ("fake_batches(STEPS)", "ENDLESS(fake_batches(10**9))"),
        ("    losses_m, top1_m,",
         "    import copy\n    last = copy.deepcopy(model).to(memory_format=torch.channels_last).train()\n"
         "    both = [(model, model_ema, optimizer), (last, ModelEmaV2(last, decay=0.9998), create_optimizer_v2("
         "last, opt='rmsproptf', lr=0.016, weight_decay=1e-5, momentum=0.9))]\n"
         "    on_gpu = mean.cuda(), std.cuda()\n    losses_m, top1_m,"),
        ("        images = ((images.float() - mean) / std).cuda()\n",
         "        model, model_ema, optimizer = both[ON('channels_last')]\n"
         "        number = (lambda v: v.detach()) if ON('advice.host_sync') else (lambda v: v.item())\n"
         "        if ON('advice.host_work'):\n            images = (images.cuda().float() - on_gpu[0]) / on_gpu[1]\n"
         "        else:\n            images = (images.float() - mean) / std\n"
         "            images = (images.pin_memory() if ON('pinned') else images).cuda(non_blocking=ON('pinned'))\n"
         "        images = images.to(memory_format=torch.channels_last) if ON('channels_last') else images\n"),
        ("labels = labels.cuda()", "labels = (labels.pin_memory() if ON('pinned') else labels).cuda(non_blocking=ON('pinned'))"),
        ("loss.item()", "number(loss)"), ("accuracy(output, labels)[0].item()", "number(accuracy(output, labels)[0])"),
        ("        torch.cuda.synchronize()\n", "        if not ON('advice.host_sync'):\n            torch.cuda.synchronize()\n"),
        ("        model_ema.update(model)\n",
         "        if ON('foreach_ema'):\n            with torch.no_grad():\n"
         "                torch._foreach_lerp_(list(model_ema.module.parameters()), list(model.parameters()), 1 - 0.9998)\n"
         "        else:\n            model_ema.update(model)\n"),
    ], block=6, lead_in=2),
    # Convolutions only: those have tf32 already.
    "lightning_edsr": Trial(("bf16", "fused", "channels_last", "compile"), [
        ("32 * 150", "32 * 15000"), ("max_steps=150", "max_steps=100000"),
        ("    def forward(self, x):\n        x = self.head(x)\n        return self.tail(x + self.body(x))\n",
         "        import copy\n"
         "        self.last = copy.deepcopy(nn.ModuleList([self.head, self.body, self.tail])).to(memory_format=torch.channels_last)\n"
         "        self.run = self.net\n        self.fast = torch.compile(self.net)\n\n"
         "    def net(self, x):\n        x = self.head(x)\n        return self.tail(x + self.body(x))\n\n"
         "    def forward(self, x):\n        if ON('channels_last'):\n"
         "            x = self.last[0](x.contiguous(memory_format=torch.channels_last))\n"
         "            return self.last[2](x + self.last[1](x))\n"
         "        return (self.fast if ON('compile') else self.run)(x)\n"),
        ("        lr, hr = batch\n", "        STEP()\n        lr, hr = batch\n"),
    ], block=8, lead_in=2),
    "accelerate_roberta_lora": Trial((*STANDARD, "advice.host_sync"), [
        loaded("train_dataloader", " in enumerate(", "):\n"),
        ("correct += (predictions == references).sum().item()",
         "hits = (predictions == references).sum()\n        correct += hits if ON('advice.host_sync') else hits.item()"),
    ]),
    "sasrec": Trial((*STANDARD, "pinned", "advice.host_work", "advice.host_sync", "advice.attention_backend"), [
        looped("for step in range(120):"),
        ("class SASRec(",
         "def fast_sample():\n    user = np.random.randint(0, USERS)\n"
         "    seq, pos, neg = (np.zeros([MAXLEN], dtype=np.int32) for _ in range(3))\n"
         "    items = np.array(user_train[user], dtype=np.int32)[-MAXLEN - 1:]\n    n = len(items) - 1\n"
         "    seq[MAXLEN - n:], pos[MAXLEN - n:] = items[:-1], items[1:]\n"
         "    drawn = np.random.randint(1, ITEMS + 1, n)\n    bad = np.isin(drawn, user_train[user])\n"
         "    while bad.any():\n        drawn[bad] = np.random.randint(1, ITEMS + 1, bad.sum())\n"
         "        bad = np.isin(drawn, user_train[user])\n    neg[MAXLEN - n:] = drawn\n    return user, seq, pos, neg\n\n\n"
         "def moved(x):\n    x = torch.from_numpy(x).pin_memory() if ON('pinned') else x\n"
         "    return x.cuda(non_blocking=True) if ON('pinned') else (torch.BoolTensor(x) if x.dtype == bool else torch.LongTensor(x)).cuda()\n\n\n"
         "class SASRec("),
        ("zip(*[sample() for _ in range(BATCH)])", "zip(*[(fast_sample if ON('advice.host_work') else sample)() for _ in range(BATCH)])"),
        ("torch.LongTensor(log_seqs).cuda()", "moved(log_seqs)"), ("torch.LongTensor(positions).cuda()", "moved(positions)"),
        ("torch.BoolTensor(log_seqs == 0).cuda()", "moved(log_seqs == 0)"),
        ("torch.LongTensor(pos_seqs).cuda()", "moved(pos_seqs)"), ("torch.LongTensor(neg_seqs).cuda()", "moved(neg_seqs)"),
        ("attn_mask=attention_mask)", "attn_mask=attention_mask, need_weights=not ON('advice.attention_backend'))"),
        ("format(step, loss.item())", "format(step, '-' if ON('advice.host_sync') else loss.item())"),
    ], block=5, lead_in=2),
    "entity_tabular": Trial((*WITHOUT_BF16, "pinned", "advice.host_sync", "advice.host_work", "compile"), [
        ("in enumerate(train_dl):",
         "in enumerate(ENDLESS(train_dl, pinned=lambda: DataLoader(train_dl.dataset, batch_size=512, shuffle=True, pin_memory=True), "
         "advice_host_work=resident)):"),
        ("running, metric = 0.0, 0.0\n",
         "models = [model, torch.compile(model)]\n"
         "on_gpu = [torch.from_numpy(v).to('cuda') for v in (cats, conts, y)]\n\n\n"
         "def resident():\n    for idx in torch.randperm(n, device=on_gpu[0].device).split(512):\n"
         "        yield [v[idx] for v in on_gpu]\n\n\nrunning, metric = 0.0, 0.0\n"),
        ('xc.to("cuda"), xn.to("cuda"), yb.to("cuda")', "(v.to('cuda', non_blocking=ON('pinned')) for v in (xc, xn, yb))"),
        ("    pred = model(xc, xn)", "    number = (lambda v: v.detach()) if ON('advice.host_sync') else (lambda v: v.item())\n"
         "    pred = models[ON('compile')](xc, xn)"),
        ("loss.item()", "number(loss)"), ("exp_rmspe(pred.detach(), yb).item()", "number(exp_rmspe(pred.detach(), yb))"),
    ], block=30, lead_in=8),
    "decision_transformer": Trial((*STANDARD, "pinned", "advice.host_work", "advice.host_sync"), [
        looped("for i in range(150):"),
        ("    out = np.zeros_like(x)\n", "    if ON('advice.host_work'):\n        return np.cumsum(x[::-1])[::-1]\n    out = np.zeros_like(x)\n"),
        ("def get_batch():\n",
         "def moved(v, dtype):\n    v = torch.from_numpy(np.array(v))\n"
         "    return v.to(dtype).pin_memory().to(device, non_blocking=True) if ON('pinned') else v.to(dtype=dtype, device=device)\n\n\n"
         "def get_batch():\n"),
        ("torch.from_numpy(np.array(v)).to(dtype=torch.float32, device=device)", "moved(v, torch.float32)"),
        ("torch.from_numpy(np.array(v)).to(dtype=torch.long, device=device)", "moved(v, torch.long)"),
        ("    loss = torch.mean((preds.reshape(-1, ACT)[keep] - actions.reshape(-1, ACT)[keep]) ** 2)\n",
         "    if ON('advice.host_sync'):\n"
         "        error = (preds.reshape(-1, ACT) - actions.reshape(-1, ACT)) ** 2 * keep[:, None]\n"
         "        loss = error.sum() / (keep.sum() * ACT)\n"
         "    else:\n        loss = torch.mean((preds.reshape(-1, ACT)[keep] - actions.reshape(-1, ACT)[keep]) ** 2)\n"),
        ("train_losses.append(loss.detach().cpu().item())",
         "train_losses.append(loss.detach() if ON('advice.host_sync') else loss.detach().cpu().item())"),
    ], block=6, lead_in=2),
    # A block is a move, as the first simulations of one are shorter.
    "alphazero_c4": Trial(("tf32", "bf16", "advice.host_sync", "pinned"), [
        looped("for sim in range(16 * SIMS):"),
        ("encode(board) for board in leaves])).cuda()\n",
         "encode(board) for board in leaves]))\n"
         "    states = states.pin_memory().cuda(non_blocking=True) if ON('pinned') else states.cuda()\n"),
        ("    for i, path in enumerate(paths):\n",
         "    policy, value = policy.float(), value.float()\n    if ON('advice.host_sync'):\n        policy, value = policy.cpu(), value.cpu()\n    for i, path in enumerate(paths):\n"),
    ], block=32, lead_in=2),
    "ecapa_speaker": Trial((*STANDARD, "pinned", "advice.host_sync", "compile"), [
        ("in enumerate(loader, start=1):",
         "in enumerate(ENDLESS(loader, pinned=lambda: DataLoader(loader.dataset, batch_size=BATCH, shuffle=True, drop_last=True, pin_memory=True)), start=1):"),
        ("BATCH * 120", "BATCH * 12000"), ("optim = ", "encoders, LAST = [encoder, torch.compile(encoder)], []\noptim = "),
        ("labels = torch.LongTensor(labels).cuda()", "labels = torch.LongTensor(labels) if not ON('pinned') else labels\n"
         "    labels = labels.cuda(non_blocking=ON('pinned'))"),
        ("head(encoder(data.cuda()), labels)", "head(encoders[ON('compile')](data.cuda(non_blocking=ON('pinned'))), labels)"),
        ("top1 += prec.item()", "top1 += prec.detach() if ON('advice.host_sync') else prec.item()"),
        ("    total += loss.detach().cpu().numpy()",
         "    if ON('advice.host_sync'):\n        LAST[:] = [loss.detach()]\n    else:\n        total += loss.detach().cpu().numpy()"),
    ], block=8, lead_in=2),
    "convtasnet": Trial((*STANDARD, "pinned", "advice.host_sync", "batched"), [
        looped("for step in range(100):"),
        ("    losses = []\n",
         "    if ON('batched'):\n        pairs = si_snr(est[:, :, None], ref[:, None])\n"
         "        orders = torch.stack([sum(pairs[:, i, j] for i, j in enumerate(p)) / len(p) for p in permutations(range(est.shape[1]))])\n"
         "        return -orders.amax(0).mean()\n    losses = []\n"),
        ("            best = snr if best is None or snr > best else best\n",
         "            if ON('advice.host_sync'):\n                best = snr if best is None else torch.maximum(snr, best)\n"
         "                continue\n            best = snr if best is None or snr > best else best\n"),
        ("    refs, mixture = refs.cuda(), mixture.cuda()",
         "    if ON('pinned'):\n        refs, mixture = refs.pin_memory(), mixture.pin_memory()\n"
         "    refs, mixture = refs.cuda(non_blocking=ON('pinned')), mixture.cuda(non_blocking=ON('pinned'))"),
        ('{-loss.item():.2f}', "{0.0 if ON('advice.host_sync') else -loss.item():.2f}"),
    ], block=6, lead_in=2),
    "retina_train": Trial(("bf16", "fused", "channels_last", "pinned", "advice.host_sync", "compile"), [
        ("BATCH * 80", "BATCH * 8000"),
        ("in enumerate(loader):",
         "in enumerate(ENDLESS(loader, pinned=lambda: DataLoader(loader.dataset, batch_size=BATCH, shuffle=True, collate_fn=collate, pin_memory=True))):"),
        ("def focal(logits, boxes, anchors, gt, labels):\n",
         "def masked_focal(logits, boxes, anchors, gt, labels):\n"
         "    overlap, which = iou(anchors, gt).max(1)\n"
         "    positive, ignored = overlap >= 0.5, (overlap >= 0.4) & (overlap < 0.5)\n"
         "    count = positive.sum().clamp(min=1)\n"
         "    target = ((labels[which][:, None] == torch.arange(CLASSES, device=labels.device)) & positive[:, None]).to(logits.dtype)\n"
         "    p, ce = torch.sigmoid(logits), F.binary_cross_entropy_with_logits(logits, target, reduction='none')\n"
         "    p_t = p * target + (1 - p) * (1 - target)\n"
         "    loss = ((0.25 * target + 0.75 * (1 - target)) * (1 - p_t) ** 2 * ce * ~ignored[:, None]).sum() / count\n"
         "    a, g = anchors, gt[which]\n    size = a[:, 2:] - a[:, :2]\n"
         "    offsets = torch.cat([(g[:, :2] - a[:, :2]) / size, torch.log((g[:, 2:] - g[:, :2]) / size)], 1)\n"
         "    far = F.smooth_l1_loss(boxes, offsets.to(boxes.dtype), reduction='none').mean(1)\n"
         "    return loss + (far * positive).sum() / count\n\n\n"
         "def focal(logits, boxes, anchors, gt, labels):\n    if ON('advice.host_sync'):\n"
         "        return masked_focal(logits, boxes, anchors, gt, labels)\n"),
        ("loader = DataLoader(",
         "import copy\nlast = copy.deepcopy(model).to(memory_format=torch.channels_last)\n"
         "sets = [(model, model, optimizer), (last, last, torch.optim.SGD(last.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)),\n"
         "        (torch.compile(model), model, optimizer)]\nloader = DataLoader("),
        ("    images = images.cuda()\n    cls, reg = model(images)\n",
         "    called, model, optimizer = sets[1 if ON('channels_last') else 2 if ON('compile') else 0]\n"
         "    images = images.cuda(non_blocking=ON('pinned'))\n"
         "    images = images.to(memory_format=torch.channels_last) if ON('channels_last') else images\n"
         "    cls, reg = called(images)\n"),
        ("boxes[i].cuda(), labels[i].cuda())", "boxes[i].cuda(non_blocking=ON('pinned')), labels[i].cuda(non_blocking=ON('pinned')))"),
        ("loss {loss.item():.4f}", "loss {0.0 if ON('advice.host_sync') else loss.item():.4f}"),
    ], block=6, lead_in=2),
    "pointpillars": Trial(("tf32", "bf16", "channels_last", "pinned", "advice.host_work"), [
        looped("for step in range(70):"),
        ("def stage(",
         "def fast_pillarize(points):\n"
         "    keep = (points[:, 0] >= X_RANGE[0]) & (points[:, 0] < X_RANGE[1]) & (points[:, 1] >= Y_RANGE[0]) & (points[:, 1] < Y_RANGE[1])\n"
         "    points = points[keep]\n"
         "    ix = np.minimum((points[:, 0] / CELL).astype(np.int64), NX - 1)\n"
         "    iy = np.minimum(((points[:, 1] - Y_RANGE[0]) / CELL).astype(np.int64), NY - 1)\n"
         "    cell = iy * NX + ix\n    order = np.argsort(cell, kind='stable')\n    cell, points = cell[order], points[order]\n"
         "    unique, start, which, count = np.unique(cell, return_index=True, return_inverse=True, return_counts=True)\n"
         "    rank = np.arange(len(cell)) - start[which]\n    keep = (which < MAX_PILLARS) & (rank < MAX_POINTS)\n"
         "    points, which, rank = points[keep], which[keep], rank[keep]\n    unique = unique[:MAX_PILLARS]\n"
         "    size = np.bincount(which, minlength=len(unique))\n"
         "    mean = np.stack([np.bincount(which, points[:, k], len(unique)) for k in range(3)], 1) / size[:, None]\n"
         "    pillars = np.zeros((MAX_PILLARS, MAX_POINTS, 9), dtype=np.float32)\n"
         "    cells = np.full(MAX_PILLARS, NX * NY, dtype=np.int64)\n    cells[:len(unique)] = unique\n"
         "    center = np.stack([(unique % NX + 0.5) * CELL, (unique // NX + 0.5) * CELL + Y_RANGE[0]], 1)\n"
         "    pillars[which, rank] = np.concatenate([points, points[:, :3] - mean[which], points[:, :2] - center[which]], 1)\n"
         "    return pillars, cells\n\n\n"
         "def moved(x):\n    return x.pin_memory().cuda(non_blocking=True) if ON('pinned') else x.cuda()\n\n\ndef stage("),
        ("weight_decay=0.01)\n",
         "weight_decay=0.01)\nimport copy\nlast = copy.deepcopy(model).to(memory_format=torch.channels_last)\n"
         "both = [(model, optimizer), (last, torch.optim.AdamW(last.parameters(), lr=3e-4, weight_decay=0.01))]\n"),
        ("    grouped = [pillarize(", "    model, optimizer = both[ON('channels_last')]\n"
         "    grouped = [(fast_pillarize if ON('advice.host_work') else pillarize)("),
        ("torch.from_numpy(np.stack([g[0] for g in grouped])).cuda()", "moved(torch.from_numpy(np.stack([g[0] for g in grouped])))"),
        ("torch.from_numpy(np.stack([g[1] for g in grouped])).cuda()", "moved(torch.from_numpy(np.stack([g[1] for g in grouped])))"),
        ("(torch.rand(2, 18, NY // 2, NX // 2) < 0.01).float().cuda()",
         "(torch.rand(2, 18, NY // 2, NX // 2, device=cells.device) < 0.01).float() if ON('advice.host_work') "
         "else moved((torch.rand(2, 18, NY // 2, NX // 2) < 0.01).float())"),
        ("        x1 = self.b1(torch.stack(canvas))\n",
         "        x1 = torch.stack(canvas)\n"
         "        x1 = self.b1(x1.contiguous(memory_format=torch.channels_last) if ON('channels_last') else x1)\n"),
    ], block=4, lead_in=1),
    "ddpm_train": Trial((*STANDARD, "channels_last", "pinned", "advice.attention_backend", "foreach_ema", "advice.host_sync"), [
        looped("for step in range(60):"),
        ("        q = q * (c // self.heads) ** -0.5\n",
         "        q = q * (c // self.heads) ** -0.5\n        if ON('advice.attention_backend'):\n"
         "            out = F.scaled_dot_product_attention(*(z.transpose(-1, -2) for z in (q, k, v)), scale=1.0)\n"
         "            return x + self.to_out(out.permute(0, 1, 3, 2).reshape(b, c, h, w))\n"),
        ("        for current, ma in zip(",
         "        if ON('foreach_ema'):\n            with torch.no_grad():\n"
         "                torch._foreach_lerp_(list(ma_model.parameters()), list(model.parameters()), 1 - self.beta)\n            return\n"
         "        for current, ma in zip("),
        ("images = torch.randint(",
         "last = copy.deepcopy(model).to(memory_format=torch.channels_last)\n"
         "both = [(model, ema_model, opt), (last, copy.deepcopy(last), torch.optim.Adam(last.parameters(), lr=8e-5))]\n"
         "images = torch.randint("),
        ("    for _ in range(ACCUMULATE):\n",
         "    model, ema_model, opt = both[ON('channels_last')]\n    for _ in range(ACCUMULATE):\n        torch.clear_autocast_cache()\n"),
        (" / 127.5 - 1).cuda()\n        t = torch.randint(0, T, (BATCH,)).cuda()\n",
         " / 127.5 - 1)\n        t = torch.randint(0, T, (BATCH,))\n"
         "        if ON('pinned'):\n            x, t = x.pin_memory(), t.pin_memory()\n"
         "        x, t = x.cuda(non_blocking=ON('pinned')), t.cuda(non_blocking=ON('pinned'))\n"
         "        x = x.to(memory_format=torch.channels_last) if ON('channels_last') else x\n"),
        ("{loss.item():.4f}", "{0.0 if ON('advice.host_sync') else loss.item():.4f}"),
    ], block=3, lead_in=1),
    # Of 32 steps of the sampler all but the last call the model four times.
    "cfg_sample": Trial(("tf32", "bf16", "channels_last", "advice.attention_backend", "advice.host_sync", "batched"), [
        looped("for step in range(images * STEPS):", 8),
        ("        sim = torch.matmul(",
         "        if ON('advice.attention_backend'):\n"
         "            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)\n        sim = torch.matmul("),
        ("    s = torch.full((x.shape[0],), sigma.item()).to(x.device)\n",
         "    model = NETS[ON('channels_last')]\n"
         "    if ON('advice.host_sync'):\n        s = sigma.expand(x.shape[0])\n"
         "    else:\n        s = torch.full((x.shape[0],), sigma.item()).to(x.device)\n"),
        ("    eps_cond = model(x * c_in, s, cond)\n",
         "    if ON('batched'):\n"
         "        eps_cond, eps_uncond = model((x * c_in).repeat(2, 1, 1, 1), s.repeat(2), torch.cat([cond, uncond])).chunk(2)\n"
         "        return x - sigma * (eps_uncond + GUIDANCE * (eps_cond - eps_uncond))\n"
         "    x = x.contiguous(memory_format=torch.channels_last) if ON('channels_last') else x\n"
         "    eps_cond = model(x * c_in, s, cond)\n"),
        ("        if sigmas[i + 1] == 0:", "        if i + 1 == STEPS if ON('advice.host_sync') else sigmas[i + 1] == 0:"),
        ("text, empty = ", "import copy\nNETS = [model, copy.deepcopy(model).to(memory_format=torch.channels_last)]\ntext, empty = "),
    ], block=16, lead_in=4, per_step=32 / 126),
    # `batched`: the cell's steps as one nn.GRU over the window, with the weights of the cell.
    "deepar_cells": Trial((*WITHOUT_BF16, "pinned", "advice.host_sync", "batched"), [
        ("256 * 200", "256 * 4000"), loaded("loader", " in enumerate(", "):\n"),
        ("        mus, alphas = [], []\n",
         "        if ON('batched'):\n"
         "            x = torch.cat([(z[:, :-1] / scale)[..., None], covariates, emb[:, None].expand(-1, WINDOW, -1)], 2)\n"
         "            h = torch._VF.gru(x, h[None], [self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh],\n"
         "                              True, 1, 0.0, self.training, False, True)[0]\n"
         "            return (nn.functional.softplus(self.mu(h))[..., 0] * scale,\n"
         "                    nn.functional.softplus(self.alpha(h))[..., 0] / scale.sqrt())\n"
         "        mus, alphas = [], []\n"),
        ("    z, covariates, series = z.cuda(), covariates.cuda(), series.cuda()\n",
         "    if ON('pinned'):\n        z, covariates, series = z.pin_memory(), covariates.pin_memory(), series.pin_memory()\n"
         "    z, covariates, series = (v.cuda(non_blocking=ON('pinned')) for v in (z, covariates, series))\n"),
        ("losses.append(loss.item())", "losses.append(0.0 if ON('advice.host_sync') else loss.item())"),
    ], block=12, lead_in=4),
    # `hoisted`: the products of 1j with the wave numbers are made once.
    "spectral_ns": Trial(("advice.host_sync", "cuda_graph", "hoisted"), [
        looped("for step in range(steps):", 8),
        ("def velocity(w_hat):\n    psi_hat = w_hat * inv_k2\n",
         "IKX, IKY = 1j * kx, 1j * ky\nPSI_X, PSI_Y = -IKX * inv_k2, IKY * inv_k2\nDAMP = NU * k2\n\n\n"
         "def velocity(w_hat):\n    if ON('hoisted'):\n"
         "        return torch.fft.irfft2(PSI_Y * w_hat, s=(N, N)), torch.fft.irfft2(PSI_X * w_hat, s=(N, N))\n"
         "    psi_hat = w_hat * inv_k2\n"),
        ("    w_x = torch.fft.irfft2(1j * kx * w_hat, s=(N, N))\n    w_y = torch.fft.irfft2(1j * ky * w_hat, s=(N, N))\n",
         "    w_x = torch.fft.irfft2((IKX if ON('hoisted') else 1j * kx) * w_hat, s=(N, N))\n"
         "    w_y = torch.fft.irfft2((IKY if ON('hoisted') else 1j * ky) * w_hat, s=(N, N))\n"),
        ("NU * k2 * w_hat", "(DAMP if ON('hoisted') else NU * k2) * w_hat"),
        ("def run(steps=5000):\n",
         "def whole(w_hat):\n    u, v = velocity(w_hat)\n"
         "    speed = torch.maximum(u.abs().max(), v.abs().max())\n"
         "    dt = (0.5 * (2 * math.pi / N) / speed).clamp(max=1e-3)\n"
         "    return rk4(w_hat, dt), dt, 0.5 * (u ** 2 + v ** 2).mean()\n\n\n"
         "GRAPH = []\n\n\ndef graphed(w_hat):\n    if not GRAPH:\n        static = w_hat.clone()\n"
         "        side = torch.cuda.Stream()\n        side.wait_stream(torch.cuda.current_stream())\n"
         "        with torch.cuda.stream(side):\n            for _ in range(3):\n                whole(static)\n"
         "        torch.cuda.current_stream().wait_stream(side)\n        graph = torch.cuda.CUDAGraph()\n"
         "        with torch.cuda.graph(graph):\n            out = whole(static)\n        GRAPH.extend([graph, static, out])\n"
         "    graph, static, out = GRAPH\n    static.copy_(w_hat)\n    graph.replay()\n    return [v.clone() for v in out]\n\n\n"
         "def run(steps=5000):\n"),
        ("        u, v = velocity(w_hat)\n        speed",
         "        if ON('advice.host_sync') or ON('cuda_graph'):\n"
         "            w_hat, dt, energy = (graphed if ON('cuda_graph') else whole)(w_hat)\n"
         "            continue\n"
         "        u, v = velocity(w_hat)\n        speed"),
    ], block=100, lead_in=20),
    "moco_queue": Trial(("bf16", "fused", "channels_last", "foreach_ema", "pinned", "advice.host_sync", "compile"), [
        ("BATCH * 80", "BATCH * 4000"), loaded("loader", " in enumerate(", "):\n"),
        ("total_loss = 0.0\n",
         "last = [copy.deepcopy(net).to(memory_format=torch.channels_last) for net in (encoder_q, encoder_k)]\n"
         "sets = {'': (encoder_q, encoder_k, encoder_q, encoder_k, optimizer),\n"
         "        'compile': (torch.compile(encoder_q), torch.compile(encoder_k), encoder_q, encoder_k, optimizer),\n"
         "        'channels_last': (*last, *last, torch.optim.SGD(last[0].parameters(), lr=0.06, weight_decay=5e-4, momentum=0.9))}\n"
         "total_loss = 0.0\n"),
        ("    im_q, im_k = im_q.cuda(), im_k.cuda()\n    q = F.normalize(encoder_q(im_q), dim=1)\n",
         "    called_q, called_k, encoder_q, encoder_k, optimizer = sets["
         "'channels_last' if ON('channels_last') else 'compile' if ON('compile') else '']\n"
         "    if ON('pinned'):\n        im_q, im_k = im_q.pin_memory(), im_k.pin_memory()\n"
         "    im_q, im_k = im_q.cuda(non_blocking=ON('pinned')), im_k.cuda(non_blocking=ON('pinned'))\n"
         "    if ON('channels_last'):\n        im_q, im_k = (v.to(memory_format=torch.channels_last) for v in (im_q, im_k))\n"
         "    q = F.normalize(called_q(im_q), dim=1)\n"),
        ("        for param_q, param_k in zip(encoder_q.parameters(), encoder_k.parameters()):\n",
         "        if ON('foreach_ema'):\n            torch._foreach_lerp_(list(encoder_k.parameters()), list(encoder_q.parameters()), 1.0 - M)\n"
         "        for param_q, param_k in [] if ON('foreach_ema') else zip(encoder_q.parameters(), encoder_k.parameters()):\n"),
        ("F.normalize(encoder_k(im_k[idx]), dim=1)", "F.normalize(called_k(im_k[idx]), dim=1)"),
        ("total_loss += loss.item() * BATCH", "total_loss += (loss.detach() if ON('advice.host_sync') else loss.item()) * BATCH"),
    ], block=20, lead_in=10),
    "triton_residual": Trial((*STANDARD, "pinned"), [
        looped("for step in range(80):"),
        ("for i in at]).cuda()\n    y = torch.stack([corpus[i + 1:i + SEQ + 1] for i in at]).cuda()\n",
         "for i in at])\n    y = torch.stack([corpus[i + 1:i + SEQ + 1] for i in at])\n"
         "    if ON('pinned'):\n        x, y = x.pin_memory(), y.pin_memory()\n"
         "    x, y = x.cuda(non_blocking=ON('pinned')), y.cuda(non_blocking=ON('pinned'))\n"),
    ], block=8, lead_in=2),
    "rotate_kge": Trial(("fused", "pinned", "advice.host_sync", "compile"), [
        ("for step in range(400):", "for step in range(10**9):"),
        ("iterator, logs = alternate(*loaders), []", "iterator, logs, models = ENDLESS(alternate(*loaders)), [], [model, torch.compile(model)]"),
        ("    positive, negative, weight = positive.cuda(), negative.cuda(), weight.cuda()\n    score = model(",
         "    if ON('pinned'):\n        positive, negative, weight = positive.pin_memory(), negative.pin_memory(), weight.pin_memory()\n"
         "    positive, negative, weight = (v.cuda(non_blocking=ON('pinned')) for v in (positive, negative, weight))\n"
         "    score = models[ON('compile')]("),
        ("F.logsigmoid(model(positive,", "F.logsigmoid(models[ON('compile')](positive,"),
        ("    logs.append({", "    if ON('advice.host_sync'):\n        continue\n    logs.append({"),
    ], block=20, lead_in=10),
    # Tuned already; tf32 and bf16 are its own and are not switched.
    "gpt_tuned": Trial(("reduce_overhead",), [
        looped("for it in range(STEPS):"),
        ("model = torch.compile(model)\n", "models = [torch.compile(model), torch.compile(model, mode='reduce-overhead')]\n"),
        ("        loss = model(x, y)", "        loss = models[ON('reduce_overhead')](x, y)"),
    ], block=8, lead_in=3),
    "resnet_tuned": Trial(("reduce_overhead",), [
        ("Decoded(STEPS)", "Decoded(1000000)"), loaded("loader", " in enumerate(", "):\n"),
        ("    compiled = torch.compile(model)\n", "    nets = [torch.compile(model), torch.compile(model, mode='reduce-overhead')]\n"),
        ("            loss = F.cross_entropy(compiled(images),", "            loss = F.cross_entropy(nets[ON('reduce_overhead')](images),"),
    ], block=12, lead_in=6),
}  # fmt: skip


def compiled(
    loop: tuple[str, str], before: str, model: str, call: str, indent: int = 0, **options: float
) -> Trial:
    """The change of a compiled model: made before a text of the script, called in place of another."""
    made = f"{' ' * indent}COMPILED = [{model}, torch.compile({model})]\n{before}"
    return Trial(
        ("compile",),
        [loop, (before, made), (call, call.replace(f"{model}(", "COMPILED[ON('compile')]("))],
        **options,
    )


# Changes that take processes of their own.
MORE = {
    "t5_adafactor": compiled(
        (" in enumerate(loader, 0):", " in enumerate(ENDLESS(loader), 0):"),
        "    total = 0.0\n", "model", "loss = model(", 4, block=8, lead_in=2,
    ),
    # A cache of fixed size, with which generate compiles the decoding by itself.
    "qwen_generate": Trial(("compile",), [
        looped("for question in range(16):"),
        ("max_new_tokens=NEW_TOKENS,", "max_new_tokens=NEW_TOKENS, **({'cache_implementation': 'static'} if ON('compile') else {}),"),
    ], block=2, lead_in=1, per_step=1 / 32),
    "gps_zinc": workers("for data in {}:", "train_loader", "train_dataset", "batch_size=args.batch_size, shuffle=True", 80),
    "timm_effnet": compiled(
        ("fake_batches(STEPS)", "ENDLESS(fake_batches(10**9))"), "    model.train()\n", "model", "output = model(", 4, block=6, lead_in=2,
    ),
    "lightning_edsr": Trial(("pinned", "advice.data_loading"), [
        ("32 * 150", "32 * 15000"), ("max_steps=150", "max_steps=100000"),
        ("trainer.fit(EDSR(), loader)",
         "trainer.fit(EDSR(), ENDLESS(loader, pinned=lambda: DataLoader(loader.dataset, batch_size=32, shuffle=True, drop_last=True, pin_memory=True), "
         f"advice_data_loading=lambda: DataLoader(loader.dataset, batch_size=32, shuffle=True, drop_last=True, {WORKERS})))"),
    ], block=60, lead_in=36),
    "accelerate_roberta_lora": compiled(
        loaded("train_dataloader", " in enumerate(", "):\n"), "    total_loss, correct, seen = 0, 0, 0\n", "model", "outputs = model(", 4,
    ),
    "sasrec": Trial(("compile",), [
        looped("for step in range(120):"),
        ("bce_criterion = ", "ENCODERS = [model.encode, torch.compile(model.encode)]\nbce_criterion = "),
        ("return self.encode(", "return ENCODERS[ON('compile')]("),
    ], block=5, lead_in=2),
    "entity_tabular": workers("in enumerate({}):", "train_dl", "train_dl.dataset", "batch_size=512, shuffle=True", 150),
    "decision_transformer": compiled(looped("for i in range(150):"), "train_losses = []\n", "model", "preds = model(", block=6, lead_in=2),
    "alphazero_c4": Trial(("compile",), [
        looped("for sim in range(16 * SIMS):"),
        ("boards = [np.zeros(", "NETS = [net, torch.compile(net, mode='reduce-overhead')]\nboards = [np.zeros("),
        ("    simulate(net,", "    simulate(NETS[ON('compile')],"),
    ], block=32, lead_in=2),
    "ecapa_speaker": Trial(("advice.data_loading",), [
        ("BATCH * 120", "BATCH * 12000"),
        *workers("in enumerate({}, start=1):", "loader", "loader.dataset", "batch_size=BATCH, shuffle=True, drop_last=True", 80).edits,
    ], block=80, lead_in=48),
    "convtasnet": compiled(looped("for step in range(100):"), "voices = ", "model", "est = model(", block=6, lead_in=2),
    "retina_train": Trial(("advice.data_loading",), [
        ("BATCH * 80", "BATCH * 8000"),
        *workers("in enumerate({}):", "loader", "loader.dataset", "batch_size=BATCH, shuffle=True, collate_fn=collate", 70).edits,
    ], block=70, lead_in=42),
    "pointpillars": compiled(looped("for step in range(70):"), "optimizer = ", "model", "out = model(", block=4, lead_in=1),
    "ddpm_train": compiled(looped("for step in range(60):"), "images = torch.randint(", "model", "pred = model(", block=4, lead_in=1),
    "cfg_sample": Trial(("compile",), [
        looped("for step in range(images * STEPS):", 8),
        ("    c_in = 1 /", "    model = NETS[ON('compile')]\n    c_in = 1 /"),
        ("text, empty = ", "NETS = [model, torch.compile(model)]\ntext, empty = "),
    ], block=16, lead_in=4, per_step=32 / 126),
    "deepar_cells": Trial(("compile",), [
        ("256 * 200", "256 * 4000"),
        *compiled(loaded("loader", " in enumerate(", "):\n"), "losses = []\n", "model", "mu, alpha = model(").edits,
    ], block=12, lead_in=4),
    # More workers than the script's four.
    "moco_queue": Trial(("advice.data_loading",), [
        ("BATCH * 80", "BATCH * 4000"),
        (" in enumerate(loader):",
         " in enumerate(ENDLESS(loader, advice_data_loading=lambda: DataLoader(loader.dataset, batch_size=BATCH, shuffle=True, "
         "num_workers=12, prefetch_factor=2, pin_memory=True, drop_last=True))):"),
    ], block=80, lead_in=48),
    # The kernel's seed is a number of the host: the graph breaks at each of its calls anyway, here by decree.
    "triton_residual": Trial(("compile",), [
        *compiled(looped("for step in range(80):"), "corpus = ", "model", "F.cross_entropy(model(").edits,
        ("class Block(", "APART = torch.compiler.disable(BiasDropoutAdd.apply)\n\n\nclass Block("),
        ("x = BiasDropoutAdd.apply(", "x = APART("), ("return BiasDropoutAdd.apply(", "return APART("),
    ], block=8, lead_in=2),
    "rotate_kge": Trial(("advice.data_loading",), [
        ("for step in range(400):", "for step in range(10**9):"),
        ("iterator, logs = alternate(*loaders), []",
         "iterator, logs = ENDLESS(alternate(*loaders), advice_data_loading=lambda: alternate(*[DataLoader("
         "one.dataset, batch_size=BATCH, shuffle=True, num_workers=6, collate_fn=one.dataset.collate) for one in loaders])), []"),
    ], block=100, lead_in=60),
}  # fmt: skip
