#include "levin/program/commands/placement_flags.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/generate/stream_cost.h"

namespace levin::cli {
namespace {

const std::array<std::string, 4> kWords{"auto", "balanced", "sequential", "cpu"};

std::string place_name(c10::Device device) {
  return device.is_cpu() ? "cpu" : fmt::format("cuda:{}", std::max<int>(device.index(), 0));
}

}  // namespace

void PlacementFlags::describe(Flags& flags) {
  flags.flag("device-map", device_map,
             "where weights lie: auto, balanced, sequential, cpu, or a JSON file {\"blocks.0\": \"cpu\", ...}; what "
             "is not on the device is streamed",
             "MAP");
  flags.flag("max-memory", max_memory, "how much may be used: cuda:0=8GiB,cpu=64GiB [90 % of what is free]", "LIST");
  flags.flag("offload-folder", offload_folder, "for weights on the disk that the model's files do not have as such",
             "DIR");
}

std::string PlacementFlags::device(const std::string& asked) const {
  if (!asked.empty() || !used()) return asked;
  if (const auto at = max_memory.find("cuda"); at != std::string::npos)
    return max_memory.substr(at, max_memory.find('=', at) - at);
  return device_map == "cpu" ? "cpu" : accelerator().name();
}

std::vector<MemoryBudget> PlacementFlags::budgets(const std::string& command) const {
  std::vector<MemoryBudget> result;
  for (size_t at = 0; at < max_memory.size();) {
    const auto end = std::min(max_memory.find(',', at), max_memory.size());
    const auto item = max_memory.substr(at, end - at);
    const auto sign = item.find('=');
    LEVIN_CHECK(sign != std::string::npos, "[", command, "] --max-memory \"", shown(item),
                "\" is not DEVICE=BYTES (cuda:0=8GiB,cpu=64GiB)");
    try {
      result.push_back({item.substr(0, sign), static_cast<int64_t>(ByteCount(item.substr(sign + 1)).bytes)});
    } catch (const std::exception& error) {
      throw Error(fmt::format("[{}] --max-memory \"{}\" {}", command, shown(item), error.what()));
    }
    if (result.back().place == "cuda") result.back().place = "cuda:0";
    at = end + 1;
  }
  return result;
}

void PlacementFlags::limit(const std::string& command, c10::Device device) const {
  if (device.is_cpu()) return;
  for (const auto& budget : budgets(command))
    if (budget.place == place_name(device)) {
      const auto& kind = accelerator_of(device);
      LEVIN_CHECK(budget.bytes <= kind.info(device).total_memory, "[", command, "] --max-memory: ", budget.place,
                  " has ", format_bytes(static_cast<double>(kind.info(device).total_memory)));
      kind.limit_memory(device, budget.bytes);
    }
}

models::LanguageModel PlacementFlags::open(const std::string& command, const std::string& folder,
                                           const models::OpenModelOptions& options,
                                           const WeightPlacement& placement) const {
  limit(command, options.device);
  return open_placed_model(folder, options, placement, {.offload_folder = offload_folder});
}

WeightPlacement PlacementFlags::place(const std::string& command, const models::LanguageModel& model,
                                      c10::Device device, const DecodeSizes& sizes) const {
  PlacementOptions options{.device_map = device_map.empty() ? "auto" : device_map,
                           .device = device,
                           .max_memory = memory_budgets(device, budgets(command)),
                           .workspace = decode_workspace(model, sizes, device)};
  auto units = placement_units(model);
  const bool is_word = std::find(kWords.begin(), kWords.end(), options.device_map) != kWords.end();
  LEVIN_CHECK(is_word || std::filesystem::exists(device_map), "[", command, "] --device-map \"", shown(device_map),
              "\" is neither a file nor one of ", join(kWords));
  const auto placement =
      is_word ? place_units(std::move(units), options)
              : placement_from_map(
                    std::move(units),
                    read_device_map(read_file(device_map), fmt::format("[{}] \"{}\"", command, shown(device_map))),
                    options);
  auto lines = "weights:\n" + placement.describe() +
               fmt::format("\n{:<7} {:>8}  cache and activations of {} rows of {} tokens", place_name(device),
                           format_bytes(static_cast<double>(options.workspace)), sizes.rows, sizes.capacity);
  if (placement.streamed_bytes() > 0)
    lines +=
        "\n" + stream_cost(model, placement, options, sizes, measured_link(device), expected_flops(device, model.dtype))
                   .describe(sizes.rows);
  log_info(lines);
  return placement;
}

}  // namespace levin::cli
