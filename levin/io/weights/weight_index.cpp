#include "levin/io/weights/weight_index.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace {

/// An index of a hundred thousand tensors has some ten megabytes.
constexpr uint64_t kLongestWeightIndex = uint64_t{64} << 20;
constexpr size_t kMostIndexedTensors = 1'000'000;

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

/// Takes the JSON event by event and keeps nothing but the weight_map: memory is bounded by the text, however it is
/// nested. The first thing wrong is kept in `problem`.
class IndexSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<std::pair<std::string, std::string>> places;
  std::string problem;
  bool has_map = false;

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a bool"); }
  bool number_integer(int64_t) override { return value("a number"); }
  bool number_unsigned(uint64_t) override { return value("a number"); }
  bool number_float(double, const std::string&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary data"); }

  bool string(std::string& text) override {
    if (!in_map_) return value("a text");
    if (!is_plain_file_name(text)) return outside("\"" + shown(text.substr(0, 80)) + "\"");
    if (places.size() == kMostIndexedTensors) return refuse(concat("more than ", kMostIndexedTensors, " tensors"));
    places.emplace_back(name_, text);
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 1 && is_map_) {
      if (has_map) return refuse("weight_map stands twice");
      has_map = in_map_ = true;
      depth_ = 2;
      return true;
    }
    if (!value("an object")) return false;
    ++depth_;
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) is_map_ = name == "weight_map";
    if (in_map_) name_ = name;
    return true;
  }
  bool end_object() override {
    in_map_ = false;
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0) return refuse("it is a list");
    if (!value("a list")) return false;
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse(concat("it is not JSON in UTF-8 (byte ", position, ")"));
  }

 private:
  bool refuse(std::string what) {
    problem = std::move(what);
    return false;
  }
  bool outside(const std::string& where) {
    return refuse(concat("\"", shown(name_), "\" is said to be in ", where,
                         "; only names of files beside the index are allowed"));
  }
  /// Anything but what is looked for.
  bool value(const char* what) { return in_map_ ? outside(what) : true; }

  size_t depth_ = 0;
  /// The last key of the outermost object was weight_map; this is inside of it.
  bool is_map_ = false, in_map_ = false;
  std::string name_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> parse_weight_index(std::string_view operation, std::string_view json,
                                                                    const std::string& where) {
  IndexSax sax;
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &sax);
  LEVIN_CHECK(parsed, "[", operation, "] \"", where, "\" is not an index: ", sax.problem);
  LEVIN_CHECK(!sax.places.empty(), "[", operation, "] \"", where,
              "\" is not an index: a JSON object with a weight_map is needed");
  auto places = std::move(sax.places);
  std::sort(places.begin(), places.end());
  const auto twice =
      std::adjacent_find(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  LEVIN_CHECK(twice == places.end(), "[", operation, "] \"", where, "\": the name \"", shown(twice->first),
              "\" stands twice");
  return places;
}

WeightIndex read_weight_index(std::string_view operation, const std::filesystem::path& path) {
  return {path, parse_weight_index(operation, read_file(path, kLongestWeightIndex), path.string())};
}

void write_weight_index(const std::filesystem::path& path, const std::map<std::string, std::string>& places,
                        uint64_t total_bytes) {
  const nlohmann::ordered_json index{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", places}};
  write_file(path, index.dump(2) + "\n");
}

}  // namespace levin::detail
