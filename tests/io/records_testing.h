#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/io/records/records.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {

inline std::filesystem::path record_fixtures() {
  return std::filesystem::path(source_dir()) / "tests/io/fixtures/records";
}

inline bool has_format(const std::string& name) {
  const auto known = record_formats();
  return std::find(known.begin(), known.end(), name) != known.end();
}

inline std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(c));
  return text;
}

inline std::string numpy_name(c10::ScalarType type) {
  switch (type) {
    case at::kByte:
      return "uint8";
    case at::kFloat:
      return "float32";
    case at::kLong:
      return "int64";
    default:
      return c10::toString(type);
  }
}

/// The form in which fixtures and scripts say what a record is.
inline nlohmann::json to_json(const Record& record) {
  nlohmann::json fields = nlohmann::json::object();
  for (const auto& [name, value] : record.fields) {
    auto& field = fields[name];
    if (const auto* bytes = std::get_if<std::string>(&value)) {
      field["bytes"] = hex(*bytes);
    } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
      field["ints"] = *ints;
    } else if (const auto* floats = std::get_if<std::vector<float>>(&value)) {
      field["floats"] = *floats;
    } else if (const auto* doubles = std::get_if<std::vector<double>>(&value)) {
      field["floats"] = *doubles;
    } else {
      const auto tensor = std::get<Tensor>(value).contiguous();
      field["dtype"] = numpy_name(tensor.scalar_type());
      field["shape"] = tensor.sizes().vec();
      field["data"] = hex({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
  }
  return {{"key", record.key}, {"fields", fields}};
}

/// An image of that number, a label of two classes, and a text.
inline Record plain_record(int64_t i) {
  Record record{.key = fmt::format("k{:03}", i), .fields = {}};
  std::string image = "\x89PNG\r\n\x1a\n";
  for (int64_t k = 0; k < 50 + i * 97; ++k) image += static_cast<char>((k * 31 + i) % 251);
  record.set("image", image);
  record.set("label", std::vector<int64_t>{i % 2});
  record.set("text", fmt::format("number {}", i));
  return record;
}

struct ProcessCounts {
  size_t descriptors = 0, threads = 0;
  int64_t resident_bytes = 0;
};

inline ProcessCounts process_counts() {
  auto entries = [](const char* folder) {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
  };
  ProcessCounts counts{entries("/proc/self/fd"), entries("/proc/self/task"), 0};
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  counts.resident_bytes = resident * ::sysconf(_SC_PAGESIZE);
  return counts;
}

}  // namespace levin::testing
