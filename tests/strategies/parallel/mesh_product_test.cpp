// Every mesh of 2, 4 and 8 ranks with every schedule, for five kinds of models, against one process on the whole batch.
#include <iostream>

#include <gtest/gtest.h>

#include "levin/models/text_encoder.h"
#include "levin/strategies/model_parallel.h"
#include "levin/strategies/pipeline/schedule.h"
#include "tests/strategies/parallel/parallel_training.h"

namespace levin::mesh_product_tests {
namespace {

using namespace levin::testing;

constexpr int64_t kRows = 16, kTokens = 16;

Tensor tokens(int64_t step) {
  torch::manual_seed(100 + step);
  return torch::randint(0, 48, {kRows, kTokens}, torch::kLong);
}

void disturb(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) parameter.data().add_(torch::randn_like(parameter) * 0.05);
}

models::DecoderOptions sizes(int64_t layers) {
  return {.vocab_size = 48, .max_positions = kTokens, .num_layers = layers, .num_heads = 8, .hidden_dim = 32};
}

Subject decoder(const std::string& name, const models::DecoderOptions& options) {
  models::Decoder model(options);
  disturb(*model);
  return {name, model.ptr(), [model](const Tensor& ids) mutable { return model(ids, models::next_tokens(ids)); },
          tokens};
}

Subject bert(int64_t layers) {
  models::TextEncoderOptions options;
  options.body = models::encoder_body(sizes(layers));
  options.head = "masked_lm";
  models::TextEncoder model(options);
  disturb(*model);
  const auto loss = [model](const Tensor& ids) mutable {
    return torch::nn::functional::cross_entropy(model(ids).flatten(0, 1), ids.flip({1}).flatten());
  };
  return {"bert", model.ptr(), loss, tokens};
}

Subject vit(int64_t layers) {
  auto model = models::vit({.image_size = 8,
                            .patch_size = 2,
                            .num_layers = layers,
                            .num_heads = 8,
                            .hidden_dim = 32,
                            .mlp_dim = 48,
                            .num_classes = 3});
  disturb(*model);
  const auto loss = [model](const Tensor& images) mutable {
    return (model->forward(images) * torch::linspace(-1, 1, 3)).tanh().mean();
  };
  return {"vit", model.ptr(), loss, [](int64_t step) {
            torch::manual_seed(100 + step);
            return torch::randn({kRows, 3, 8, 8});
          }};
}

Subject subject_of(const std::string& name, int64_t layers) {
  torch::manual_seed(1);
  if (name == "vit") return vit(layers);
  if (name == "bert") return bert(layers);
  auto options = sizes(layers);
  if (name == "gpt") return decoder(name, options);
  options.bias = false;
  options.norm = "rms";
  options.activation = "silu_gated";
  options.positions = "rotary";
  options.tied_head = false;
  options.kv_heads = 2;
  if (name == "mixture") {
    options.mlp_dim = 32;
    options.experts = {.count = 8, .per_token = 2};
  }
  return decoder(name, options);
}

struct Case {
  std::string model;
  ModelParallelOptions options;
  TrainedOptions how;
  /// Two stages for each rank of a pipeline.
  int64_t layers() const { return 2 * options.mesh.pp; }
  std::string text() const {
    return fmt::format("{} over {}{}{}{}", model, options.mesh.text(),
                       options.mesh.pp > 1 ? fmt::format(", {} of {} micro-batches", options.pipeline.schedule,
                                                         options.pipeline.microbatches)
                                           : "",
                       options.sequence_parallel ? ", sequence parallel" : "",
                       how.accumulate > 1 ? fmt::format(", {} batches", how.accumulate) : "");
  }
};

std::vector<ParallelSizes> meshes(int ranks) {
  std::vector<ParallelSizes> all;
  for (int pp = 1; pp <= ranks; pp *= 2)
    for (int replicate = 1; pp * replicate <= ranks; replicate *= 2)
      for (int shard = 1; pp * replicate * shard <= ranks; shard *= 2)
        for (int cp = 1; pp * replicate * shard * cp <= ranks; cp *= 2)
          all.push_back({.pp = pp,
                         .dp_replicate = replicate,
                         .dp_shard = shard,
                         .cp = cp,
                         .tp = ranks / (pp * replicate * shard * cp)});
  return all;
}

/// What a case has besides model, mesh and schedule follows from its number.
std::vector<Case> cases(int ranks) {
  std::vector<Case> all;
  const auto add = [&](const std::string& model, const ParallelSizes& mesh, const std::string& schedule) {
    const auto number = static_cast<int>(all.size());
    Case one{model, {.mesh = mesh, .sequence_parallel = mesh.tp > 1 && model != "vit" && number % 3 == 1}, {}};
    const int rows = static_cast<int>(kRows) / (mesh.dp_replicate * mesh.dp_shard);
    if (number % 4 == 2 && rows % 2 == 0) one.how.accumulate = 2;
    if (mesh.pp > 1) {
      int parts = std::min(1 + number % 12, rows / one.how.accumulate);
      while (schedule == "interleaved" && parts % std::max(1, parts / mesh.pp) != 0) --parts;  // others are refused
      one.options.pipeline = {.schedule = schedule, .microbatches = parts};
    }
    one.how.delays = number % 5 == 0;
    if (number % 7 == 3) one.options.fsdp.activation_checkpointing_policy = policy::repeated();
    all.push_back(std::move(one));
  };
  for (const auto* model : {"gpt", "llama", "bert", "vit", "mixture"})
    for (auto mesh : meshes(ranks))
      for (int ep = 1; ep <= (model == std::string("mixture") ? mesh.dp_shard * mesh.cp : 1); ep *= 2) {
        mesh.ep = ep;
        for (const auto& schedule : mesh.pp > 1 ? pipeline_schedule_names() : std::vector<std::string>{""})
          add(model, mesh, schedule);
      }
  return all;
}

class MeshProduct : public ::testing::TestWithParam<int> {};

TEST_P(MeshProduct, EqualsOneProcess) {
  const int ranks = GetParam(), steps = all_meshes() ? 10 : 1;
  const auto all = cases(ranks);
  // LEVIN_ALL_MESHES=1: all of them; N: one of N; K/N: part K of N. Without it a few, of every number of ranks others.
  const std::string wanted_share = all_meshes() ? std::getenv("LEVIN_ALL_MESHES") : std::to_string(20 * ranks);
  const auto slash = wanted_share.find('/');
  const auto one_of = std::max(1UL, std::stoul(wanted_share.substr(slash == std::string::npos ? 0 : slash + 1)));
  const auto part = slash == std::string::npos ? static_cast<size_t>(ranks) : std::stoul(wanted_share);
  std::vector<Case> chosen;
  for (auto i = part % one_of; i < all.size(); i += one_of) chosen.push_back(all[i]);
  if (ranks == 8 && !all_meshes()) chosen.resize(1);  // other tests have such meshes
  std::map<std::pair<std::string, int64_t>, Outcome> wanted;
  for (const auto& one : chosen)
    if (auto& outcome = wanted[{one.model, one.layers()}]; outcome.losses.empty())
      outcome = trained(*one_rank(), subject_of(one.model, one.layers()), "single_device", steps);
  run_ranks(ranks,
            [&](Collective& group) {
              for (const auto& one : chosen) {
                if (all_meshes() && group.rank() == 0) std::cout << one.text() << std::endl;
                expect_close(trained(group, subject_of(one.model, one.layers()), one.options, steps, one.how),
                             wanted.at({one.model, one.layers()}), one.text());
              }
            },
            {.limit = std::chrono::hours(2)});
}
INSTANTIATE_TEST_SUITE_P(Ranks, MeshProduct, ::testing::Values(2, 4, 8));

}  // namespace
}  // namespace levin::mesh_product_tests
