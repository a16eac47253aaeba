#include "levin/models/naming.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/models/language/architecture.h"

namespace levin::models {
namespace {

constexpr size_t kSchemeCount = 4;
const std::array<std::string, kSchemeCount> kSchemes{"torchvision", "timm", "huggingface", "levin"};
constexpr std::array<std::string_view, 5> kSuffixes{"weight", "bias", "running_mean", "running_var",
                                                    "num_batches_tracked"};

/// One kind of tensor, by scheme. `#` is a number, `*` the kind of parameter. Several patterns are parts that stand one
/// after the other in the tensor of the other schemes. `read_too`: other names under which it is found. `transposed`:
/// huggingface has the matrix the other way round.
struct NameRule {
  std::array<std::vector<std::string>, kSchemeCount> patterns;
  std::vector<std::vector<std::string>> read_too = {};
  bool transposed = false;
};

std::vector<NameRule> vit_rules() {
  const std::string tv = "encoder.layers.encoder_layer_#.";
  const std::string timm = "blocks.#.";
  const std::string hf = "vit.encoder.layer.#.";
  const std::string memory = "vit.layers.#.";  // transformers 5 calls them so in memory, and not in files
  const auto qkv = [](const std::string& prefix, const std::array<const char*, 3>& words) {
    std::vector<std::string> parts;
    for (const char* word : words) parts.push_back(prefix + word + ".*");
    return parts;
  };
  return {
      {{{{"class_token"}, {"cls_token"}, {"vit.embeddings.cls_token"}}}},
      {{{{"conv_proj.*"}, {"patch_embed.proj.*"}, {"vit.embeddings.patch_embeddings.projection.*"}}}},
      {{{{"encoder.pos_embedding"}, {"pos_embed"}, {"vit.embeddings.position_embeddings"}}}},
      {{{{tv + "ln_1.*"}, {timm + "norm1.*"}, {hf + "layernorm_before.*"}}}, {{memory + "layernorm_before.*"}}},
      {{{{tv + "self_attention.in_proj_*"},
         {timm + "attn.qkv.*"},
         qkv(hf + "attention.attention.", {"query", "key", "value"})}},
       {qkv(memory + "attention.", {"q_proj", "k_proj", "v_proj"})}},
      {{{{tv + "self_attention.out_proj.*"}, {timm + "attn.proj.*"}, {hf + "attention.output.dense.*"}}},
       {{memory + "attention.o_proj.*"}}},
      {{{{tv + "ln_2.*"}, {timm + "norm2.*"}, {hf + "layernorm_after.*"}}}, {{memory + "layernorm_after.*"}}},
      {{{{tv + "mlp.0.*"}, {timm + "mlp.fc1.*"}, {hf + "intermediate.dense.*"}}},
       {{memory + "mlp.fc1.*"}, {tv + "mlp.linear_1.*"}}},
      {{{{tv + "mlp.3.*"}, {timm + "mlp.fc2.*"}, {hf + "output.dense.*"}}},
       {{memory + "mlp.fc2.*"}, {tv + "mlp.linear_2.*"}}},
      {{{{"encoder.ln.*"}, {"norm.*"}, {"vit.layernorm.*"}}}},
      {{{{"heads.head.*"}, {"head.*"}, {"classifier.*"}}}},
  };
}

std::vector<NameRule> resnet_rules() {
  std::vector<NameRule> rules;
  const auto add = [&](const std::string& tv, const std::string& hf) { rules.push_back({{{{tv}, {tv}, {hf}}}}); };
  add("conv1.weight", "resnet.embedder.embedder.convolution.weight");
  add("bn1.*", "resnet.embedder.embedder.normalization.*");
  for (int stage = 0; stage < 4; ++stage) {
    const auto tv = fmt::format("layer{}.#.", stage + 1);
    const auto hf = fmt::format("resnet.encoder.stages.{}.layers.#.", stage);
    for (int i = 0; i < 3; ++i) {
      add(fmt::format("{}conv{}.weight", tv, i + 1), fmt::format("{}layer.{}.convolution.weight", hf, i));
      add(fmt::format("{}bn{}.*", tv, i + 1), fmt::format("{}layer.{}.normalization.*", hf, i));
    }
    add(tv + "downsample.0.weight", hf + "shortcut.convolution.weight");
    add(tv + "downsample.1.*", hf + "shortcut.normalization.*");
  }
  add("fc.*", "classifier.1.*");
  return rules;
}

/// The names of a decoder in files of huggingface, as its model folders have them.
std::vector<NameRule> decoder_rules(const LanguageArchitecture& architecture) {
  std::vector<NameRule> rules;
  for (const auto& rule : architecture.rules) {
    std::vector<std::string> huggingface;
    for (const auto& name : rule.theirs) huggingface.push_back(full_name(architecture, rule.ours, name));
    rules.push_back({{{{}, {}, std::move(huggingface), {rule.ours}}}, {}, rule.layout == WeightLayout::kTransposed});
  }
  return rules;
}

struct Architecture {
  const char* name;
  /// What huggingface puts before the names of a model without its head.
  const char* prefix;
  std::vector<NameRule> rules;
  /// In some files of huggingface, and no weights.
  std::vector<std::string> no_weights = {};
};

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> all{
      {"vit", "vit", vit_rules()},
      {"resnet", "resnet", resnet_rules()},
      {"gpt2",
       "transformer",
       decoder_rules(gpt2_architecture()),
       {"transformer.h.#.attn.bias", "transformer.h.#.attn.masked_bias"}},
      {"llama", "model", decoder_rules(llama_architecture()), {"model.layers.#.self_attn.rotary_emb.inv_freq"}}};
  return all;
}

/// What `#` and `*` stood for.
struct Captured {
  std::string number;
  std::string suffix;
};

std::optional<Captured> match_name(std::string_view pattern, std::string_view name) {
  Captured captured;
  size_t at = 0;
  for (const char c : pattern) {
    if (c == '#') {
      const auto begin = at;
      while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) ++at;
      captured.number = name.substr(begin, at - begin);
      if (captured.number.empty() || captured.number.size() > 6) return {};
    } else if (c == '*') {
      captured.suffix = name.substr(at);
      if (std::find(kSuffixes.begin(), kSuffixes.end(), captured.suffix) == kSuffixes.end()) return {};
      at = name.size();
    } else if (at >= name.size() || name[at++] != c) {
      return {};
    }
  }
  if (at != name.size()) return {};
  return captured;
}

std::string fill_name(std::string_view pattern, const Captured& captured) {
  std::string name;
  for (const char c : pattern) {
    if (c == '#')
      name += captured.number;
    else if (c == '*')
      name += captured.suffix;
    else
      name += c;
  }
  return name;
}

/// Where a name stands in an architecture: its rule (none: it is no weight), which of the parts it is and of how many.
struct Found {
  const NameRule* rule;
  Captured captured;
  size_t part = 0;
  size_t parts = 1;
};

size_t scheme_index(std::string_view scheme) {
  const auto found = std::find(kSchemes.begin(), kSchemes.end(), scheme);
  if (found == kSchemes.end()) fail_unknown("naming", "naming", scheme, kSchemes);
  return static_cast<size_t>(found - kSchemes.begin());
}

std::optional<Found> find_rule(const Architecture& architecture, size_t scheme, std::string_view name) {
  // A model without its head is saved without the first part of its names.
  const std::array<std::string, 2> spellings{std::string(name), fmt::format("{}.{}", architecture.prefix, name)};
  const bool hugging = kSchemes[scheme] == "huggingface";
  for (const auto& spelling : std::span(spellings).first(hugging ? 2 : 1)) {
    for (const auto& pattern : architecture.no_weights)
      if (hugging && match_name(pattern, spelling)) return Found{nullptr, {}};
    for (const auto& rule : architecture.rules) {
      const auto try_parts = [&](const std::vector<std::string>& patterns) -> std::optional<Found> {
        for (size_t i = 0; i < patterns.size(); ++i)
          if (const auto captured = match_name(patterns[i], spelling))
            return Found{&rule, *captured, i, patterns.size()};
        return {};
      };
      if (auto found = try_parts(rule.patterns[scheme])) return found;
      for (const auto& patterns : rule.read_too) {
        const bool of_vit = patterns[0].starts_with("vit.");
        if (of_vit == hugging)
          if (auto found = try_parts(patterns)) return found;
      }
    }
  }
  return {};
}

Naming naming_of(const Architecture& architecture, size_t scheme, std::span<const std::string> names) {
  Naming naming{architecture.name, kSchemes[scheme], {}};
  for (const auto& name : names)
    if (!find_rule(architecture, scheme, name)) naming.unknown.push_back(name);
  return naming;
}

Naming best_naming(std::span<const std::string> names, std::span<const size_t> schemes) {
  Naming best{"", "", {names.begin(), names.end()}};
  for (const auto& architecture : architectures())
    for (const auto scheme : schemes) {
      auto naming = naming_of(architecture, scheme, names);
      if (naming.unknown.size() < best.unknown.size()) best = std::move(naming);
    }
  if (best.unknown.size() * 2 > names.size()) return {"", "", {names.begin(), names.end()}};
  return best;
}

}  // namespace

std::span<const std::string> naming_schemes() {
  return kSchemes;
}

Naming detect_naming(std::span<const std::string> names) {
  const std::array<size_t, kSchemeCount> all{0, 1, 2, 3};
  return best_naming(names, all);
}

Naming detect_naming(std::span<const std::string> names, std::string_view scheme) {
  const auto index = scheme_index(scheme);
  return best_naming(names, {&index, 1});
}

std::vector<RenamedWeight> plan_naming(std::span<const std::string> names, std::string_view from, std::string_view to) {
  const auto target = scheme_index(to);
  const auto naming = detect_naming(names, from);
  LEVIN_CHECK(!naming.architecture.empty(), "[naming] the names are not of a vit, resnet, gpt2 or llama of ", from,
              ": ", names.empty() ? "there are none" : fmt::format("\"{}\", ...", names[0]));
  LEVIN_CHECK(naming.unknown.empty(), "[naming] ", naming.unknown.size(), " of ", names.size(), " names are not of a ",
              naming.architecture, " of ", from, ": ",
              join(std::span(naming.unknown).first(std::min<size_t>(naming.unknown.size(), 3))));
  const auto source = scheme_index(from);
  const auto& all = architectures();
  const auto architecture =
      std::find_if(all.begin(), all.end(), [&](const auto& a) { return a.name == naming.architecture; });

  std::vector<RenamedWeight> plan;
  std::unordered_map<std::string, std::pair<size_t, std::vector<bool>>> joined;  // by new name: its place, parts seen
  std::unordered_set<std::string> taken;
  for (const auto& name : names) {
    const auto found = *find_rule(*architecture, source, name);
    if (!found.rule) continue;
    const auto& patterns = found.rule->patterns[target];
    LEVIN_CHECK(!patterns.empty(), "[naming] a ", naming.architecture, " has no names of ", to);
    const bool transposed = found.rule->transposed && found.captured.suffix == "weight" && source != target;
    const bool whole = found.parts == patterns.size();
    const auto first = fill_name(patterns[whole ? found.part : 0], found.captured);
    if (found.parts > 1 && !whole) {
      auto [place, fresh] = joined.try_emplace(first, plan.size(), std::vector<bool>(found.parts));
      if (fresh) plan.push_back({first, std::vector<std::string>(found.parts)});
      LEVIN_CHECK(!place->second.second[found.part], "[naming] two tensors would be \"", first, "\"");
      place->second.second[found.part] = true;
      plan[place->second.first].sources[found.part] = name;
      continue;
    }
    const auto parts = whole ? 1 : patterns.size();
    for (size_t i = 0; i < parts; ++i) {
      const auto renamed = whole ? first : fill_name(patterns[i], found.captured);
      LEVIN_CHECK(taken.insert(renamed).second, "[naming] two tensors would be \"", renamed, "\"");
      plan.push_back({renamed, {name}, static_cast<int64_t>(i), static_cast<int64_t>(parts), transposed});
    }
  }
  for (const auto& weight : plan)
    for (const auto& part : weight.sources)
      LEVIN_CHECK(!part.empty(), "[naming] \"", weight.name, "\" is made of queries, keys and values; one is missing");
  return plan;
}

std::vector<int64_t> renamed_shape(const RenamedWeight& weight, std::span<const std::vector<int64_t>> sources) {
  auto shape = sources[0];
  for (size_t i = 1; i < sources.size(); ++i) {
    const auto& other = sources[i];
    LEVIN_CHECK(
        !shape.empty() && shape.size() == other.size() && std::equal(shape.begin() + 1, shape.end(), other.begin() + 1),
        "[naming] \"", weight.name, "\": its parts have shapes that cannot be joined");
    shape[0] += other[0];
  }
  if (weight.parts > 1) {
    LEVIN_CHECK(!shape.empty() && shape[0] % weight.parts == 0, "[naming] \"", weight.name,
                "\": ", shape.empty() ? 0 : shape[0], " rows cannot be cut into ", weight.parts, " parts");
    shape[0] /= weight.parts;
  }
  if (weight.transposed) {
    LEVIN_CHECK(shape.size() == 2, "[naming] \"", weight.name, "\" must be a matrix, not of ", shape.size(),
                " dimensions");
    std::swap(shape[0], shape[1]);
  }
  return shape;
}

}  // namespace levin::models
