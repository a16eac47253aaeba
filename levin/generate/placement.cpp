#include "levin/generate/placement.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/nn/interceptor.h"
#include "levin/nn/weight_stream.h"

namespace levin {
namespace {

constexpr const char* kDisk = "disk";
constexpr const char* kHost = "cpu";
/// A unit is small next to the largest.
constexpr int64_t kSmall = 100;

std::string bytes_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string place_of(c10::Device device) {
  if (device.is_cpu()) return kHost;
  return fmt::format("cuda:{}", std::max<int>(device.index(), 0));
}

bool is_gpu(const std::string& place) {
  return place.starts_with("cuda:");
}

/// "0" and "cuda" are "cuda:0".
std::string known_place(const std::string& word, const std::string& where) {
  if (word == kHost || word == kDisk) return word;
  const auto digits = std::string_view(word).substr(word.starts_with("cuda:") ? 5 : 0);
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size() && number >= 0 && number < 1000;
  LEVIN_CHECK(is_number || word == "cuda", where, ": there is no device \"", shown(word), "\" (cuda:0, cpu, disk)");
  return fmt::format("cuda:{}", number);
}

// ---- units of a model

struct Part {
  std::string name;
  torch::nn::Module* module;
};

/// Children that can be intercepted, in order; a module that only holds others is looked into.
void add_parts(std::vector<Part>& parts, const std::string& prefix, const torch::nn::Module& module) {
  LEVIN_CHECK(module.parameters(false).empty() && module.buffers(false).empty(), "[placement] \"", prefix,
              "\" has parameters beside its modules, which cannot be placed");
  for (const auto& item : module.named_children()) {
    const auto name = prefix.empty() ? item.key() : prefix + "." + item.key();
    if (dynamic_cast<Unit*>(item.value().get()))
      parts.push_back({name, item.value().get()});
    else
      add_parts(parts, name, *item.value());
  }
}

/// Where the tensors of a part lie, to find those that lie in the same memory.
std::vector<std::pair<const void*, int64_t>> memory_of(const FlatTensors& flat) {
  std::vector<std::pair<const void*, int64_t>> memory;
  for (const auto& tensor : flat.tensors)
    memory.emplace_back(tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr,
                        tensor.storage_offset());
  return memory;
}

}  // namespace

std::vector<PlacementUnit> placement_units(const torch::nn::Module& model) {
  std::vector<Part> parts;
  add_parts(parts, "", model);
  std::unordered_map<const c10::TensorImpl*, size_t> owner;
  std::vector<PlacementUnit> units;
  std::vector<std::vector<torch::nn::Module*>> modules;
  for (const auto& [name, module] : parts) {
    const FlatTensors own({module});
    std::optional<size_t> tied_to;
    for (const auto& tensor : own.tensors)
      if (const auto found = owner.find(tensor.unsafeGetTensorImpl()); found != owner.end()) tied_to = found->second;
    if (!tied_to) {
      tied_to = units.size();
      units.push_back({.name = name, .is_block = !module->children().empty()});
      modules.emplace_back();
    } else {
      units[*tied_to].tied.push_back(name);
    }
    modules[*tied_to].push_back(module);
    for (const auto& tensor : own.tensors) owner.emplace(tensor.unsafeGetTensorImpl(), *tied_to);
  }
  std::map<std::vector<std::pair<const void*, int64_t>>, size_t> by_memory;
  for (size_t i = 0; i < units.size(); ++i) {
    const FlatTensors flat(modules[i]);
    units[i].bytes = flat.bytes;
    const auto memory = memory_of(flat);
    if (memory.empty() || !memory.front().first) continue;
    const auto [found, is_new] = by_memory.emplace(memory, i);
    if (!is_new) units[i].shared = units[found->second].shared = static_cast<int64_t>(found->second);
  }
  return units;
}

// ---- where they lie

bool WeightPlacement::streams(size_t unit) const {
  return places[unit] == kDisk || (places[unit] == kHost && !device.is_cpu());
}

int64_t WeightPlacement::bytes_at(std::string_view place) const {
  int64_t sum = 0;
  std::set<int64_t> counted;
  for (size_t i = 0; i < units.size(); ++i) {
    if (places[i] != place) continue;
    const bool again = place == kHost && units[i].shared >= 0 && !counted.insert(units[i].shared).second;
    if (!again) sum += units[i].bytes;
  }
  return sum;
}

int64_t WeightPlacement::streamed_bytes() const {
  int64_t sum = 0;
  for (size_t i = 0; i < units.size(); ++i)
    if (streams(i)) sum += units[i].bytes;
  return sum;
}

int64_t WeightPlacement::buffer_bytes() const {
  int64_t largest = 0, count = 0;
  for (size_t i = 0; i < units.size(); ++i)
    if (streams(i)) {
      largest = std::max(largest, units[i].bytes);
      ++count;
    }
  return largest * std::min(count, buffers);
}

namespace {

/// "blocks.0-3": numbers that follow each other.
std::string names_of(const WeightPlacement& placement, const std::string& place) {
  std::string text, base;
  int64_t first = 0, last = -2;
  const auto flush = [&] {
    if (!base.empty()) text += fmt::format("{}{}.{}", text.empty() ? "" : ", ", base, first);
    if (!base.empty() && last > first) text += fmt::format("-{}", last);
    base.clear();
  };
  const auto add = [&](const std::string& name) {
    const auto dot = name.rfind('.');
    int64_t number = -1;
    if (dot != std::string::npos) std::from_chars(name.data() + dot + 1, name.data() + name.size(), number);
    if (number >= 0 && !base.empty() && name.compare(0, dot, base) == 0 && number == last + 1) {
      last = number;
      return;
    }
    flush();
    if (number >= 0) {
      base = name.substr(0, dot);
      first = last = number;
    } else {
      text += (text.empty() ? "" : ", ") + name;
    }
  };
  for (size_t i = 0; i < placement.units.size(); ++i) {
    if (placement.places[i] != place) continue;
    add(placement.units[i].name);
    for (const auto& name : placement.units[i].tied) add(name);
  }
  flush();
  return text;
}

}  // namespace

std::string WeightPlacement::describe() const {
  std::vector<std::string> order;
  for (const auto& place : places)
    if (std::find(order.begin(), order.end(), place) == order.end()) order.push_back(place);
  std::string text;
  for (const auto& place : order) {
    const bool comes = place == kDisk || (place == kHost && !device.is_cpu());
    text += fmt::format("{}{:<7} {:>8}  {}{}", text.empty() ? "" : "\n", place, bytes_text(bytes_at(place)),
                        names_of(*this, place), comes ? " (streamed)" : "");
  }
  if (buffer_bytes() > 0)
    text += fmt::format("\n{:<7} {:>8}  buffers for what is streamed", place_of(device), bytes_text(buffer_bytes()));
  return text;
}

// ---- by size

namespace {

/// A place while it is filled.
struct Room {
  std::string place;
  /// None: without limit.
  std::optional<int64_t> bytes;
  int64_t used = 0;
  std::set<int64_t> shared = {};

  int64_t cost(const PlacementUnit& unit) const {
    return place == kHost && unit.shared >= 0 && shared.contains(unit.shared) ? 0 : unit.bytes;
  }
  bool fits(const PlacementUnit& unit, int64_t reserved) const {
    return !bytes || used + cost(unit) <= *bytes - reserved;
  }
  void take(const PlacementUnit& unit) {
    used += cost(unit);
    if (unit.shared >= 0) shared.insert(unit.shared);
  }
};

std::vector<Room> rooms_of(const PlacementOptions& options) {
  std::vector<Room> rooms;
  const auto main = place_of(options.device);
  for (const auto& [word, bytes] : options.max_memory) {
    const auto place = known_place(word, "[placement] max_memory");
    LEVIN_CHECK(bytes >= 0, "[placement] max_memory of ", place, ": ", bytes, " bytes");
    LEVIN_CHECK(std::none_of(rooms.begin(), rooms.end(), [&](const auto& room) { return room.place == place; }),
                "[placement] max_memory names ", place, " twice");
    LEVIN_CHECK(!is_gpu(place) || !options.device.is_cpu(), "[placement] max_memory names ", place,
                ", but the model runs on the cpu");
    rooms.push_back({place, bytes - (place == main ? options.workspace : 0)});
  }
  // GPUs before host memory before the disk; the one that computes first.
  const auto rank = [&](const Room& room) {
    return room.place == main ? 0 : is_gpu(room.place) ? 1 : room.place == kHost ? 2 : 3;
  };
  for (const std::string& place : {main, std::string(kHost), std::string(kDisk)})
    if (std::none_of(rooms.begin(), rooms.end(), [&](const auto& room) { return room.place == place; }))
      rooms.push_back({place, std::nullopt});
  std::stable_sort(rooms.begin(), rooms.end(), [&](const Room& a, const Room& b) { return rank(a) < rank(b); });
  return rooms;
}

/// Every GPU but the last gets its fraction and some more, so that rounding does not push the last blocks out.
void balance(std::vector<Room>& rooms, const std::vector<PlacementUnit>& units) {
  std::vector<Room*> gpus;
  for (auto& room : rooms)
    if (is_gpu(room.place) && room.bytes.value_or(1) > 0) gpus.push_back(&room);
  if (gpus.size() < 2) return;
  int64_t total = 0, block = 0;
  for (const auto& unit : units) {
    total += unit.bytes;
    if (unit.is_block) block = std::max(block, unit.bytes);
  }
  const auto mean = total / static_cast<int64_t>(units.size());
  const auto extra = static_cast<int64_t>(1.25 * static_cast<double>(block > 0 ? block : mean));
  const auto share = total / static_cast<int64_t>(gpus.size()) + extra;
  for (size_t i = 0; i + 1 < gpus.size(); ++i) gpus[i]->bytes = std::min(gpus[i]->bytes.value_or(share), share);
}

/// Fills rooms in order. Empty: the units do not fit.
std::vector<std::string> filled(const std::vector<PlacementUnit>& units, std::vector<Room> rooms,
                                const PlacementOptions& options, bool reserves) {
  int64_t largest = 0;
  for (const auto& unit : units) largest = std::max(largest, unit.bytes);
  std::vector<std::string> places(units.size());
  const auto main = place_of(options.device);
  auto& device = rooms.front();
  if (reserves)
    for (size_t i = 0; i < units.size(); ++i)
      if (units[i].bytes * kSmall < largest && device.fits(units[i], 0)) {
        device.take(units[i]);
        places[i] = device.place;
      }
  size_t current = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (!places[i].empty()) continue;
    int64_t left = 0;
    for (size_t j = i + 1; j < units.size(); ++j)
      if (places[j].empty()) left = std::max(left, units[j].bytes);
    for (; current < rooms.size(); ++current) {
      const bool is_kept = rooms[current].place == main || rooms[current].place == kHost;
      if (rooms[current].fits(units[i], reserves && is_kept ? options.buffers * left : 0)) break;
    }
    if (current == rooms.size()) return {};
    rooms[current].take(units[i]);
    places[i] = rooms[current].place;
  }
  return places;
}

}  // namespace

void check_room(const WeightPlacement& placement, const PlacementOptions& options) {
  const auto main = place_of(placement.device);
  for (const auto& room : rooms_of(options)) {
    if (!room.bytes) continue;
    const bool is_main = room.place == main;
    const auto weights = placement.bytes_at(room.place), buffers = is_main ? placement.buffer_bytes() : 0;
    if (weights + buffers <= *room.bytes) continue;
    int64_t largest = 0;
    std::string name;
    for (size_t i = 0; i < placement.units.size(); ++i)
      if (placement.streams(i) && placement.units[i].bytes > largest) {
        largest = placement.units[i].bytes;
        name = placement.units[i].name;
      }
    const auto workspace = is_main ? options.workspace : 0;
    const auto needed = weights + buffers + workspace;
    detail::fail(fmt::format(
        "[placement] {} needs {} ({} bytes), and may have {}: {} of weights there, {} for buffers{}, {} for cache and "
        "activations",
        room.place, bytes_text(needed), needed, bytes_text(*room.bytes + workspace), bytes_text(weights),
        bytes_text(buffers), name.empty() ? "" : fmt::format(" (the largest unit is \"{}\")", name),
        bytes_text(workspace)));
  }
}

WeightPlacement place_units(std::vector<PlacementUnit> units, const PlacementOptions& options) {
  static const std::array<std::string, 4> known{"auto", "balanced", "sequential", "cpu"};
  const auto& word = options.device_map;
  if (std::find(known.begin(), known.end(), word) == known.end()) fail_unknown("placement", "device_map", word, known);
  auto rooms = rooms_of(options);
  WeightPlacement placement{.device = options.device, .units = std::move(units), .buffers = options.buffers};
  if (word == "cpu") {
    placement.places.assign(placement.units.size(), kHost);
    check_room(placement, options);
    return placement;
  }
  if (word != "sequential") balance(rooms, placement.units);
  auto computing = rooms;
  std::erase_if(computing, [&](const Room& room) {
    return room.place == kDisk || (room.place == kHost && !options.device.is_cpu());
  });
  placement.places = filled(placement.units, computing, options, /*reserves=*/false);
  if (placement.places.empty()) placement.places = filled(placement.units, rooms, options, /*reserves=*/true);
  LEVIN_CHECK(!placement.places.empty(), "[placement] the weights do not fit in all of max_memory together");
  check_room(placement, options);
  return placement;
}

// ---- by a map

namespace {

/// Whether a key of a map holds all of a module, by our name or by those of its parameters in files.
bool names_module(const std::string& key, const std::string& ours, const std::vector<std::string>& theirs) {
  const auto is_within = [&](const std::string& name) { return name == key || name.starts_with(key + "."); };
  if (key.empty() || is_within(ours)) return true;
  return !theirs.empty() && std::all_of(theirs.begin(), theirs.end(), is_within);
}

}  // namespace

WeightPlacement placement_from_map(std::vector<PlacementUnit> units,
                                   const std::vector<std::pair<std::string, std::string>>& map,
                                   const PlacementOptions& options) {
  WeightPlacement placement{.device = options.device, .units = std::move(units), .buffers = options.buffers};
  std::set<std::string> used;
  const auto find = [&](const std::string& name, const PlacementUnit& unit, size_t module) {
    static const std::vector<std::string> none;
    const auto& theirs = module < unit.file_names.size() ? unit.file_names[module] : none;
    const std::pair<std::string, std::string>* best = nullptr;
    for (const auto& item : map) {
      if (!names_module(item.first, name, theirs)) continue;
      used.insert(item.first);
      if (!best || item.first.size() > best->first.size()) best = &item;
    }
    return best;
  };
  for (const auto& unit : placement.units) {
    const auto* found = find(unit.name, unit, 0);
    LEVIN_CHECK(found, "[placement] the device map has no place for \"", unit.name, "\"");
    placement.places.push_back(known_place(found->second, fmt::format("[placement] \"{}\"", shown(found->first))));
    for (size_t i = 0; i < unit.tied.size(); ++i) {
      const auto* other = find(unit.tied[i], unit, i + 1);
      LEVIN_CHECK(
          !other || other->first.empty() || known_place(other->second, "[placement]") == placement.places.back(),
          "[placement] \"", unit.tied[i], "\" shares its weight with \"", unit.name, "\": both must have one place");
    }
  }
  for (const auto& [name, place] : map)
    LEVIN_CHECK(used.contains(name), "[placement] the device map names \"", shown(name),
                "\", which is no unit of the model (such as \"", placement.units.front().name, "\")");
  for (const auto& place : placement.places)
    LEVIN_CHECK(!is_gpu(place) || !options.device.is_cpu(), "[placement] the device map names ", place,
                ", but the model runs on the cpu");
  check_room(placement, options);
  return placement;
}

std::vector<std::pair<std::string, std::string>> read_device_map(std::string_view json, const std::string& where) {
  const auto parsed = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  LEVIN_CHECK(parsed.is_object(), where, " is no JSON object of module names and devices");
  std::vector<std::pair<std::string, std::string>> map;
  for (const auto& [name, value] : parsed.items()) {
    LEVIN_CHECK(value.is_string() || value.is_number_unsigned(), where, ": the device of \"", shown(name),
                "\" must be a number or a name (0, \"cuda:0\", \"cpu\", \"disk\")");
    map.emplace_back(name, value.is_string() ? value.get<std::string>() : std::to_string(value.get<uint64_t>()));
  }
  LEVIN_CHECK(!map.empty(), where, " has no modules");
  return map;
}

}  // namespace levin
