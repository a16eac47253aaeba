// Plans as JSON: seconds, bytes and plain numbers.
#include <nlohmann/json.hpp>

#include "levin/planner/explain.h"

namespace levin::planner {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Plan& plan) {
  const auto& c = plan.candidate;
  Json json{{"pp", c.pp},
            {"dp_replicate", c.dp_replicate},
            {"dp_shard", c.dp_shard},
            {"cp", c.cp},
            {"tp", c.tp},
            {"ep", c.ep},
            {"zero_stage", c.zero_stage},
            {"schedule", std::string(to_string(c.schedule))},
            {"chunks", c.chunks},
            {"micro_batch", c.micro_batch},
            {"microbatches", c.microbatches},
            {"sequence_parallel", c.sequence_parallel},
            {"checkpointing", std::string(to_string(c.checkpointing))},
            {"offload", c.offload},
            {"strategy", strategy_name(c)},
            {"seconds", plan.cost.seconds()},
            {"tokens_per_second", plan.tokens_per_second},
            {"mfu", plan.mfu},
            {"hfu", plan.hfu}};
  for (const auto& [name, seconds] : plan.cost.parts()) json["time"][name] = seconds;
  const auto& m = plan.memory;
  json["memory"] = {{"stage", plan.stage},
                    {"parameters", m.parameters},
                    {"gradients", m.gradients},
                    {"optimizer", m.optimizer},
                    {"activations", m.activations},
                    {"temporary", m.temporary},
                    {"host", m.host},
                    {"peak", m.peak}};
  return json;
}

}  // namespace

std::string plans_json(const PlanQuestion& question, const Plans& plans) {
  const auto& cluster = question.cluster;
  Json json{{"model", question.model.name},
            {"parameters", question.model.parameters()},
            {"sequence", question.model.sequence},
            {"gpu", cluster.gpu},
            {"gpus", cluster.gpus},
            {"gpus_per_node", cluster.gpus_per_node},
            {"memory", cluster.memory},
            {"precision", question.precision},
            {"tokens_per_batch", plans.tokens_per_batch},
            {"tried", plans.tried},
            {"fitting", plans.fitting}};
  for (const auto& plan : plans.best) json["plans"].push_back(json_of(plan));
  return json.dump(2) + "\n";
}

}  // namespace levin::planner
