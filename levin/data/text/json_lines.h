#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin::detail {

/// An object of a file of JSON lines. What is missing or of another type is an Error with the place.
class JsonObject {
 public:
  struct Value;
  JsonObject(std::shared_ptr<const Value> value, std::string where)
      : value_(std::move(value)), where_(std::move(where)) {}

  bool has(const std::string& key) const;
  std::vector<std::string> keys() const;
  std::string text(const std::string& key) const;
  /// A text or a whole number, as text.
  std::string word(const std::string& key) const;
  /// A list of objects.
  std::vector<JsonObject> objects(const std::string& key) const;
  /// "data.jsonl", line 3
  const std::string& where() const { return where_; }

 private:
  std::shared_ptr<const Value> value_;
  std::string where_;
};

/// Calls `take` with every object of a file; blank lines are passed over.
void each_json_line(const std::filesystem::path& path, const std::function<void(const JsonObject& object)>& take);

/// The whole of a file, unpacked where it is compressed.
std::string plain_text(const std::filesystem::path& path);
/// Whether a name ends so, before ".gz" too, in letters of either case.
bool has_ending(const std::filesystem::path& path, std::initializer_list<std::string_view> endings);

}  // namespace levin::detail
