#include "levin/generate/placed_model.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/host_memory.h"
#include "levin/generate/decode_graphs.h"
#include "levin/models/language/architecture.h"
#include "levin/models/language/weight_plan.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/named_tensors.h"
#include "levin/nn/weight_stream.h"

namespace levin {
namespace {

/// A unit of a placement in a model.
struct PlacedPart {
  std::vector<std::string> names;
  std::vector<torch::nn::Module*> modules;
  bool streams = false;
};

std::vector<PlacedPart> parts_of(const torch::nn::Module& model, const WeightPlacement& placement) {
  std::unordered_map<std::string, torch::nn::Module*> by_name;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) by_name[item.key()] = item.value().get();
  std::vector<PlacedPart> parts;
  for (size_t i = 0; i < placement.units.size(); ++i) {
    const auto& unit = placement.units[i];
    PlacedPart part{.names = {unit.name}, .modules = {}, .streams = placement.streams(i) && unit.bytes > 0};
    part.names.insert(part.names.end(), unit.tied.begin(), unit.tied.end());
    for (const auto& name : part.names) {
      const auto found = by_name.find(name);
      LEVIN_CHECK(found != by_name.end(), "[placement] the model has no \"", name, "\"");
      part.modules.push_back(found->second);
    }
    const auto& place = placement.places[i];
    LEVIN_CHECK(part.streams || unit.bytes == 0 || place == "cpu" || c10::Device(place) == placement.device ||
                    (!placement.device.has_index() && place == placement.device.str() + ":0"),
                "[placement] \"", unit.name, "\" is on ", place, ", and the model runs on ", placement.device.str(),
                ": several GPUs share a model by tensor parallelism");
    parts.push_back(std::move(part));
  }
  return parts;
}

/// Host memory for a streamed unit: of the disk or of the host.
Tensor memory_for(const std::string& place, int64_t bytes, const PlaceModelOptions& options, const std::string& name) {
  if (place != "disk") return page_locked(bytes, at::kByte);
  LEVIN_CHECK(!options.offload_folder.empty(), "[placement] \"", name,
              "\" cannot be read from the files of the model as it is: the disk needs an offload folder");
  return detail::on_disk(options.offload_folder.string(), bytes, at::kByte);
}

WeightSource source_of(const std::string& place, const Tensor& host) {
  if (place != "disk") return {.host = host};
  return {.read = [host](const Tensor& into) { into.copy_(host); }};
}

/// All that goes to the offload folder, before the first of it is written.
void check_disk(const WeightPlacement& placement, const std::vector<bool>& is_written,
                const PlaceModelOptions& options) {
  uintmax_t bytes = 0;
  for (size_t i = 0; i < is_written.size(); ++i)
    if (is_written[i]) bytes += static_cast<uintmax_t>(placement.units[i].bytes);
  if (bytes == 0 || options.offload_folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.offload_folder, error);
  LEVIN_CHECK(std::filesystem::is_directory(options.offload_folder), "[placement] the offload folder \"",
              options.offload_folder.string(), "\" is not a folder");
  const auto space = std::filesystem::space(options.offload_folder, error);
  LEVIN_CHECK(!error, "[placement] the offload folder \"", options.offload_folder.string(),
              "\" cannot be used: ", error.message());
  LEVIN_CHECK(space.available > bytes, "[placement] the offload folder \"", options.offload_folder.string(), "\" has ",
              format_bytes(static_cast<double>(space.available)), " left, and ",
              format_bytes(static_cast<double>(bytes)), " are to be written");
}

void move_to(const FlatTensors& flat, c10::Device device) {
  for (auto tensor : flat.tensors)
    if (tensor.device().type() != device.type()) tensor.set_data(tensor.to(device));
}

}  // namespace

std::vector<PlacementUnit> placement_units(const models::LanguageModel& model) {
  auto units = placement_units(model.module());
  const auto& architecture = models::architecture_of(model.config);
  const auto tensors = detail::named_tensors(model.module());
  for (auto& unit : units) {
    auto modules = unit.tied;
    modules.insert(modules.begin(), unit.name);
    for (const auto& module : modules) {
      auto& names = unit.file_names.emplace_back();
      for (const auto& [ours, tensor] : tensors) {
        if (!ours.starts_with(module + ".")) continue;
        const auto theirs = models::detail::their_weight(architecture, ours, tensor.sizes());
        if (!theirs) continue;  // the scales of a quantized weight
        for (const auto& name : theirs->names) names.push_back(models::full_name(architecture, ours, name));
      }
    }
  }
  return units;
}

void place_model(models::Decoder& model, const WeightPlacement& placement, const PlaceModelOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const auto parts = parts_of(*model, placement);
  std::vector<bool> is_written;
  for (size_t i = 0; i < parts.size(); ++i) is_written.push_back(parts[i].streams && placement.places[i] == "disk");
  check_disk(placement, is_written, options);
  const auto stream = std::make_shared<WeightStream>(placement.device);
  std::map<std::pair<int64_t, std::string>, Tensor> shared;
  // In order: a deferred unit draws the random numbers that come behind those of the units before it.
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& unit = placement.units[i];
    const auto& place = placement.places[i];
    const FlatTensors flat(parts[i].modules);
    if (!parts[i].streams) {
      materialize(flat.tensors);
      move_to(flat, placement.device);
      continue;
    }
    Tensor host;
    if (unit.shared >= 0) host = shared[{unit.shared, place}];
    if (!host.defined()) {
      materialize(flat.tensors);
      host = memory_for(place, flat.bytes, options, unit.name);
      flat.copy_to(host);
      if (unit.shared >= 0) shared[{unit.shared, place}] = host;
    }
    stream->add(unit.name, parts[i].modules, flat, source_of(place, host));
  }
  accelerator_of(placement.device).empty_cache(placement.device);
  stream->make_buffers();
}

models::LanguageModel open_placed_model(const std::filesystem::path& folder, models::OpenModelOptions options,
                                        const WeightPlacement& placement, const PlaceModelOptions& place) {
  const c10::AutoGradMode no_grad(false);
  options.device = placement.device;
  const auto on_read = options.on_read;
  models::ModelReader reader(folder, options);
  const auto parts = parts_of(reader.model().module(), placement);
  std::vector<bool> changes;
  for (size_t i = 0; i < parts.size(); ++i) changes.push_back(parts[i].streams && reader.changes(parts[i].names));
  auto is_written = changes;
  for (size_t i = 0; i < parts.size(); ++i) is_written[i] = changes[i] && placement.places[i] == "disk";
  check_disk(placement, is_written, place);
  const auto stream = std::make_shared<WeightStream>(placement.device);
  // First what streams: what it needs of the device on its way is free when the others come to stay.
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& part = parts[i];
    if (!part.streams) continue;
    if (changes[i]) {
      reader.read(part.names);
      const FlatTensors flat(part.modules);
      const auto host = memory_for(placement.places[i], flat.bytes, place, part.names.front());
      flat.copy_to(host);
      stream->add(part.names.front(), part.modules, flat, source_of(placement.places[i], host));
      continue;
    }
    const FlatTensors flat(part.modules);
    const auto read = [flat, from_files = reader.later(flat.tensors)](const Tensor& into) {
      from_files(flat.views(into));
    };
    if (placement.places[i] == "disk") {
      stream->add(part.names.front(), part.modules, flat, {.read = read});
      continue;
    }
    const auto host = page_locked(flat.bytes, at::kByte);
    read(host);
    if (on_read) on_read(flat.bytes);
    stream->add(part.names.front(), part.modules, flat, {.host = host});
  }
  accelerator_of(placement.device).empty_cache(placement.device);
  for (const auto& part : parts)
    if (!part.streams) reader.read(part.names);
  stream->make_buffers();
  auto model = reader.finish();
  LEVIN_CHECK(!is_deferred(model.module()), "[placement] \"", folder.string(), "\" lacks a head");
  return model;
}

std::vector<MemoryBudget> memory_budgets(c10::Device device, std::vector<MemoryBudget> asked) {
  const auto add = [&](const std::string& place, std::optional<int64_t> free) {
    const bool is_asked = std::ranges::any_of(asked, [&](const auto& budget) {
      return budget.place == place || (place == "cuda:0" && (budget.place == "cuda" || budget.place == "0"));
    });
    if (!is_asked && free) asked.push_back({place, *free / 10 * 9});
  };
  if (!device.is_cpu()) {
    const auto& kind = accelerator_of(device);
    add(fmt::format("cuda:{}", std::max<int>(device.index(), 0)),
        kind.memory_limit(device) - kind.memory(device).allocated);
  }
  add("cpu", available_host_memory());
  return asked;
}

int64_t decode_workspace(const models::LanguageModel& model, const DecodeSizes& sizes, c10::Device device) {
  const auto& body = model.body();
  const auto width = static_cast<int64_t>(c10::elementSize(model.dtype));
  const auto rows = detail::graph_rows(sizes.rows), tokens = std::max(rows, sizes.prefill_chunk);
  const auto cache = 2 * body.num_layers * rows * body.key_heads() * sizes.capacity * body.head_width() * width;
  // What is there at once of a block; scores and masks of attention are float32 where no kernel does without them.
  const auto block = tokens * (8 * body.hidden_dim + 4 * body.mlp_width()) * width;
  const auto scores = 2 * std::min(tokens, std::max(sizes.capacity, rows)) * body.num_heads * sizes.capacity * 4;
  const auto logits = rows * body.vocab_size * (width + 6 * 4);
  // Products of many rows use a copy of a quantized weight in the dtype of the model.
  const auto unpacked = model.quantization ? body.hidden_dim * body.mlp_width() * width : 0;
  const auto libraries = device.is_cpu() ? 0 : int64_t{256} << 20;  // and graphs
  return cache + block + scores + logits + unpacked + libraries;
}

}  // namespace levin
