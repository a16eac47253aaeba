"""The peer of ddp_step.cpp: the same model and step in torch's DistributedDataParallel, two processes."""
import json, os, time
import torch, torch.distributed as dist, torch.multiprocessing as mp, torch.nn as nn, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

def rank_main(rank, world, store, case, options):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.Linear(512, 1536)]
    for _ in range(4):
        layers += [nn.ReLU(), nn.Linear(1536, 1536)]
    net = DistributedDataParallel(nn.Sequential(*layers, nn.ReLU(), nn.Linear(1536, 10)), **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(32, 512), torch.randint(0, 10, (32,))
    def step():
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(5):
        step()
    best = 1e9
    for _ in range(5):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(6):
            step()
        best = min(best, (time.perf_counter() - start) / 6)
    if rank == 0:
        print(json.dumps({"case": case, "value": round(best * 1e3, 3), "unit": "ms"}), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OMP_NUM_THREADS"] = "1"
        for case, options in (("DDP step, 10M parameters, 2 ranks", {}), ("the same, peer with gradient_as_bucket_view", {"gradient_as_bucket_view": True})):
            mp.spawn(rank_main, args=(2, os.path.join(folder, case[:8]), case, options), nprocs=2)
