// How weights come from files to their places: in chunks of any size, cast, transposed, taken apart and put together.
#include <filesystem>

#include <gtest/gtest.h>

#include "levin/io/weights/weights.h"
#include "levin/models/folder.h"
#include "levin/models/language/weight_plan.h"
#include "levin/nn/tie.h"
#include "levin/testing/paths.h"
#include "tests/models/small_chunks.h"

namespace levin::language_loading_tests {
namespace {

namespace fs = std::filesystem;
using testing::SmallChunks;

const fs::path kLoaded = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

/// Every parameter has the numbers of the file.
void expect_of_file(const models::LanguageModel& model, const fs::path& folder, c10::ScalarType dtype) {
  const WeightFile file(folder);
  const auto& architecture = models::architecture_of(model.config);
  const auto& o = model.body();
  const auto keys = o.key_heads() * o.head_width();
  for (const auto& [name, parameter, aliases] : named_unique_parameters(model.module())) {
    EXPECT_EQ(parameter.scalar_type(), dtype) << name;
    const auto theirs = models::detail::their_weight(architecture, name, parameter.sizes());
    const auto parts =
        models::detail::weights_for_file(parameter, *theirs, {o.num_heads * o.head_width(), keys, keys}, o.num_heads);
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string key;
      for (const auto& each : {std::string(architecture.prefix) + theirs->names[i], theirs->names[i], theirs->also})
        if (key.empty() && file.contains(each)) key = each;
      if (key.empty()) continue;  // a tied head, or names of old files
      EXPECT_TRUE(at::equal(parts[i].cpu(), file.read(key).to(dtype))) << name << " of " << key;
    }
  }
}

TEST(LanguageLoading, ChunksOfAnySizeGiveTheNumbersOfTheFile) {
  for (const char* name : {"gpt2", "gpt2_bin", "llama", "llama_biases", "bloom", "gpt_neox", "opt_post", "bert_masked"})
    for (const int64_t bytes : {1, 100, 1000, 1 << 23})
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << name << ", " << bytes << " bytes, " << dtype);
        const SmallChunks chunks(bytes);
        expect_of_file(models::open_model(kLoaded / name, {.dtype = dtype}), kLoaded / name, dtype);
      }
}

}  // namespace
}  // namespace levin::language_loading_tests
