#include <filesystem>

#include <gtest/gtest.h>

#include "levin/models/folder.h"
#include "levin/testing/gpu.h"
#include "levin/testing/paths.h"
#include "tests/models/small_chunks.h"

namespace levin::language_loading_gpu_tests {
namespace {

namespace fs = std::filesystem;
using testing::SmallChunks;

const fs::path kLoadedByGpu = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

class LanguageLoadingGpu : public testing::GpuTest {};

void expect_numbers_of_the_cpu() {
  for (const char* name : {"gpt2", "gpt2_bin", "llama", "llama_biases", "bloom", "gpt_neox", "opt_post", "bert_masked"})
    for (const int64_t bytes : {1, 1000, 1 << 23})
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << name << ", " << bytes << " bytes, " << dtype);
        const SmallChunks chunks(bytes);
        const auto found = models::open_model(kLoadedByGpu / name, {.dtype = dtype, .device = at::kCUDA});
        const auto expected = models::open_model(kLoadedByGpu / name, {.dtype = dtype});
        const auto all = expected.module().named_parameters();
        for (const auto& item : found.module().named_parameters()) {
          EXPECT_TRUE(item.value().is_cuda());
          EXPECT_TRUE(at::equal(item.value().cpu(), all[item.key()])) << item.key();
        }
      }
}

/// Through buffers that are used many times, by several threads.
TEST_F(LanguageLoadingGpu, GivesTheNumbersOfTheCpu) {
  expect_numbers_of_the_cpu();
}

}  // namespace
}  // namespace levin::language_loading_gpu_tests
