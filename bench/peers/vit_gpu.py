"""The peer of vit_gpu.cpp: ViT-L/16 of torchvision through Lightning Fabric on one GPU."""
import gc, json, sys, time, warnings, logging
warnings.filterwarnings("ignore")
logging.getLogger("lightning").setLevel(logging.ERROR)
import torch, torch.nn.functional as F
try:
    from lightning.fabric import Fabric
except ImportError:
    from lightning_fabric import Fabric
from torchvision.models import vit_l_16
batch, steps = 64, 12
for precision in (sys.argv[1].split(",") if len(sys.argv) > 1 else ("32-true", "16-mixed", "bf16-mixed", "bf16-true")):
    gc.collect(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    fabric = Fabric(accelerator="cuda", devices=1, precision=precision)
    fabric.launch()
    torch.manual_seed(0)
    model = vit_l_16(weights=None, num_classes=10)
    net, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=5e-5))
    net.train()
    x = torch.randn(batch, 3, 224, 224, device=fabric.device)
    y = torch.randint(0, 10, (batch,), device=fabric.device)
    def step():
        fabric.backward(F.cross_entropy(net(x), y))
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(4):
        step()
    torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    ms = (time.perf_counter() - start) / steps * 1e3
    print(json.dumps({"case": f"ViT-L/16 {precision} batch {batch}, step", "value": round(ms, 2), "unit": "ms"}), flush=True)
    print(json.dumps({"case": f"ViT-L/16 {precision} batch {batch}, peak memory", "value": round(torch.cuda.max_memory_allocated() / 1e9, 3), "unit": "GB"}), flush=True)
    del model, net, optimizer, x, y
