#include "levin/nn/summary.h"

#include <map>
#include <unordered_set>

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/core/words.h"
#include "levin/nn/interceptor.h"
#include "levin/nn/module_access.h"
#include "levin/nn/unit.h"

namespace levin {
namespace {

using Module = torch::nn::Module;

std::string shape_of(const Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

void append(std::string& list, const std::string& word) {
  if (!list.empty()) list += ", ";
  list += word;
}

/// Notes the shapes of a unit's first call.
struct Shapes : Interceptor {
  void around(Call& call) override {
    const bool first = in.empty() && out.empty();
    if (first) call.each_input([&](Tensor& tensor) { append(in, shape_of(tensor)); });
    call.proceed();
    if (first) call.each_output([&](Tensor& tensor) { append(out, shape_of(tensor)); });
  }
  std::string in, out;
};

using ShapesOf = std::map<const Module*, std::shared_ptr<Shapes>>;

void watch(Module& module, ShapesOf& shapes, std::vector<Attachment>& attachments) {
  auto* unit = dynamic_cast<Unit*>(&module);
  if (unit && !shapes.contains(&module)) {
    shapes[&module] = std::make_shared<Shapes>();
    attachments.push_back(unit->attach(shapes[&module], Order::kProfiler));
  }
  for (auto& child : detail::ModuleAccess::children(module)) watch(*child.value(), shapes, attachments);
}

ShapesOf run_sample(Module& model, const std::function<void()>& sample) {
  ShapesOf shapes;
  std::vector<Attachment> attachments;
  watch(model, shapes, attachments);
  std::vector<std::pair<Module*, bool>> modes;
  for (const auto& module : model.modules(false)) modes.emplace_back(module.get(), module->is_training());
  struct Restore {
    Module& model;
    std::vector<std::pair<Module*, bool>>& modes;
    bool training;
    at::Generator generator;
    Tensor state;
    ~Restore() {
      try {  // train() is the user's to override
        model.train(training);
        for (auto& [module, mode] : modes)
          if (module->is_training() != mode) module->train(mode);
      } catch (const std::exception& error) {
        log_warning(detail::concat("[summary] the mode of a module could not be put back: ", one_line(error)));
      }
      std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  };
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  Restore restore{model, modes, model.is_training(), generator, generator.get_state()};
  model.eval();
  const c10::AutoGradMode no_grad(false);
  sample();
  return shapes;
}

class Builder {
 public:
  Builder(Module& model, const SummaryOptions& options) : max_depth_(options.max_depth) {
    if (options.sample) {
      shapes_ = run_sample(model, options.sample);
      summary_.has_sizes = true;
    }
    SummaryRow rest = tensors_of(model);
    count(rest);
    visit(model, "", 1, true);
    if (max_depth_ != 0 && rest.params > 0) {
      rest.name = "other params";
      rest.type = "n/a";
      summary_.rows.push_back(rest);
    }
  }

  Summary take() { return std::move(summary_); }

 private:
  /// What a module holds itself, as far as nobody before it held it.
  SummaryRow tensors_of(Module& module) {
    SummaryRow row;
    row.type = class_name(module);
    row.training = module.is_training();
    for (const auto& item : detail::ModuleAccess::parameters(module)) {
      const auto& tensor = item.value();
      if (!tensor.defined()) continue;
      append(row.shapes, shape_of(tensor));
      if (!seen_.insert(tensor.unsafeGetTensorImpl()).second) continue;
      row.params += tensor.numel();
      row.bytes += tensor.numel() * static_cast<int64_t>(tensor.element_size());
      if (tensor.requires_grad()) row.trainable += tensor.numel();
      add_dtype(row, c10::toString(tensor.scalar_type()));
    }
    return row;
  }

  static void add_dtype(SummaryRow& row, const std::string& dtype) {
    if (dtype.empty()) return;
    row.dtype = row.dtype.empty() || row.dtype == dtype ? dtype : "mixed";
  }

  void count(const SummaryRow& own) {
    summary_.total += own.params;
    summary_.trainable += own.trainable;
    summary_.bytes += own.bytes;
  }

  /// Lists the children of a module; returns the sum of what is below it.
  SummaryRow visit(Module& module, const std::string& prefix, int64_t depth, bool listed) {
    SummaryRow below;
    for (auto& item : detail::ModuleAccess::children(module)) {
      auto& child = *item.value();
      ++(child.is_training() ? summary_.train_modules : summary_.eval_modules);
      const bool shown = listed && (max_depth_ < 0 || depth <= max_depth_);
      const auto place = summary_.rows.size();
      if (shown) summary_.rows.emplace_back();
      auto row = tensors_of(child);
      count(row);
      row.name = prefix + item.key();
      const auto inside = visit(child, row.name + ".", depth + 1, shown);
      row.params += inside.params;
      row.trainable += inside.trainable;
      row.bytes += inside.bytes;
      add_dtype(row, inside.dtype);
      if (const auto shapes = shapes_.find(&child); shapes != shapes_.end()) {
        row.in_sizes = shapes->second->in;
        row.out_sizes = shapes->second->out;
      }
      below.params += row.params;
      below.trainable += row.trainable;
      below.bytes += row.bytes;
      add_dtype(below, row.dtype);
      if (shown) summary_.rows[place] = std::move(row);
    }
    return below;
  }

  int64_t max_depth_;
  ShapesOf shapes_;
  std::unordered_set<const void*> seen_;
  Summary summary_;
};

std::string trained(const SummaryRow& row) {
  if (row.params == 0) return "";
  return row.trainable == 0 ? "no" : row.trainable == row.params ? "yes" : "part";
}

}  // namespace

std::string Summary::text() const {
  std::vector<std::vector<std::string>> table{
      {"", "Name", "Type", "Params", "Shapes", "DType", "Size", "Trained", "Mode"}};
  if (has_sizes) table[0].insert(table[0].end(), {"In sizes", "Out sizes"});
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    table.push_back({std::to_string(i), row.name, row.type, format_count(static_cast<double>(row.params)), row.shapes,
                     row.dtype, format_bytes(static_cast<double>(row.bytes)), trained(row),
                     row.type == "n/a" ? "n/a"
                     : row.training    ? "train"
                                       : "eval"});
    if (has_sizes) table.back().insert(table.back().end(), {row.in_sizes, row.out_sizes});
  }
  std::vector<size_t> widths(table[0].size());
  for (const auto& line : table)
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  size_t total_width = 3 * (widths.size() - 1);
  for (const auto width : widths) total_width += width;
  const std::string rule(total_width, '-');

  std::string result;
  for (size_t r = 0; rows.empty() ? false : r < table.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < widths.size(); ++c)
      line += fmt::format("{}{:<{}}", c == 0 ? "" : " | ", table[r][c], widths[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
    if (r == 0) result += rule + "\n";
  }
  if (!rows.empty()) result += rule + "\n";
  const auto foot = [&](const std::string& value, const char* what) {
    result += fmt::format("{:<10}{}\n", value, what);
  };
  foot(format_count(static_cast<double>(trainable)), "Trainable params");
  foot(format_count(static_cast<double>(total - trainable)), "Non-trainable params");
  foot(format_count(static_cast<double>(total)), "Total params");
  foot(fmt::format("{:.3f}", static_cast<double>(bytes) / 1e6), "Total estimated model params size (MB)");
  foot(std::to_string(train_modules), "Modules in train mode");
  foot(std::to_string(eval_modules), "Modules in eval mode");
  return result;
}

Summary summarize(Module& model, const SummaryOptions& options) {
  return Builder(model, options).take();
}

}  // namespace levin
