#include "levin/program/recipes/gpt_text_data.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/data/loader.h"
#include "levin/data/token_dataset.h"

namespace levin::cli {
namespace {

/// An epoch has as many windows as fit into the text side by side, each at a random place.
Sampler random_windows(int64_t length) {
  const auto count = [length](int64_t places) { return std::max<int64_t>(1, (places + length - 1) / length); };
  return Sampler(
      "random_windows",
      [count](int64_t places, uint64_t seed, int64_t epoch) {
        Random random(seed, static_cast<uint64_t>(epoch), 0);
        std::vector<int64_t> order(static_cast<size_t>(count(places)));
        for (auto& place : order) place = static_cast<int64_t>(random.below(static_cast<uint64_t>(places)));
        return order;
      },
      count);
}

TokenDataset windows(const TextTokens& tokens, const char* file, int64_t count, int64_t length, int64_t stride) {
  LEVIN_CHECK(count > length, "[gpt_text] ", file, " of the text has ", count, " tokens; a window needs ", length + 1,
              " (model.block_size and one more)");
  return TokenDataset(
      tokens.folder / file,
      {.length = length, .stride = stride, .dtype = tokens.dtype, .vocab_size = tokens.tokenizer.id_end()});
}

}  // namespace

void GptTextData::prepare_data() {
  if (tokens_) return;
  const auto texts = Texts::open(options_.file);
  if (!texts.note().empty()) log_info("[gpt_text] " + texts.note());
  tokens_ = prepare_tokens(texts, {.tokenizer = options_.tokenizer,
                                   .vocab_size = options_.vocab_size,
                                   .val_fraction = options_.val_fraction,
                                   .cache = options_.cache});
  log_info(fmt::format("[gpt_text] text: {}, {} tokens to train, {} to validate, vocabulary of {}",
                       printable(texts.name()), format_count(static_cast<double>(tokens_->train_tokens)),
                       format_count(static_cast<double>(tokens_->val_tokens)), tokens_->tokenizer.vocab_size()));
}

void GptTextData::setup(std::string_view) {
  // Ranks that did not prepare the tokens find them in the cache.
  prepare_data();
}

const TextTokens& GptTextData::tokens() const {
  LEVIN_CHECK(tokens_, "[gpt_text] the text is not set up");
  return *tokens_;
}

Loaders<Batch> GptTextData::train_dataloader() {
  const auto& text = tokens();
  const bool random = options_.windows == "random";
  const auto data = windows(text, "train.bin", text.train_tokens, block_size_, random ? 1 : 0);
  LoaderOptions loader{.batch_size = options_.batch_size,
                       .shuffle = !random,
                       .drop_last = true,
                       .seed = at::detail::getDefaultCPUGenerator().current_seed()};
  if (random) loader.sampler = random_windows(block_size_);
  return make_loader(data, loader);
}

Loaders<Batch> GptTextData::val_dataloader() {
  if (options_.val_fraction == 0) return {};
  const auto& text = tokens();
  return make_loader(windows(text, "val.bin", text.val_tokens, block_size_, 0),
                     {.batch_size = options_.eval_batch_size});
}

Loaders<Batch> GptTextData::predict_dataloader() {
  LEVIN_CHECK(options_.num_samples > 0, "[gpt_text] data.num_samples ", options_.num_samples, " must be positive");
  return make_loader(TensorDataset({{"index", at::arange(options_.num_samples)}}), {.batch_size = 1});
}

}  // namespace levin::cli
