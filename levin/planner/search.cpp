#include "levin/planner/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::planner {
namespace {

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    all.push_back(d);
    if (d != n / d) all.push_back(n / d);
  }
  std::ranges::sort(all);
  return all;
}

/// Walks all candidates of a question.
class Searcher {
 public:
  explicit Searcher(const PlanQuestion& question)
      : question_(question),
        model_(question.model),
        memory_(question.model, question.software, question.precision),
        cost_(question),
        usable_(usable_memory(question.cluster)) {
    plans_.tokens_per_batch =
        question.tokens_per_batch > 0 ? question.tokens_per_batch : usual_tokens_per_batch(question.model);
    samples_ = std::max<int64_t>(1, (plans_.tokens_per_batch + model_.sequence / 2) / model_.sequence);
  }

  Plans run() {
    walk_meshes(false);
    if (best_.empty()) walk_meshes(true);
    if (best_.empty()) fail();
    for (auto& [key, plan] : best_) plans_.best.push_back(plan);
    std::ranges::sort(plans_.best, [](const Plan& a, const Plan& b) { return better(a, b); });
    if (static_cast<int64_t>(plans_.best.size()) > question_.top)
      plans_.best.resize(static_cast<size_t>(question_.top));
    return plans_;
  }

 private:
  /// By speed; where that is nearly the same, the simpler one: each technique must gain 0.06 %. One number for each
  /// plan, so that the order is one.
  static bool better(const Plan& a, const Plan& b) { return rank(a) > rank(b); }
  static double rank(const Plan& plan) { return plan.tokens_per_second * (1 - 0.0006 * weight(plan)); }
  static double weight(const Plan& plan) {
    const auto& c = plan.candidate;
    return static_cast<double>((c.pp > 1) + (c.tp > 1) + (c.cp > 1) + (c.ep > 1) + (c.chunks > 1) + (c.zero_stage > 0) +
                               (c.zero_stage > 0 && c.dp_replicate > 1) +
                               2 * (c.checkpointing != Checkpointing::kNone)) +
           plan.memory.peak * 1e-12;
  }

  void walk_meshes(bool offload) {
    const int64_t gpus = question_.cluster.gpus;
    for (const int64_t tp : divisors(gpus)) {
      if (tp > 2 * question_.cluster.gpus_per_node || model_.heads % tp != 0 || model_.mlp_width % tp != 0 ||
          model_.shared_expert_width % tp != 0)
        continue;
      // Groups of neighbours must not lie across the ends of nodes.
      if (tp <= question_.cluster.gpus_per_node && question_.cluster.gpus_per_node % tp != 0) continue;
      for (const int64_t pp : divisors(gpus / tp)) {
        if (pp > model_.layers) continue;
        for (const int64_t cp : divisors(gpus / tp / pp)) {
          // A ring pays where a rank still has a few thousand tokens.
          if (cp > 1 && (model_.kind == ModelShape::Kind::kVision || model_.sequence / cp < 2048)) break;
          if (model_.sequence % (2 * cp) != 0 && cp > 1) continue;
          Candidate candidate{.pp = pp, .cp = cp, .tp = tp, .offload = offload};
          walk_experts(candidate, gpus / tp / pp / cp);
        }
      }
    }
  }

  void walk_experts(Candidate candidate, int64_t data) {
    for (const int64_t ep : divisors(std::max<int64_t>(1, model_.experts))) {
      if ((data * candidate.cp) % ep != 0) continue;
      candidate.ep = ep;
      walk_batches(candidate, data);
    }
  }

  void walk_batches(Candidate candidate, int64_t data) {
    for (int64_t micro = 1; micro <= 256; micro *= 2) {
      // As many micro-batches as come nearest to the batch that was asked for.
      const double wanted = static_cast<double>(samples_) / static_cast<double>(data * micro);
      const auto count = std::max<int64_t>(1, std::llround(wanted));
      const double off = std::abs(static_cast<double>(count) / wanted - 1);
      if (off > kMostOff) continue;
      candidate.micro_batch = micro;
      candidate.microbatches = count;
      for (const bool sequence_parallel : {false, true}) {
        candidate.sequence_parallel = sequence_parallel;
        if (sequence_parallel && !can_split_sequence(candidate)) continue;
        times_[0] = (candidate.zero_stage = 0, cost_.layer(candidate));
        times_[1] = (candidate.zero_stage = 3, cost_.layer(candidate));
        walk_sharding(candidate, data);
      }
    }
  }

  bool can_split_sequence(const Candidate& candidate) const {
    return candidate.tp > 1 && model_.kind != ModelShape::Kind::kVision &&
           (model_.sequence / candidate.cp) % candidate.tp == 0;
  }

  void walk_sharding(Candidate candidate, int64_t data) {
    std::vector<int64_t> shard_sizes{data};
    // One copy of the state in a node, or in as many as hold it.
    const int64_t node = std::max<int64_t>(1, question_.cluster.gpus_per_node / (candidate.tp * candidate.cp));
    for (const int64_t size : {node, 2 * node, 4 * node, 8 * node}) {
      if (size > 1 && size < data && data % size == 0) shard_sizes.push_back(size);
    }
    for (const int stage : {0, 1, 2, 3}) {
      if (candidate.offload && stage < 2) continue;
      // Over a mesh state is sharded by FSDP: "full" is stage 3, "grad_op" stage 2.
      if (stage == 1 && candidate.pp * candidate.tp * candidate.cp * candidate.ep > 1) continue;
      candidate.zero_stage = stage;
      if (stage == 0) {
        candidate.dp_replicate = data, candidate.dp_shard = 1;
        walk_schedules(candidate);
        continue;
      }
      for (const int64_t size : shard_sizes) {
        if (size * candidate.cp == 1 && !candidate.offload) continue;
        // "deepspeed_stage_1" shards over all ranks.
        if (stage == 1 && size < data) continue;
        candidate.dp_shard = size, candidate.dp_replicate = data / size;
        if ((size * candidate.cp) % candidate.ep == 0) walk_schedules(candidate);
      }
    }
  }

  void walk_schedules(Candidate candidate) {
    if (candidate.pp == 1) {
      candidate.schedule = Schedule::kNone;
      return walk_checkpointing(candidate);
    }
    for (const auto schedule : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kZB1P}) {
      candidate.schedule = schedule;
      candidate.chunks = 1;
      walk_checkpointing(candidate);
    }
    for (int64_t chunks = 2; chunks * candidate.pp <= model_.layers && chunks <= 8; ++chunks) {
      candidate.schedule = Schedule::kInterleaved;
      candidate.chunks = chunks;
      walk_checkpointing(candidate);
      candidate.schedule = Schedule::kZBV;
      if (chunks == 2) walk_checkpointing(candidate);
    }
  }

  void walk_checkpointing(Candidate candidate) {
    for (const auto checkpointing : {Checkpointing::kNone, Checkpointing::kSelective, Checkpointing::kFull}) {
      candidate.checkpointing = checkpointing;
      if (!why_not(model_, candidate).empty()) break;
      if (consider(candidate)) break;  // recomputing more would be slower
    }
  }

  bool consider(const Candidate& candidate) {
    ++plans_.tried;
    const auto [stage, memory] = memory_.fullest(candidate);
    if (memory.peak < least_) least_ = memory.peak, least_candidate_ = candidate;
    if (memory.peak > usable_) return false;
    ++plans_.fitting;
    Plan plan{.candidate = candidate, .cost = cost_.of(candidate, memory_, times_[candidate.zero_stage > 0 ? 1 : 0])};
    const double seconds = plan.cost.seconds();
    plan.tokens_per_second = static_cast<double>(candidate.batch() * model_.sequence) / seconds;
    plan.stage = stage, plan.memory = memory;
    plan.mfu = cost_.model_utilization(candidate, seconds);
    plan.hfu = cost_.hardware_utilization(candidate, seconds);
    const std::array<int64_t, 4> key{candidate.pp, candidate.cp, candidate.tp, candidate.ep};
    const auto found = best_.find(key);
    if (found == best_.end())
      best_.emplace(key, plan);
    else if (better(plan, found->second))
      found->second = plan;
    return true;
  }

  [[noreturn]] void fail() const {
    LEVIN_CHECK(plans_.tried > 0, "[levin plan] no mesh of ", question_.cluster.gpus, " GPUs divides ", model_.name,
                ": ", model_.layers, " layers, ", model_.heads, " heads and ", samples_, " samples of ",
                model_.sequence, " tokens a step (--tokens-per-batch)");
    const auto& c = least_candidate_;
    LEVIN_CHECK(false, "[levin plan] ", model_.name, " (", format_count(model_.parameters()),
                " parameters) does not fit on ", question_.cluster.gpus, " GPUs of ",
                format_bytes(question_.cluster.memory), ": the leanest of ", plans_.tried, " ways needs ",
                format_bytes(least_), " of ", format_bytes(usable_), " usable (pp ", c.pp, ", dp_shard ", c.dp_shard,
                ", cp ", c.cp, ", tp ", c.tp, ", ep ", c.ep, ", ZeRO stage ", c.zero_stage, ", ",
                std::string(to_string(c.checkpointing)), " checkpointing, micro-batch ", c.micro_batch,
                c.offload ? ", offload" : "", ")");
    throw Error("unreachable");
  }

  /// A batch may be off by as much.
  static constexpr double kMostOff = 0.05;

  const PlanQuestion& question_;
  const ModelShape& model_;
  MemoryModel memory_;
  CostModel cost_;
  double usable_;
  int64_t samples_ = 1;
  LayerTimes times_[2];
  std::map<std::array<int64_t, 4>, Plan> best_;
  double least_ = 1e300;
  Candidate least_candidate_;
  Plans plans_;
};

}  // namespace

std::string why_not(const ModelShape& model, const Candidate& c) {
  if (c.pp * c.chunks > model.layers) return fmt::format("{} stages for {} layers", c.pp * c.chunks, model.layers);
  if (model.heads % c.tp != 0) return fmt::format("{} heads over tp {}", model.heads, c.tp);
  if ((c.dp_shard * c.cp) % c.ep != 0) return fmt::format("ep {} in dp_shard {} x cp {}", c.ep, c.dp_shard, c.cp);
  if (c.ep > 1 && (model.experts == 0 || model.experts % c.ep != 0))
    return fmt::format("{} experts over ep {}", model.experts, c.ep);
  if (c.ep > 1 && c.zero_stage == 0) return fmt::format("ep {} without shards", c.ep);
  if (c.schedule == Schedule::kInterleaved && c.microbatches % c.pp != 0)
    return fmt::format("interleaved with {} micro-batches over pp {}", c.microbatches, c.pp);
  const bool zero_bubble = c.schedule == Schedule::kZB1P || c.schedule == Schedule::kZBV;
  // Fewer would work, but our formula of its bubble is for a pipeline that fills.
  if (zero_bubble && c.microbatches < c.pp)
    return fmt::format("{} with {} micro-batches over pp {}", to_string(c.schedule), c.microbatches, c.pp);
  if (zero_bubble && c.zero_stage > 0) return fmt::format("{} with sharded stages", to_string(c.schedule));
  // The two halves of backward run apart; a recomputed block has but one.
  if (zero_bubble && c.checkpointing != Checkpointing::kNone)
    return fmt::format("{} with checkpointing", to_string(c.schedule));
  return {};
}

double usable_memory(const ClusterShape& cluster) {
  return cluster.memory * 0.96 - 1.5e9;
}

int64_t usual_tokens_per_batch(const ModelShape& model) {
  const double parameters = model.parameters();
  if (model.kind == ModelShape::Kind::kVision) return 4096 * model.sequence;
  if (parameters < 1e9) return int64_t{1} << 19;
  if (parameters < 5e9) return int64_t{1} << 20;
  if (parameters < 50e9) return int64_t{1} << 21;
  return int64_t{1} << 22;
}

Plans search(const PlanQuestion& question) {
  LEVIN_CHECK(question.top >= 1, "[levin plan] --top ", question.top, " is not allowed (1 or more)");
  LEVIN_CHECK(question.tokens_per_batch >= 0, "[levin plan] --tokens-per-batch ", question.tokens_per_batch,
              " is not allowed (1 or more)");
  LEVIN_CHECK(question.tokens_per_batch == 0 || question.tokens_per_batch >= question.model.sequence,
              "[levin plan] --tokens-per-batch ", question.tokens_per_batch, " is less than one sample of ",
              question.model.sequence, " tokens (--sequence)");
  // Their products have other rates, of which nothing is known here.
  LEVIN_CHECK(question.precision != "64-true" && question.precision != "fp8-mixed", "[levin plan] --precision ",
              question.precision, " is not planned; take bf16-mixed, bf16-true, 16-mixed, 16-true or 32-true");
  LEVIN_CHECK(usable_memory(question.cluster) > 0, "[levin plan] --memory ", format_bytes(question.cluster.memory),
              " is not enough for any plan: the CUDA context and NCCL take 1.5 GB");
  return Searcher(question).run();
}

Plan evaluate(const PlanQuestion& question, const Candidate& candidate, const Calibration& calibration) {
  const auto& model = question.model;
  LEVIN_CHECK(candidate.gpus() == question.cluster.gpus, "[levin plan] pp ", candidate.pp, " x dp_replicate ",
              candidate.dp_replicate, " x dp_shard ", candidate.dp_shard, " x cp ", candidate.cp, " x tp ",
              candidate.tp, " is ", candidate.gpus(), " GPUs, not ", question.cluster.gpus);
  const auto why = why_not(model, candidate);
  LEVIN_CHECK(why.empty(), "[levin plan] cannot run: ", why);
  const MemoryModel memory(model, question.software, question.precision);
  const CostModel cost(question, calibration);
  Plan plan{.candidate = candidate, .cost = cost.of(candidate, memory)};
  std::tie(plan.stage, plan.memory) = memory.fullest(candidate);
  const double seconds = plan.cost.seconds();
  plan.tokens_per_second = static_cast<double>(candidate.batch() * model.sequence) / seconds;
  plan.mfu = cost.model_utilization(candidate, seconds);
  plan.hfu = cost.hardware_utilization(candidate, seconds);
  return plan;
}

}  // namespace levin::planner
