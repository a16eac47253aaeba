#include <algorithm>
#include <limits>

#include <nlohmann/json.hpp>

#include "levin/checkpoint/format.h"
#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "levin checkpoint";
constexpr const char* kOwnChecksum = "manifest_crc32c";

// What ranks write is cut along rows, which are compared in order; anything else is compared each with each.
constexpr size_t kMostOtherParts = 4096;
constexpr int kDeepestManifest = 16;

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && printable(name) == name &&
         name.find_first_of("/\\") == std::string::npos;
}

/// Whether brackets are nested no deeper than that: what prints JSON goes down as deep as it does.
bool is_shallow(const std::string& text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size() && depth <= kDeepestManifest; ++i) {
    const char c = text[i];
    if (quoted) {
      i += c == '\\';
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else {
      depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    }
  }
  return depth <= kDeepestManifest;
}

/// An integer as it stands there: 2.5 is none, and neither is 1e30.
int64_t whole_number(const Json& json, const std::string& where) {
  LEVIN_CHECK(json.is_number_integer() &&
                  !(json.is_number_unsigned() && json.get<uint64_t>() > std::numeric_limits<int64_t>::max()),
              "[checkpoint] \"", where, "\": manifest.json is damaged (", printable(json.dump()).substr(0, 40),
              " is not a whole number)");
  return json.get<int64_t>();
}

std::vector<int64_t> whole_numbers(const Json& json, const std::string& where) {
  LEVIN_CHECK(json.is_array(), "[checkpoint] \"", where, "\": manifest.json is damaged (",
              printable(json.dump()).substr(0, 40), " is not a list of sizes)");
  std::vector<int64_t> numbers;
  for (const auto& number : json) numbers.push_back(whole_number(number, where));
  return numbers;
}

Manifest decode(const Json& json, const std::string& where) {
  Manifest manifest;
  manifest.version = json.at("version").get<int64_t>();
  manifest.levin = json.at("levin").get<std::string>();
  manifest.torch = json.at("torch").get<std::string>();
  manifest.world_size = whole_number(json.at("world_size"), where);
  manifest.saved_at = json.at("saved_at").get<double>();
  for (const auto& file : json.at("files")) {
    const auto bytes = whole_number(file.at("bytes"), where);
    manifest.files.push_back({file.at("name"), static_cast<uint64_t>(bytes), file.at("crc32c")});
    const auto& name = manifest.files.back().name;
    LEVIN_CHECK(is_plain_name(name), "[checkpoint] \"", where, "\": the manifest names \"", printable(name),
                "\", only plain file names are allowed");
    LEVIN_CHECK(bytes >= 0, "[checkpoint] \"", where, "\": the manifest says that \"", name, "\" has ", bytes,
                " bytes");
  }
  for (const auto& item : json.at("tensors")) {
    TensorEntry tensor{item.at("id"), item.at("dtype"), whole_numbers(item.at("shape"), where), {}};
    for (const auto& p : item.at("parts")) {
      TensorPart part{
          p.at("file"), p.at("name"),
          p.contains("start") ? whole_numbers(p["start"], where) : std::vector<int64_t>(tensor.shape.size(), 0),
          p.contains("shape") ? whole_numbers(p["shape"], where) : tensor.shape, p.at("crc32c")};
      tensor.parts.push_back(std::move(part));
    }
    check_parts(tensor, where);
    manifest.tensors.push_back(std::move(tensor));
  }
  return manifest;
}

}  // namespace

void check_parts(const TensorEntry& tensor, const std::string& where) {
  const auto bad = [&](const char* what) {
    fail(concat("[checkpoint] \"", where, "\": the manifest's shards of \"", printable(tensor.id), "\" ", what));
  };
  // Sizes first, those of no elements too: torch counts them when it only describes the tensor.
  int64_t extent = 16;
  for (const auto size : tensor.shape) {
    if (size < 0) bad("have a negative size");
    if (__builtin_mul_overflow(extent, std::max<int64_t>(size, 1), &extent)) bad("are too large");
  }
  int64_t covered = 0;
  bool rows_only = !tensor.shape.empty();
  for (const auto& part : tensor.parts) {
    if (part.start.size() != tensor.shape.size() || part.shape.size() != tensor.shape.size()) bad("have another rank");
    int64_t elements = 1;
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      if (part.start[d] < 0 || part.shape[d] < 0 || part.shape[d] > tensor.shape[d] ||
          part.start[d] > tensor.shape[d] - part.shape[d])
        bad("lie outside of it");
      if (__builtin_mul_overflow(elements, part.shape[d], &elements)) bad("are too large");
      rows_only = rows_only && (d == 0 || part.shape[d] == tensor.shape[d]);
    }
    if (__builtin_add_overflow(covered, elements, &covered)) bad("are too large");
  }
  if (rows_only) {
    // As ranks write them: sorted, only neighbours need to be compared, however many there are.
    std::vector<std::pair<int64_t, int64_t>> rows;
    for (const auto& part : tensor.parts) rows.emplace_back(part.start[0], part.start[0] + part.shape[0]);
    std::sort(rows.begin(), rows.end());
    for (size_t i = 1; i < rows.size(); ++i)
      if (rows[i].first < rows[i - 1].second) bad("overlap");
  } else {
    if (tensor.parts.size() > kMostOtherParts) bad("are too many");
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        bool overlap = true;
        for (size_t d = 0; d < tensor.shape.size(); ++d) {
          const auto& a = tensor.parts[i];
          const auto& b = tensor.parts[j];
          overlap = overlap && a.start[d] < b.start[d] + b.shape[d] && b.start[d] < a.start[d] + a.shape[d];
        }
        if (overlap) bad("overlap");
      }
    }
  }
  int64_t whole = 1;
  for (const auto size : tensor.shape) whole *= size;
  if (covered != whole) bad("do not cover it");
}

std::string manifest_text(const Manifest& manifest) {
  Json json{{"format", kFormat},       {"version", manifest.version},       {"levin", manifest.levin},
            {"torch", manifest.torch}, {"world_size", manifest.world_size}, {"saved_at", manifest.saved_at}};
  auto& files = json["files"] = Json::array();
  for (const auto& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"crc32c", file.checksum}});
  }
  auto& tensors = json["tensors"] = Json::array();
  for (const auto& tensor : manifest.tensors) {
    Json parts = Json::array();
    for (const auto& part : tensor.parts) {
      Json p{{"file", part.file}, {"name", part.name}};
      if (part.shape != tensor.shape) {
        p["start"] = part.start;
        p["shape"] = part.shape;
      }
      p["crc32c"] = part.checksum;
      parts.push_back(std::move(p));
    }
    tensors.push_back(
        {{"id", tensor.id}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"parts", std::move(parts)}});
  }
  json[kOwnChecksum] = checksum_text(crc32c(json.dump()));
  return json.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
  LEVIN_CHECK(is_shallow(text), "[checkpoint] \"", where, "\": manifest.json is damaged or not a checkpoint's");
  auto json = Json::parse(text, nullptr, false);
  LEVIN_CHECK(json.is_object() && json.contains("format") && json["format"] == kFormat && json.contains("version") &&
                  json["version"].is_number_integer(),
              "[checkpoint] \"", where, "\": manifest.json is damaged or not a checkpoint's");
  // Before anything else: a newer format may have changed all the rest.
  const auto version = json["version"].get<int64_t>();
  LEVIN_CHECK(version <= kCheckpointVersion, "[checkpoint] \"", where, "\" has format version ", version,
              " (written by Levin ",
              json.contains("levin") && json["levin"].is_string() ? printable(json["levin"].get<std::string>()) : "?",
              "), this Levin reads up to ", kCheckpointVersion);
  const auto found = json.contains(kOwnChecksum) ? json[kOwnChecksum] : Json();
  json.erase(kOwnChecksum);
  LEVIN_CHECK(found == checksum_text(crc32c(json.dump())), "[checkpoint] \"", where,
              "\": manifest.json is damaged (checksum)");
  try {
    return decode(json, where);
  } catch (const Json::exception& error) {
    throw Error(concat("[checkpoint] \"", where, "\": manifest.json is damaged (", error.what(), ")"));
  }
}

}  // namespace levin::detail
