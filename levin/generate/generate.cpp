#include "levin/generate/generate.h"

#include <algorithm>
#include <optional>

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "levin/core/error.h"
#include "levin/core/random.h"

namespace levin {
namespace {

int64_t drawn_token(const Tensor& logits, const GenerateOptions& options, uint64_t row, uint64_t position) {
  if (options.temperature == 0) return logits.argmax().item<int64_t>();
  const auto sums = at::log_softmax(logits / options.temperature, 0).exp().cumsum(0);
  const auto at = Random(options.seed, row, position).uniform() * sums[-1].item<double>();
  return std::min((sums <= at).sum().item<int64_t>(), logits.size(0) - 1);
}

std::vector<Generated> generate_rows(models::Decoder& model, const text::Tokenizer* tokenizer,
                                     const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                     const OnToken& on_token) {
  const c10::AutoGradMode no_grad(false);
  model->eval();
  const auto device = model->tokens->weight.device();
  std::vector<Generated> rows;
  for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    auto ids = prompts[prompt];
    LEVIN_CHECK(!ids.empty(), "[generate] prompt ", prompt, " has no tokens");
    Generated row{.prompt = prompt};
    std::optional<text::DecodeStream> stream;
    if (tokenizer) stream.emplace(*tokenizer);
    while (row.finish_reason.empty()) {
      const auto logits = model(at::tensor(ids, at::kLong).unsqueeze(0).to(device))[0][-1].to(at::kFloat);
      const auto id = drawn_token(logits, options, rows.size(), ids.size());
      ids.push_back(id), row.ids.push_back(id);
      row.logprobs.push_back(at::log_softmax(logits, 0)[id].item<double>());
      if (std::ranges::count(options.eos_token_ids, id))
        row.finish_reason = "stop";
      else if (static_cast<int64_t>(row.ids.size()) >= options.max_new_tokens)
        row.finish_reason = "length";
      auto text = stream ? stream->step(id) : "";
      if (stream && !row.finish_reason.empty()) text += stream->finish();
      row.text += text;
      if (on_token && !on_token({.row = rows.size(),
                                 .id = id,
                                 .logprob = row.logprobs.back(),
                                 .text = text,
                                 .finish_reason = row.finish_reason}))
        row.finish_reason = "cancelled";
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::vector<Generated> generate(models::Decoder model, const std::vector<std::vector<int64_t>>& prompts,
                                const GenerateOptions& options, const OnToken& on_token) {
  return generate_rows(model, nullptr, prompts, options, on_token);
}

std::vector<Generated> generate(models::Decoder model, const text::Tokenizer& tokenizer,
                                const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                const OnToken& on_token) {
  return generate_rows(model, &tokenizer, prompts, options, on_token);
}

std::vector<Generated> generate(models::Decoder model, const text::Tokenizer& tokenizer,
                                const std::vector<std::string>& prompts, const GenerateOptions& options,
                                const OnToken& on_token) {
  std::vector<std::vector<int64_t>> ids;
  for (const auto& prompt : prompts) ids.push_back(tokenizer.encode(prompt).ids);
  return generate_rows(model, &tokenizer, ids, options, on_token);
}

}  // namespace levin
