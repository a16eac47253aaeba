#include "levin/models/load_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include <ATen/ops/cat.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/weight_formats.h"
#include "levin/models/naming.h"
#include "levin/nn/named_tensors.h"

namespace levin::models {
namespace {

constexpr size_t kFewNames = 4;

std::string weight_memory(const Tensor& tensor) {
  if (!tensor.has_storage() || tensor.numel() == 0 || !tensor.storage().data()) return {};
  return fmt::format("{}+{} {}", fmt::ptr(tensor.storage().data()), tensor.storage_offset(),
                     fmt::join(tensor.sizes(), ","));
}

bool is_ignored(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const auto& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

std::string few_names(const std::vector<std::string>& names) {
  const auto shown = std::span(names).first(std::min(names.size(), kFewNames));
  return join(shown) + (names.size() > shown.size() ? ", ..." : "");
}

/// The file's tensors under the module's names.
class WeightPlan {
 public:
  WeightPlan(const WeightFile& file, const std::vector<std::string>& wanted, const LoadWeightsOptions& options)
      : file_(file) {
    std::unordered_map<std::string, std::string> origin;  // without the prefix, to with it
    for (const auto& entry : file.entries()) {
      auto name = entry.name;
      if (!options.strip_prefix.empty() && name.starts_with(options.strip_prefix))
        name.erase(0, options.strip_prefix.size());
      LEVIN_CHECK(origin.emplace(name, entry.name).second, "[load_weights] \"", file.path().string(),
                  "\": two tensors are \"", name, "\" without \"", options.strip_prefix, "\"");
      names_.push_back(std::move(name));
    }
    choose(wanted, options);
    for (auto& weight : plan_) {
      for (auto& source : weight.sources) source = origin.at(source);
      index_.emplace(weight.name, &weight);
    }
  }

  const std::string& naming() const { return naming_; }
  const std::vector<RenamedWeight>& weights() const { return plan_; }
  const RenamedWeight* find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : found->second;
  }
  std::vector<int64_t> shape(const RenamedWeight& weight) const {
    std::vector<std::vector<int64_t>> shapes;
    for (const auto& source : weight.sources) shapes.push_back(file_.at(source).shape);
    return renamed_shape(weight, shapes);
  }
  Tensor read(const RenamedWeight& weight) const {
    std::vector<Tensor> parts;
    for (const auto& source : weight.sources) parts.push_back(file_.read(source));
    auto tensor = parts.size() == 1 ? parts[0] : at::cat(parts, 0);
    if (weight.parts > 1) {
      const auto rows = tensor.size(0) / weight.parts;
      tensor = tensor.slice(0, weight.part * rows, (weight.part + 1) * rows);
    }
    return weight.transposed ? tensor.t() : tensor;
  }

 private:
  void keep_names() {
    for (const auto& name : names_) plan_.push_back({name, {name}});
  }

  void choose(const std::vector<std::string>& wanted, const LoadWeightsOptions& options) {
    if (options.naming == "same") return keep_names();
    const auto of_module = detect_naming(wanted);
    if (options.naming != "auto") {
      LEVIN_CHECK(!of_module.scheme.empty(), "[load_weights] naming \"", options.naming,
                  "\" needs a vit, resnet or decoder; the module is none by its names (naming \"same\" takes them as "
                  "they are)");
      naming_ = options.naming;
      plan_ = plan_naming(names_, options.naming, of_module.scheme);
      return;
    }
    const std::unordered_set<std::string> known(wanted.begin(), wanted.end());
    const auto fits = std::any_of(names_.begin(), names_.end(), [&](const auto& name) { return known.contains(name); });
    const auto of_file = detect_naming(names_);
    if (fits && (of_file.scheme.empty() || of_file.scheme == of_module.scheme)) return keep_names();
    if (of_file.scheme.empty() || of_file.architecture != of_module.architecture || of_file.scheme == of_module.scheme)
      return keep_names();
    naming_ = of_file.scheme;
    // What the scheme does not know keeps its name, and is then unexpected.
    const std::unordered_set<std::string> unknown(of_file.unknown.begin(), of_file.unknown.end());
    std::vector<std::string> rest;
    for (const auto& name : names_)
      if (!unknown.contains(name)) rest.push_back(name);
    plan_ = plan_naming(rest, of_file.scheme, of_module.scheme);
    for (const auto& name : of_file.unknown) plan_.push_back({name, {name}});
  }

  const WeightFile& file_;
  std::vector<std::string> names_;
  std::string naming_;
  std::vector<RenamedWeight> plan_;
  std::unordered_map<std::string, const RenamedWeight*> index_;
};

bool is_positions(const std::string& name, at::IntArrayRef target, const std::vector<int64_t>& source) {
  const bool named =
      name.ends_with("pos_embedding") || name.ends_with("pos_embed") || name.ends_with("position_embeddings");
  return named && target.size() == 3 && source.size() == 3 && source[0] == 1 && target[0] == 1 &&
         source[2] == target[2];
}

struct WeightCopy {
  std::string name;
  Tensor target;
  const RenamedWeight* weight = nullptr;
  bool stretched = false;
};

/// What is wrong, in one line; nothing when all fits.
std::string complaint(const LoadWeightsReport& report, const std::vector<std::string>& wrong_shapes, bool strict,
                      const std::vector<std::string>& wanted) {
  std::vector<std::string> parts;
  if (!wrong_shapes.empty()) {
    auto part = fmt::format("{} of another shape: {}", wrong_shapes.size(), few_names(wrong_shapes));
    const bool head = std::any_of(wrong_shapes.begin(), wrong_shapes.end(), [](const auto& text) {
      return text.starts_with("head") || text.starts_with("fc.") || text.starts_with("classifier");
    });
    if (head)
      part += fmt::format(" (a head for another number of classes: put \"{}*\" into ignore)",
                          wrong_shapes[0].substr(0, wrong_shapes[0].find('.') + 1));
    if (std::any_of(wrong_shapes.begin(), wrong_shapes.end(),
                    [](const auto& text) { return text.find("pos_embed") != text.npos; }))
      part += " (another grid of patches: interpolate_positions stretches the positions)";
    parts.push_back(part);
  }
  if (strict && !report.missing.empty())
    parts.push_back(fmt::format("{} missing: {}", report.missing.size(), few_names(report.missing)));
  if (strict && !report.unexpected.empty()) {
    auto part = fmt::format("{} unexpected: {}", report.unexpected.size(), few_names(report.unexpected));
    const auto nearest = nearest_word(report.unexpected[0], report.missing);
    if (!nearest.empty()) part += fmt::format(" (is \"{}\" meant?)", nearest);
    // A prefix that all of them have, and that would make them fit, is the usual reason.
    for (const auto& name : wanted)
      if (report.unexpected[0].size() > name.size() && report.unexpected[0].ends_with("." + name)) {
        part += fmt::format(" (strip_prefix \"{}\" would fit)",
                            report.unexpected[0].substr(0, report.unexpected[0].size() - name.size()));
        break;
      }
    parts.push_back(part);
  }
  return join(parts, "; ");
}

}  // namespace

Tensor interpolate_positions(const Tensor& embedding, int64_t tokens) {
  LEVIN_CHECK(embedding.dim() == 3 && embedding.size(0) == 1,
              "[interpolate_positions] positions are [1, tokens, D], not of ", embedding.dim(), " dimensions");
  const auto side_of = [](int64_t patches) {
    const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(patches))));
    LEVIN_CHECK(patches > 0 && side * side == patches, "[interpolate_positions] ", patches,
                " patches are not a square; only square grids are stretched");
    return side;
  };
  if (embedding.size(1) == tokens) return embedding;
  const auto width = embedding.size(2);
  const auto old_side = side_of(embedding.size(1) - 1);
  const auto new_side = side_of(tokens - 1);
  const auto grid = embedding.slice(1, 1).permute({0, 2, 1}).reshape({1, width, old_side, old_side});
  const auto stretched = at::upsample_bicubic2d(grid, {new_side, new_side}, /*align_corners=*/true);
  return at::cat({embedding.slice(1, 0, 1), stretched.reshape({1, width, new_side * new_side}).permute({0, 2, 1})}, 1);
}

LoadWeightsReport load_weights(torch::nn::Module& module, const std::filesystem::path& path,
                               const LoadWeightsOptions& options) {
  std::vector<std::string> namings(naming_schemes().begin(), naming_schemes().end());
  namings.insert(namings.end(), {"same", "auto"});
  if (std::find(namings.begin(), namings.end(), options.naming) == namings.end())
    fail_unknown("load_weights", "naming", options.naming, namings);
  const auto targets = levin::detail::named_tensors(module);
  std::vector<std::string> wanted;
  for (const auto& [name, tensor] : targets) wanted.push_back(name);
  // A module may have a child of that name, and a prefix that was asked for is looked for in the names as they are.
  const bool strips = options.strip_prefix.empty() && std::none_of(wanted.begin(), wanted.end(), [](const auto& name) {
                        return name.starts_with("module.");
                      });
  const WeightFile file(path, {.root = options.root, .strip_module = strips});
  const WeightPlan plan(file, wanted, options);

  LoadWeightsReport report{.naming = plan.naming()};
  std::vector<std::string> wrong_shapes;
  std::vector<WeightCopy> copies;
  std::map<std::string, bool> memory;  // tied tensors: whether any of their names was found
  std::unordered_set<std::string> used;
  for (const auto& [name, target] : targets) {
    const auto key = weight_memory(target);
    const auto* weight = plan.find(name);
    if (is_ignored(name, options.ignore)) {
      report.ignored.push_back(name);
      used.insert(name);
      if (!key.empty()) memory[key] = true;
      continue;
    }
    if (!weight) continue;
    used.insert(name);
    if (!key.empty() && memory[key]) continue;
    if (!key.empty()) memory[key] = true;
    const auto shape = plan.shape(*weight);
    const bool same = target.sizes() == at::IntArrayRef(shape);
    const bool stretched = !same && options.interpolate_positions && is_positions(name, target.sizes(), shape);
    if (!same && !stretched) {
      wrong_shapes.push_back(fmt::format("{} ([{}] in the file, [{}] in the module)", name, fmt::join(shape, ", "),
                                         fmt::join(target.sizes(), ", ")));
      continue;
    }
    copies.push_back({name, target, weight, stretched});
  }
  for (const auto& [name, target] : targets) {
    const auto key = weight_memory(target);
    if (!used.contains(name) && (key.empty() || !memory[key])) report.missing.push_back(name);
  }
  for (const auto& weight : plan.weights())
    if (!used.contains(weight.name) && !is_ignored(weight.name, options.ignore))
      report.unexpected.push_back(weight.name);
  const auto wrong = complaint(report, wrong_shapes, options.strict, wanted);
  LEVIN_CHECK(wrong.empty(), "[load_weights] \"", path.string(), "\" does not fit the module (", wanted.size(),
              " tensors): ", wrong);

  const at::NoGradGuard no_grad;
  std::vector<Tensor> values;
  for (const auto& copy : copies) {
    auto value = plan.read(*copy.weight);
    if (copy.stretched) {
      value = interpolate_positions(value.to(at::kFloat), copy.target.size(1));
      report.interpolated.push_back(copy.name);
    }
    report.converted += value.scalar_type() != copy.target.scalar_type();
    values.push_back(std::move(value));
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    copies[i].target.copy_(values[i]);
    values[i].reset();
    report.loaded.push_back(copies[i].name);
  }
  return report;
}

void save_weights(const torch::nn::Module& module, const std::filesystem::path& path) {
  NamedTensors tensors;
  for (auto& [name, tensor] : levin::detail::named_tensors(module)) tensors.emplace_back(name, tensor.detach());
  const auto* format = levin::detail::weight_format_by_ending(path);
  if (!format || !format->write)
    fail_unknown("save_weights", "ending", path.extension().string(), levin::detail::weight_endings(/*written=*/true));
  format->write(path, tensors);
}

}  // namespace levin::models
