#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levin/io/weights/pickle.h"

/// What Values share; for the reader and its table of names alone.
namespace levin::pickle::detail {

struct Sequence {
  Kind kind;
  std::vector<Value> items;
};

struct Dict {
  std::vector<Pair> pairs;
  std::unordered_map<std::string, size_t> index;
  /// The class of an object; null for a dict.
  std::shared_ptr<const Global> type;

  /// False when the key is there already.
  [[nodiscard]] bool set(Value key, Value value);
};

/// Keys of several kinds in one index.
inline std::string marked_key(char mark, std::string_view key) {
  std::string marked(1, mark);
  marked += key;
  return marked;
}

Dict& dict_of(const Value& value);

}  // namespace levin::pickle::detail
