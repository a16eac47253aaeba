#include "levin/io/records/tfrecord/example.h"

#include <algorithm>
#include <cstring>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

/// One message of protobuf's wire format, field by field.
class WireReader {
 public:
  WireReader(std::string_view bytes, const char* whole) : at_(bytes.data()), end_(at_ + bytes.size()), whole_(whole) {}

  bool more() const { return at_ != end_; }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      check(at_ != end_, "ends within a number");
      const auto byte = static_cast<uint8_t>(*at_++);
      check(shift < 63 || byte <= 1, "has a number of more than 64 bits");
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    check(false, "has a number of more than 64 bits");
    return 0;
  }

  std::string_view bytes() { return take(varint()); }

  float float32() {
    float value;
    std::memcpy(&value, take(4).data(), 4);
    return value;
  }

  /// Number of the field and how it is written.
  std::pair<uint64_t, int> tag() {
    const uint64_t tag = varint();
    check(tag >> 3 != 0 && tag >> 32 == 0, "has a field without a number");
    return {tag >> 3, static_cast<int>(tag & 7)};
  }

  void skip(int wire) {
    switch (wire) {
      case 0:
        varint();
        return;
      case 1:
        take(8);
        return;
      case 2:
        bytes();
        return;
      case 5:
        take(4);
        return;
      default:
        check(false, "has a field of an unknown wire type");
    }
  }

  std::string_view take(uint64_t count) {
    check(count <= static_cast<uint64_t>(end_ - at_), "ends within a field");
    const std::string_view taken(at_, static_cast<size_t>(count));
    at_ += count;
    return taken;
  }

  void check(bool good, const char* what) const { LEVIN_CHECK(good, what, " at byte ", at_ - whole_); }
  const char* whole() const { return whole_; }
  WireReader inside() { return {bytes(), whole_}; }

 private:
  const char* at_;
  const char* end_;
  const char* whole_;
};

/// The list of that kind within the values; another kind is replaced, as in a protobuf union.
template <class T>
std::vector<T>& list_of(TfValues& values) {
  if (!std::holds_alternative<std::vector<T>>(values)) values = std::vector<T>();
  return std::get<std::vector<T>>(values);
}

void parse_floats(WireReader list, std::vector<float>& values) {
  while (list.more()) {
    const auto [field, wire] = list.tag();
    if (field == 1 && wire == 2) {
      const auto packed = list.bytes();
      list.check(packed.size() % 4 == 0, "has a list of floats of an odd size");
      const size_t before = values.size();
      values.resize(before + packed.size() / 4);
      if (!packed.empty()) std::memcpy(values.data() + before, packed.data(), packed.size());
    } else if (field == 1 && wire == 5) {
      values.push_back(list.float32());
    } else {
      list.skip(wire);
    }
  }
}

void parse_ints(WireReader list, std::vector<int64_t>& values) {
  while (list.more()) {
    const auto [field, wire] = list.tag();
    if (field == 1 && wire == 2) {
      WireReader packed = list.inside();
      while (packed.more()) values.push_back(static_cast<int64_t>(packed.varint()));
    } else if (field == 1 && wire == 0) {
      values.push_back(static_cast<int64_t>(list.varint()));
    } else {
      list.skip(wire);
    }
  }
}

void parse_bytes(WireReader list, std::vector<std::string_view>& values) {
  while (list.more()) {
    const auto [field, wire] = list.tag();
    if (field == 1 && wire == 2)
      values.push_back(list.bytes());
    else
      list.skip(wire);
  }
}

void parse_feature(WireReader feature, TfValues& values) {
  while (feature.more()) {
    const auto [field, wire] = feature.tag();
    if (wire != 2 || field > 3)
      feature.skip(wire);
    else if (field == 1)
      parse_bytes(feature.inside(), list_of<std::string_view>(values));
    else if (field == 2)
      parse_floats(feature.inside(), list_of<float>(values));
    else
      parse_ints(feature.inside(), list_of<int64_t>(values));
  }
}

void parse_entry(WireReader entry, std::vector<TfFeature>& features) {
  TfFeature feature;
  while (entry.more()) {
    const auto [field, wire] = entry.tag();
    if (field == 1 && wire == 2)
      feature.name = entry.bytes();
    else if (field == 2 && wire == 2)
      parse_feature(entry.inside(), feature.values);
    else
      entry.skip(wire);
  }
  const auto same =
      std::find_if(features.begin(), features.end(), [&](const TfFeature& f) { return f.name == feature.name; });
  if (same != features.end()) {
    same->values = std::move(feature.values);
    return;
  }
  // A search through the list for each is quick only as long as it is short.
  constexpr size_t kMostFeatures = 4096;
  entry.check(features.size() < kMostFeatures, "has more than 4096 features");
  features.push_back(std::move(feature));
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  out += static_cast<char>(field << 3 | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

}  // namespace

std::vector<TfFeature> parse_tf_example(std::string_view bytes) {
  std::vector<TfFeature> features;
  WireReader example(bytes, bytes.data());
  while (example.more()) {
    const auto [field, wire] = example.tag();
    if (field != 1 || wire != 2) {
      example.skip(wire);
      continue;
    }
    WireReader map = example.inside();
    while (map.more()) {
      const auto [entry, entry_wire] = map.tag();
      if (entry == 1 && entry_wire == 2)
        parse_entry(map.inside(), features);
      else
        map.skip(entry_wire);
    }
  }
  return features;
}

std::string write_tf_example(const std::vector<TfFeature>& features) {
  std::string map;
  for (const auto& [name, values] : features) {
    std::string list;
    int kind = 0;
    if (const auto* bytes = std::get_if<std::vector<std::string_view>>(&values)) {
      kind = 1;
      for (const auto one : *bytes) put_bytes(list, 1, one);
    } else if (const auto* floats = std::get_if<std::vector<float>>(&values)) {
      kind = 2;
      if (!floats->empty()) put_bytes(list, 1, {reinterpret_cast<const char*>(floats->data()), floats->size() * 4});
    } else {
      kind = 3;
      std::string packed;
      for (const auto one : std::get<std::vector<int64_t>>(values)) put_varint(packed, static_cast<uint64_t>(one));
      if (!packed.empty()) put_bytes(list, 1, packed);
    }
    std::string feature, entry;
    put_bytes(feature, kind, list);
    put_bytes(entry, 1, name);
    put_bytes(entry, 2, feature);
    put_bytes(map, 1, entry);
  }
  std::string example;
  put_bytes(example, 1, map);
  return example;
}

}  // namespace levin::detail
