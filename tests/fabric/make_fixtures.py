"""Loss curves of a small ViT through Lightning Fabric, and its initial weights, for training_curve_test.cpp.

Run by hand: python make_fixtures.py            (CPU precisions)
             python make_fixtures.py --cuda     (adds 16-mixed, on a machine with a GPU)
"""
import json, os, sys, warnings
warnings.filterwarnings("ignore")
import torch, torch.nn.functional as F
from torchvision.models.vision_transformer import VisionTransformer
from safetensors.torch import save_file, load_file
try:
    from lightning.fabric import Fabric
except ImportError:
    from lightning_fabric import Fabric

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
os.makedirs(here, exist_ok=True)

def batch(step, n=16):
    sample = torch.arange(step * n, step * n + n)
    label = (sample * 7) % 10
    f = (label + 1).double().view(-1, 1, 1, 1)
    i = sample.double().view(-1, 1, 1, 1)
    c, h, w = (torch.arange(k, dtype=torch.float64) for k in (3, 16, 16))
    image = torch.sin(0.7 * (i + 1) + 1.1 * c.view(1, -1, 1, 1) + 0.31 * f * h.view(1, 1, -1, 1) + 0.17 * f * w.view(1, 1, 1, -1))
    return image.float(), label

def model():
    return VisionTransformer(image_size=16, patch_size=4, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10)

weights = os.path.join(here, "small_vit.safetensors")
if not os.path.exists(weights):
    torch.manual_seed(0)
    net = model()
    torch.nn.init.normal_(net.heads.head.weight, std=0.02)  # torchvision starts the head at zero
    save_file(net.state_dict(), weights)

def curve(precision, accelerator):
    fabric = Fabric(accelerator=accelerator, devices=1, precision=precision)
    fabric.launch()
    net = model()
    net.load_state_dict(load_file(weights))
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    net.train()
    losses = []
    for step in range(200):
        image, label = (t.to(fabric.device) for t in batch(step))
        loss = F.cross_entropy(net(image), label)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 5))
    return losses

path = os.path.join(here, "curves.json")
curves = json.load(open(path)) if os.path.exists(path) else {}
if "--cuda" in sys.argv:
    for precision in ("32-true", "16-mixed", "bf16-mixed", "bf16-true"):  # in 16-true AdamW's eps vanishes: nan
        curves[f"cuda {precision}"] = curve(precision, "cuda")
else:
    torch.set_num_threads(1)
    for precision in ("32-true", "64-true", "bf16-mixed", "bf16-true"):
        curves[f"cpu {precision}"] = curve(precision, "cpu")
json.dump(curves, open(path, "w"))
for name, losses in curves.items():
    print(name, losses[0], losses[50], losses[100], losses[199])
