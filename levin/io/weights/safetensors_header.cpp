#include "levin/io/weights/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace {

constexpr size_t kMostTensors = 1'000'000;
constexpr size_t kMostDimensions = 64;

/// A text of the header for a line that may have two of them.
std::string brief(std::string_view text) {
  return shown(text.substr(0, 80)) + (text.size() > 80 ? "..." : "");
}

/// Takes the header's JSON event by event: nothing is built that the format does not have, so depth and memory are
/// bounded by the checks here. The first thing wrong is kept in `problem`.
class HeaderSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::string problem;

  bool null() override { return state_ == State::kMetadataValue ? leave_metadata() : wrong("null"); }
  bool boolean(bool) override { return wrong("a bool"); }
  bool number_float(double, const std::string& text) override { return wrong("the number " + brief(text)); }
  bool binary(binary_t&) override { return wrong("binary data"); }
  bool number_integer(int64_t value) override { return wrong("the number " + std::to_string(value)); }

  bool number_unsigned(uint64_t value) override {
    if (state_ == State::kShape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        return refuse(concat("the shape of \"", brief(entry_.name), "\" has ", value));
      if (entry_.shape.size() == kMostDimensions)
        return refuse(concat("\"", brief(entry_.name), "\" has more than ", kMostDimensions, " dimensions"));
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsets && offsets_.size() < 2) {
      offsets_.push_back(value);
      return true;
    }
    return wrong(concat("the number ", value));
  }

  bool string(std::string& value) override {
    if (state_ == State::kDtype) {
      entry_.dtype = value;
      state_ = State::kField;
      return true;
    }
    if (state_ == State::kMetadata) {
      header.metadata[metadata_key_] = value;
      return true;
    }
    return wrong("the string \"" + brief(value) + "\"");
  }

  bool start_object(size_t) override {
    if (state_ == State::kStart)
      state_ = State::kName;
    else if (state_ == State::kMetadataValue)
      state_ = State::kMetadata;
    else if (state_ == State::kEntry)
      state_ = State::kField;
    else
      return wrong("an object");
    return true;
  }

  bool key(std::string& name) override {
    if (state_ == State::kName) {
      if (!names_.insert(name).second) return refuse("the name \"" + brief(name) + "\" stands twice");
      if (name == "__metadata__") {
        state_ = State::kMetadataValue;
        return true;
      }
      if (header.entries.size() == kMostTensors) return refuse(concat("more than ", kMostTensors, " tensors"));
      entry_ = {};
      entry_.name = name;
      offsets_.clear();
      fields_ = 0;
      state_ = State::kEntry;
      return true;
    }
    if (state_ == State::kMetadata) {
      if (header.metadata.contains(name)) return refuse("the metadata name \"" + brief(name) + "\" stands twice");
      metadata_key_ = name;
      return true;
    }
    const int field = name == "dtype" ? 1 : name == "shape" ? 2 : name == "data_offsets" ? 4 : 0;
    if (field == 0)
      return refuse("\"" + brief(entry_.name) + "\" has a field \"" + brief(name) +
                    "\" (known: dtype, shape, data_offsets)");
    if (fields_ & field) return refuse("\"" + brief(entry_.name) + "\" has \"" + name + "\" twice");
    fields_ |= field;
    state_ = field == 1 ? State::kDtype : field == 2 ? State::kShapeStart : State::kOffsetsStart;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kMetadata) return leave_metadata();
    if (state_ == State::kName) {
      state_ = State::kEnd;
      return true;
    }
    // Here the object is a tensor's.
    if (fields_ != 7 || offsets_.size() != 2)
      return refuse("\"" + brief(entry_.name) + "\" lacks one of dtype, shape and two data_offsets");
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    header.entries.push_back(std::move(entry_));
    state_ = State::kName;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::kShapeStart)
      state_ = State::kShape;
    else if (state_ == State::kOffsetsStart)
      state_ = State::kOffsets;
    else
      return wrong("an array");
    return true;
  }

  bool end_array() override {
    state_ = State::kField;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse(concat("it is not JSON in UTF-8 (byte ", position, ")"));
  }

 private:
  enum class State {
    kStart,
    kName,
    kMetadataValue,
    kMetadata,
    kEntry,
    kField,
    kDtype,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kEnd
  };

  bool refuse(std::string what) {
    problem = std::move(what);
    return false;
  }
  bool wrong(const std::string& found) {
    if (state_ == State::kMetadataValue || state_ == State::kMetadata)
      return refuse("__metadata__ maps strings to strings, it has " + found);
    if (state_ == State::kStart || state_ == State::kName) return refuse("it must be a JSON object, it has " + found);
    return refuse(found + " stands in \"" + brief(entry_.name) + "\" where it must not");
  }
  bool leave_metadata() {
    state_ = State::kName;
    return true;
  }

  State state_ = State::kStart;
  SafetensorsEntry entry_;
  std::vector<uint64_t> offsets_;
  int fields_ = 0;
  std::string metadata_key_;
  std::unordered_set<std::string> names_;
};

/// Bytes of a tensor; nothing when they cannot be counted.
std::optional<uint64_t> byte_count(const SafetensorsEntry& entry, uint64_t bits) {
  // Strides must be countable too, so a zero does not excuse what stands beside it.
  uint64_t elements = 1;
  uint64_t strides = 1;
  for (const int64_t size : entry.shape) {
    const auto unsigned_size = static_cast<uint64_t>(size);
    if (__builtin_mul_overflow(elements, unsigned_size, &elements)) return std::nullopt;
    if (__builtin_mul_overflow(strides, std::max<uint64_t>(unsigned_size, 1), &strides)) return std::nullopt;
  }
  uint64_t total = 0;
  if (strides > (uint64_t{1} << 62) || __builtin_mul_overflow(elements, bits, &total) || total % 8 != 0)
    return std::nullopt;
  return total / 8;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes, const std::string& where,
                                           std::span<const SafetensorsBits> types) {
  // nlohmann would skip a byte order mark; the format has none.
  const auto first = json.find_first_not_of(" \t\r\n");
  LEVIN_CHECK(first != std::string_view::npos && json[first] == '{', "[safetensors] \"", where,
              "\": the header must be a JSON object");
  HeaderSax sax;
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &sax);
  LEVIN_CHECK(parsed, "[safetensors] \"", where, "\": bad header: ", sax.problem);

  auto header = std::move(sax.header);
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t reached = 0;
  const SafetensorsEntry* before = nullptr;
  for (const auto& entry : header.entries) {
    const auto name = brief(entry.name);
    const auto type = std::find_if(types.begin(), types.end(), [&](const auto& t) { return t.name == entry.dtype; });
    if (type == types.end()) {
      std::vector<std::string> known;
      for (const auto& t : types) known.emplace_back(t.name);
      fail_unknown("safetensors", concat("\"", where, "\": dtype of \"", name, "\""), brief(entry.dtype), known);
    }
    const auto bytes = byte_count(entry, type->bits);
    LEVIN_CHECK(bytes, "[safetensors] \"", where, "\": the size of \"", name, "\" cannot be counted");
    LEVIN_CHECK(entry.begin <= entry.end && entry.end - entry.begin == *bytes, "[safetensors] \"", where, "\": \"",
                name, "\" needs ", *bytes, " bytes, its offsets are ", entry.begin, " to ", entry.end);
    LEVIN_CHECK(entry.begin >= reached, "[safetensors] \"", where, "\": \"", name, "\" overlaps \"",
                before ? brief(before->name) : "", "\"");
    LEVIN_CHECK(entry.begin == reached, "[safetensors] \"", where, "\": a hole of ", entry.begin - reached,
                " bytes before \"", name, "\"");
    reached = entry.end;
    before = &entry;
  }
  LEVIN_CHECK(data_bytes >= reached, "[safetensors] \"", where, "\" is truncated: the header speaks of ", reached,
              " bytes of data, the file has ", data_bytes);
  LEVIN_CHECK(data_bytes == reached, "[safetensors] \"", where, "\" has ", data_bytes - reached,
              " bytes after the last tensor");
  return header;
}

}  // namespace levin::detail
