#include "levin/report/recommend.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "levin/core/words.h"
#include "levin/report/trace/lanes.h"

namespace levin::report {
namespace {

double ms(double ns) {
  return ns / 1e6;
}

std::string bytes_text(double bytes) {
  return format_bytes(bytes);
}

/// What matrix products can be made faster with.
enum class MatrixCores {
  kNone,
  /// Volta and Turing: float16 alone.
  kHalf,
  kBFloat16,
  kAmd
};

MatrixCores matrix_cores(const TraceReport& report) {
  if (report.gpus.empty()) return MatrixCores::kNone;
  const auto& info = report.gpus[0].info;
  if (report.events.is_amd) {
    // Compute capability 9 is that of GPUs without them, too (gfx906).
    const bool has = report.tensor_cores.all_used > 0 || (info.major == 9 && info.minor >= 4) ||
                     info.name.find("Instinct MI") != std::string::npos;
    return has ? MatrixCores::kAmd : MatrixCores::kNone;
  }
  if (info.major < 7) return MatrixCores::kNone;
  return info.major == 7 ? MatrixCores::kHalf : MatrixCores::kBFloat16;
}

/// Time of products that 16 bits would make faster.
Ns slow_products(const TraceReport& report) {
  const auto& times = report.tensor_cores;
  return report.events.is_amd ? times.of_float : times.of_slow;
}

/// Most kernels are those of replayed graphs already.
bool uses_graphs(const TraceReport& report) {
  uint64_t kernels = 0, replayed = 0;
  for (const auto& event : report.events.device) {
    if (event.kind != DeviceKind::kKernel || event.launch == kNone) continue;
    ++kernels;
    replayed += is_replayed(report.events, event);
  }
  return 2 * replayed > kernels;
}

/// The rules, each for itself. Numbers are of one step on average.
class Rules {
 public:
  explicit Rules(const TraceReport& report)
      : report_(report), trace_(report.events), steps_(static_cast<double>(report.steps.steps.size())) {}

  std::vector<Recommendation> all() {
    if (report_.steps.average_total <= 0) return {};
    loader();
    communication();
    sync();
    cpu_tensors();
    precision();
    memory_format();
    host_bound();
    checkpoints();
    memory_limit();
    memory_growth();
    parallel();
    std::stable_sort(out_.begin(), out_.end(), [](const Recommendation& a, const Recommendation& b) {
      return a.cost_ms.value_or(0) > b.cost_ms.value_or(0);
    });
    return std::move(out_);
  }

 private:
  double share(double ns) const { return ns / report_.steps.average_total; }
  double idle(IdleCause cause) const { return static_cast<double>(report_.idle[cause]) / steps_; }
  bool in_step(Ns time) const {
    return std::any_of(report_.steps.steps.begin(), report_.steps.steps.end(),
                       [&](const Step& step) { return time >= step.host_start && time < step.host_end; });
  }
  void add(std::string id, std::string title, std::string evidence, std::string option, double cost_ns) {
    out_.push_back({std::move(id), std::move(title), std::move(evidence), std::move(option), ms(cost_ns)});
  }

  void loader() {
    const double time = report_.steps.average_of(Part::kDataLoader);
    if (share(time) <= 0.05) return;
    add("slow_loader", "The step waits for data",
        fmt::format("{:.1f} % of the step ({:.3f} ms) are spans enumerate(DataLoader)#...__next__", 100 * share(time),
                    ms(time)),
        "num_workers: more of them; pin_memory = true; a cheaper transform or a packed data set (levin pack)", time);
  }

  void communication() {
    const double time = report_.steps.average_of(Part::kCommunication);
    if (share(time) <= 0.10) return;
    add("communication", "The step waits for collectives",
        fmt::format("{:.1f} % of the step ({:.3f} ms) are collectives with no computation beside them",
                    100 * share(time), ms(time)),
        "accumulate_grad_batches, a larger batch_size, or a strategy that sends less", time);
  }

  void sync() {
    double count = 0;
    std::map<std::string, int> from;
    std::vector<char> is(trace_.names.size(), 2);
    for (const auto& call : trace_.calls) {
      if (is[call.name] == 2) is[call.name] = is_sync(trace_.name(call.name));
      if (!is[call.name] || !in_step(call.start)) continue;
      ++count;
      if (call.owner != kNone) ++from[trace_.name(trace_.host[call.owner].name)];
    }
    const double cost = idle(IdleCause::kSync);
    if (count < 0.5 * steps_ || share(cost) < 0.01) return;
    const auto most = std::max_element(from.begin(), from.end(), [](auto& a, auto& b) { return a.second < b.second; });
    const auto who = most == from.end() ? std::string() : fmt::format(", most of them from {}", printable(most->first));
    add("sync_in_step", "The host waits for the device inside the step",
        fmt::format("{:.1f} waiting calls in a step (cudaStreamSynchronize and the like){}; after them the device has "
                    "nothing to do for {:.3f} ms",
                    count / steps_, who, ms(cost)),
        "no item(), printing or copies to the CPU in the step: log tensors, which are read later", cost);
  }

  // Copies from memory that is not pinned block the host.
  void cpu_tensors() {
    double count = 0, bytes = 0;
    Ranges blocked;
    for (const auto& event : trace_.device) {
      if (event.kind != DeviceKind::kMemcpy || event.launch == kNone) continue;
      const auto& name = trace_.name(event.name);
      if (name.find("HtoD") == std::string::npos || name.find("Pageable") == std::string::npos) continue;
      const auto& call = trace_.calls[event.launch];
      if (!in_step(call.start)) continue;
      ++count;
      bytes += static_cast<double>(std::max<int64_t>(event.bytes, 0));
      blocked.push_back({call.start, call.end()});
      blocked.push_back({event.start, event.end()});
    }
    const double cost = static_cast<double>(length(merge(std::move(blocked)))) / steps_;
    if (count < steps_ || share(cost) < 0.01) return;
    add("cpu_tensors", "Tensors of the CPU are copied in the step, from memory that is not pinned",
        fmt::format("{:.1f} copies Pageable -> Device in a step, {} together, hold up host and device for {:.3f} ms",
                    count / steps_, bytes_text(bytes / steps_), ms(cost)),
        "pin_memory = true in the loader; make other tensors on the device (TensorOptions.device)", cost);
  }

  void precision() {
    const auto& times = report_.tensor_cores;
    const auto cores = matrix_cores(report_);
    const auto tf32 = static_cast<double>(times.tf32), of = static_cast<double>(times.of_operators);
    if (cores == MatrixCores::kNone || times.of_operators == 0) return;
    if (cores == MatrixCores::kBFloat16 && tf32 >= 0.2 * of)
      add("tf32_matmul", "Matrix products and convolutions are in TF32",
          fmt::format("{:.0f} % of the time of kernels is on tensor cores, but in TF32: 16 bits take half the time",
                      100 * tf32 / of),
          "precision = \"bf16-mixed\"", tf32 / steps_ / 2);
    const auto slow = static_cast<double>(slow_products(report_));
    if (slow < 0.1 * of) return;
    const auto what_if = std::find_if(report_.what_if.begin(), report_.what_if.end(),
                                      [](const WhatIf& what) { return what.id == "bf16" || what.id == "fp16"; });
    const double cost = what_if == report_.what_if.end() ? slow / steps_ / 2 : what_if->saved_us * 1e3;
    // AMD's matrix cores take float32, too, and their kernels often do not say what they use: the inputs tell.
    if (cores == MatrixCores::kAmd)
      return add(
          "fp32_matmul", "Matrix products are in float32",
          fmt::format("{:.0f} % of the time of kernels is in products whose inputs are float32", 100 * slow / of),
          "precision = \"bf16-mixed\"", cost);
    add("fp32_matmul", "Matrix products do not use the tensor cores",
        fmt::format("{:.0f} % of the time of kernels is in operators that could use tensor cores and do not",
                    100 * slow / of),
        cores == MatrixCores::kHalf
            ? std::string("precision = \"16-mixed\": the tensor cores of this GPU take float16 alone")
            : std::string("precision = \"bf16-mixed\", or float32_matmul_precision = \"high\" (TF32)"),
        cost);
  }

  // cuDNN's quick kernels take NHWC: other images are copied before and after each of them.
  void memory_format() {
    const double cost = static_cast<double>(report_.tensor_cores.memory_format) / steps_;
    if (share(cost) < 0.01) return;
    add("memory_format", "Convolutions copy their images to another memory format",
        fmt::format("{:.1f} % of the step ({:.3f} ms) are kernels nchwToNhwc, nhwcToNchw and the like",
                    100 * share(cost), ms(cost)),
        "channels_last = true: the model's weights and its images in torch.channels_last", cost);
  }

  void host_bound() {
    const double cost = idle(IdleCause::kHost) + idle(IdleCause::kLaunch);
    std::string low;
    for (const auto& gpu : report_.gpus) {
      if (gpu.utilization < 0.5)
        low += fmt::format("{}GPU {} {:.1f} %", low.empty() ? "" : ", ", gpu.device, 100 * gpu.utilization);
    }
    if (report_.gpus.empty() || share(cost) < 0.1) return;
    if (low.empty() || share(cost) < 0.2) {
      // What else holds up the device explains it.
      if (!out_.empty()) return;
      return add(
          "host_bound", "The device waits for the host between kernels",
          fmt::format("for {:.1f} % of the step ({:.3f} ms) nothing was launched yet", 100 * share(cost), ms(cost)),
          uses_graphs(report_) ? graph_words() : "compile = true (CUDA graphs); a larger batch_size", cost);
    }
    double kernels = 0, time = 0;
    for (const auto& row : report_.kernels) {
      kernels += static_cast<double>(row.calls);
      time += static_cast<double>(row.total);
    }
    add("tiny_batch", "The device waits for the host: there is too little work in a kernel",
        fmt::format("utilization {}; kernels of {:.1f} us on average; for {:.3f} ms of a step nothing was launched yet",
                    low, time / std::max(kernels, 1.0) / 1e3, ms(cost)),
        uses_graphs(report_) ? graph_words() : "a larger batch_size; compile = true (CUDA graphs)", cost);
  }

  // Graphs are in use: what is late is the work between them.
  static std::string graph_words() {
    return "a larger batch_size; less work of the host between the CUDA graphs, which are in use already, and fewer of "
           "them";
  }

  void checkpoints() {
    const auto ranges = checkpoint_ranges(trace_);
    double time = 0;
    for (const auto& step : report_.steps.steps) time += static_cast<double>(length_in(ranges, step.start, step.end));
    time /= steps_;
    if (share(time) <= 0.05) return;
    add("checkpoint_often", "Checkpoints are saved too often",
        fmt::format("{:.1f} % of the step ({:.3f} ms) are spans of checkpoints", 100 * share(time), ms(time)),
        "ModelCheckpoint: every_n_train_steps or train_time_interval larger", time);
  }

  void memory_limit() {
    for (const auto& gpu : report_.gpus) {
      const auto capacity = static_cast<double>(gpu.info.memory_bytes), peak = static_cast<double>(gpu.peak_allocated);
      if (capacity <= 0 || peak <= 0.9 * capacity) continue;
      out_.push_back({"memory_limit", "Device memory is nearly full",
                      fmt::format("{:.1f} % of {} on GPU {}", 100 * peak / capacity, bytes_text(capacity), gpu.device),
                      "activation checkpointing, precision = \"bf16-mixed\", a sharding strategy, a smaller batch_size",
                      std::nullopt});
    }
  }

  // What is allocated at the end of each step, on one device.
  std::vector<double> at_ends(int device) const {
    std::vector<double> ends;
    size_t step = 0;
    double last = -1;
    const auto& steps = report_.steps.steps;
    for (const auto& event : trace_.memory) {
      while (step < steps.size() && event.time >= steps[step].host_end) {
        if (last >= 0) ends.push_back(last);
        ++step;
      }
      if (step == steps.size()) return ends;
      if (event.device == device && event.allocated >= 0) last = static_cast<double>(event.allocated);
    }
    if (last >= 0 && step < steps.size()) ends.push_back(last);
    return ends;
  }

  // Memory that grows by about the same in every step. State that is made once grows once.
  void memory_growth() {
    for (const auto& device : report_.memory) {
      const auto ends = at_ends(device.device);
      if (ends.size() < 3) continue;
      double least = ends[1] - ends[0], most = least;
      for (size_t i = 1; i < ends.size(); ++i) {
        least = std::min(least, ends[i] - ends[i - 1]);
        most = std::max(most, ends[i] - ends[i - 1]);
      }
      const double growth = (ends.back() - ends.front()) / static_cast<double>(ends.size() - 1);
      if (least <= 0 || least < 0.25 * most || growth < 64 * 1024) continue;
      double cost = 0;
      for (const auto& call : trace_.calls) {
        const auto& name = trace_.name(call.name);
        if ((name.starts_with("cudaMalloc") || name.starts_with("hipMalloc")) && in_step(call.start))
          cost += static_cast<double>(call.duration);
      }
      add("memory_grows", "Memory grows from step to step",
          fmt::format("{} holds {} more after every one of {} steps; cudaMalloc takes {:.3f} ms of a step",
                      device_name(device.device), bytes_text(growth), ends.size(), ms(cost / steps_)),
          "keep losses and outputs as detach()ed values or numbers, not with their graph", cost / steps_);
    }
  }

  void parallel() {
    bool dp = false, ddp = false, nccl = false;
    for (const auto& span : trace_.host) {
      const auto& name = trace_.name(span.name);
      dp |= name == "DataParallel.forward";
      ddp |= name == "DistributedDataParallel.forward";
      nccl |= span.kind == HostKind::kCollective && name.starts_with("nccl:");
    }
    if (dp && report_.gpus.size() > 1)
      out_.push_back({"data_parallel", "DataParallel runs all GPUs from one process", "spans DataParallel.forward",
                      "strategy = \"ddp\"", std::nullopt});
    const bool has_gpu = std::any_of(trace_.devices.begin(), trace_.devices.end(),
                                     [](const DeviceInfo& info) { return info.major * 10 + info.minor >= 35; });
    if (ddp && !nccl && has_gpu)
      out_.push_back({"ddp_backend", "DDP on GPUs without NCCL",
                      "no span nccl:... beside DistributedDataParallel.forward", "the backend nccl", std::nullopt});
  }

  const TraceReport& report_;
  const TraceEvents& trace_;
  double steps_;
  std::vector<Recommendation> out_;
};

}  // namespace

std::vector<Recommendation> recommend(const TraceReport& report) {
  return Rules(report).all();
}

void recommend_together(const DistributedView& view, std::vector<TraceReport*>& ranks) {
  if (view.stragglers.empty()) return;
  const auto& last = view.stragglers.front();
  // One rank must be behind most of the waiting: ranks that are late in turn need something else.
  double late = 0;
  for (const auto& row : view.stragglers) late += static_cast<double>(row.late);
  if (static_cast<double>(last.late) < 0.6 * late) return;
  const auto here =
      view.missing > 0 ? fmt::format(", of the {} ranks that are here", view.workers.size()) : std::string();
  for (auto* rank : ranks) {
    if (rank->rank == last.rank) continue;
    const auto row = std::find_if(view.waiting.begin(), view.waiting.end(), [&](const WaitingRow& waiting) {
      return waiting.rank == rank->rank && waiting.step == "all";
    });
    if (row == view.waiting.end()) continue;
    const auto steps = static_cast<double>(rank->steps.steps.size());
    const double waited = static_cast<double>(row->synchronizing) / steps;
    if (waited < 0.05 * rank->steps.average_total) continue;
    rank->recommendations.push_back(
        {"slow_rank", fmt::format("Collectives wait for rank {}", last.rank),
         fmt::format("rank {} waits {:.3f} ms in a step; rank {} was the last in {} of the collectives ({:.0f} %){}",
                     rank->rank, ms(waited), last.rank, last.times_last, 100 * last.share, here),
         "the same work on every rank: equal batches, equal devices; see the operators and the loader of that rank",
         ms(waited)});
    std::stable_sort(
        rank->recommendations.begin(), rank->recommendations.end(),
        [](const Recommendation& a, const Recommendation& b) { return a.cost_ms.value_or(0) > b.cost_ms.value_or(0); });
  }
}

std::vector<WhatIf> estimate(const TraceReport& report) {
  std::vector<WhatIf> out;
  const auto& steps = report.steps;
  const auto count = static_cast<double>(steps.steps.size());
  const auto add = [&](const char* id, const char* title, double saved_ns) {
    saved_ns = std::min(saved_ns, steps.average_total);
    if (saved_ns > 0.005 * steps.average_total)
      out.push_back({id, title, (steps.average_total - saved_ns) / 1e3, saved_ns / 1e3});
  };
  add("no_loader", "without waiting for the loader", steps.average_of(Part::kDataLoader));
  add("no_communication", "without communication", steps.average_of(Part::kCommunication));
  if (!uses_graphs(report))
    add("graphs", "with CUDA graphs",
        static_cast<double>(report.idle[IdleCause::kHost] + report.idle[IdleCause::kLaunch]) / count);
  // Products that do not use tensor cores become faster by the ratio of the peaks; 4 at most, as no kernel reaches it.
  const auto cores = matrix_cores(report);
  if (cores == MatrixCores::kNone) return out;
  const auto slow = static_cast<double>(slow_products(report)) / count;
  const auto device = report.gpus.empty() ? std::string() : report.gpus[0].info.name;
  const bool is_half = cores == MatrixCores::kHalf;
  const auto half = peak_tflops(device, is_half ? "fp16" : "bf16"), full = peak_tflops(device, "fp32");
  const double ratio = half && full ? std::min(*half / *full, 4.0) : 2;
  if (ratio > 1)
    add(is_half ? "fp16" : "bf16", is_half ? "with float16 matrix products" : "with bfloat16 matrix products",
        slow * (1 - 1 / ratio));
  return out;
}

}  // namespace levin::report
