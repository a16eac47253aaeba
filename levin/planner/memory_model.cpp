#include "levin/planner/memory_model.h"

#include <algorithm>
#include <cmath>

#include "levin/memory/estimate.h"
#include "levin/precision/precision.h"

namespace levin::planner {
namespace {

double as_double(int64_t value) {
  return static_cast<double>(value);
}

/// cuBLAS, forward and backward, where torch multiplies matrices.
constexpr double kWorkspace = 64.0 * (1 << 20);

std::string strategy_of(int stage, int ranks) {
  if (stage == 0) return ranks > 1 ? "ddp" : "single_device";
  return stage == 3 ? "fsdp" : "deepspeed_stage_" + std::to_string(stage);
}

}  // namespace

std::string_view to_string(Schedule schedule) {
  switch (schedule) {
    case Schedule::kNone:
      return "none";
    case Schedule::kGPipe:
      return "gpipe";
    case Schedule::k1F1B:
      return "1f1b";
    case Schedule::kInterleaved:
      return "interleaved";
    case Schedule::kZB1P:
      return "zb1p";
    case Schedule::kZBV:
      return "zbv";
  }
  return "";
}

std::string_view to_string(Checkpointing checkpointing) {
  switch (checkpointing) {
    case Checkpointing::kNone:
      return "none";
    case Checkpointing::kSelective:
      return "selective";
    case Checkpointing::kFull:
      return "full";
  }
  return "";
}

MemoryModel::MemoryModel(const ModelShape& model, const Software& software, std::string precision)
    : model_(model), software_(software), precision_(std::move(precision)) {
  const auto plan = resolve_precision(precision_, c10::DeviceType::CUDA);
  mixed_ = precision_.ends_with("-mixed");
  half_ = mixed_ || plan.params != c10::ScalarType::Float;
}

MemoryModel::State MemoryModel::state(const Candidate& candidate, double ranks) const {
  if (software_.half_weights) {
    const double n = candidate.zero_stage >= 1 ? ranks : 1, g = candidate.zero_stage >= 2 ? ranks : 1;
    return {2 / (candidate.zero_stage >= 3 ? ranks : 1), 2 / g, 12 / n, 0};
  }
  const int over = candidate.zero_stage > 0 ? static_cast<int>(ranks) : candidate.data_parallel() > 1 ? 2 : 1;
  const auto key = std::tuple(candidate.zero_stage, over, candidate.offload);
  if (const auto found = states_.find(key); found != states_.end()) return found->second;
  const auto layout = state_layout(strategy_of(candidate.zero_stage, over), over, candidate.offload);
  const auto bytes = bytes_per_parameter(layout, resolve_precision(precision_, c10::DeviceType::CUDA), "adamw");
  return states_[key] = {bytes.parameters, bytes.gradients, bytes.optimizer, bytes.host};
}

double MemoryModel::residual_bytes(const Candidate& candidate) const {
  if (!half_) return 4;
  // Under autocast the sum of blocks is in float32; where parameters are cast it is in 16 bits.
  return mixed_ && candidate.zero_stage == 0 && !software_.half_weights ? 4 : 2;
}

int64_t MemoryModel::stage_layers(const Candidate& candidate, int64_t stage) const {
  // The first stages have one more where the layers do not divide.
  const int64_t pieces = candidate.pp * candidate.chunks;
  int64_t layers = 0;
  for (int64_t chunk = 0; chunk < candidate.chunks; ++chunk) {
    // The second half of the V of zbv goes back up.
    const bool back = candidate.schedule == Schedule::kZBV && chunk == 1;
    const int64_t piece = back ? pieces - 1 - stage : chunk * candidate.pp + stage;
    layers += model_.layers / pieces + (piece < model_.layers % pieces);
  }
  return layers;
}

int64_t MemoryModel::most_layers(const Candidate& candidate) const {
  // In the V the last stage has two pieces beside each other, of which the second is the next to be longer.
  return stage_layers(
      candidate,
      candidate.schedule == Schedule::kZBV && model_.layers % (2 * candidate.pp) > candidate.pp ? candidate.pp - 1 : 0);
}

StageParameters MemoryModel::stage_parameters(const Candidate& candidate, int64_t stage) const {
  const double tp = as_double(candidate.tp), layers = as_double(stage_layers(candidate, stage));
  StageParameters result;
  const double experts = model_.expert_parameters();
  result.layers = layers * (model_.layer_parameters() - experts) / tp;
  result.experts = layers * experts / tp / as_double(candidate.ep);
  const bool last = stage == candidate.pp - 1;
  if (stage == 0) result.embedding = model_.embedding_parameters() / tp;
  // The V of zbv ends where it began. A tied weight is on both ends of a pipeline.
  const bool has_head = candidate.schedule == Schedule::kZBV ? stage == 0 : last;
  if (has_head) {
    result.head = model_.head_parameters() / tp;
    if (model_.tied_head && stage != 0 && model_.classes == 0)
      result.head += as_double(model_.vocabulary * model_.width) / tp;
  }
  return result;
}

MemoryModel::ExpertShards MemoryModel::expert_shards(const Candidate& candidate) const {
  ExpertShards result{.shards = std::max<int64_t>(1, candidate.dp_shard * candidate.cp / candidate.ep)};
  result.divide = as_double(result.shards);
  // Others cut memory, not rows.
  if (software_.half_weights || model_.experts == 0 || candidate.zero_stage == 0) return result;
  const int64_t own = std::max<int64_t>(1, model_.experts / candidate.ep);
  result.divide = as_double(own) / as_double((own + result.shards - 1) / result.shards);
  return result;
}

double MemoryModel::in_flight(const Candidate& candidate, int64_t stage) {
  const double p = as_double(candidate.pp), m = as_double(candidate.microbatches), r = as_double(stage);
  const double v = as_double(candidate.chunks);
  switch (candidate.schedule) {
    case Schedule::kNone:
      return 1;
    case Schedule::kGPipe:
      return m;
    case Schedule::k1F1B:
      return std::min(m, p - r);
    // What is held until the gradient of weights is computed.
    case Schedule::kZB1P:
      return std::min(m, p);
    case Schedule::kZBV:
      return std::min(2 * p, m + 1 + r) / v;
    case Schedule::kInterleaved:
      return std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1) / v;
  }
  return m;
}

double MemoryModel::block_kept(const Candidate& candidate, Checkpointing checkpointing) const {
  const double e = half_ ? 2 : 4, r = residual_bytes(candidate);
  const double w = as_double(model_.width), q = as_double(model_.query_width()), kv = as_double(model_.key_width());
  const double used = model_.experts > 0 ? as_double(model_.experts_per_token) : 1;
  const double f = as_double(model_.mlp_width) * used, heads = as_double(model_.heads);
  const double tp = as_double(candidate.tp), outer = candidate.sequence_parallel ? tp : 1;
  if (checkpointing == Checkpointing::kFull) return r * w / outer;
  const double statistics = model_.rms_norm ? 8 : 16;
  // Inside of the split regions: queries, keys, values, the result of attention and its normalizers, the MLP.
  double inside = e * (q + 2 * kv) + e * q + 4 * heads;
  // What goes into experts and comes out of them, whole on every rank of tp; the router's logits and probabilities.
  const double rows = model_.experts > 0 ? 2 * e * w * used + 8 * as_double(model_.experts) : 0;
  if (checkpointing == Checkpointing::kSelective && software_.flash_attention)
    return (r * w + 2 * e * w) / outer + (inside + e * (model_.gated ? 2 : 1) * f) / tp + rows;
  inside += e * (model_.gated ? 3 : 2) * f;
  double outside = (2 * r + 2 * e) * w + statistics;
  if (software_.dropout) outside += 2 * w;  // masks
  if (!software_.flash_attention && checkpointing == Checkpointing::kNone)
    inside += 5 * heads * as_double(model_.sequence);  // scores, softmax and mask of all pairs
  return outside / outer + inside / tp + rows;
}

double MemoryModel::kept_per_token(const Candidate& candidate) const {
  return block_kept(candidate, candidate.checkpointing);
}

double MemoryModel::temporary(const Candidate& candidate, int64_t stage, const StageParameters& parameters,
                              double tokens) const {
  const double e = half_ ? 2 : 4, w = as_double(model_.width), tp = as_double(candidate.tp);
  const double used = model_.experts > 0 ? as_double(model_.experts_per_token) : 1;
  // The gradient of the residual stream, and of the widest part of a block: a gated one has two branches.
  double most = tokens * (2 * e * w + (model_.gated ? 2 : 1) * e * as_double(model_.mlp_width) * used / tp);
  // Rows on their way: before and behind an exchange, and in the order of the experts.
  if (model_.experts > 0) most += tokens * (candidate.ep > 1 ? 3 : 2) * e * w * used;
  if (candidate.checkpointing != Checkpointing::kNone)
    most += tokens * (block_kept(candidate, Checkpointing::kNone) - block_kept(candidate, candidate.checkpointing));
  if (candidate.zero_stage > 0) {
    // Two layers that are gathered, and the buffer of a reduction.
    const double layers = as_double(std::max<int64_t>(1, stage_layers(candidate, stage)));
    const double padded = parameters.layers + parameters.experts * expert_shards(candidate).padding();
    most += padded / layers * e * (candidate.zero_stage == 3 ? 3 : 1);
  }
  if (parameters.head > 0 && model_.classes == 0) {
    const double vocabulary = as_double(model_.vocabulary) / tp;
    const double rows = software_.chunked_loss ? std::min(tokens, 2048.0) : tokens;
    most = std::max(most, rows * vocabulary * (software_.chunked_loss ? e + 4 : 8) + tokens * 2 * e * w);
  }
  // Levin's own products are those of 16-bit layers; experts and the loss of a split vocabulary use torch's.
  const bool by_torch = !half_ || software_.half_weights || model_.experts > 0 || candidate.tp > 1;
  return most + (by_torch ? kWorkspace : 0);
}

RankMemory MemoryModel::of_stage(const Candidate& candidate, int64_t stage) const {
  const auto parameters = stage_parameters(candidate, stage);
  const double shards = as_double(candidate.dp_shard * candidate.cp);
  const auto dense = state(candidate, shards);
  // Experts are on ep ranks already: what is left is sharded over the rest.
  const auto expert = model_.experts > 0 ? state(candidate, expert_shards(candidate).divide) : dense;
  const double own = parameters.total() - parameters.experts;
  RankMemory memory;
  memory.parameters = own * dense.parameters + parameters.experts * expert.parameters;
  memory.optimizer = own * dense.optimizer + parameters.experts * expert.optimizer;
  memory.gradients = own * dense.gradients + parameters.experts * expert.gradients;
  memory.host = own * dense.host + parameters.experts * expert.host;
  const bool accumulates = candidate.microbatches > 1;
  // Between micro-batches nothing is reduced: gradients are whole. Offloaded ones are reduced each time, and added up
  // in host memory.
  if (accumulates && candidate.zero_stage >= 2 && !candidate.offload)
    memory.gradients =
        std::max(memory.gradients, parameters.total() * (half_ && (!mixed_ || software_.half_weights) ? 2 : 4));

  const double tokens = as_double(candidate.micro_batch) * as_double(model_.sequence) / as_double(candidate.cp);
  const double layers = as_double(stage_layers(candidate, stage));
  const double under_way = in_flight(candidate, stage);
  memory.activations = under_way * tokens * layers * kept_per_token(candidate);
  if (parameters.head > 0) {
    const double outer = candidate.sequence_parallel ? as_double(candidate.tp) : 1;
    memory.activations += tokens * as_double(model_.width) * (residual_bytes(candidate) + (half_ ? 2 : 4)) / outer;
    if (software_.chunked_loss && model_.classes == 0)
      memory.activations += 4 * as_double(model_.vocabulary * model_.width) / as_double(candidate.tp);
  }
  // Autocast keeps a 16-bit copy of every matrix; a checkpointed block makes it again.
  const bool keeps_copies = candidate.checkpointing != Checkpointing::kFull;
  if (mixed_ && candidate.zero_stage == 0 && keeps_copies && !software_.half_weights)
    memory.activations += 2 * (parameters.layers + parameters.experts);
  memory.temporary = temporary(candidate, stage, parameters, tokens);
  // Of one micro-batch gradients take the place of the activations that they come from.
  const bool buckets = candidate.zero_stage == 0 && candidate.data_parallel() > 1;
  const double state = memory.parameters + memory.optimizer, step = memory.activations + memory.temporary;
  const double end = memory.gradients + memory.temporary;
  memory.peak = state + (accumulates || buckets ? memory.gradients + step : std::max(end, step));
  return memory;
}

std::pair<int64_t, RankMemory> MemoryModel::fullest(const Candidate& candidate) const {
  // Between the first and the last, stages have what the second has, or less.
  std::pair<int64_t, RankMemory> best{0, of_stage(candidate, 0)};
  for (const int64_t stage : {int64_t{1}, candidate.pp - 1}) {
    if (stage <= 0 || stage >= candidate.pp || stage == best.first) continue;
    const auto memory = of_stage(candidate, stage);
    if (memory.peak > best.second.peak) best = {stage, memory};
  }
  return best;
}

}  // namespace levin::planner
