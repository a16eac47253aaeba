#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "levin/generate/options.h"

namespace levin {

/// A field of transformers' GenerationConfig, and what becomes of it here.
struct GenerationField {
  /// kObeyed: with_generation_config reads it. kNoMatter: it does not change which tokens come. kRefused: another value
  /// than the neutral one is an Error.
  enum class Kind { kObeyed, kNoMatter, kRefused };

  std::string_view name;
  Kind kind;
  /// kObeyed: the option; else one line on why.
  std::string_view what;
};

/// All of them, in the order of docs/generation.md, whose table is this list.
std::span<const GenerationField> generation_fields();
/// "obeyed: `top_k`", "no matter: ...", "refused: ...".
std::string describe(const GenerationField& field);

/// The options with what generation_config.json of a model folder says, in the place of those that have their default
/// values. Without `do_sample` the temperature is 0. A field that is refused, is not known, or has a value of another
/// type, is an Error of one line that names it.
GenerateOptions with_generation_config(const std::filesystem::path& folder, GenerateOptions options = {});

}  // namespace levin
