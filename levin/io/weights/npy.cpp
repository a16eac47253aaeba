#include "levin/io/weights/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <numeric>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/io/byte_order.h"

namespace levin::detail {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";

struct NpyType {
  std::string_view name;
  c10::ScalarType type;
};
constexpr std::array<NpyType, 15> kNpyTypes{{{"b1", at::kBool},
                                             {"u1", at::kByte},
                                             {"i1", at::kChar},
                                             {"i2", at::kShort},
                                             {"i4", at::kInt},
                                             {"i8", at::kLong},
                                             {"u2", at::kUInt16},
                                             {"u4", at::kUInt32},
                                             {"u8", at::kUInt64},
                                             {"f2", at::kHalf},
                                             {"f4", at::kFloat},
                                             {"f8", at::kDouble},
                                             {"c8", at::kComplexFloat},
                                             {"c16", at::kComplexDouble},
                                             {"?", at::kBool}}};

/// What follows 'name': in the head, which is the text of a Python dictionary.
std::string_view npy_entry(std::string_view head, std::string_view name, std::string_view where) {
  const auto at = head.find(name);
  LEVIN_CHECK(at != std::string_view::npos, "[records] ", where, " is no array of NumPy: its head has no ", name);
  auto rest = head.substr(at + name.size());
  const auto begin = rest.find_first_not_of(": ");
  return begin == std::string_view::npos ? std::string_view{} : rest.substr(begin);
}

uint64_t npy_little(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

NpyHead parse_npy_head(std::string_view bytes, std::string_view where) {
  LEVIN_CHECK(bytes.size() >= 12 && bytes.starts_with(kNpyMagic), "[records] ", where, " is no array of NumPy");
  const int version = bytes[6];
  LEVIN_CHECK(version >= 1 && version <= 3, "[records] ", where, " is an array of NumPy's version ", version,
              " (1 to 3 are read)");
  const size_t width = version == 1 ? 2 : 4;
  const uint64_t length = npy_little(bytes.substr(8, width));
  NpyHead head;
  LEVIN_CHECK(length <= bytes.size() - 8 - width, "[records] ", where, " is truncated within the head of its array");
  head.data = 8 + width + static_cast<size_t>(length);
  const auto text = bytes.substr(8 + width, static_cast<size_t>(length));

  auto type = npy_entry(text, "'descr'", where);
  LEVIN_CHECK(type.size() > 3 && type[0] == '\'' && type.find('\'', 1) != std::string_view::npos, "[records] ", where,
              " is an array of structures, which is not read");
  type = type.substr(1, type.find('\'', 1) - 1);
  head.big_endian = type.starts_with('>');
  head.type = type.substr(type.find_first_not_of("<>|=") == 1 ? 1 : 0);
  head.fortran = npy_entry(text, "'fortran_order'", where).starts_with("True");

  auto shape = npy_entry(text, "'shape'", where);
  LEVIN_CHECK(shape.starts_with('(') && shape.find(')') != std::string_view::npos, "[records] ", where,
              " has an array without a shape");
  shape = shape.substr(1, shape.find(')') - 1);
  while (true) {
    const auto digit = shape.find_first_not_of(", ");
    if (digit == std::string_view::npos) break;
    shape.remove_prefix(digit);
    int64_t size = 0;
    const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), size);
    LEVIN_CHECK(error == std::errc() && size >= 0 && head.shape.size() < 64, "[records] ", where,
                " has an array of a bad shape");
    head.shape.push_back(size);
    shape.remove_prefix(static_cast<size_t>(end - shape.data()));
  }
  return head;
}

at::Tensor read_npy(std::string_view bytes, std::string_view where) {
  const auto head = parse_npy_head(bytes, where);
  const auto* found = std::find_if(kNpyTypes.begin(), kNpyTypes.end(), [&](auto& t) { return t.name == head.type; });
  LEVIN_CHECK(found != kNpyTypes.end(), "[records] ", where, " is an array of the type \"", head.type.substr(0, 20),
              "\", which is not read (known: b1, u1 to u8, i1 to i8, f2, f4, f8, c8, c16)");
  uint64_t size = c10::elementSize(found->type);
  const uint64_t have = bytes.size() - head.data;
  for (const int64_t n : head.shape)
    LEVIN_CHECK(!__builtin_mul_overflow(size, static_cast<uint64_t>(n), &size) && size <= (uint64_t{1} << 62),
                "[records] ", where, " has an array of a bad shape");
  LEVIN_CHECK(size == have, "[records] ", where, " declares an array of ", size, " bytes, there are ", have);
  auto shape = head.shape;
  if (head.fortran) std::reverse(shape.begin(), shape.end());
  auto tensor = at::empty(shape, at::TensorOptions().dtype(found->type));
  auto* data = static_cast<std::byte*>(tensor.data_ptr());
  if (size > 0) std::memcpy(data, bytes.data() + head.data, static_cast<size_t>(size));
  if (head.big_endian)
    swap_bytes({data, static_cast<size_t>(size)}, c10::elementSize(c10::toRealValueType(found->type)));
  if (!head.fortran) return tensor;
  std::vector<int64_t> last_to_first(shape.size());
  std::iota(last_to_first.rbegin(), last_to_first.rend(), int64_t{0});
  return tensor.permute(last_to_first).contiguous();
}

std::string write_npy(const at::Tensor& tensor) {
  const auto* found =
      std::find_if(kNpyTypes.begin(), kNpyTypes.end(), [&](auto& t) { return t.type == tensor.scalar_type(); });
  LEVIN_CHECK(found != kNpyTypes.end(), "[records] a tensor of ", c10::toString(tensor.scalar_type()),
              " cannot be written as an array of NumPy; cast it to float first");
  const auto plain = tensor.detach().cpu().contiguous();
  std::string shape;
  for (const int64_t size : plain.sizes()) shape += fmt::format("{}, ", size);
  if (plain.dim() > 1) shape.resize(shape.size() - 2);
  if (plain.dim() == 1) shape.pop_back();
  const bool bytes = plain.element_size() == 1;
  auto head = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}", bytes ? "|" : "<",
                          found->name, shape);
  // NumPy pads with spaces to a multiple of 64, a line break at the end.
  head.append((64 - (10 + head.size() + 1) % 64) % 64, ' ');
  head += '\n';
  std::string out(kNpyMagic);
  out += std::string("\1\0", 2);
  out += static_cast<char>(head.size() & 0xff);
  out += static_cast<char>(head.size() >> 8);
  out += head;
  out.append(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  return out;
}

}  // namespace levin::detail
