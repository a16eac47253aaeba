#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::models {

namespace detail {
struct ConfigJson;
}

/// A config.json, or an object in it, read strictly: a value of another type or outside of its bounds is an Error of
/// one line with the file and the key. `null` counts as absent.
///
///     const auto config = ModelConfig::read("gpt2/config.json");
///     const auto layers = config.count({"n_layer", "num_hidden_layers"}, 10'000);
class ModelConfig {
 public:
  static ModelConfig read(const std::filesystem::path& file);
  /// `where` stands in the errors.
  ModelConfig(std::string_view json, std::string where);

  bool has(std::string_view key) const;
  /// Whether the key stands there with the value null.
  bool is_null(std::string_view key) const;
  bool is_object(std::string_view key) const;
  bool is_list(std::string_view key) const;

  /// A number from 1 to `most` under the first of the keys that is present; those that are present must agree. An Error
  /// when none is.
  int64_t count(std::initializer_list<const char*> keys, int64_t most) const;
  /// The same with a default.
  int64_t count(std::initializer_list<const char*> keys, int64_t most, int64_t usual) const;
  int64_t integer(std::string_view key, int64_t least, int64_t most, int64_t usual) const;
  /// A finite number.
  double number(std::initializer_list<const char*> keys, double usual,
                double least = std::numeric_limits<double>::lowest(),
                double most = std::numeric_limits<double>::max()) const;
  /// From 0 to 1.
  double fraction(std::string_view key, double usual) const;
  bool flag(std::string_view key, bool usual) const;
  std::string text(std::string_view key, std::string_view usual) const;
  std::vector<std::string> texts(std::string_view key) const;
  /// Each from `least` to `most`.
  std::vector<int64_t> integers(std::string_view key, int64_t least, int64_t most) const;
  /// An empty object when absent.
  ModelConfig object(std::string_view key) const;
  /// How many entries an object has: `id2label`.
  int64_t size(std::string_view key) const;

  /// Refuses a key that is present with another value: what Levin does not have, and must not ignore.
  void refuse_unless(std::string_view key, bool value, std::string_view why) const;
  [[noreturn]] void fail(std::string_view key, const std::string& why) const;
  const std::string& where() const { return where_; }

  /// The file with these keys set to texts, numbers or flags, as JSON ("\"float32\"", "3", "true"); an empty one takes
  /// the key away.
  std::string with(const std::vector<std::pair<std::string, std::string>>& changes) const;

 private:
  ModelConfig() = default;

  std::shared_ptr<const detail::ConfigJson> json_;
  std::string where_, path_;
};

}  // namespace levin::models
