#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "levin/core/files.h"
#include "levin/io/records/hdf5/hdf5_chunks.h"
#include "levin/io/records/hdf5/hdf5_file.h"
#include "levin/io/records/records.h"

namespace levin::detail {

/// One dataset whose first dimension counts records. Where its rows lie in the file is asked once; reads then go to the
/// file itself, so that threads do not wait for the library. Only what is stored in another way (chunks that cut rows,
/// other filters, other byte orders) is read through the library, under its lock.
class Hdf5Column {
 public:
  /// Under the lock. `cache` and `raw` are shared by the columns of a file.
  Hdf5Column(int64_t group, const std::string& name, std::string field, const FileReader& raw, ChunkCache& cache);

  const std::string& field() const { return field_; }
  int64_t rows() const { return rows_; }
  /// Whether rows are byte strings or text.
  bool is_text() const { return kind_ != Kind::kNumbers; }
  /// Whether the library is needed for reads.
  bool needs_library() const { return access_ == Access::kLibrary; }
  FieldValue read(int64_t row) const;

 private:
  enum class Kind { kNumbers, kFixedText, kVariableText, kVariableBytes };
  enum class Access { kPlain, kChunks, kPlaces, kLibrary };
  struct Chunk {
    uint64_t offset = 0, size = 0;
    uint32_t skipped = 0;
  };
  struct Place {
    uint64_t offset, size;
  };

  void read_type();
  void read_layout();
  bool locate_plain(int64_t properties);
  bool locate_chunks(int64_t properties);
  void locate_places();
  std::string where(int64_t row) const;
  void read_row(int64_t row, char* into) const;
  void read_chunk_row(int64_t row, char* into) const;
  void read_by_library(int64_t row, char* into) const;
  std::string text_by_library(int64_t row) const;
  FieldValue value_of(Tensor row, int64_t index) const;

  std::string name_, field_;
  const FileReader& raw_;
  ChunkCache& cache_;
  Hdf5Id dataset_, space_, memory_type_;
  Kind kind_ = Kind::kNumbers;
  Access access_ = Access::kLibrary;
  c10::ScalarType type_ = at::kByte;
  bool native_ = false;
  int64_t rows_ = 0;
  std::vector<int64_t> shape_;  // of a row
  uint64_t element_bytes_ = 0, row_bytes_ = 0;
  uint64_t offset_ = 0;  // kPlain
  std::vector<Chunk> chunks_;
  int64_t chunk_rows_ = 1;
  ChunkFilters filters_;
  std::vector<Place> places_;
};

}  // namespace levin::detail
