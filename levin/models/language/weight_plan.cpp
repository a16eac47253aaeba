#include "levin/models/language/weight_plan.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <unordered_set>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/models/language/quantized_weights.h"
#include "levin/nn/tie.h"

namespace levin::models::detail {
namespace {

constexpr size_t kListedNames = 6;

/// What '#' and '*' stand for in a name.
struct NameParts {
  std::string number, suffix;
};

std::optional<NameParts> match_weight(std::string_view pattern, std::string_view name) {
  NameParts parts;
  size_t at = 0;
  for (const char c : pattern) {
    if (c == '#') {
      const auto begin = at;
      while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) ++at;
      parts.number = name.substr(begin, at - begin);
      if (parts.number.empty()) return {};
    } else if (c == '*') {
      parts.suffix = name.substr(at);
      if (parts.suffix != "weight" && parts.suffix != "bias") return {};
      at = name.size();
    } else if (at >= name.size() || name[at++] != c) {
      return {};
    }
  }
  if (at != name.size()) return {};
  return parts;
}

std::string filled(std::string_view pattern, const NameParts& parts, int64_t expert = 0) {
  std::string name;
  for (const char c : pattern)
    if (c == '#')
      name += parts.number;
    else if (c == '*')
      name += parts.suffix;
    else if (c == '@')
      name += std::to_string(expert);
    else
      name += c;
  return name;
}

/// The name without the prefix, and as newer files spell it.
std::string plain_name(std::string_view name, std::string_view prefix) {
  while (!prefix.empty() && name.size() > prefix.size() && name.starts_with(prefix)) name.remove_prefix(prefix.size());
  std::string result(name);
  const auto respell = [&](std::string_view old, std::string_view now) {
    if (result.ends_with(old)) result.replace(result.size() - old.size(), old.size(), now);
  };
  respell("LayerNorm.gamma", "LayerNorm.weight");
  respell("LayerNorm.beta", "LayerNorm.bias");
  return result;
}

std::string listed(const std::vector<std::string>& names) {
  std::vector<std::string> few;
  for (size_t i = 0; i < std::min(names.size(), kListedNames); ++i) few.push_back(names[i]);
  return join(few) + (names.size() > few.size() ? ", ..." : "");
}

bool begins_with_any(std::string_view name, const std::vector<std::string>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](const auto& each) { return name.starts_with(each); });
}

bool is_float(c10::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kDouble;
}

/// The shape that a source must have.
std::vector<int64_t> shape_in_file(const PlannedWeight& weight, size_t source) {
  auto shape = weight.target.sizes().vec();
  if (weight.layout == WeightLayout::kTransposed && shape.size() == 2) std::swap(shape[0], shape[1]);
  if (weight.layout == WeightLayout::kStacked)
    shape.erase(shape.begin());
  else if (weight.sources.size() > 1)
    shape[0] = weight.rows[source];
  return shape;
}

}  // namespace

Tensor heads_apart(const Tensor& x, int64_t heads, bool back) {
  auto sizes = x.sizes().vec();
  const auto width = sizes[0] / (3 * heads);
  std::vector<int64_t> split{back ? 3 : heads, back ? heads : 3, width};
  split.insert(split.end(), sizes.begin() + 1, sizes.end());
  return x.view(split).transpose(0, 1).reshape(sizes);
}

std::optional<TheirWeight> their_weight(const LanguageArchitecture& architecture, const std::string& ours,
                                        at::IntArrayRef sizes) {
  for (const auto& rule : architecture.rules) {
    const auto parts = match_weight(rule.ours, ours);
    if (!parts) continue;
    TheirWeight theirs{.layout = rule.layout};
    if (rule.layout == WeightLayout::kStacked) {
      LEVIN_CHECK(!sizes.empty(), "[open_model] \"", ours, "\" is made of as many tensors as there are experts");
      for (int64_t i = 0; i < sizes[0]; ++i) theirs.names.push_back(filled(rule.theirs[0], *parts, i));
      return theirs;
    }
    for (const auto& pattern : rule.theirs) theirs.names.push_back(filled(pattern, *parts));
    if (!rule.also.empty()) theirs.also = filled(rule.also, *parts);
    return theirs;
  }
  return {};
}

WeightNames::WeightNames(const WeightFile& file, const LanguageArchitecture& architecture, bool quantized)
    : file_(file), quantized_(quantized) {
  for (const auto& entry : file.entries()) {
    if (quantized && belongs_to_packed(entry.name)) continue;
    auto name = plain_name(entry.name, architecture.prefix);
    const bool ignored = std::any_of(architecture.ignored.begin(), architecture.ignored.end(),
                                     [&](const auto& pattern) { return match_weight(pattern, name).has_value(); });
    if (ignored) continue;
    const auto [found, is_new] = entries_.emplace(std::move(name), &entry);
    LEVIN_CHECK(is_new, "[open_model] \"", file.path().string(), "\" has one tensor twice, as \"",
                shown(found->second->name), "\" and as \"", shown(entry.name), "\"");
  }
}

const WeightEntry* WeightNames::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : found->second;
}

bool WeightNames::is_packed(const WeightEntry& entry) const {
  return quantized_ && (entry.type == at::kByte || entry.type == at::kChar || entry.type == at::kFloat8_e4m3fn ||
                        file_.contains(entry.name + ".absmax"));
}

QkvRows qkv_rows(const DecoderOptions& options) {
  const auto width = options.head_width();
  return {options.num_heads * width, options.key_heads() * width, options.key_heads() * width};
}

std::vector<PlannedWeight> plan_weights(const torch::nn::Module& module, const WeightNames& names,
                                        const LanguageArchitecture& architecture, const QkvRows& rows, int64_t heads,
                                        const std::unordered_map<std::string, std::string>& instead,
                                        const std::vector<std::string>& unused, c10::ScalarType dtype,
                                        const NewWeights& fresh) {
  std::vector<PlannedWeight> plan;
  std::vector<std::string> missing, wrong;
  std::unordered_set<std::string> used(unused.begin(), unused.end());
  for (const auto& [name, tensor, aliases] : named_unique_parameters(module)) {
    if (begins_with_any(name, fresh.always)) continue;
    const auto asked = instead.find(name);
    const auto theirs = their_weight(architecture, asked == instead.end() ? name : asked->second, tensor.sizes());
    LEVIN_CHECK(theirs, "[open_model] ", architecture.model_type, " has no name for \"", name, "\"");
    PlannedWeight weight{name, tensor, theirs->layout};
    bool whole = true;
    for (size_t i = 0; i < theirs->names.size(); ++i) {
      auto key = theirs->names[i];
      const auto* entry = names.find(key);
      const auto* other = theirs->also.empty() ? nullptr : names.find(theirs->also);
      if (entry && other && name == "head.bias") {
        // transformers adds the bias of the decoder, whether it ties the two or not.
        used.insert(key);
        key = theirs->also, entry = other;
      } else if (entry && other) {
        LEVIN_CHECK(equal_in_file(names.file(), *entry, *other), "[open_model] \"", names.file().path().string(),
                    "\": \"", shown(entry->name), "\" and \"", shown(other->name),
                    "\" are one tensor by their names, but differ");
        used.insert(theirs->also);
      } else if (other) {
        key = theirs->also, entry = other;
      }
      if (!entry && begins_with_any(name, fresh.if_missing)) {
        whole = false;
        continue;
      }
      if (!entry) {
        missing.push_back(theirs->names[i]);
        whole = false;
        continue;
      }
      used.insert(key);
      weight.sources.push_back(entry->name);
      if (theirs->names.size() > 1 && theirs->layout != WeightLayout::kStacked) weight.rows.push_back(rows.at(i));
    }
    if (!whole) continue;
    for (size_t i = 0; i < weight.sources.size(); ++i) {
      const auto& entry = names.file().at(weight.sources[i]);
      const auto shape = shape_in_file(weight, i);
      if (names.is_packed(entry) && tensor.dim() == 2)
        weight.packed = true;  // its sizes are checked when it is read
      else if (weight.packed)
        wrong.push_back(fmt::format("{} is not quantized, its neighbour is", shown(entry.name)));
      else if (entry.shape != shape)
        wrong.push_back(fmt::format("{} is [{}] in the file, [{}] by config.json", shown(entry.name),
                                    fmt::join(entry.shape, ", "), fmt::join(shape, ", ")));
      else if (!is_float(entry.type) || (entry.type == at::kDouble && dtype != at::kDouble))
        wrong.push_back(
            fmt::format("{} is {}, which is not read as {}", shown(entry.name), entry.dtype, dtype_name(dtype)));
    }
    LEVIN_CHECK(weight.layout != WeightLayout::kByHead || tensor.size(0) % (3 * heads) == 0, "[open_model] \"", name,
                "\" cannot be cut into ", heads, " heads");
    plan.push_back(std::move(weight));
  }
  std::vector<std::string> unexpected;
  for (const auto& [key, entry] : names.all())
    if (!used.contains(key) && !begins_with_any(key, architecture.of_heads)) unexpected.push_back(entry->name);
  std::sort(unexpected.begin(), unexpected.end());
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back(fmt::format("{} missing: {}", missing.size(), listed(missing)));
  if (!unexpected.empty()) {
    std::vector<std::string> shown_names;
    for (const auto& name : unexpected) shown_names.push_back(shown(name));
    auto part = fmt::format("{} not expected: {}", unexpected.size(), listed(shown_names));
    const auto nearest = nearest_word(plain_name(unexpected[0], architecture.prefix), missing);
    if (!nearest.empty()) part += fmt::format(" (is \"{}\" meant?)", nearest);
    parts.push_back(part);
  }
  if (!wrong.empty()) parts.push_back(fmt::format("{} of another shape or type: {}", wrong.size(), listed(wrong)));
  LEVIN_CHECK(parts.empty(), "[open_model] \"", names.file().path().string(), "\" does not fit the ",
              architecture.model_type, " of its config.json: ", join(parts, "; "));
  return plan;
}

std::vector<Tensor> weights_for_file(const Tensor& parameter, const TheirWeight& theirs, const QkvRows& rows,
                                     int64_t heads) {
  const auto values = parameter.detach();
  if (theirs.layout == WeightLayout::kStacked) return values.unbind(0);
  if (theirs.names.size() > 1) return values.split_with_sizes({rows[0], rows[1], rows[2]}, 0);
  if (theirs.layout == WeightLayout::kByHead) return {heads_apart(values, heads, true)};
  return {theirs.layout == WeightLayout::kTransposed && values.dim() == 2 ? values.t() : values};
}

bool equal_in_file(const WeightFile& file, const WeightEntry& a, const WeightEntry& b) {
  if (a.shape != b.shape || a.type != b.type || a.shape.empty()) return false;
  constexpr uint64_t kChunkOfCompare = 64 << 20;
  const auto row_bytes = std::max<uint64_t>(1, a.bytes / std::max<uint64_t>(1, static_cast<uint64_t>(a.shape[0])));
  const auto rows = static_cast<int64_t>(std::max<uint64_t>(1, kChunkOfCompare / row_bytes));
  for (int64_t begin = 0; begin < a.shape[0]; begin += rows) {
    auto shape = a.shape;
    shape[0] = std::min(rows, a.shape[0] - begin);
    auto one = at::empty(shape, at::TensorOptions().dtype(a.type)), other = at::empty_like(one);
    file.read_rows(a.name, begin, one);
    file.read_rows(b.name, begin, other);
    if (std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) != 0) return false;
  }
  return true;
}

}  // namespace levin::models::detail
