#include <algorithm>
#include <optional>

#include <hdf5.h>

#include "levin/core/words.h"
#include "levin/io/records/hdf5/hdf5_file.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

/// What is gathered before it is written.
constexpr size_t kHdf5BatchBytes = size_t{4} << 20;
constexpr uint64_t kHdf5ChunkBytes = uint64_t{256} << 10;

hid_t hdf5_type(c10::ScalarType type) {
  switch (type) {
    case at::kByte:
    case at::kBool:
      return H5T_NATIVE_UINT8;
    case at::kChar:
      return H5T_NATIVE_INT8;
    case at::kShort:
      return H5T_NATIVE_INT16;
    case at::kInt:
      return H5T_NATIVE_INT32;
    case at::kLong:
      return H5T_NATIVE_INT64;
    case at::kUInt16:
      return H5T_NATIVE_UINT16;
    case at::kUInt32:
      return H5T_NATIVE_UINT32;
    case at::kUInt64:
      return H5T_NATIVE_UINT64;
    case at::kFloat:
      return H5T_NATIVE_FLOAT;
    case at::kDouble:
      return H5T_NATIVE_DOUBLE;
    default:
      throw Error(concat("[records] a tensor of ", c10::toString(type),
                         " cannot be written to HDF5 (uint8 to uint64, int8 to int64, float32 and float64 can)"));
  }
}

/// A dataset that grows: rows of one shape and type, or values of variable length.
class Hdf5Rows {
 public:
  /// Makes the dataset after the first value; under the lock.
  Hdf5Rows(hid_t file, std::string name, const FieldValue& first, bool text, const fs::path& path)
      : name_(std::move(name)), path_(path) {
    std::vector<hsize_t> dims{0}, most{H5S_UNLIMITED}, chunk{1};
    if (std::holds_alternative<std::string>(first)) {
      variable_ = true;
      text_ = text;
      type_ = Hdf5Id(text ? ::H5Tcopy(H5T_C_S1) : ::H5Tvlen_create(H5T_NATIVE_UINT8), ::H5Tclose);
      if (text) {
        ::H5Tset_size(type_, H5T_VARIABLE);
        ::H5Tset_cset(type_, H5T_CSET_UTF8);
      }
      chunk[0] = 1024;
    } else {
      const auto row = plain(first);
      shape_ = row.sizes().vec();
      scalar_ = row.scalar_type();
      row_bytes_ = row.nbytes();
      type_ = Hdf5Id(::H5Tcopy(hdf5_type(scalar_)), ::H5Tclose);
      for (const int64_t size : shape_) {
        LEVIN_CHECK(size > 0, "[records] \"", shown(name_), "\" has no elements, HDF5 cannot keep it");
        for (auto* list : {&dims, &most, &chunk}) list->push_back(static_cast<hsize_t>(size));
      }
      chunk[0] = std::clamp<uint64_t>(kHdf5ChunkBytes / std::max<uint64_t>(row_bytes_, 1), 1, 1024);
    }
    const int rank = static_cast<int>(dims.size());
    const Hdf5Id space(check_hdf5(::H5Screate_simple(rank, dims.data(), most.data()), path_, "write"), ::H5Sclose);
    const Hdf5Id properties(::H5Pcreate(H5P_DATASET_CREATE), ::H5Pclose);
    check_hdf5(::H5Pset_chunk(properties, rank, chunk.data()), path_, "write");
    dataset_ = Hdf5Id(check_hdf5(::H5Dcreate2(file, name_.c_str(), type_, space, H5P_DEFAULT, properties, H5P_DEFAULT),
                                 path_, "write"),
                      ::H5Dclose);
  }

  /// Gathers a value; bytes gathered.
  size_t add(const FieldValue& value, const std::string& key) {
    if (variable_) {
      const auto* bytes = std::get_if<std::string>(&value);
      LEVIN_CHECK(bytes, "[records] \"", shown(name_), "\" of \"", shown(key),
                  "\" is not encoded as that of the first record is; HDF5 keeps all of a field in one way");
      LEVIN_CHECK(!text_ || bytes->find('\0') == std::string::npos, "[records] \"", shown(name_), "\" of \"",
                  shown(key), "\" has a zero byte, which no text has");
      values_.push_back(*bytes);
      return bytes->size();
    }
    LEVIN_CHECK(!std::holds_alternative<std::string>(value), "[records] \"", shown(name_), "\" of \"", shown(key),
                "\" is encoded, that of the first record is not; HDF5 keeps all of a field in one way");
    const auto row = plain(value);
    LEVIN_CHECK(row.sizes() == shape_ && row.scalar_type() == scalar_, "[records] \"", shown(name_), "\" of \"",
                shown(key), "\" is ", row.sizes(), " of ", c10::toString(row.scalar_type()),
                ", that of the first record ", at::IntArrayRef(shape_), " of ", c10::toString(scalar_),
                "; HDF5 keeps rows of one shape (encoded images may differ)");
    rows_.append(static_cast<const char*>(row.const_data_ptr()), row.nbytes());
    ++gathered_;
    return row.nbytes();
  }

  /// Under the lock.
  void flush() {
    const hsize_t count = variable_ ? values_.size() : gathered_;
    if (count == 0) return;
    std::vector<hsize_t> start{written_}, size{count}, total{written_ + count};
    for (const int64_t n : shape_) {
      start.push_back(0);
      size.push_back(static_cast<hsize_t>(n));
      total.push_back(static_cast<hsize_t>(n));
    }
    check_hdf5(::H5Dset_extent(dataset_, total.data()), path_, "write");
    const int rank = static_cast<int>(size.size());
    const Hdf5Id memory(check_hdf5(::H5Screate_simple(rank, size.data(), nullptr), path_, "write"), ::H5Sclose);
    const Hdf5Id file(check_hdf5(::H5Dget_space(dataset_), path_, "write"), ::H5Sclose);
    check_hdf5(::H5Sselect_hyperslab(file, H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr), path_,
               "write");
    auto put = [&](const void* from) {
      check_hdf5(::H5Dwrite(dataset_, type_, memory, file, H5P_DEFAULT, from), path_, "write");
    };
    if (text_) {
      std::vector<const char*> pointers;
      for (const auto& value : values_) pointers.push_back(value.c_str());
      put(pointers.data());
    } else if (variable_) {
      std::vector<hvl_t> pointers;
      for (auto& value : values_) pointers.push_back({value.size(), value.data()});
      put(pointers.data());
    } else {
      put(rows_.data());
    }
    written_ += count;
    values_.clear();
    rows_.clear();
    gathered_ = 0;
  }

 private:
  /// Numbers as an array; one number has no dimension.
  static Tensor plain(const FieldValue& value) {
    auto list = [](const auto& numbers, c10::ScalarType type) {
      const auto tensor = at::from_blob(const_cast<void*>(static_cast<const void*>(numbers.data())),
                                        {static_cast<int64_t>(numbers.size())}, at::TensorOptions().dtype(type))
                              .clone();
      return numbers.size() == 1 ? tensor.reshape({}) : tensor;
    };
    if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) return list(*ints, at::kLong);
    if (const auto* floats = std::get_if<std::vector<float>>(&value)) return list(*floats, at::kFloat);
    if (const auto* doubles = std::get_if<std::vector<double>>(&value)) return list(*doubles, at::kDouble);
    return std::get<Tensor>(value).detach().cpu().contiguous();
  }

  std::string name_;
  const fs::path& path_;
  Hdf5Id type_, dataset_;
  bool variable_ = false, text_ = false;
  std::vector<int64_t> shape_;
  c10::ScalarType scalar_ = at::kByte;
  uint64_t row_bytes_ = 0;
  std::string rows_;
  std::vector<std::string> values_;
  hsize_t gathered_ = 0, written_ = 0;
};

/// "images" [N, H, W, C] or encoded, "labels" [N], "keys", and the other fields under their names. The first record
/// says which fields there are.
class Hdf5Writer : public RecordWriter {
 public:
  Hdf5Writer(const fs::path& path, const RecordWriterOptions& options) : path_(path) {
    check_destination(path, OutputKind::kFile, options);
    join_classes(options.classes);  // refuses what is no name
    place_ = staged_.add(path);
    const Hdf5Lock lock;
    file_ = Hdf5Id(check_hdf5(::H5Fcreate(place_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), path_, "create"),
                   ::H5Fclose);
    keys_.emplace(file_, "keys", std::string(), true, path_);
    if (options.classes.empty()) return;
    Hdf5Rows classes(file_, "classes", std::string(), true, path_);
    for (const auto& name : options.classes) classes.add(name, "classes");
    classes.flush();
  }

  ~Hdf5Writer() override { release(); }

  void write(const Record& record) override {
    LEVIN_CHECK(open_, "[records] \"", path_.string(), "\" was closed, nothing can be written to it");
    const Hdf5Lock lock;
    if (count_ == 0) make_columns(record);
    LEVIN_CHECK(record.fields.size() == columns_.size(), "[records] \"", shown(record.key), "\" has ",
                record.fields.size(), " fields, the first record ", columns_.size(), "; HDF5 keeps the same of each");
    for (const auto& [field, column] : columns_)
      LEVIN_CHECK(record.find(field), "[records] \"", shown(record.key), "\" has no field \"", shown(field),
                  "\", which the first record has");
    for (auto& [field, column] : columns_) gathered_ += column.add(*record.find(field), record.key);
    gathered_ += keys_->add(record.key.empty() ? numbered_key(count_) : record.key, record.key);
    ++count_;
    if (gathered_ >= kHdf5BatchBytes) flush();
  }

  void close() override {
    if (!open_) return;
    {
      const Hdf5Lock lock;
      flush();
      check_hdf5(::H5Fflush(file_, H5F_SCOPE_LOCAL), path_, "write");
    }
    release();
    sync_file(place_);
    staged_.commit();
  }

 private:
  static std::string dataset_name(const std::string& field) {
    if (field == "image") return "images";
    if (field == "label") return "labels";
    std::string name = field;
    std::replace(name.begin(), name.end(), '/', '.');  // a slash would make groups
    return name;
  }

  void make_columns(const Record& record) {
    std::vector<std::string> names{"keys", "classes"};
    for (const auto& [field, value] : record.fields) {
      auto name = dataset_name(field);
      LEVIN_CHECK(!name.empty() && name != "." && std::find(names.begin(), names.end(), name) == names.end(),
                  "[records] \"", shown(record.key), "\" has a field \"", shown(field),
                  "\" that cannot be a dataset: the name is taken");
      names.push_back(name);
      columns_.emplace_back(field, Hdf5Rows(file_, name, value, field == "text", path_));
    }
  }

  void flush() {
    for (auto& [field, column] : columns_) column.flush();
    keys_->flush();
    gathered_ = 0;
  }

  void release() {
    const Hdf5Lock lock;
    columns_.clear();
    keys_.reset();
    file_ = Hdf5Id();
    open_ = false;
  }

  fs::path path_, place_;
  StagedFiles staged_;
  Hdf5Id file_;
  bool open_ = true;
  std::optional<Hdf5Rows> keys_;
  std::vector<std::pair<std::string, Hdf5Rows>> columns_;
  size_t gathered_ = 0;
  int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<RecordWriter> create_hdf5(const fs::path& path, const RecordWriterOptions& options) {
  return std::make_unique<Hdf5Writer>(path, options);
}

}  // namespace levin::detail
