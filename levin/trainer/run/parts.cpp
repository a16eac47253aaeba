#include "levin/trainer/run/parts.h"

#include <algorithm>
#include <sstream>

#include <ATen/ops/cat.h>

#include "levin/core/error.h"
#include "levin/trainer/run/run.h"
#include "levin/trainer/run/step.h"

namespace levin::detail {
namespace {

int word_of(const std::optional<bool>& value) {
  return value ? (*value ? 1 : 0) : -1;
}

std::optional<bool> of_word(int word) {
  return word < 0 ? std::nullopt : std::optional(word == 1);
}

/// Parts one behind the other; what has no rows stays that of the last part.
void append(StepOutput& whole, StepOutput part) {
  for (auto& [name, tensor] : part.extra) {
    const auto found = std::ranges::find_if(whole.extra, [&](const auto& known) { return known.first == name; });
    if (found == whole.extra.end())
      whole.extra.emplace_back(name, std::move(tensor));
    else
      found->second = tensor.defined() && tensor.dim() > 0 ? at::cat({found->second, tensor}) : tensor;
  }
}

}  // namespace

bool PartLogs::record(std::string_view name, const LoggedValue& value, const LogOptions& options) {
  pending_.push_back({std::string(name), std::string(options.reduce_fx), options, metric_number(value), 0});
  return true;
}

void PartLogs::keep(int64_t rows) {
  for (auto& entry : pending_) {
    const auto weight = static_cast<double>(rows);
    const auto known = std::ranges::find_if(kept_, [&](const auto& each) { return each.name == entry.name; });
    if (known == kept_.end()) {
      entry.weight = weight;
      kept_.push_back(std::move(entry));
      continue;
    }
    auto& value = known->value;
    if (entry.reduce_fx == "sum")
      value += entry.value;
    else if (entry.reduce_fx == "min")
      value = std::min(value, entry.value);
    else if (entry.reduce_fx == "max")
      value = std::max(value, entry.value);
    else
      value = (value * known->weight + entry.value * weight) / (known->weight + weight);
    known->weight += weight;
  }
  pending_.clear();
}

std::string PartLogs::to_text() const {
  std::ostringstream out;
  out.precision(17);
  for (const auto& entry : kept_) {
    const auto& options = entry.options;
    out << entry.name << '\n'
        << entry.reduce_fx << ' ' << std::hexfloat << entry.value << std::defaultfloat << ' ' << options.prog_bar << ' '
        << options.logger << ' ' << word_of(options.on_step) << ' ' << word_of(options.on_epoch) << ' '
        << options.sync_dist << ' ' << options.add_dataloader_idx << ' ' << options.batch_size.value_or(-1) << ' '
        << options.rank_zero_only << '\n';
  }
  return out.str();
}

void PartLogs::replay(Run& run, const std::string& text) {
  std::istringstream in(text);
  for (std::string name; std::getline(in, name);) {
    std::string reduce_fx, number;
    int on_step = -1, on_epoch = -1;
    int64_t batch_size = -1;
    LogOptions options;
    in >> reduce_fx >> number >> options.prog_bar >> options.logger >> on_step >> on_epoch >> options.sync_dist >>
        options.add_dataloader_idx >> batch_size >> options.rank_zero_only >> std::ws;
    LEVIN_CHECK(!in.fail() || in.eof(), "[trainer] what the last stage has logged cannot be read");
    options.reduce_fx = reduce_fx;
    options.on_step = of_word(on_step);
    options.on_epoch = of_word(on_epoch);
    if (batch_size >= 0) options.batch_size = batch_size;
    log_value(run, name, std::strtod(number.c_str(), nullptr), options);
  }
}

int step_parts(Run& run, const AnyBatch& batch) {
  auto& call = run.model.wrapped->setup_call();
  return call.sync ? run.fabric->microbatches(call, batch.size()) : 0;
}

StepOutput run_in_parts(Run& run, Stage stage, const AnyBatch& batch, const StepInfo& at, int parts,
                        double loss_factor) {
  const auto rows = rows_of_parts(batch.size(), parts);
  const auto micro = batch.split(rows);
  StepOutput output;
  PartLogs logs;
  bool has_loss = false;
  MicrobatchStep work{.rows = rows, .shapes = {}, .forward = {}, .scale = {}};
  for (const auto& part : micro) {
    auto& text = work.shapes.emplace_back();
    part.each_tensor([&](const Tensor& tensor) { text += tensor.defined() ? shape_text(tensor) + ";" : "-;"; });
  }
  work.forward = [&](size_t part) {
    logs.begin();
    auto mine = run_step(run, [&] { return run.model.module->any_step(stage, micro[part], at); });
    // Only the last stage comes here.
    logs.keep(rows[part]);
    has_loss = mine.loss.defined();
    auto loss = mine.loss;
    append(output, std::move(mine));
    return loss;
  };
  work.scale = [loss_factor](const Tensor& loss) { return loss * loss_factor; };
  struct Recording {
    Run& run;
    Recording(Run& r, PartLogs& l) : run(r) { run.parts = &l; }
    ~Recording() { run.parts = nullptr; }
  };
  auto& call = run.model.wrapped->setup_call();
  {
    const Recording recording(run, logs);
    output.loss = run.fabric->run_microbatches(call, std::move(work));
  }
  run.state.place.set_site(step_site(stage));
  const auto text = call.sync->share_text((has_loss ? "1" : "0") + logs.to_text());
  if (text.starts_with('0')) output.loss = Tensor();
  PartLogs::replay(run, text.substr(1));
  return output;
}

}  // namespace levin::detail
