// Language models of each family, sharded, against one process on the whole batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/models/folder.h"
#include "levin/models/language_score.h"
#include "levin/models/lora/lora.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

using models::LanguageModel;

struct FamilyCase {
  /// A folder of tests/models/fixtures/language.
  std::string folder;
  /// All is frozen but adapters.
  bool lora = false;
};

const std::vector<FamilyCase> kFamilies{
    {"gpt2"},           {"llama"},    {"bloom"},       {"opt_post"},      {"gpt_neox"},
    {"gemma2"},         {"bert"},     {"bert_masked"}, {"bert_sequence"}, {"distilbert_masked"},
    {"roberta_masked"}, {"big_bird"}, {"llama", true}};

LanguageModel open_family(const FamilyCase& family, int rank) {
  auto model =
      models::open_model(std::filesystem::path(source_dir()) / "tests/models/fixtures/language" / family.folder);
  if (family.lora) {
    torch::manual_seed(5);
    models::add_lora(model, {.rank = 3, .alpha = 6});
    // They begin as no change, which would hide a wrong gradient.
    for (auto& parameter : models::lora_parameters(model)) parameter.data().normal_(0, 0.1);
  }
  // The values of rank 0 count.
  if (rank > 0)
    for (auto& parameter : unique_parameters(model.module())) parameter.data().add_(1);
  return model;
}

/// The mean over this rank's rows, of which all ranks have as many.
Tensor family_loss(LanguageModel& model, const Tensor& tokens) {
  if (model.decoder) return model.decoder(tokens, models::next_tokens(tokens));
  const auto output = model.encoder(tokens);
  if (model.encoder->options.head == "masked_lm")
    return torch::nn::functional::cross_entropy(output.flatten(0, 1), tokens.flip({1}).flatten());
  const auto weights = torch::linspace(-1, 1, output[0].numel()).view_as(output[0]);
  return (output * weights).tanh().mean();
}

/// Full parameters one after the other, by one gathering of all shards.
Tensor full_parameters(Collective& group, ShardMap* shards, const std::vector<Tensor>& params) {
  std::vector<Tensor> parts, wholes;
  for (const auto& param : params) {
    parts.push_back(param.detach().reshape({-1}));
    if (const auto* place = shards ? shards->find(param) : nullptr) {
      const auto rows = place->whole_rows(), row = c10::multiply_integers(place->sizes) / rows;
      const auto padded = (rows + group.size() - 1) / group.size() * row;
      parts.back() = at::constant_pad_nd(parts.back(), {0, padded - parts.back().numel()});
    }
  }
  const auto all = group.all_gather(at::cat(parts));
  int64_t at = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto columns = all.narrow(1, at, parts[i].numel());
    at += parts[i].numel();
    const auto* place = shards ? shards->find(params[i]) : nullptr;
    wholes.push_back(place ? columns.reshape({-1}).narrow(0, 0, c10::multiply_integers(place->sizes)) : columns[0]);
  }
  return at::cat(wholes);
}

/// Losses, then the parameters one after the other.
/// With a folder, the trained model is saved there.
std::vector<Tensor> train_family(Collective& group, const FamilyCase& family, const StrategyChoice& choice,
                                 const std::filesystem::path& saved = {}) {
  at::set_num_threads(1);
  auto model = open_family(family, group.rank());
  const auto all = unique_parameters(model.module());
  std::vector<Tensor> trained;
  for (const auto& parameter : all)
    if (parameter.requires_grad()) trained.push_back(parameter);
  // No decay: a parameter that nobody uses must stay as it is. Larger eps: rounding must not become whole steps.
  auto optimizer = optim::AdamW(trained, {.lr = 1e-2, .eps = 1e-4, .weight_decay = 0});
  Trainee trainee(group, choice, model.module());
  Optimizer stepped = trainee.strategy().setup_optimizer(optimizer);
  std::vector<Tensor> losses;
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(40 + step);
    const auto tokens = torch::randint(2, 50, {4, 9}, torch::kLong);
    const auto mine = shard_of(tokens, group.rank(), group.size());
    auto loss = trainee.forward([&] { return family_loss(model, mine); });
    trainee.backward(loss);
    auto total = loss.detach().clone();
    group.all_reduce(total, ReduceOp::kMean);
    losses.push_back(total);
    stepped.step();
    stepped.zero_grad();
  }
  if (!saved.empty()) models::save_model(model, saved, {.max_shard_size = 6000, .shards = trainee.strategy().shards()});
  return {at::stack(losses), full_parameters(group, trainee.strategy().shards(), all)};
}

/// Small thresholds, so that every matrix is sharded.
std::vector<std::pair<std::string, StrategyChoice>> ways() {
  GeminiOptions gemini;
  gemini.chunk_size = 2000;
  gemini.memory_budget = 1 << 20;
  return {{"fsdp", FsdpOptions{}},
          {"stage 3", ZeroOptions{.stage = 3, .stage3_param_persistence_threshold = 12}},
          {"colossalai", gemini}};
}

/// What was saved from ranks is, byte by byte, what one process saves of the same numbers.
void expect_saved(const FamilyCase& family, const Tensor& values, const std::filesystem::path& folder) {
  auto model = open_family(family, 0);
  int64_t at = 0;
  for (auto& parameter : unique_parameters(model.module())) {
    parameter.data().copy_(values.narrow(0, at, parameter.numel()).view_as(parameter));
    at += parameter.numel();
  }
  const auto alone = folder.string() + "_alone";
  models::save_model(model, alone, {.max_shard_size = 6000});
  size_t files = 0;
  for (const auto& item : std::filesystem::directory_iterator(alone)) {
    EXPECT_EQ(read_file(item.path()), read_file(folder / item.path().filename())) << item.path();
    ++files;
  }
  EXPECT_GT(files, 2U);
  EXPECT_EQ(files, static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {})));
}

std::string named(const FamilyCase& family, const std::string& way, int world) {
  return family.folder + (family.lora ? " with lora" : "") + " under " + way + " on " + std::to_string(world);
}

/// On two ranks every family under every strategy, on four each under one of them.
bool is_run(int world, size_t family, size_t way) {
  return world == 2 || family % 3 == way;
}

/// Some families, each under one of the strategies.
std::filesystem::path place_of_saved(const TemporaryFolder& folder, int world, size_t family, size_t way) {
  if (family % 3 != way || family >= (world == 2 ? 8 : 3)) return {};
  return folder / (std::to_string(world) + "_" + kFamilies[family].folder);
}

TEST(LanguageEquality, OfEachFamilyUnderEachShardedStrategy) {
  const auto one = run_ranks(1,
                             [](Collective& group) {
                               std::vector<Tensor> results;
                               for (const auto& family : kFamilies)
                                 for (auto& result : train_family(group, family, "single_device"))
                                   results.push_back(result);
                               return results;
                             })[0]
                       .tensors;
  ASSERT_EQ(one.size(), 2 * kFamilies.size());
  const auto all_ways = ways();
  const TemporaryFolder folder;
  for (const int world : {2, 4}) {
    const auto many = run_ranks(world, [&](Collective& group) {
      std::vector<Tensor> results;
      for (size_t way = 0; way < all_ways.size(); ++way)
        for (size_t i = 0; i < kFamilies.size(); ++i)
          if (is_run(world, i, way))
            for (auto& result :
                 train_family(group, kFamilies[i], all_ways[way].second, place_of_saved(folder, world, i, way)))
              results.push_back(result);
      return results;
    });
    const auto& mine = many[0].tensors;
    size_t at = 0;
    for (size_t way = 0; way < all_ways.size(); ++way)
      for (size_t i = 0; i < kFamilies.size(); ++i) {
        if (!is_run(world, i, way)) continue;
        const auto name = named(kFamilies[i], all_ways[way].first, world);
        ASSERT_LT(at + 1, mine.size()) << name;
        EXPECT_LT(max_difference({mine[at]}, {one[2 * i]}), 1e-5) << name << ": losses";
        EXPECT_LT(max_difference({mine[at + 1]}, {one[2 * i + 1]}), 2e-5) << name;
        for (const auto& other : many) EXPECT_TRUE(at::equal(other.tensors[at + 1], mine[at + 1])) << name;
        if (const auto saved = place_of_saved(folder, world, i, way); !saved.empty())
          expect_saved(kFamilies[i], mine[at + 1], saved);
        at += 2;
      }
    EXPECT_EQ(at, mine.size());
  }
}

TEST(LanguageEquality, ASaveThatCannotBeFailsOnEveryRank) {
  const TemporaryFolder folder;
  const auto results = run_ranks(2, [&](Collective& group) -> std::string {
    auto model = open_family({"llama"}, 0);
    Trainee trainee(group, FsdpOptions{}, model.module());
    auto* shards = trainee.strategy().shards();
    auto lines = error_of([&] { models::save_model(model, folder / "shards"); });
    models::save_model(model, folder / "saved", {.shards = shards});
    lines += error_of([&] { models::save_model(model, folder / "saved", {.shards = shards}); });
    group.barrier();
    return lines;
  });
  for (const auto& result : results) {
    EXPECT_THAT(result.text, ::testing::HasSubstr("give SaveModelOptions::shards"));
    EXPECT_THAT(result.text, ::testing::HasSubstr("is there already"));
  }
  EXPECT_EQ(models::open_model(folder / "saved").model_type, "llama");
  EXPECT_FALSE(std::filesystem::exists(folder / "shards"));
}

}  // namespace
}  // namespace levin::testing
