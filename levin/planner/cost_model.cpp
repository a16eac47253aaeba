#include "levin/planner/cost_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace levin::planner {
namespace {

double as_double(int64_t value) {
  return static_cast<double>(value);
}

}  // namespace

std::vector<std::pair<std::string, double>> Cost::parts() const {
  std::vector<std::pair<std::string, double>> all{{"compute", compute},
                                                  {"recompute", recompute},
                                                  {"tp", tp},
                                                  {"cp", cp},
                                                  {"ep", ep},
                                                  {"pp", pp},
                                                  {"dp", dp},
                                                  {"bubble", bubble},
                                                  {"optimizer", optimizer},
                                                  {"offload", offload}};
  std::erase_if(all, [](const auto& part) { return part.second <= 0; });
  std::ranges::stable_sort(all, [](const auto& a, const auto& b) { return a.second > b.second; });
  return all;
}

CostModel::CostModel(const PlanQuestion& question, const Calibration& calibration)
    : model_(question.model),
      cluster_(question.cluster),
      software_(question.software),
      calibration_(calibration),
      mixed_(question.precision.ends_with("-mixed") && !question.software.half_weights) {
  const bool is_half = question.precision.ends_with("-true") && !question.precision.starts_with("32");
  optimizer_bytes_ = is_half ? 14 : 28;
  // Products in float32 have no tensor cores but with TF32, which training in 32-true does not use.
  if (question.precision.starts_with("32")) cluster_.peak_flops /= 15, cluster_.sustained_flops /= 15;
}

double CostModel::tokens(const Candidate& candidate) const {
  return as_double(candidate.micro_batch) * as_double(model_.sequence) / as_double(candidate.cp);
}

double CostModel::gemm_seconds(double m, double n, double k, double count) const {
  const double tiles = count * std::ceil(m / 128) * std::ceil(n / 128);
  const double waves = tiles / as_double(cluster_.multiprocessors);
  const double filled = waves / (waves + calibration_.gemm_waves);
  const double deep = k / (k + calibration_.gemm_depth);
  const double rate = std::min(cluster_.peak_flops * calibration_.gemm * filled * deep, cluster_.sustained_flops);
  const double bytes = 2 * count * (m * k + k * n + m * n);
  return std::max(2 * count * m * n * k / rate, bytes_seconds(bytes)) + calibration_.gap;
}

double CostModel::bytes_seconds(double bytes) const {
  return bytes / (cluster_.memory_bandwidth * calibration_.memory);
}

double CostModel::exposed(double communication, double computation) const {
  return std::max(communication - computation, calibration_.contention * communication);
}

void CostModel::add_gemm(LayerTimes& times, double m, double n, double k, double count) const {
  times.forward += gemm_seconds(m, n, k, count);
  times.backward_inputs += gemm_seconds(m, k, n, count);
  times.backward_weights += gemm_seconds(k, n, m, count);
}

void CostModel::add_attention(const Candidate& candidate, LayerTimes& times) const {
  const double n = tokens(candidate), tp = as_double(candidate.tp), s = as_double(model_.sequence);
  const double w = as_double(model_.width), q = as_double(model_.query_width()) / tp;
  const double kv = std::max(as_double(model_.key_width()) / tp, as_double(model_.head_width));
  add_gemm(times, n, q + 2 * kv, w);
  add_gemm(times, n, w, q);
  const bool causal = model_.kind == ModelShape::Kind::kDecoder;
  if (software_.flash_attention) {
    const double flops = 4 * n * s * q * (causal ? 0.5 : 1);
    times.forward += flops / (cluster_.peak_flops * calibration_.attention_forward) + calibration_.gap;
    times.backward_inputs += 2.5 * flops / (cluster_.peak_flops * calibration_.attention_backward) + calibration_.gap;
    return;
  }
  // Two products with the scores between them, head by head; softmax, mask and dropout pass over all scores.
  const double d = as_double(model_.head_width), heads = as_double(model_.heads) / tp;
  const double samples = as_double(candidate.micro_batch) * heads;
  const double products = gemm_seconds(samples * n / as_double(candidate.micro_batch), s, d) +
                          gemm_seconds(samples * n / as_double(candidate.micro_batch), d, s);
  const double scores = n * s * heads;
  const double core = products + bytes_seconds(scores * (software_.dropout ? 9 : 4)) + 2 * calibration_.gap;
  times.forward += core;
  times.selective += core;
  times.backward_inputs += 2 * products + bytes_seconds(scores * (software_.dropout ? 11 : 6)) + 2 * calibration_.gap;
}

void CostModel::add_mlp(const Candidate& candidate, LayerTimes& times) const {
  const double n = tokens(candidate), tp = as_double(candidate.tp);
  const double w = as_double(model_.width), f = as_double(model_.mlp_width) / tp;
  double rows = n, count = 1;
  if (model_.experts > 0) {
    count = as_double(model_.experts) / as_double(candidate.ep);
    rows = n * as_double(model_.experts_per_token) / count;
  }
  add_gemm(times, rows, (model_.gated ? 2 : 1) * f, w, count);
  add_gemm(times, rows, w, f, count);
  if (model_.shared_expert_width == 0) return;
  const double shared = as_double(model_.shared_expert_width) / tp;
  add_gemm(times, n, 2 * shared, w);
  add_gemm(times, n, w, shared);
}

void CostModel::add_dispatch(const Candidate& candidate, LayerTimes& times) const {
  if (model_.experts == 0) return;
  const double n = tokens(candidate), w = as_double(model_.width), k = as_double(model_.experts_per_token);
  add_gemm(times, n, as_double(model_.experts), w);
  // Bytes of an element: copied to the rows of experts, back, and summed. Among ranks rows come sorted by rank, and are
  // sorted by expert before the products and back behind them. Ranks of tp copy the same rows.
  const double bytes = n * w * (k * (candidate.ep > 1 ? 18 : 10) + 2);
  const double passes = bytes_seconds(bytes) + 8 * calibration_.gap;
  times.forward += passes;
  times.selective += passes;
  times.backward_inputs += passes;
}

void CostModel::add_elementwise(const Candidate& candidate, LayerTimes& times) const {
  const double n = tokens(candidate), tp = as_double(candidate.tp), outer = candidate.sequence_parallel ? tp : 1;
  const double w = as_double(model_.width), q = as_double(model_.query_width()), kv = as_double(model_.key_width());
  const double used = model_.experts > 0 ? as_double(model_.experts_per_token) : 1;
  const double f = as_double(model_.mlp_width) * used / tp;
  const double r = mixed_ && candidate.zero_stage == 0 ? 4 : 2;
  // Read and written once each: residual sums with their norms, the activation, the layout of queries, keys and values.
  double wide = software_.fused_elementwise ? 2 * (2 * r + 4) * w : (2 * 4 + 2 * 6) * w;
  if (software_.dropout) wide += 2 * w;
  const double inside = (model_.gated ? 6 : 4) * f + 4 * (q + 2 * kv) / tp;
  const double passes = bytes_seconds(n * (wide / outer + inside)) + 6 * calibration_.gap;
  times.forward += passes;
  times.selective += bytes_seconds(n * (wide / outer + (model_.gated ? 6 : 4) * f));
  times.backward_inputs += 2 * passes;
}

void CostModel::add_communication(const Candidate& candidate, LayerTimes& times) const {
  const double n = tokens(candidate), w = as_double(model_.width), tp = as_double(candidate.tp);
  if (candidate.tp > 1) {
    // Behind attention and behind the MLP; sequence parallel sends the same bytes, and gathers its inputs once more for
    // the gradient of weights, behind a product.
    times.tp_forward = times.tp_backward = 2 * all_reduce_seconds(2 * n * w, candidate.tp, 1);
  }
  if (candidate.cp > 1) {
    // Keys and values go around the ring while attention computes with those before.
    const double bytes = 2 * 2 * n * as_double(model_.key_width()) / tp;
    const double ring = as_double(candidate.cp - 1) * send_seconds(bytes, candidate.cp, candidate.tp);
    const double flops = 4 * n * as_double(model_.sequence) * as_double(model_.query_width()) / tp * 0.5;
    const double core = flops / (cluster_.peak_flops * calibration_.attention_forward);
    times.cp_forward = exposed(ring, core) + as_double(candidate.cp) * 10 * calibration_.gap;
    times.cp_backward = exposed(2 * ring, 2.5 * core) + as_double(candidate.cp) * 20 * calibration_.gap;
  }
  if (model_.experts > 0 && candidate.ep > 1) {
    // Rows to their experts, and back: of all tokens on every rank of tp.
    const double bytes = 2 * n * w * as_double(model_.experts_per_token);
    times.ep_forward = times.ep_backward = 2 * all_to_all_seconds(bytes, candidate.ep, candidate.tp);
    times.ep_forward += calibration_.host_wait;
  }
}

LayerTimes CostModel::layer(const Candidate& candidate) const {
  LayerTimes times;
  add_attention(candidate, times);
  add_mlp(candidate, times);
  add_dispatch(candidate, times);
  add_elementwise(candidate, times);
  add_communication(candidate, times);
  return times;
}

double CostModel::head_seconds(const Candidate& candidate) const {
  if (model_.classes > 0) return 0;
  const double n = tokens(candidate), w = as_double(model_.width);
  const double vocabulary = as_double(model_.vocabulary) / as_double(candidate.tp);
  const double product = gemm_seconds(n, vocabulary, w);
  // Bytes of a logit. In chunks: written, read for its sum, read and written as gradient. Else as separate kernels in
  // float32: cast, maximum, difference, exponential, sum, quotient, gradient, cast back.
  constexpr double kFused = 10, kSeparate = 6 + 4 + 8 + 8 + 4 + 8 + 8 + 6;
  return 3 * product + bytes_seconds(n * vocabulary * (software_.chunked_loss ? kFused : kSeparate));
}

bool CostModel::in_one_node(int64_t size, int64_t stride) const {
  // Groups follow each other: one that does not divide a node lies across its end somewhere.
  const int64_t extent = size * stride, node = cluster_.gpus_per_node;
  return extent <= node && (node % extent == 0 || cluster_.gpus <= node);
}

double CostModel::ranks_in_a_node(int64_t size, int64_t stride) const {
  if (in_one_node(size, stride)) return as_double(size);
  const int64_t node = cluster_.gpus_per_node, extent = size * stride;
  // Of a group across the end of a node: those in the smaller of its parts.
  const int64_t here = extent < node ? std::gcd(node, extent) : node;
  return std::clamp(as_double(here) / as_double(stride), 1.0, as_double(size));
}

CostModel::Path CostModel::path(int64_t size, int64_t stride) const {
  const double inside = cluster_.inside.bandwidth * calibration_.inside;
  if (in_one_node(size, stride)) return {inside, cluster_.inside.latency};
  // Each GPU of the group in a node brings its own network card.
  return {std::min(inside, ranks_in_a_node(size, stride) * cluster_.between.bandwidth * calibration_.between),
          cluster_.between.latency};
}

double CostModel::all_gather_seconds(double bytes, int64_t size, int64_t stride) const {
  if (size <= 1) return 0;
  const auto [bandwidth, latency] = path(size, stride);
  const double n = as_double(size);
  // A ring: every node is a step.
  const double in_node = ranks_in_a_node(size, stride);
  return (n - 1) / n * bytes / bandwidth + latency * (std::log2(in_node) + n / in_node - 1);
}

double CostModel::all_reduce_seconds(double bytes, int64_t size, int64_t stride) const {
  if (size <= 1) return 0;
  const auto [bandwidth, latency] = path(size, stride);
  const double n = as_double(size);
  // Trees where rings would be long.
  return 2 * ((n - 1) / n * bytes / bandwidth + latency * std::ceil(std::log2(n)));
}

double CostModel::all_to_all_seconds(double bytes, int64_t size, int64_t stride) const {
  if (size <= 1) return 0;
  const double inside = cluster_.inside.bandwidth * calibration_.inside;
  const double n = as_double(size), here = ranks_in_a_node(size, stride);
  // What stays in the node goes over its links, the rest over one network card.
  const double away = (n - here) / n;
  const double near = (here - 1) / n;
  const double latency = away > 0 ? cluster_.between.latency : cluster_.inside.latency;
  return std::max(bytes * near / inside, bytes * away / (cluster_.between.bandwidth * calibration_.between)) +
         latency * std::ceil(std::log2(n));
}

double CostModel::send_seconds(double bytes, int64_t size, int64_t stride) const {
  // All hops of a ring or of a pipeline go at the pace of the slowest: one that leaves the node, if any does.
  const bool near = in_one_node(size, stride);
  const auto& link = near ? cluster_.inside : cluster_.between;
  return bytes / (link.bandwidth * (near ? calibration_.inside : calibration_.between)) + link.latency;
}

CostModel::Exchange CostModel::exchange(const Candidate& candidate, double parameters, int64_t shards, int64_t stride,
                                        double padding) const {
  const double element = mixed_ && (candidate.zero_stage == 0 || !software_.half_weights) ? 4 : 2;
  const double bytes = parameters * element;
  // Copies of shards are as far apart as all ranks that share one copy.
  const int64_t apart = candidate.tp * candidate.dp_shard * candidate.cp;
  if (candidate.zero_stage == 0) return {0, all_reduce_seconds(bytes, shards * candidate.dp_replicate, stride)};
  return {all_gather_seconds(parameters * 2 * padding, shards, stride),
          all_gather_seconds(bytes * padding, shards, stride) +
              all_reduce_seconds(bytes * padding / as_double(shards), candidate.dp_replicate, apart)};
}

void CostModel::add_data_parallel(const Candidate& candidate, const MemoryModel& memory,
                                  const StageParameters& parameters, const LayerTimes& times, double layers,
                                  Cost& cost) const {
  const int64_t shards = candidate.dp_shard * candidate.cp;
  if (shards * candidate.dp_replicate == 1) return;
  auto [gather, reduce] = exchange(candidate, parameters.total() - parameters.experts, shards, candidate.tp, 1);
  if (parameters.experts > 0) {
    // Among the ranks that have the same experts.
    const auto among = memory.expert_shards(candidate);
    const auto experts =
        exchange(candidate, parameters.experts, among.shards, candidate.tp * candidate.ep, among.padding());
    gather += experts.gather, reduce += experts.reduce;
  }
  const double forward = layers * (times.forward + times.tp_forward),
               backward = layers * (times.backward() + times.tp_backward);
  const double m = as_double(candidate.microbatches);
  // The last layer's gradient comes when nothing is left to compute.
  const double last = reduce / std::max(2.0, layers);
  cost.dp += software_.overlaps_gradients ? std::max(exposed(reduce, backward), last) : reduce;
  if (candidate.zero_stage == 3) {
    // Gathered for forward and again for backward, in every micro-batch; the first layer waits for its own.
    const double behind = software_.overlaps_gathers ? 1 : 0;
    cost.dp += m * (exposed(gather, behind * forward) + exposed(gather, behind * backward)) + gather / layers;
  } else if (candidate.zero_stage > 0) {
    cost.dp += software_.overlaps_gathers ? std::max(exposed(gather, forward), gather / layers) : gather;
  }
}

void CostModel::add_optimizer(const Candidate& candidate, const MemoryModel& memory, const StageParameters& parameters,
                              Cost& cost) const {
  const double shards = candidate.zero_stage > 0 ? as_double(candidate.dp_shard * candidate.cp) : 1;
  const double of_experts = candidate.zero_stage > 0 ? memory.expert_shards(candidate).divide : 1;
  const double own = (parameters.total() - parameters.experts) / shards + parameters.experts / of_experts;
  if (candidate.offload) {
    // Parameters come for forward and backward, gradients leave; AdamW reads and writes 28 bytes on the host.
    const double copies = parameters.total() * 2 * 2 * as_double(candidate.microbatches) / cluster_.host_link;
    constexpr double kHostBandwidth = 25e9;  // of a GPU's share of the host's memory
    cost.offload += std::max(0.0, copies - cost.compute) + own * 28 / kHostBandwidth;
    return;
  }
  cost.optimizer += bytes_seconds(own * optimizer_bytes_) + calibration_.step;
}

Cost CostModel::of(const Candidate& candidate, const MemoryModel& memory, const LayerTimes& times) const {
  Cost cost;
  const double p = as_double(candidate.pp), m = as_double(candidate.microbatches), v = as_double(candidate.chunks);
  const double stage_layers = as_double(memory.most_layers(candidate));
  const double head = head_seconds(candidate);
  double recompute = 0, recompute_tp = 0, recompute_ep = 0;
  if (candidate.checkpointing == Checkpointing::kFull)
    recompute = times.forward, recompute_tp = times.tp_forward, recompute_ep = times.ep_forward;
  if (candidate.checkpointing == Checkpointing::kSelective) recompute = times.selective;

  // A layer's share of a micro-batch, and what the last stage has more: with a balanced cut all share it.
  const double layer_compute = times.forward + times.backward();
  const double layer_other = recompute + recompute_tp + recompute_ep + times.tp_forward + times.tp_backward +
                             times.cp_forward + times.cp_backward + times.ep_forward + times.ep_backward;
  double slow_layers = stage_layers, slow_head = head;
  if (candidate.pp > 1 && software_.balances_stages) {
    // Whole layers move; what is left over of the head is at most one layer.
    const double all = as_double(model_.layers) * (layer_compute + layer_other) + head;
    const double even = all / p, least = stage_layers * (layer_compute + layer_other);
    slow_head = std::max(0.0, std::min(head, std::max(even, least) - least));
  }
  double weights = 0;
  const auto parameters = memory.stage_parameters(candidate, 0);
  // Casts of float32 weights for autocast, and the sum of gradients over micro-batches.
  if (mixed_ && candidate.zero_stage == 0) weights += bytes_seconds(parameters.total() * 6);
  if (m > 1) weights += bytes_seconds(parameters.total() * (mixed_ ? 10 : 6));

  cost.compute = m * (slow_layers * layer_compute + slow_head + weights);
  cost.recompute = m * slow_layers * recompute;
  cost.tp = m * slow_layers * (times.tp_forward + times.tp_backward + recompute_tp);
  cost.cp = m * slow_layers * (times.cp_forward + times.cp_backward);
  cost.ep = m * slow_layers * (times.ep_forward + times.ep_backward + recompute_ep);
  if (candidate.pp > 1) {
    const double forward = slow_layers * (times.forward + times.tp_forward + times.cp_forward + times.ep_forward);
    const double weight_gradient = slow_layers * times.backward_weights;
    const double whole = slow_layers * (layer_compute + layer_other) + slow_head + weights;
    double bubble = whole;
    // The way there and back is as long as its largest chunks.
    if (candidate.schedule == Schedule::kInterleaved)
      bubble = whole * std::ceil(as_double(model_.layers) / (p * v)) / stage_layers;
    if (candidate.schedule == Schedule::kZB1P) bubble = std::max(forward, whole - 2 * weight_gradient);
    // A stage of zbv is half of a rank's layers.
    if (candidate.schedule == Schedule::kZBV) bubble = std::max(0.0, whole - 3 * weight_gradient) / 2;
    const bool cut = candidate.sequence_parallel || software_.scatters_sends;
    const double bytes = 2 * tokens(candidate) * as_double(model_.width) / (cut ? as_double(candidate.tp) : 1);
    const double send = send_seconds(bytes, candidate.pp, candidate.tp * candidate.cp * candidate.data_parallel());
    cost.pp = 2 * send * (m * v + p - 1);
    cost.bubble = (p - 1) * bubble;
  }
  add_data_parallel(candidate, memory, parameters, times, slow_layers, cost);
  add_optimizer(candidate, memory, parameters, cost);
  return cost;
}

Cost CostModel::of(const Candidate& candidate, const MemoryModel& memory) const {
  return of(candidate, memory, layer(candidate));
}

double CostModel::model_utilization(const Candidate& candidate, double seconds) const {
  return model_.model_flops(!software_.flash_attention) * as_double(candidate.batch()) /
         (seconds * as_double(candidate.gpus()) * cluster_.peak_flops);
}

double CostModel::hardware_utilization(const Candidate& candidate, double seconds) const {
  double flops = model_.model_flops(!software_.flash_attention);
  if (candidate.checkpointing == Checkpointing::kFull) {
    const double head = 6 * as_double(model_.sequence * model_.width * model_.vocabulary);
    flops += (flops - head) / 3;
  }
  return flops * as_double(candidate.batch()) / (seconds * as_double(candidate.gpus()) * cluster_.peak_flops);
}

}  // namespace levin::planner
