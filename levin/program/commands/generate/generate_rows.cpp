#include "levin/program/commands/generate/generate_rows.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/log.h"
#include "levin/core/progress_bar.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/program/commands/tensor_ranks.h"

namespace levin::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<std::vector<int64_t>>;

/// Rows of a call of generate(), in batches: its end, where a batch is no longer full, comes seldom enough.
constexpr int64_t kBatchesOfCall = 8;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Prompts of a call.
size_t prompts_of_call(const GenerateOptions& options) {
  if (options.num_beams > 1) return 1;  // beams go prompt by prompt
  return static_cast<size_t>(std::max<int64_t>(1, kBatchesOfCall * options.batch / options.num_return_sequences));
}

/// Calls `each` with the prompts of every call, and the place of the first of them.
template <class Each>
void each_call(const Ids& ids, const GenerateOptions& options, Each&& each) {
  const auto many = prompts_of_call(options);
  for (size_t begin = 0; begin < ids.size(); begin += many)
    each(Ids(ids.begin() + static_cast<std::ptrdiff_t>(begin),
             ids.begin() + static_cast<std::ptrdiff_t>(std::min(begin + many, ids.size()))),
         begin);
}

}  // namespace

/// What is known of a row so far.
struct GenerateRows::Row {
  std::string text = {};
  std::vector<int64_t> ids = {};
  std::vector<double> logprobs = {};
  std::vector<std::vector<std::pair<int64_t, double>>> top_logprobs = {};
  std::string finish_reason = {};
  bool has_ended = false;
};

struct GenerateRows::Run {
  Clock::time_point start = Clock::now();
  std::optional<ProgressBar> bar = {};
  /// The rows of the call under way that are not written yet; the first of them is row `next` of the run.
  std::deque<Row> rows = {};
  size_t next = 0;
  /// The number of the first row of the call.
  size_t first = 0;
  bool is_shown = false;
  int64_t tokens = 0, guessed = 0, taken = 0;
};

GenerateRows::GenerateRows(const Options& options) : asked_(options), run_(std::make_unique<Run>()) {}

GenerateRows::~GenerateRows() = default;

std::string GenerateRows::line_of(const Row& row) const {
  if (!asked_.json) return on_one_line(row.text) + "\n";
  const auto copies = static_cast<size_t>(asked_.options.num_return_sequences);
  nlohmann::ordered_json line{{"prompt", asked_.prompts[run_->next / copies].text},
                              {"text", row.text},
                              {"ids", row.ids},
                              {"logprobs", row.logprobs},
                              {"finish_reason", row.finish_reason}};
  if (asked_.options.top_logprobs > 0) line["top_logprobs"] = row.top_logprobs;
  // A prompt is what INPUT has, whatever its bytes are.
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

/// Prints what there is of the row whose turn it is.
void GenerateRows::begin_shown() {
  if (!asked_.stream || run_->is_shown || run_->rows.empty()) return;
  const auto copies = static_cast<size_t>(asked_.options.num_return_sequences);
  std::fputs((asked_.prompts[run_->next / copies].text + run_->rows.front().text).c_str(), stdout);
  std::fflush(stdout);
  run_->is_shown = true;
}

void GenerateRows::show(const Row& row, const std::string& more) {
  if (!asked_.stream || &row != &run_->rows.front()) return;
  if (!run_->is_shown) return begin_shown();
  std::fputs(more.c_str(), stdout);
  std::fflush(stdout);
}

/// Writes the rows that are whole, up to the first that is not.
void GenerateRows::flush() {
  auto& run = *run_;
  std::string lines;
  while (!run.rows.empty() && run.rows.front().has_ended) {
    begin_shown();
    if (asked_.stream) std::fputs("\n\n", stdout);
    lines += line_of(run.rows.front());
    run.rows.pop_front();
    ++run.next;
    run.is_shown = false;
    begin_shown();
  }
  if (lines.empty() || (asked_.stream && asked_.output.is_terminal())) return;
  if (run.bar && asked_.output.is_terminal()) run.bar->clear();
  asked_.output.write(lines);
}

bool GenerateRows::take(const GeneratedToken& token) {
  auto& run = *run_;
  auto& row = run.rows[run.first + token.row - run.next];
  ++run.tokens;
  row.ids.push_back(token.id);
  row.logprobs.push_back(token.logprob);
  row.text += token.text;
  if (asked_.options.top_logprobs > 0)
    row.top_logprobs.emplace_back(token.top_logprobs.begin(), token.top_logprobs.end());
  show(row, token.text);
  if (run.bar) run.bar->set("tok/s", static_cast<double>(run.tokens) / seconds_since(run.start));
  if (token.finish_reason.empty()) return true;
  row.finish_reason = token.finish_reason;
  row.has_ended = true;
  if (run.bar) run.bar->advance();
  flush();
  return true;
}

/// Of a row that has ended in the call: what nobody has told.
void GenerateRows::end(size_t row, const Generated& result) {
  auto& run = *run_;
  run.guessed += result.guessed_tokens, run.taken += result.taken_tokens;
  if (row < run.next) return;
  auto& own = run.rows[row - run.next];
  if (own.has_ended) return;
  own.finish_reason = result.finish_reason;
  own.has_ended = true;
  if (run.bar) run.bar->advance();
}

void GenerateRows::write(models::LanguageModel& model, const text::Tokenizer* tokenizer, const RunSettings& settings) {
  auto& run = *run_;
  const auto copies = static_cast<size_t>(asked_.options.num_return_sequences);
  const auto step = prompts_of_call(asked_.options) * copies;
  run.next = static_cast<size_t>(asked_.output.open(settings, static_cast<int64_t>(step)));
  // A run whose last call was not full may have ended before its file got its name.
  const auto begun = std::min(run.next / copies, asked_.prompts.size()), total = asked_.prompts.size() * copies;
  if (begun > 0) log_info(fmt::format("{} of {} lines are there already", run.next, total));
  Ids ids;
  int64_t before = 0;
  for (auto i = begun; i < asked_.prompts.size(); ++i) {
    ids.push_back(asked_.prompts[i].ids);
    before += static_cast<int64_t>(ids.back().size());
  }
  ids = prompts_of_first_rank(model.decoder->ranks, std::move(ids));
  run.start = Clock::now();
  if (!asked_.stream) {
    run.bar.emplace("Generating", static_cast<int64_t>(total), ProgressOptions{.unit = "text"});
    if (begun > 0) run.bar->start_at(static_cast<int64_t>(run.next));
  }
  auto options = asked_.options;
  const OnToken on_token = [this](const GeneratedToken& token) { return take(token); };
  each_call(ids, options, [&](const Ids& prompts, size_t place) {
    run.first = run.next = (begun + place) * copies;
    run.rows.assign(prompts.size() * copies, {});
    options.first_row = asked_.options.first_row + run.first;
    if (options.max_time > 0) options.max_time = std::max(asked_.options.max_time - seconds_since(run.start), 1e-6);
    const auto results = tokenizer ? generate(model.decoder, *tokenizer, prompts, options, on_token)
                                   : generate(model.decoder, prompts, options, on_token);
    for (const auto& result : results) end(run.first + result.row, result);
    // A prompt may have fewer whole beams than are asked for; lines do not tell then how many prompts are done.
    if (results.size() < prompts.size() * copies) asked_.output.forbid_resume();
    flush();
  });
  if (run.bar) run.bar->finish();
  asked_.output.finish();
  const auto took = seconds_since(run.start);
  const auto where = model.decoder->tokens->weight.device();
  log_info(
      fmt::format("{} prompts of {} tokens, {} new tokens in {:.2f} s: {:.1f} tokens/s; loaded in {:.2f} s; memory {}",
                  ids.size(), before, run.tokens, took, static_cast<double>(run.tokens) / took, asked_.loaded_seconds,
                  format_bytes(static_cast<double>(accelerator_of(where).memory(where).peak_allocated))));
  if (run.guessed > 0)
    log_info(fmt::format("{} of {} guessed tokens were taken ({:.0f} %)", run.taken, run.guessed,
                         100 * static_cast<double>(run.taken) / static_cast<double>(run.guessed)));
}

void follow_rows(models::LanguageModel& model, const GenerateOptions& options) {
  auto silent = options;
  silent.stop.clear();  // rank 0 knows the texts
  const auto ids = prompts_of_first_rank(model.decoder->ranks, {});
  each_call(ids, silent, [&](const Ids& prompts, size_t) { generate(model.decoder, prompts, silent); });
}

}  // namespace levin::cli
