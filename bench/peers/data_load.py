"""The peer of data_load.cpp: torch's DataLoader with torchvision over the same files. Run after it (it writes the files)."""
import json, os, sys, time, warnings
warnings.filterwarnings("ignore")
import torch, torchvision
from torchvision import transforms as T
torch.set_num_threads(1)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
FOLDER = sys.argv[1] if len(sys.argv) > 1 else "build/bench_data"
small = T.Compose([T.ToTensor(), T.Normalize(MEAN, STD)])
large = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])


def measure(name, folder, transform, workers, batch):
    start = time.perf_counter()
    data = torchvision.datasets.ImageFolder(f"{FOLDER}/{folder}/files", transform)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    it = iter(loader)
    next(it)
    first = (time.perf_counter() - start) * 1e3
    for _ in it:
        pass
    best = 0
    for _ in range(3):
        begin, images = time.perf_counter(), 0
        for image, label in loader:
            images += len(label)
        best = max(best, images / (time.perf_counter() - begin))
    print(json.dumps({"case": name, "value": round(best, 1), "unit": "images/s", "better": "higher"}), flush=True)
    print(json.dumps({"case": name + ": first batch", "value": round(first, 2), "unit": "ms", "better": "lower"}), flush=True)


cores = os.cpu_count()
measure("PNG 32x32, one core", "png", small, 0, 128)
measure("PNG 32x32, all workers", "png", small, cores, 128)
measure("JPEG 500x375, random resized crop, one core", "jpeg", large, 0, 32)
measure("JPEG 500x375, random resized crop, all workers", "jpeg", large, cores, 32)
