#pragma once

#include <string>
#include <utility>
#include <vector>

#include "levin/planner/candidate.h"
#include "levin/planner/memory_model.h"

namespace levin::planner {

/// Fractions of what makers promise that real kernels reach. One set for all GPUs and models: the figures that it was
/// fitted to are in docs/parallelism.md.
struct Calibration {
  /// Of a large matrix product.
  double gemm = 0.86;
  /// Depth of a product (k) at which half of that is reached, and waves of tiles.
  double gemm_depth = 320;
  double gemm_waves = 0.56;
  /// Of attention in one kernel, forward and backward.
  double attention_forward = 0.58, attention_backward = 0.52;
  /// Of device memory, in elementwise kernels.
  double memory = 0.85;
  /// Of links, in collectives and sends.
  double inside = 0.70, between = 0.55;
  /// Of communication that is hidden: what it takes from the kernels beside it.
  double contention = 0.15;
  /// Seconds between two kernels.
  double gap = 1e-6;
  /// Seconds in which the device waits for the host to learn how many rows each expert gets, once a layer.
  double host_wait = 3e-5;
  /// Seconds of a step that belong to none of the above: the data, the gradient norm, the loop.
  double step = 2e-4;
};

/// Seconds of a step on the slowest rank, by what they are spent on. Communication is what nothing hides.
struct Cost {
  double compute = 0;
  double recompute = 0;
  double tp = 0, cp = 0, ep = 0, pp = 0, dp = 0;
  double bubble = 0;
  double optimizer = 0;
  /// Copies between device and host that nothing hides, and the optimizer on the host.
  double offload = 0;

  double seconds() const { return compute + recompute + tp + cp + ep + pp + dp + bubble + optimizer + offload; }
  /// Name and seconds, largest first, without zeros.
  std::vector<std::pair<std::string, double>> parts() const;
};

/// One layer, one micro-batch, one rank: seconds.
struct LayerTimes {
  double forward = 0, backward_inputs = 0, backward_weights = 0;
  /// Of `forward`: what selective checkpointing runs again.
  double selective = 0;
  double tp_forward = 0, tp_backward = 0;
  double cp_forward = 0, cp_backward = 0;
  double ep_forward = 0, ep_backward = 0;

  double backward() const { return backward_inputs + backward_weights; }
};

/// What a step costs, from the sizes of its kernels and messages.
class CostModel {
 public:
  explicit CostModel(const PlanQuestion& question, const Calibration& calibration = {});

  Cost of(const Candidate& candidate, const MemoryModel& memory) const;
  /// Of a layer; depends on tp, cp, ep, micro_batch and sequence_parallel alone.
  LayerTimes layer(const Candidate& candidate) const;
  /// The same with the layer's times at hand.
  Cost of(const Candidate& candidate, const MemoryModel& memory, const LayerTimes& times) const;

  /// [m, k] x [k, n] in 16 bits, `count` of them in one kernel.
  double gemm_seconds(double m, double n, double k, double count = 1) const;
  /// `size` ranks that are `stride` apart.
  double all_reduce_seconds(double bytes, int64_t size, int64_t stride) const;
  /// All-gather, or reduce-scatter: `bytes` are those of the whole.
  double all_gather_seconds(double bytes, int64_t size, int64_t stride) const;
  double all_to_all_seconds(double bytes, int64_t size, int64_t stride) const;
  /// From each of `size` ranks to the next, all at once: as the slowest hop.
  double send_seconds(double bytes, int64_t size, int64_t stride) const;
  /// Share of the peak that the arithmetic of the model takes: without recomputation (MFU), with it (HFU).
  double model_utilization(const Candidate& candidate, double seconds) const;
  double hardware_utilization(const Candidate& candidate, double seconds) const;

 private:
  struct Path {
    double bandwidth, latency;
  };
  /// Whether no such group lies across the end of a node.
  bool in_one_node(int64_t size, int64_t stride) const;
  double ranks_in_a_node(int64_t size, int64_t stride) const;
  Path path(int64_t size, int64_t stride) const;
  double head_seconds(const Candidate& candidate) const;
  double bytes_seconds(double bytes) const;
  /// What is left of communication beside so much computation.
  double exposed(double communication, double computation) const;
  void add_attention(const Candidate& candidate, LayerTimes& times) const;
  void add_mlp(const Candidate& candidate, LayerTimes& times) const;
  /// Routing, and the copies of rows in the order of their experts.
  void add_dispatch(const Candidate& candidate, LayerTimes& times) const;
  void add_elementwise(const Candidate& candidate, LayerTimes& times) const;
  void add_communication(const Candidate& candidate, LayerTimes& times) const;
  /// A product forward and its two backward.
  void add_gemm(LayerTimes& times, double m, double n, double k, double count = 1) const;
  /// Seconds in which parameters of a stage are gathered once, and their gradients reduced.
  struct Exchange {
    double gather = 0, reduce = 0;
  };
  Exchange exchange(const Candidate& candidate, double parameters, int64_t shards, int64_t stride,
                    double padding) const;
  void add_data_parallel(const Candidate& candidate, const MemoryModel& memory, const StageParameters& parameters,
                         const LayerTimes& times, double layers, Cost& cost) const;
  void add_optimizer(const Candidate& candidate, const MemoryModel& memory, const StageParameters& parameters,
                     Cost& cost) const;
  double tokens(const Candidate& candidate) const;

  ModelShape model_;
  ClusterShape cluster_;
  Software software_;
  Calibration calibration_;
  bool mixed_;
  /// Read and written by AdamW for one parameter.
  double optimizer_bytes_;
};

}  // namespace levin::planner
