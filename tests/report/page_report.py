"""Reports to look at the page with: page_report.py [big] > report.json. The shape is that of docs/report.md; the numbers are made up."""
import json
import math
import random
import sys

OPS = ["aten::convolution", "aten::cudnn_convolution", "aten::batch_norm", "aten::relu_", "aten::add_", "aten::max_pool2d", "aten::linear", "aten::addmm",
       "aten::cross_entropy_loss", "autograd::engine::evaluate_function: ConvolutionBackward0", "ConvolutionBackward0", "aten::convolution_backward",
       "CudnnBatchNormBackward0", "aten::cudnn_batch_norm_backward", "aten::_foreach_add_", "aten::_foreach_mul_", "aten::copy_", "aten::empty", "aten::mean", "aten::zero_"]
KERNELS = ["sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cudnn",
           "sm90_xmma_wgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_warpgroupsize1x1x1_execute_split_k_kernel__5x_cudnn",
           "sm90_xmma_dgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x64_kernel__5x_cudnn",
           "void cudnn::bn_fw_tr_1C11_kernel_NCHW<__nv_bfloat16, float, 512, true, 1, true>(cudnn::bnFwTrainParams<float>)",
           "void at::native::vectorized_elementwise_kernel<8, at::native::launch_clamp_scalar>(int, std::array<char*, 2ul>)",
           "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>>",
           "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"]
KINDS = ["step", "op", "annotation", "runtime", "kernel", "communication", "memcpy", "memset", "dataloader", "optimizer", "module", "sync"]


def steps_of(rnd, count, loader):
    out, at = [], 0.0
    for i in range(count):
        parts = [98000, 1700, 90, 6200, 4000, loader, 13700, 1200]
        parts = [p * rnd.uniform(0.93, 1.08) for p in parts]
        total = sum(parts)
        keys = ["kernel_us", "memcpy_us", "memset_us", "communication_us", "runtime_us", "dataloader_us", "cpu_exec_us", "other_us"]
        out.append({"name": f"ProfilerStep#{i + 3}", "start_us": at, "end_us": at + total, "total_us": total, **dict(zip(keys, parts)), "device_events": 1240})
        at += total
    return out


def timeline(rnd, steps, spans_per_row):
    names = OPS + KERNELS + ["ProfilerStep", "enumerate(DataLoader)#Loader.__next__", "Optimizer.step#SGD.step", "cudaLaunchKernel", "Memcpy HtoD (Pinned -> Device)", "nccl:all_reduce", "cudaDeviceSynchronize"]
    place = {n: i for i, n in enumerate(names)}
    end = steps[-1]["end_us"]
    host = [[0, s["start_us"], s["total_us"], place["ProfilerStep"], 0, 1] for s in steps]
    for s in steps:
        host.append([1, s["start_us"], s["dataloader_us"], place["enumerate(DataLoader)#Loader.__next__"], 8, 1])
        host.append([1, s["end_us"] - 9000, 8000, place["Optimizer.step#SGD.step"], 9, 1])
    per = spans_per_row // max(1, len(steps))
    backward, kernels, copies, comm = [], [], [], []
    for s in steps:
        begin, room = s["start_us"] + s["dataloader_us"], s["total_us"] - s["dataloader_us"] - 9500
        for i in range(per):
            at, length = begin + room * 0.4 * i / per, room * 0.4 / per
            host.append([1, at, length * 0.95, place[OPS[i % 9]], 1, 1])
            host.append([2, at + length * 0.1, length * 0.7, place[OPS[(i * 3 + 1) % 9]], 1, 1])
            host.append([3, at + length * 0.2, length * 0.2, place["cudaLaunchKernel"], 3, 1])
            at, length = begin + room * (0.4 + 0.55 * i / per), room * 0.55 / per
            backward.append([0, at, length * 0.96, place[OPS[9]], 1, 1])
            backward.append([1, at + length * 0.05, length * 0.85, place[OPS[10 + i % 4]], 1, 1])
            backward.append([2, at + length * 0.1, length * 0.25, place["cudaLaunchKernel"], 3, 1])
            at, length = begin + 900 + room * i / per, room / per
            kernels.append([0, at, length * rnd.uniform(0.6, 0.98), place[KERNELS[int(rnd.random() ** 2 * 7)]], 4, 1 + (i % 7 == 0) * 12])
        copies.append([0, begin, 1700, place["Memcpy HtoD (Pinned -> Device)"], 6, 1])
        for i in range(6):
            comm.append([0, begin + room * (0.5 + 0.08 * i), room * 0.05, place[KERNELS[7]], 5, 1])
    lanes = [{"name": "thread 4121 (main)", "group": "CPU", "rows": 4, "spans": host}, {"name": "thread 4188 (autograd)", "group": "CPU", "rows": 3, "spans": backward},
             {"name": "stream 7", "group": "GPU 0", "rows": 1, "spans": kernels}, {"name": "stream 21 (copies)", "group": "GPU 0", "rows": 1, "spans": copies},
             {"name": "stream 25 (NCCL)", "group": "GPU 0", "rows": 1, "spans": comm}]
    for lane in lanes:
        for span in lane["spans"]:
            span[1], span[2] = round(span[1], 3), round(span[2], 3)
    return {"file": "runs/resnet50/traces/worker0.1763311111.pt.trace.json.gz", "names": names, "kinds": KINDS, "lanes": lanes, "bucket_us": 12.0}, end


def modules():
    rows = []

    def add(name, parent, depth, share, children=()):
        me = len(rows)
        rows.append({"name": name, "parent": parent, "depth": depth, "occurrences": 6, "operators": 4 + 40 * len(children), "host_total_us": share * 21000, "host_self_us": share * 2100,
                     "device_total_us": share * 588000, "device_self_us": share * 588000 if not children else 0, "forward_device_us": share * 196000, "backward_device_us": share * 392000,
                     "flops": share * 3.2e12, "bytes": share * 9.1e10})
        for child, part, more in children:
            add(name + "." + child if parent >= 0 else child, me, depth + 1, share * part, more)
    block = [("conv1", 0.2, ()), ("bn1", 0.08, ()), ("conv2", 0.34, ()), ("bn2", 0.08, ()), ("conv3", 0.2, ()), ("bn3", 0.08, ())]
    layers = [("conv1", 0.06, ()), ("bn1", 0.02, ())] + [(f"layer{i + 1}", part, [(str(k), 0.98 / n, block) for k in range(n)]) for i, (part, n) in enumerate(((0.2, 3), (0.26, 4), (0.3, 6), (0.12, 3)))] + [("fc", 0.01, ())]
    add("ResNet", -1, 0, 1.0, layers)
    return rows


def trace(rnd, rank, steps, spans, rows, run="runs/resnet50"):
    parts = steps_of(rnd, steps, 35000)
    keys = [("Kernel", "kernel_us"), ("Memcpy", "memcpy_us"), ("Memset", "memset_us"), ("Communication", "communication_us"), ("Runtime", "runtime_us"), ("DataLoader", "dataloader_us"), ("CPU Exec", "cpu_exec_us"), ("Other", "other_us")]
    average = {name: sum(s[key] for s in parts) / steps for name, key in keys}
    total = sum(average.values())
    picture, end = timeline(rnd, parts, spans)
    ops, kernels = [], []
    for i in range(rows):
        name = OPS[i % len(OPS)] + ("" if i < len(OPS) else f"_{i}")
        self_us = 180000 / (i + 1) ** 1.2
        ops.append({"name": name, "calls": 6 * (1 + i % 53), "device_self_us": self_us if i % 3 else 0, "device_total_us": self_us * 1.5, "host_self_us": 9000 / (1 + i % 17), "host_total_us": 19000 / (1 + i % 13), "tensor_cores_eligible": i % 4 == 0,
                    "tensor_cores_self_percent": 100.0 * (i % 4 == 0), "tensor_cores_total_percent": 88.1 * (i % 4 == 0), "flops": int(4e12 / (i + 1)) if i % 4 == 0 else None, "call_stack": None})
        kernels.append({"name": KERNELS[i % len(KERNELS)] + ("" if i < len(KERNELS) else f"_{i}"), "kind": "communication" if i % 8 == 7 else "compute", "tensor_cores": i % 8 in (0, 1, 2, 5), "calls": 318 // (1 + i % 7), "total_us": 210000 / (1 + i) ** 1.3,
                        "mean_us": 660 / (1 + i), "max_us": 990 / (1 + i), "min_us": 330 / (1 + i), "mean_blocks_per_sm": 12.5 / (1 + i % 5), "mean_occupancy_percent": 12.0 + 5 * (i % 9)})
    shapes = [{**o, "input_shape": f"[[256, {64 << i % 4}, {56 >> i % 3}, {56 >> i % 3}], [{64 << i % 4}, 64, 3, 3]]"} for i, o in enumerate(ops)]
    properties = [{**k, "operator": OPS[i % len(OPS)], "grid": f"[{132 * (1 + i % 9)}, 1, 1]", "block": "[384, 1, 1]", "registers_per_thread": 168, "shared_memory_bytes": 213 * 1024, "operator_tensor_cores_eligible": i % 4 == 0} for i, k in enumerate(kernels)]
    time, allocated = [], []
    for i in range(1200):
        phase = i % 200 / 200
        time.append(round(end * i / 1200, 1))
        allocated.append(int(4.1e9 + 42e9 * (phase / 0.45 if phase < 0.45 else max(0.0, 1 - (phase - 0.45) / 0.5)) + rnd.random() * 9e8))
    peak = max(allocated)
    events = [{"operator": OPS[i % len(OPS)] + " (aten::empty)", "size_bytes": int(8.2e8 / (1 + i * 0.1)), "allocation_us": end * i / rows, "release_us": None if i % 11 == 0 else end * i / rows + 41000, "duration_us": None if i % 11 == 0 else 41000} for i in range(min(rows, 500))]
    statistics = [{"operator": o["name"], "calls": o["calls"], "size_increase_bytes": int(3e9 / (i + 1)), "self_size_increase_bytes": int(2e9 / (i + 1)) - 10 ** 7, "allocation_count": o["calls"], "self_allocation_count": o["calls"] // 2, "allocation_size_bytes": int(9e9 / (i + 1)), "self_allocation_size_bytes": int(7e9 / (i + 1))} for i, o in enumerate(ops)]
    roof = [{"name": k["name"], "operator": OPS[i % len(OPS)], "calls": k["calls"], "total_us": k["total_us"], "flops": k["total_us"] * 1e6 * f, "bytes": 1e9, "flops_per_byte": f * 1.9 + 0.1, "tflops": min(989, (f * 1.9 + 0.1) * 4.8) * (0.2 + 0.6 * rnd.random()),
             "roof_tflops": min(989, (f * 1.9 + 0.1) * 4.8), "roof_percent": 20 + 60 * rnd.random(), "bound": "compute" if f > 108 else "memory"} for i, (k, f) in enumerate(zip(kernels[:24], [10 ** (rnd.uniform(-1, 3)) for _ in range(24)]))]
    segments, at = [], 0.0
    for i in range(40):
        kind = ["dataloader", "op", "runtime", "kernel", "kernel", "kernel", "communication"][0 if i == 0 else 1 + i % 6]
        length = 35000 if i == 0 else rnd.uniform(500, 6000)
        segments.append({"name": {"dataloader": "enumerate(DataLoader)#Loader.__next__", "op": OPS[i % 9], "runtime": "cudaLaunchKernel", "communication": KERNELS[7]}.get(kind, KERNELS[i % 6]), "kind": kind, "start_us": at, "dur_us": length})
        at += length
    return {
        "name": f"worker{rank}", "file": f"{run}/traces/worker{rank}.1763311111.pt.trace.json.gz", "file_bytes": 48_213_991, "run": run, "worker": f"worker{rank}", "rank": rank, "world_size": 2, "span": 1, "events": 412_876, "start_us": 1.7e12, "duration_us": end,
        "has_device": True, "warnings": [],
        "overview": {"steps": steps, "average_us": total, "categories": [{"name": n, "average_us": v, "percent": 100 * v / total} for n, v in average.items()]}, "steps": parts,
        "gpu_summary": [{"device": 0, "name": "NVIDIA H200", "memory_bytes": 150754820096, "compute_capability": "9.0", "sm_count": 132, "utilization_percent": 63.61, "sm_efficiency_percent": 62.65, "achieved_occupancy_percent": 49.14, "peak_allocated_bytes": peak,
                         "utilization_curve": {"start_us": 0.0, "bucket_us": end / 96, "percent": [max(0, min(100, round(64 + 45 * math.sin(i / 2.5) + rnd.uniform(-8, 8)))) for i in range(96)]}}],
        "tensor_cores": {"time_percent": 57.1, "eligible_percent": 82.4, "kernel_time_percent": 55.0, "tb_compat_time_percent": 3.1, "tb_compat_kernel_time_percent": 3.0},
        "recommendations": [
            {"id": "slow_loader", "title": "The step waits for data", "evidence": "DataLoader takes 35.1 ms of each step (21.9 %), in enumerate(DataLoader)#... spans; no loader thread works beside the step.", "option": "--data.num_workers 8 --data.pin_memory true", "cost_ms": 35.1},
            {"id": "amp", "title": "Matrix products run in float32", "evidence": "82.4 % of the kernel time is in operators that tensor cores can do, 57.1 % uses them.", "option": "--precision bf16-mixed", "cost_ms": 21.0},
            {"id": "straggler", "title": "Collectives wait for rank 1", "evidence": "Rank 1 is the last in 41 of 48 collectives; the others wait 3.1 ms of each step.", "option": None, "cost_ms": 3.1}],
        "operators": ops, "operators_by_shape": shapes, "kernels": kernels, "kernels_by_properties": properties,
        "transfers": [{"name": "Memcpy HtoD (Pinned -> Device)", "kind": "memcpy", "calls": 12, "total_us": 10400, "bytes": 924844032, "gbps": 88.9}, {"name": "Memset (Device)", "kind": "memset", "calls": 97, "total_us": 540, "bytes": 21307392, "gbps": 39.4}],
        "memory": {"devices": [{"device": "CPU", "peak_allocated_bytes": 913000000, "peak_reserved_bytes": None, "peak_us": 1000.0, "capacity_bytes": None, "curve": {"time_us": [0.0, end / 2, end], "allocated_bytes": [5e8, 9.13e8, 6e8], "reserved_bytes": []}, "events": [], "events_left_out": 0, "statistics": []},
                               {"device": "GPU0", "peak_allocated_bytes": peak, "peak_reserved_bytes": int(peak * 1.08), "peak_us": time[allocated.index(peak)], "capacity_bytes": 150754820096, "curve": {"time_us": time, "allocated_bytes": allocated, "reserved_bytes": [int(peak * 1.08)] * len(time)},
                                "events": events, "events_left_out": 21873, "statistics": statistics}],
                   "per_unit": [{"name": f"layer{1 + i // 4}.{i % 4}", "allocated_bytes": int(3.4e9 / (1 + i * 0.2)), "increase_bytes": int(2e9 / (1 + i * 0.2))} for i in range(16)],
                   "predicted": {"peak_bytes": int(peak * 0.985), "parts": [{"name": "parameters", "bytes": 102e6}, {"name": "gradients", "bytes": 102e6}, {"name": "optimizer state", "bytes": 102e6}, {"name": "activations", "bytes": peak * 0.93}, {"name": "workspaces", "bytes": 1.1e9}]}},
        "modules": modules(), "trace": picture, "roofline": {"peak_tflops": 989.0, "peak_gbps": 4800.0, "ridge_flops_per_byte": 206.0, "precision": "bf16", "points": roof},
        "idle": {"total_us": end * 0.36, "percent": 36.2, "causes": [{"id": "dataloader", "name": "waiting for the data loader", "total_us": end * 0.22, "percent": 22.0}, {"id": "host", "name": "host-bound: launches come too late", "total_us": end * 0.08, "percent": 8.0},
                                                                   {"id": "sync", "name": "a synchronization in the step", "total_us": end * 0.04, "percent": 4.0}, {"id": "other", "name": "other", "total_us": end * 0.02, "percent": 2.0}]},
        "critical_path": {"step": "ProfilerStep#3", "total_us": at, "parts": [{"kind": k, "total_us": sum(s["dur_us"] for s in segments if s["kind"] == k), "percent": 0} for k in ("dataloader", "op", "runtime", "kernel", "communication")], "segments": segments},
        "mfu": {"flops_per_step": 6.3e12, "step_us": total, "achieved_tflops": 39.4, "peak_tflops": 989.0, "mfu_percent": 3.98, "device": "NVIDIA H200", "precision": "bf16"},
        "what_if": [{"id": "no_loader", "title": "without waiting for the loader", "step_us": total - 35000, "saved_us": 35000, "speedup": total / (total - 35000)}, {"id": "bf16", "title": "in bfloat16", "step_us": total - 21000, "saved_us": 21000, "speedup": total / (total - 21000)},
                    {"id": "no_communication", "title": "without communication", "step_us": total - 6200, "saved_us": 6200, "speedup": total / (total - 6200)}, {"id": "graphs", "title": "with CUDA graphs", "step_us": total - 9800, "saved_us": 9800, "speedup": total / (total - 9800)}],
        "launches": {"launches": 840, "call_us": 4200, "mean_call_us": 5.0, "mean_delay_us": 410.5, "median_delay_us": 22.1, "longest_delay_us": 3100, "shorter_than_call": 120, "slow_calls": 3, "late": 400, "full_queue": 1024,
                     "streams": [{"device": rank, "stream": str(7 + 13 * i), "launches": 800 - 760 * i, "longest_queue": 130 - 120 * i, "mean_queue": 41.5 - 40 * i, "full_us": 0, "queue": {"time_us": [1000 * k for k in range(60)], "length": [abs(30 - k) * (4 - 3 * i) for k in range(60)]}} for i in range(2)],
                     "rows": [{"name": f"kernel_{i}", "launches": 400 - 9 * i, "mean_call_us": 5.5, "mean_delay_us": 400 - i, "mean_work_us": 12.5, "shorter_than_call": i} for i in range(20)]},
        "annotations": [{"name": n, "occurrences": steps, "launches": 280, "host_us": 9000 + 10 * i, "device_self_us": 500 * i, "device_total_us": 30000 - 900 * i} for i, n in enumerate(("## forward ##", "## attention ##"))],
        "sources": {"overview": "ProfilerStep# spans and the device work that they launched", "overview.categories": "spans of the steps: kernels, copies and fills of all devices, collectives, runtime calls, loader spans, operators; each moment counts once",
                    "gpu_summary.utilization_percent": "union of kernel spans of the device over the time of the steps", "operators": "cpu_op spans and the device work that their runtime calls launched", "kernels": "kernel spans", "memory": "[memory] instants", "mfu": "FLOPs of matrix products and convolutions by Input Dims"},
    }


def report(steps=6, spans=900, rows=60, ranks=2):
    rnd = random.Random(7)
    traces = [trace(rnd, r, steps, spans, rows) for r in range(ranks)]
    names = ["runs/resnet50", "runs/resnet50_workers"]
    base = traces[0]["overview"]
    scale = {"DataLoader": 0.04}
    overview = [{"name": c["name"], "average_us": [c["average_us"], c["average_us"] * scale.get(c["name"], 1.01)], "percent": [c["percent"], c["percent"]]} for c in base["categories"]]
    totals = [sum(o["average_us"][i] for o in overview) for i in range(2)]
    label = [{"rank": r, "step": s, "computation_us": 92000 + 3000 * r, "overlap_us": 6200, "communication_us": 5100 - 2500 * r, "other_us": 48000} for s in ["all"] + [x["name"] for x in traces[0]["steps"]] for r in range(ranks)]
    wait = [{"rank": r, "step": o["step"], "data_transfer_us": 4200, "synchronizing_us": 7100 if r == 0 else 300} for o in label[::ranks] for r in range(ranks)]
    curve = [2.3 * math.exp(-i / 130) + 0.35 + 0.12 * rnd.random() for i in range(400)]
    return {"schema": 1, "title": "resnet50", "traces": traces,
            "distributed": {"run": "runs/resnet50", "workers": [{"rank": r, "name": f"worker{r}", "device": "NVIDIA H200"} for r in range(ranks)], "overlap": label, "waiting": wait,
                            "operations": [{"rank": r, "name": "nccl:all_reduce", "calls": 48, "total_bytes": 1.2e9, "average_bytes": 25.5e6, "total_latency_us": 67000 - 20000 * r, "average_latency_us": 1400, "data_transfer_us": 25000, "average_data_transfer_us": 520} for r in range(ranks)],
                            "stragglers": [{"rank": 1, "late_us": 18600, "times_last": 41, "percent": 85.4}], "warnings": []},
            "comparison": {"names": names, "overview": overview, "total": {"average_us": totals, "speedup": [1.0, totals[0] / totals[1]]},
                           "operators": [{"name": o["name"], "calls": [o["calls"], o["calls"]], "device_self_us": [o["device_self_us"], o["device_self_us"] * 1.01], "host_self_us": [o["host_self_us"], o["host_self_us"] * 0.9], "difference_us": [0, (0.5 - (i % 3)) * 900 / (i + 1)]} for i, o in enumerate(traces[0]["operators"])],
                           "kernels": [{"name": k["name"], "calls": [k["calls"], k["calls"]], "total_us": [k["total_us"], k["total_us"] * 0.98], "difference_us": [0, -0.02 * k["total_us"]]} for k in traces[0]["kernels"]],
                           "runs": [{"name": n, "traces": ranks, "ranks": ranks, "steps": steps * ranks} for n in names],
                           "units": [{"name": n, "parent": p, "depth": d, "calls": [1, 1], "device_total_us": [t, t * f], "host_total_us": [t / 2, t / 2], "difference_us": [0, t * (f - 1)]}
                                     for n, p, d, t, f in (("resnet", -1, 0, 90000, 0.9), ("resnet.layer1", 0, 1, 30000, 1.1), ("resnet.layer2", 0, 1, 50000, 0.7), ("resnet.layer2.conv1", 2, 2, 40000, 0.6))],
                           "steps": [{"name": s["name"], "total_us": [s["total_us"], s["total_us"] * 0.8 if i else None]} for i, s in enumerate(traces[0]["steps"])],
                           "ranks": [{"name": str(r), "total_us": [totals[0], totals[1]]} for r in range(ranks)],
                           "warnings": ["\"runs/b\" has the traces of 1 ranks, \"runs/a\" of 2: their means are of different ranks"]},
            "runs": [{"name": "resnet50", "path": "runs/resnet50", "curves": [{"name": "train_loss", "steps": list(range(0, 4000, 10)), "values": curve}, {"name": "val_accuracy", "steps": list(range(400, 4001, 400)), "values": [0.76 - 0.6 * math.exp(-i / 2.5) for i in range(10)]},
                                                                             {"name": "lr", "steps": list(range(0, 4000, 40)), "values": [0.1 * 0.5 * (1 + math.cos(math.pi * i / 100)) for i in range(100)]}],
                      "configuration": [{"key": k, "value": v} for k, v in (("model.name", "resnet50"), ("trainer.max_epochs", "3"), ("trainer.precision", "bf16-mixed"), ("trainer.profiler", "pytorch"), ("data.batch_size", "256"), ("data.num_workers", "0"), ("optimizer", "sgd"), ("optimizer.lr", "0.1"))],
                      "environment": [{"key": "levin", "value": "0.1.0"}, {"key": "torch", "value": "2.11.0"}, {"key": "cuda", "value": "13.0"}, {"key": "device", "value": "2 x NVIDIA H200"}, {"key": "host", "value": "node-1"}],
                      "checkpoints": [{"path": f"checkpoints/epoch={e}-step={1250 * (e + 1)}.ckpt", "bytes": 204_800_512, "step": 1250 * (e + 1), "time": f"2026-11-16 1{e}:00:00"} for e in range(3)], "traces": list(range(ranks))}]}


if __name__ == "__main__":
    # Two ranks with 100,000 spans in a picture and 6,000 rows in a table: what a trace of 1 GB gives, and more.
    big = len(sys.argv) > 1 and sys.argv[1] == "big"
    json.dump(report(steps=40, spans=60000, rows=4000) if big else report(), sys.stdout)
