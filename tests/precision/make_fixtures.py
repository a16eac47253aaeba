"""Numbers of torch.amp.GradScaler for grad_scaler_test.cpp. Run by hand: python make_fixtures.py"""
import json, os, torch

def run(fused, unscale):
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.linspace(-1, 1, 6))
    opt = torch.optim.AdamW([w], lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    rows = []
    for step in range(16):
        opt.zero_grad()
        scaler.scale((w * w).sum() * (step + 1)).backward()
        if step in (4, 5, 11):
            w.grad[step % 6] = float("inf") if step != 5 else float("nan")
        if unscale:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        rows.append({"scale": scaler.get_scale(), "w": w.detach().tolist(), "tracker": scaler.state_dict()["_growth_tracker"]})
    return rows

here = os.path.join(os.path.dirname(__file__), "fixtures")
os.makedirs(here, exist_ok=True)
with open(os.path.join(here, "grad_scaler.json"), "w") as f:
    json.dump({"fused": run(True, False), "fused_unscaled": run(True, True), "plain": run(False, False)}, f)
