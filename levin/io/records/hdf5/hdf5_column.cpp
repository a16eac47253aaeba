#include "levin/io/records/hdf5/hdf5_column.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <hdf5.h>

#include "levin/core/words.h"
#include "levin/io/records/record_files.h"

namespace levin::detail {
namespace {

constexpr int kMostHdf5Dims = 16;
constexpr uint64_t kMostRowBytes = uint64_t{1} << 32;
/// Deflate cannot pack more than this many bytes into one.
constexpr uint64_t kMostDeflate = 1032;
/// Of a value of variable length in the file: length, address of its heap, number within it.
constexpr size_t kHeapIdBytes = 16;

template <class T>
T hdf5_load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

bool number_type(hid_t type, c10::ScalarType& out) {
  const auto size = ::H5Tget_size(type);
  const auto kind = ::H5Tget_class(type);
  if (kind == H5T_FLOAT) {
    out = size == 8 ? at::kDouble : at::kFloat;
    return size <= 8;
  }
  const Hdf5Id super(kind == H5T_ENUM ? ::H5Tget_super(type) : ::H5Tcopy(type), ::H5Tclose);
  if (kind != H5T_INTEGER && kind != H5T_ENUM) return false;
  const bool negative = ::H5Tget_sign(super) == H5T_SGN_2;
  switch (size) {
    case 1:
      out = negative ? at::kChar : at::kByte;
      return true;
    case 2:
      out = negative ? at::kShort : at::kUInt16;
      return true;
    case 4:
      out = negative ? at::kInt : at::kUInt32;
      return true;
    case 8:
      out = negative ? at::kLong : at::kUInt64;
      return true;
    default:
      return false;
  }
}

}  // namespace

Hdf5Column::Hdf5Column(hid_t group, const std::string& name, std::string field, const FileReader& raw,
                       ChunkCache& cache)
    : name_(name), field_(std::move(field)), raw_(raw), cache_(cache) {
  const auto what = concat("read the dataset \"", shown(name), "\" of");
  dataset_ = Hdf5Id(check_hdf5(::H5Dopen2(group, name.c_str(), H5P_DEFAULT), raw_.path(), what.c_str()), ::H5Dclose);
  space_ = Hdf5Id(check_hdf5(::H5Dget_space(dataset_), raw_.path(), what.c_str()), ::H5Sclose);
  std::array<hsize_t, kMostHdf5Dims> dims{};
  const int rank = ::H5Sget_simple_extent_ndims(space_);
  LEVIN_CHECK(rank >= 1 && rank <= kMostHdf5Dims && ::H5Sget_simple_extent_dims(space_, dims.data(), nullptr) == rank,
              "[records] \"", raw_.path().string(), "\": the dataset \"", shown(name_), "\" has no rows");
  LEVIN_CHECK(dims[0] <= (uint64_t{1} << 48), "[records] \"", raw_.path().string(), "\": the dataset \"", shown(name_),
              "\" declares ", dims[0], " rows");
  rows_ = static_cast<int64_t>(dims[0]);
  shape_.assign(dims.begin() + 1, dims.begin() + rank);
  read_type();
  read_layout();
}

void Hdf5Column::read_type() {
  const Hdf5Id type(check_hdf5(::H5Dget_type(dataset_), raw_.path(), "read"), ::H5Tclose);
  const auto kind = ::H5Tget_class(type);
  bool known = false;
  if (kind == H5T_STRING) {
    known = shape_.empty();
    kind_ = ::H5Tis_variable_str(type) > 0 ? Kind::kVariableText : Kind::kFixedText;
    element_bytes_ = kind_ == Kind::kFixedText ? ::H5Tget_size(type) : kHeapIdBytes;
    memory_type_ = Hdf5Id(::H5Tcopy(type), ::H5Tclose);
    native_ = true;
  } else if (kind == H5T_VLEN) {
    const Hdf5Id base(::H5Tget_super(type), ::H5Tclose);
    known = shape_.empty() && ::H5Tget_size(base) == 1 && ::H5Tget_class(base) == H5T_INTEGER;
    kind_ = Kind::kVariableBytes;
    element_bytes_ = kHeapIdBytes;
    memory_type_ = Hdf5Id(::H5Tcopy(type), ::H5Tclose);
    native_ = true;
  } else if (number_type(type, type_)) {
    known = true;
    element_bytes_ = c10::elementSize(type_);
    Hdf5Id native(::H5Tget_native_type(type, H5T_DIR_DEFAULT), ::H5Tclose);
    native_ = ::H5Tequal(type, native) > 0 && ::H5Tget_size(native) == element_bytes_;
    // Floats of 16 bits and the like are upcast by the library.
    const bool odd = ::H5Tget_size(type) != element_bytes_;
    memory_type_ = odd ? Hdf5Id(::H5Tcopy(H5T_NATIVE_FLOAT), ::H5Tclose) : std::move(native);
  }
  LEVIN_CHECK(known, "[records] \"", raw_.path().string(), "\": the dataset \"", shown(name_),
              "\" is of a type that is not read (numbers, strings and variable-length uint8 are)");
  row_bytes_ = element_bytes_;
  for (const int64_t size : shape_)
    LEVIN_CHECK(size >= 0 && !__builtin_mul_overflow(row_bytes_, static_cast<uint64_t>(size), &row_bytes_) &&
                    row_bytes_ <= kMostRowBytes,
                "[records] \"", raw_.path().string(), "\": a row of the dataset \"", shown(name_),
                "\" is larger than 4 GiB");
}

void Hdf5Column::read_layout() {
  const Hdf5Id properties(check_hdf5(::H5Dget_create_plist(dataset_), raw_.path(), "read"), ::H5Pclose);
  // Files that a file names are none that the user named.
  LEVIN_CHECK(::H5Pget_layout(properties) != H5D_VIRTUAL &&
                  (::H5Pget_layout(properties) != H5D_CONTIGUOUS || ::H5Pget_external_count(properties) == 0),
              "[records] \"", raw_.path().string(), "\": the dataset \"", shown(name_), "\" lies in other files");
  const Hdf5Id file(::H5Iget_file_id(dataset_), ::H5Fclose);
  const Hdf5Id creation(::H5Fget_create_plist(file), ::H5Pclose);
  hsize_t user_block = 1;
  size_t address_bytes = 0, size_bytes = 0;
  ::H5Pget_userblock(creation, &user_block);
  ::H5Pget_sizes(creation, &address_bytes, &size_bytes);
  // Addresses count from the end of a user block; whoever writes one reads at the speed of the library.
  const bool direct = native_ && user_block == 0 && address_bytes == 8 && size_bytes == 8;
  if (direct && locate_plain(properties))
    access_ = Access::kPlain;
  else if (direct && locate_chunks(properties))
    access_ = Access::kChunks;
  const bool variable = kind_ == Kind::kVariableText || kind_ == Kind::kVariableBytes;
  if (variable && access_ != Access::kLibrary) {
    locate_places();
    access_ = Access::kPlaces;
  }
  if (access_ == Access::kLibrary) return;
  memory_type_ = Hdf5Id();
  space_ = Hdf5Id();
  dataset_ = Hdf5Id();
}

bool Hdf5Column::locate_plain(hid_t properties) {
  if (::H5Pget_layout(properties) != H5D_CONTIGUOUS) return false;
  const haddr_t address = ::H5Dget_offset(dataset_);
  if (address == HADDR_UNDEF) return false;
  uint64_t bytes = 0;
  const bool fits = !__builtin_mul_overflow(row_bytes_, static_cast<uint64_t>(rows_), &bytes) &&
                    address <= raw_.size() && bytes <= raw_.size() - address;
  LEVIN_CHECK(fits, "[records] \"", raw_.path().string(), "\" is truncated: the dataset \"", shown(name_), "\" of ",
              rows_, " rows of ", row_bytes_, " bytes does not lie within it");
  offset_ = address;
  return true;
}

bool Hdf5Column::locate_chunks(hid_t properties) {
  std::array<hsize_t, kMostHdf5Dims> chunk{};
  const int rank = static_cast<int>(shape_.size()) + 1;
  if (::H5Pget_layout(properties) != H5D_CHUNKED || ::H5Pget_chunk(properties, kMostHdf5Dims, chunk.data()) != rank)
    return false;
  for (size_t i = 0; i < shape_.size(); ++i)
    if (chunk[i + 1] != static_cast<hsize_t>(shape_[i])) return false;
  filters_.element_bytes = element_bytes_;
  const int filters = ::H5Pget_nfilters(properties);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, configuration = 0;
    size_t values = 0;
    const auto filter =
        ::H5Pget_filter2(properties, static_cast<unsigned>(i), &flags, &values, nullptr, 0, nullptr, &configuration);
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE) return false;
    filters_.filters.push_back(filter == H5Z_FILTER_DEFLATE ? ChunkFilters::Filter::kDeflate
                                                            : ChunkFilters::Filter::kShuffle);
  }
  chunk_rows_ = static_cast<int64_t>(chunk[0]);
  const int64_t count = (rows_ + chunk_rows_ - 1) / chunk_rows_;
  const uint64_t bytes = row_bytes_ * static_cast<uint64_t>(chunk_rows_);  // the library allows 4 GiB
  // Not reserved: what the file declares may be more than it has.
  for (int64_t i = 0; i < count; ++i) {
    std::array<hsize_t, kMostHdf5Dims> at{};
    at[0] = static_cast<hsize_t>(i * chunk_rows_);
    haddr_t address = HADDR_UNDEF;
    hsize_t size = 0;
    unsigned skipped = 0;
    if (::H5Dget_chunk_info_by_coord(dataset_, at.data(), &skipped, &address, &size) < 0) return false;
    // Chunks that were never written have the fill value, which the library knows.
    if (address == HADDR_UNDEF) return false;
    LEVIN_CHECK(address <= raw_.size() && size <= raw_.size() - address && bytes / kMostDeflate <= size + 64 &&
                    (!filters_.filters.empty() || size == bytes),
                "[records] \"", raw_.path().string(), "\": chunk ", i, " of the dataset \"", shown(name_),
                "\" does not lie within the file");
    chunks_.push_back({address, size, skipped});
  }
  return true;
}

/// Values of variable length lie in heaps ("GCOL"): a head of 16 bytes, then objects with heads of 16 bytes.
void Hdf5Column::locate_places() {
  struct Wanted {
    int64_t row;
    uint32_t number, size;
  };
  std::map<uint64_t, std::vector<Wanted>> heaps;
  places_.assign(static_cast<size_t>(rows_), {0, 0});
  for (int64_t row = 0; row < rows_; ++row) {
    std::array<char, kHeapIdBytes> id{};
    read_row(row, id.data());
    const auto size = hdf5_load<uint32_t>(id.data());
    if (size > 0) heaps[hdf5_load<uint64_t>(id.data() + 4)].push_back({row, hdf5_load<uint32_t>(id.data() + 12), size});
  }
  auto fits = [&](uint64_t offset, uint64_t size) { return offset <= raw_.size() && size <= raw_.size() - offset; };
  for (const auto& [address, wanted] : heaps) {
    std::array<char, 16> head{};
    auto load = [&](uint64_t offset) {
      LEVIN_CHECK(fits(offset, head.size()), "[records] ", where(wanted[0].row), " has its value outside of the file");
      raw_.read(offset, std::as_writable_bytes(std::span(head)));
    };
    load(address);
    const auto bytes = hdf5_load<uint64_t>(head.data() + 8);
    LEVIN_CHECK(std::string_view(head.data(), 4) == "GCOL" && fits(address, bytes), "[records] ", where(wanted[0].row),
                " has its value in a heap that is damaged");
    std::map<uint32_t, Place> objects;
    for (uint64_t at = 16; bytes >= 16 && at <= bytes - 16;) {
      load(address + at);
      const auto number = hdf5_load<uint16_t>(head.data());
      const auto size = hdf5_load<uint64_t>(head.data() + 8);
      if (number == 0 || size > bytes - at - 16) break;  // the free rest
      objects[number] = {address + at + 16, size};
      at += 16 + (size + 7) / 8 * 8;
    }
    for (const auto& value : wanted) {
      const auto found = objects.find(value.number);
      LEVIN_CHECK(found != objects.end() && value.size <= found->second.size, "[records] ", where(value.row),
                  " has its value in a heap that is damaged");
      places_[static_cast<size_t>(value.row)] = {found->second.offset, value.size};
    }
  }
}

std::string Hdf5Column::where(int64_t row) const {
  return fmt::format("\"{}\": row {} of the dataset \"{}\"", raw_.path().string(), row, shown(name_));
}

void Hdf5Column::read_chunk_row(int64_t row, char* into) const {
  const auto index = static_cast<size_t>(row / chunk_rows_);
  const uint64_t within = static_cast<uint64_t>(row % chunk_rows_) * row_bytes_;
  const auto& chunk = chunks_[index];
  const auto out = std::as_writable_bytes(std::span(into, row_bytes_));
  if (filters_.filters.empty()) return raw_.read(chunk.offset + within, out);
  const auto decoded = cache_.get(this, index, [&] {
    std::string stored(chunk.size, '\0');
    raw_.read(chunk.offset, std::as_writable_bytes(std::span(stored)));
    try {
      return decode_chunk(std::move(stored), filters_, chunk.skipped, row_bytes_ * static_cast<uint64_t>(chunk_rows_));
    } catch (const Error& error) {
      throw Error(concat("[records] \"", raw_.path().string(), "\": chunk ", index, " of the dataset \"", shown(name_),
                         "\" ", error.what()));
    }
  });
  std::memcpy(into, decoded->data() + within, row_bytes_);
}

void Hdf5Column::read_by_library(int64_t row, char* into) const {
  const Hdf5Lock lock;
  std::array<hsize_t, kMostHdf5Dims> start{}, count{};
  start[0] = static_cast<hsize_t>(row);
  count[0] = 1;
  std::copy(shape_.begin(), shape_.end(), count.begin() + 1);
  const int rank = static_cast<int>(shape_.size()) + 1;
  const Hdf5Id memory(check_hdf5(::H5Screate_simple(rank, count.data(), nullptr), raw_.path(), "read"), ::H5Sclose);
  const Hdf5Id file(check_hdf5(::H5Scopy(space_), raw_.path(), "read"), ::H5Sclose);
  check_hdf5(::H5Sselect_hyperslab(file, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr), raw_.path(),
             "read");
  LEVIN_CHECK(::H5Dread(dataset_, memory_type_, memory, file, H5P_DEFAULT, into) >= 0, "[records] cannot read ",
              where(row), ": ", hdf5_reason());
}

std::string Hdf5Column::text_by_library(int64_t row) const {
  const Hdf5Lock lock;
  const hsize_t one = 1;
  const Hdf5Id memory(check_hdf5(::H5Screate_simple(1, &one, nullptr), raw_.path(), "read"), ::H5Sclose);
  std::string text;
  if (kind_ == Kind::kVariableText) {
    char* value = nullptr;
    read_by_library(row, reinterpret_cast<char*>(&value));
    if (value) text = value;
    ::H5Dvlen_reclaim(memory_type_, memory, H5P_DEFAULT, &value);
  } else {
    hvl_t value{};
    read_by_library(row, reinterpret_cast<char*>(&value));
    text.assign(static_cast<const char*>(value.p), value.len);
    ::H5Dvlen_reclaim(memory_type_, memory, H5P_DEFAULT, &value);
  }
  return text;
}

void Hdf5Column::read_row(int64_t row, char* into) const {
  switch (access_) {
    case Access::kPlain:
      return raw_.read(offset_ + static_cast<uint64_t>(row) * row_bytes_,
                       std::as_writable_bytes(std::span(into, row_bytes_)));
    case Access::kChunks:
      return read_chunk_row(row, into);
    case Access::kPlaces:
    case Access::kLibrary:
      return read_by_library(row, into);
  }
}

/// Numbers alone or in a row are lists; images and what has more dimensions are arrays.
FieldValue Hdf5Column::value_of(Tensor row, int64_t index) const {
  if (field_ == "image" || shape_.size() > 1) return row;
  const auto list = [&]<class T>(T) {
    return std::vector<T>(row.const_data_ptr<T>(), row.const_data_ptr<T>() + row.numel());
  };
  if (type_ == at::kDouble) return list(double());
  if (type_ == at::kFloat) return list(float());
  if (type_ == at::kUInt64)
    for (const uint64_t number : list(uint64_t()))
      LEVIN_CHECK(number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), "[records] ", where(index),
                  " has the number ", number, ", which is more than int64 holds");
  row = row.to(at::kLong);
  return list(int64_t());
}

FieldValue Hdf5Column::read(int64_t row) const {
  if (access_ == Access::kPlaces) {
    const auto& place = places_[static_cast<size_t>(row)];
    std::string text(place.size, '\0');
    raw_.read(place.offset, std::as_writable_bytes(std::span(text)));
    if (kind_ == Kind::kVariableText && text.ends_with('\0')) text.resize(text.find('\0'));
    return text;
  }
  if (kind_ == Kind::kVariableText || kind_ == Kind::kVariableBytes) return text_by_library(row);
  if (kind_ == Kind::kFixedText) {
    std::string text(row_bytes_, '\0');
    read_row(row, text.data());
    text.resize(std::min(text.find('\0'), text.size()));
    return text;
  }
  if (shape_.empty() && field_ != "image" && (type_ == at::kLong || type_ == at::kInt || type_ == at::kByte)) {
    // A label: no tensor is made for one number.
    std::array<char, 8> bytes{};
    read_row(row, bytes.data());
    return std::vector<int64_t>{type_ == at::kLong  ? hdf5_load<int64_t>(bytes.data())
                                : type_ == at::kInt ? hdf5_load<int32_t>(bytes.data())
                                                    : static_cast<uint8_t>(bytes[0])};
  }
  auto tensor = at::empty(shape_, at::TensorOptions().dtype(type_));
  if (row_bytes_ > 0) read_row(row, static_cast<char*>(tensor.data_ptr()));
  return value_of(std::move(tensor), row);
}

}  // namespace levin::detail
