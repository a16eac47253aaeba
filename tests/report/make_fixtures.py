#!/usr/bin/env python3
"""Traces of Python's torch.profiler for the tests, and what the TensorBoard plugin says of them.

    python tests/report/make_fixtures.py traces          # needs torch; CPU, one thread
    python tests/report/make_fixtures.py plugin FOLDER   # needs torch-tb-profiler and pandas; writes fixtures/plugin_numbers.txt

FOLDER is that of a `torch_tb_profiler` package: 0.4.3 of PyPI.
"""
import gzip
import json
import os
import pathlib
import shutil
import sys

FIXTURES = pathlib.Path(__file__).parent / "fixtures"


def train(profiler_options, steps, loader=False, distributed=False, rank=0):
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    if distributed:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    batches = torch.utils.data.DataLoader(data, batch_size=8) if loader else [data[8 * i : 8 * i + 8] for i in range(8)]
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=steps)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, **profiler_options) as p:
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if rank == 1:  # the slow one
                for _ in range(40):
                    x = x @ torch.ones(16, 16)
            optimizer.step()
            p.step()
            if p.step_num == 2 + steps:
                return p


def keep(profile, name):
    path = FIXTURES / name
    profile.export_chrome_trace(str(path))
    text = path.read_text()
    text = text.replace(os.getcwd(), "").replace(sys.prefix, "")
    path.unlink()
    with open(path.with_name(path.name + ".gz"), "wb") as file:
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0, compresslevel=9) as packed:
            packed.write(text.encode())


def worker(rank):
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29561")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    keep(train({"record_shapes": True}, 2, distributed=True, rank=rank), f"ddp/node_{rank}.1700000000000.pt.trace.json")
    dist.destroy_process_group()


def traces():
    import torch.multiprocessing

    (FIXTURES / "ddp").mkdir(parents=True, exist_ok=True)
    keep(train({}, 3), "plain.pt.trace.json")
    keep(train({"record_shapes": True, "profile_memory": True}, 3, loader=True), "loader.pt.trace.json")
    keep(train({"with_stack": True, "profile_memory": True, "experimental_config": verbose()}, 1), "modules.pt.trace.json")
    torch.multiprocessing.spawn(worker, nprocs=2)


def verbose():
    import torch

    return torch._C._profiler._ExperimentalConfig(verbose=True)


def numbers_of(path, cache):
    from torch_tb_profiler.profiler.data import RunProfileData

    run = RunProfileData.parse("worker", "1", str(path), str(cache))
    numbers = {
        "average_us": run.avg_costs.costs,
        "steps": len(run.steps_costs),
        "operators": {
            op.name: [op.calls, op.self_device_duration, op.device_duration, op.self_host_duration, op.host_duration]
            for op in run.op_list_groupby_name
        },
    }
    if run.memory_snapshot:
        numbers["memory"] = run.memory_snapshot.get_memory_statistics(run.tid2tree)
    return run, numbers


def ranks_of(paths, cache):
    """Waiting and transfer of each rank and step, by the plugin's own steps of the distributed view."""
    from torch_tb_profiler.profiler.data import DistributedRunProfileData

    profiles = [DistributedRunProfileData(numbers_of(path, cache)[0]) for path in paths]
    nodes = [profile.comm_node_list for profile in profiles]
    count = len(nodes[0])
    for i in range(count):
        ranges = [node[i].kernel_ranges for node in nodes]
        for node in nodes:
            node[i].real_time_ranges = []
        for j in range(len(ranges[0])):
            shortest = min(r[j][1] - r[j][0] for r in ranges)
            for node, r in zip(nodes, ranges):
                node[i].real_time_ranges.append((r[j][1] - shortest, r[j][1]))
    out = []
    for profile in profiles:
        profile.communication_parse()
        out.append({"steps": profile.step_comm_stats, "operations": profile.total_comm_stats})
    return out


def plugin(package):
    sys.path.insert(0, package)
    cache = pathlib.Path("/tmp/levin_plugin_cache")
    cache.mkdir(exist_ok=True)
    out = {}
    for name in ("plain", "loader", "modules", "ddp/node_0.1700000000000", "ddp/node_1.1700000000000"):
        out[name] = numbers_of(FIXTURES / f"{name}.pt.trace.json.gz", cache)[1]
    out["ranks"] = ranks_of(sorted((FIXTURES / "ddp").glob("*.gz")), cache)
    (FIXTURES / "plugin_numbers.txt").write_text(json.dumps(out, indent=0, sort_keys=True) + "\n")
    shutil.rmtree(cache)


if __name__ == "__main__":
    traces() if sys.argv[1] == "traces" else plugin(sys.argv[2])
