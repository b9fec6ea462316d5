"""How a change of a script is switched in blocks of steps: edits of its text, each applied exactly once."""

MODEL_CALL = "h = m(input_ids=ids, attention_mask=mask).last_hidden_state"
# Script: the change, block and lead-in, steps that END_OF ends at once, and the edits that switch the change.
TRIALS: dict[str, list[tuple[str, int, int, int, list[tuple[str, str]]]]] = {
    "moe_loop": [("fused", 12, 3, 1, [
        ("opt = torch.optim.AdamW(net.parameters(), lr=1e-4)",
         "opts = [torch.optim.AdamW(net.parameters(), lr=1e-4, fused=f) for f in (None, True)]"),
        ("for _ in range(30):", "for n in range(168):\n    opt = opts[ON(n)]"),
        ("opt.zero_grad()", "opt.zero_grad(); END_OF(n)"),
    ])],
    "lora_lightning": [("tf32", 12, 3, 1, [
        ("(400, 512)", "(1600, 512)"), ("max_steps=40", "max_steps=169"),
        ("        loss = self.m(",
         "        END_OF(i - 1) if i else 0; torch.backends.cuda.matmul.allow_tf32 = ON(i); loss = self.m("),
    ])],
    "encode_list": [("bf16_autocast", 50, 10, 1, [
        ("for i in range(0, 1600, 32):", "for k, i in enumerate([*range(0, 1600, 32)] * 10):"),
        (MODEL_CALL,
         f"\n        with torch.autocast('cuda', dtype=torch.bfloat16, enabled=ON(k)): {MODEL_CALL}"),
        (".cpu().numpy())", ".float().cpu().numpy()); END_OF(k)"),
    ])],
    "t5_generate": [("compile", 3, 1, 40, [
        (".half().eval()", ".half().eval(); models = [m, torch.compile(m)]"),
        ("for _ in range(3):", "for n in range(36):"),
        ("        m.generate(", "        models[ON(n)].generate("),
        ("do_sample=False)", "do_sample=False); END_OF(n)"),
    ])],
    "point_cloud": [("tf32", 25, 5, 1, [
        ("for step in range(100):",
         "for step in range(400):\n    torch.set_float32_matmul_precision('high' if ON(step) else 'highest')"),
        ("opt.step()", "opt.step(); END_OF(step)"),
    ])],
    "recommender_bags": [("tf32", 25, 5, 1, [
        ("for step in range(100):",
         "for step in range(400):\n    torch.set_float32_matmul_precision('high' if ON(step) else 'highest')"),
        ("losses.append(loss.item())", "losses.append(loss.item()); END_OF(step)"),
    ])],
    "packed_gru": [("fused", 25, 5, 1, [
        ("opt = torch.optim.AdamW(net.parameters(), lr=1e-3)",
         "opts = [torch.optim.AdamW(net.parameters(), lr=1e-3, fused=f) for f in (None, True)]"),
        ("(100, 32)", "(400, 32)"),
        ("for row in lengths.tolist():", "for n, row in enumerate(lengths.tolist()):\n    opt = opts[ON(n)]"),
        ("for n in row]", "for k in row]"), ("torch.randn(n, 80)", "torch.randn(k, 80)"),
        (".sum().item()", ".sum().item(); END_OF(n)"),
    ])],
}  # fmt: skip
