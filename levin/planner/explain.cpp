#include "levin/planner/explain.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "levin/core/words.h"

namespace levin::planner {
namespace {

struct Change {
  std::string name;
  std::function<bool(Candidate&)> apply;  // false: not possible
};

/// The data-parallel ranks that a change of another axis leaves.
bool scale_data(Candidate& c, int64_t up, int64_t down) {
  auto& data = c.zero_stage > 0 ? c.dp_shard : c.dp_replicate;
  if ((data * up) % down != 0) return false;
  data = data * up / down;
  return true;
}

bool keep_batch(Candidate& c, int64_t batch) {
  const int64_t each = c.data_parallel() * c.micro_batch;
  if (c.micro_batch < 1 || batch % each != 0) return false;
  c.microbatches = batch / each;
  return true;
}

/// The changed candidate with the micro-batch that suits it: the fastest that fits, else the leanest.
std::optional<Plan> best_micro_batch(const PlanQuestion& question, Candidate candidate, int64_t batch,
                                     bool may_change) {
  std::optional<Plan> best;
  const double usable = usable_memory(question.cluster);
  const int64_t micro = candidate.micro_batch;
  for (int64_t size = may_change ? 1 : micro; size <= (may_change ? 256 : micro); size *= 2) {
    candidate.micro_batch = size;
    if (!keep_batch(candidate, batch) || !why_not(question.model, candidate).empty()) continue;
    const auto plan = evaluate(question, candidate);
    const bool fits = plan.memory.peak <= usable, fitted = best && best->memory.peak <= usable;
    const bool faster = best && plan.cost.seconds() < best->cost.seconds();
    const bool leaner = best && plan.memory.peak < best->memory.peak;
    if (!best || (fits && (!fitted || faster)) || (!fits && !fitted && leaner)) best = plan;
  }
  return best;
}

bool set_pp(Candidate& c, int64_t pp) {
  if (!scale_data(c, c.pp, pp)) return false;
  c.pp = pp;
  if (pp == 1) c.schedule = Schedule::kNone, c.chunks = 1;
  if (pp > 1 && c.schedule == Schedule::kNone) c.schedule = Schedule::k1F1B;
  return true;
}

std::vector<Change> changes_of(const Candidate& plan, const ModelShape& model) {
  std::vector<Change> all;
  for (const int64_t tp : {plan.tp / 2, plan.tp * 2}) {
    all.push_back({fmt::format("tp {}", tp), [=](Candidate& c) {
                     if (tp < 1 || model.heads % tp != 0 || !scale_data(c, c.tp, tp)) return false;
                     c.tp = tp;
                     c.sequence_parallel = c.sequence_parallel && tp > 1;
                     return true;
                   }});
  }
  for (const int64_t pp : {plan.pp / 2, plan.pp * 2})
    all.push_back({fmt::format("pp {}", pp), [=](Candidate& c) { return pp >= 1 && set_pp(c, pp); }});
  for (const int64_t ep : {plan.ep / 2, plan.ep * 2}) {
    all.push_back({fmt::format("ep {}", ep), [=](Candidate& c) {
                     c.ep = ep;
                     return ep >= 1 && c.zero_stage > 0;
                   }});
  }
  for (const auto schedule : {Schedule::k1F1B, Schedule::kGPipe}) {
    all.push_back({std::string(to_string(schedule)), [=](Candidate& c) {
                     if (c.pp == 1 || c.schedule == schedule) return false;
                     c.schedule = schedule, c.chunks = 1;
                     return true;
                   }});
  }
  for (const int64_t micro : {plan.micro_batch / 2, plan.micro_batch * 2}) {
    all.push_back({fmt::format("micro-batch {}", micro), [=](Candidate& c) {
                     c.micro_batch = micro;
                     return micro >= 1;
                   }});
  }
  for (const auto how : {Checkpointing::kNone, Checkpointing::kSelective, Checkpointing::kFull}) {
    all.push_back(
        {fmt::format("{} checkpointing", how == Checkpointing::kNone ? "no" : to_string(how)), [=](Candidate& c) {
           if (c.checkpointing == how) return false;
           c.checkpointing = how;
           return true;
         }});
  }
  all.push_back({"no sequence parallel", [](Candidate& c) { return std::exchange(c.sequence_parallel, false); }});
  all.push_back({"replicas in place of shards", [](Candidate& c) {
                   if (c.zero_stage == 0 || c.offload || c.ep > 1) return false;
                   c.dp_replicate *= std::exchange(c.dp_shard, 1);
                   c.zero_stage = 0;
                   return true;
                 }});
  all.push_back({"FSDP over all", [](Candidate& c) {
                   const bool is = c.zero_stage == 3 && c.dp_replicate == 1;
                   c.dp_shard *= std::exchange(c.dp_replicate, 1);
                   c.zero_stage = 3;
                   return !is && c.dp_shard * c.cp > 1;
                 }});
  return all;
}

/// The part that grew most.
std::string grown(const Cost& from, const Cost& to) {
  std::string name;
  double most = 0;
  for (const auto& [part, seconds] : to.parts()) {
    double before = 0;
    for (const auto& [old, value] : from.parts()) {
      if (old == part) before = value;
    }
    if (seconds - before > most) most = seconds - before, name = part;
  }
  return name;
}

std::string seconds_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  return fmt::format("{:.1f} ms", seconds * 1e3);
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

/// What the parts of a cost are, for people.
std::string part_text(const std::string& part) {
  if (part == "compute") return "computing";
  if (part == "recompute") return "recomputing activations";
  if (part == "bubble") return "pipeline bubble";
  if (part == "optimizer") return "optimizer and loop";
  if (part == "offload") return "offload";
  return part + " communication that nothing hides";
}

/// Numbers to the right; with `words_last` the last column to the left.
std::string table(const std::vector<std::vector<std::string>>& rows, bool words_last = false) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += words_last && i + 1 == row.size() ? row[i] : fmt::format("{:>{}}  ", row[i], widths[i]);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string plans_table(const Plans& plans) {
  std::vector<std::vector<std::string>> rows{{"", "pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "sharding",
                                              "schedule", "micro-batch", "checkpointing", "memory", "step", "tokens/s",
                                              "MFU"}};
  int64_t number = 0;
  for (const auto& plan : plans.best) {
    const auto& c = plan.candidate;
    rows.push_back({std::to_string(++number), std::to_string(c.pp), std::to_string(c.dp_replicate),
                    std::to_string(c.dp_shard), std::to_string(c.cp), std::to_string(c.tp), std::to_string(c.ep),
                    sharding_text(c), schedule_text(c), fmt::format("{} x {}", c.microbatches, c.micro_batch),
                    std::string(to_string(c.checkpointing)), format_bytes(plan.memory.peak),
                    seconds_text(plan.cost.seconds()), format_count(plan.tokens_per_second), percent(plan.mfu)});
  }
  return table(rows);
}

std::string time_text(const Plan& plan) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, seconds] : plan.cost.parts()) {
    const double share = seconds / plan.cost.seconds();
    if (share < 0.0005) continue;
    rows.push_back({"", seconds_text(seconds), percent(share), part_text(name)});
  }
  return table(rows, true);
}

std::string memory_text(const PlanQuestion& question, const Plan& plan) {
  const auto& m = plan.memory;
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, bytes] : {std::pair("parameters", m.parameters), std::pair("gradients", m.gradients),
                                    std::pair("optimizer", m.optimizer), std::pair("activations", m.activations),
                                    std::pair("temporary", m.temporary), std::pair("in host memory", m.host)}) {
    if (bytes > 0) rows.push_back({"", format_bytes(bytes), name});
  }
  return fmt::format("{}  peak {} of {} usable\n", table(rows, true), format_bytes(m.peak),
                     format_bytes(usable_memory(question.cluster)));
}

std::string verdict_of(const Alternative& other) {
  if (!other.fits) return fmt::format("does not fit: {}", format_bytes(other.memory));
  if (other.slower > 0.001) return fmt::format("{} slower: {}", percent(other.slower), part_text(other.because));
  return other.slower < -0.001 ? fmt::format("{} faster", percent(-other.slower)) : "as fast";
}

std::string alternatives_text(const PlanQuestion& question, const Plan& plan) {
  const auto others = alternatives(question, plan);
  size_t width = 0;
  for (const auto& other : others) width = std::max(width, other.change.size());
  std::string out;
  for (const auto& other : others) out += fmt::format("  {:<{}}  {}\n", other.change, width, verdict_of(other));
  return out;
}

/// Whether a plan needs ModelParallelOptions or PipelineOptions, or a strategy of data parallelism will do.
bool is_over_mesh(const Candidate& c) {
  return c.pp * c.cp * c.tp * c.ep > 1 || (c.zero_stage >= 2 && c.dp_replicate > 1);
}

std::string options_of_fsdp(const Candidate& c) {
  std::vector<std::string> fields;
  if (c.zero_stage == 2) fields.emplace_back(".sharding_strategy = \"grad_op\"");
  if (c.offload) fields.emplace_back(".cpu_offload = true");
  if (c.checkpointing == Checkpointing::kFull)
    fields.emplace_back(".activation_checkpointing_policy = levin::policy::repeated()");
  return join(fields);
}

std::string options_of_pipeline(const Candidate& c) {
  auto out = fmt::format(".schedule = \"{}\"", to_string(c.schedule));
  if (c.schedule == Schedule::kInterleaved) out += fmt::format(", .chunks = {}", c.chunks);
  return out + fmt::format(", .microbatches = {}", c.microbatches);
}

/// Sizes that a configuration says. The default of dp_shard is what the others leave.
std::vector<std::pair<std::string, int64_t>> axes_of(const Candidate& c) {
  std::vector<std::pair<std::string, int64_t>> all{
      {"pp", c.pp}, {"dp_replicate", c.dp_replicate}, {"dp_shard", c.dp_shard}, {"cp", c.cp}, {"tp", c.tp},
      {"ep", c.ep}};
  std::erase_if(all, [](const auto& axis) { return axis.second == 1 && axis.first != "dp_shard"; });
  return all;
}

std::string sizes_of_mesh(const Candidate& c) {
  std::vector<std::string> sizes;
  for (const auto& [name, size] : axes_of(c)) sizes.push_back(fmt::format(".{} = {}", name, size));
  return join(sizes);
}

}  // namespace

std::string strategy_text(const Candidate& c) {
  const auto fsdp = options_of_fsdp(c);
  if (is_over_mesh(c)) {
    auto out = fmt::format("levin::ModelParallelOptions{{.mesh = {{{}}}", sizes_of_mesh(c));
    if (c.sequence_parallel) out += ", .sequence_parallel = true";
    if (!fsdp.empty()) out += fmt::format(", .fsdp = {{{}}}", fsdp);
    if (c.pp > 1) out += fmt::format(", .pipeline = {{{}}}", options_of_pipeline(c));
    return out + "}";
  }
  if (c.zero_stage == 3) return fsdp.empty() ? "\"fsdp\"" : fmt::format("levin::FsdpOptions{{{}}}", fsdp);
  if (c.zero_stage > 0) return fmt::format("\"deepspeed_stage_{}{}\"", c.zero_stage, c.offload ? "_offload" : "");
  return c.dp_replicate > 1 ? "\"ddp\"" : "\"single_device\"";
}

std::string strategy_name(const Candidate& c) {
  const bool is_full = c.checkpointing == Checkpointing::kFull;
  // The names of FSDP have no words.
  if (!is_over_mesh(c) && !(c.zero_stage == 3 && is_full)) {
    if (c.zero_stage == 3) return c.offload ? "fsdp_cpu_offload" : "fsdp";
    const auto text = strategy_text(c);
    return text.substr(1, text.size() - 2);
  }
  std::vector<std::string> words;
  for (const auto& [name, size] : axes_of(c)) words.push_back(fmt::format("{}={}", name, size));
  if (c.sequence_parallel) words.emplace_back("sequence_parallel");
  if (c.pp > 1) words.push_back(fmt::format("schedule={}", to_string(c.schedule)));
  if (c.schedule == Schedule::kInterleaved) words.push_back(fmt::format("chunks={}", c.chunks));
  if (c.pp > 1) words.push_back(fmt::format("microbatches={}", c.microbatches));
  if (c.zero_stage == 2) words.emplace_back("sharding=grad_op");
  if (is_full) words.emplace_back("checkpointing=full");
  if (c.offload) words.emplace_back("offload");
  return "model_parallel:" + join(words, ",");
}

std::string mesh_text(const Candidate& c) {
  std::string out;
  for (const auto& [name, size] : axes_of(c)) {
    if (size > 1) out += fmt::format("{}{} {}", out.empty() ? "" : name == "ep" ? ", " : " x ", name, size);
  }
  return out.empty() ? "1 GPU" : out;
}

std::string schedule_text(const Candidate& c) {
  if (c.schedule == Schedule::kNone) return "-";
  if (c.schedule != Schedule::kInterleaved) return std::string(to_string(c.schedule));
  return fmt::format("interleaved/{}", c.chunks);
}

std::string sharding_text(const Candidate& c) {
  std::string name = fmt::format("zero-{}", c.zero_stage);
  if (c.zero_stage == 0) name = "-";
  if (c.zero_stage == 3) name = "fsdp";
  if (c.zero_stage == 2 && is_over_mesh(c)) name = "grad_op";
  return c.offload ? name + ", offload" : name;
}

std::vector<Alternative> alternatives(const PlanQuestion& question, const Plan& plan) {
  std::vector<Alternative> all;
  for (const auto& change : changes_of(plan.candidate, question.model)) {
    auto candidate = plan.candidate;
    if (!change.apply(candidate)) continue;
    const auto shards = candidate.dp_shard * candidate.cp;
    if (candidate.zero_stage > 0 && shards == 1 && !candidate.offload) candidate.zero_stage = 0;
    const bool may_change = candidate.micro_batch == plan.candidate.micro_batch;
    const auto found = best_micro_batch(question, candidate, plan.candidate.batch(), may_change);
    if (!found) continue;
    const auto& other = *found;
    auto name = change.name;
    if (other.candidate.micro_batch != candidate.micro_batch)
      name += fmt::format(", micro-batch {}", other.candidate.micro_batch);
    Alternative alternative{.change = name,
                            .fits = other.memory.peak <= usable_memory(question.cluster),
                            .memory = other.memory.peak,
                            .slower = other.cost.seconds() / plan.cost.seconds() - 1};
    if (alternative.fits && alternative.slower > 0) alternative.because = grown(plan.cost, other.cost);
    all.push_back(alternative);
  }
  return all;
}

std::string configuration_text(const PlanQuestion& question, const Plan& plan) {
  const auto& c = plan.candidate;
  const auto& cluster = question.cluster;
  const int64_t nodes = (cluster.gpus + cluster.gpus_per_node - 1) / cluster.gpus_per_node;
  auto out = fmt::format("  levin::Fabric fabric({{.strategy = {},\n", strategy_text(c));
  out += fmt::format("                        .devices = {}, .num_nodes = {}, .precision = \"{}\"}});\n",
                     cluster.gpus_per_node, nodes, question.precision);
  const bool by_options = c.zero_stage == 3 || is_over_mesh(c);
  if (c.checkpointing == Checkpointing::kSelective) {
    out +=
        "  levin::checkpoint_activations(model, levin::policy::repeated(),\n"
        "                                {.keep_results_of = levin::CheckpointOptions::matrix_products()});\n";
  } else if (c.checkpointing == Checkpointing::kFull && !by_options) {
    out += "  levin::checkpoint_activations(model, levin::policy::repeated());\n";
  }
  if (c.pp > 1 && question.model.experts > 0)
    out += "  // With stages balance_loss and router_z_loss must be 0: they are of all layers together.\n";
  const int64_t batch = c.micro_batch * c.microbatches;
  out += fmt::format("  // {} {} a step on each of {} data-parallel ranks: {} x {}.\n", batch,
                     batch == 1 ? "sample" : "samples", c.data_parallel(), c.microbatches, c.micro_batch);
  // A pipeline cuts the batch itself; else micro-batches are accumulated.
  out += fmt::format("  levin fit ... --trainer.devices={} --trainer.num_nodes={} --trainer.precision={} ",
                     cluster.gpus_per_node, nodes, question.precision);
  out += fmt::format("--trainer.strategy={} --trainer.accumulate_grad_batches={} --data.batch_size={}\n",
                     strategy_name(c), c.pp > 1 ? 1 : c.microbatches, c.pp > 1 ? batch : c.micro_batch);
  const bool by_name = c.checkpointing == Checkpointing::kFull && by_options;
  if (c.checkpointing != Checkpointing::kNone && !by_name)
    out += "  // The command line has no word for this checkpointing: without it memory is not as above.\n";
  return out;
}

std::string plans_text(const PlanQuestion& question, const Plans& plans) {
  const auto& model = question.model;
  const auto& cluster = question.cluster;
  const auto& first = plans.best.front();
  auto out = fmt::format("{}: {} parameters, {} layers, width {}, {} tokens a sample\n", model.name,
                         format_count(model.parameters()), model.layers, model.width, model.sequence);
  out += fmt::format("{} x {} of {}, {} a node; {}; {} tokens a step; {} ways, {} fit\n\n", cluster.gpus, cluster.gpu,
                     format_bytes(cluster.memory), cluster.gpus_per_node, question.precision,
                     format_count(static_cast<double>(plans.tokens_per_batch)),
                     format_count(static_cast<double>(plans.tried)), format_count(static_cast<double>(plans.fitting)));
  out += plans_table(plans);
  out += fmt::format("\nPlan 1: {}\nA step takes {}:\n{}", mesh_text(first.candidate),
                     seconds_text(first.cost.seconds()), time_text(first));
  const auto whose = first.candidate.pp > 1 ? fmt::format(" of stage {}, the fullest", first.stage) : std::string();
  out += fmt::format("Memory of a rank{}:\n{}", whose, memory_text(question, first));
  if (const auto others = alternatives_text(question, first); !others.empty())
    out += "With one thing changed:\n" + others;
  return out + "Configuration:\n" + configuration_text(question, first);
}

}  // namespace levin::planner
