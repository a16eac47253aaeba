#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace levin::detail {

/// Protocol buffers, as far as they are written here: fields one behind another, each with its number and kind. Numbers
/// that are zero and empty texts are left out, as proto3 does, unless they are `kept` (members of a oneof).
class Message {
 public:
  Message& integer(int field, int64_t value) {
    if (value != 0) raw_integer(field, value);
    return *this;
  }
  Message& real(int field, double value) {
    if (std::bit_cast<uint64_t>(value) != 0) kept_real(field, value);
    return *this;
  }
  Message& text(int field, std::string_view value) {
    if (!value.empty()) kept_text(field, value);
    return *this;
  }
  Message& kept_bool(int field, bool value) {
    raw_integer(field, value ? 1 : 0);
    return *this;
  }
  Message& kept_real(int field, double value) {
    tag(field, 1);
    fixed(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  Message& kept_real32(int field, float value) {
    tag(field, 5);
    fixed(std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  Message& kept_text(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return kept_text(field, value.bytes_); }
  Message& reals(int field, std::span<const double> values) {
    if (values.empty()) return *this;
    tag(field, 2);
    varint(values.size() * 8);
    for (const auto value : values) fixed(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  void raw_integer(int field, int64_t value) {
    tag(field, 0);
    varint(static_cast<uint64_t>(value));
  }
  void tag(int field, int kind) { varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(kind)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void fixed(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i, value >>= 8) bytes_ += static_cast<char>(value & 0xff);
  }

  std::string bytes_;
};

}  // namespace levin::detail
