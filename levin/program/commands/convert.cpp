#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/checkpoint/checkpoint.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/progress_bar.h"
#include "levin/core/words.h"
#include "levin/io/weights/safetensors.h"
#include "levin/io/weights/torch_file.h"
#include "levin/models/naming.h"
#include "levin/program/command.h"
#include "levin/program/commands/convert_source.h"
#include "levin/program/commands/weight_flags.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConvertHelp =
    "Moves weights from one format or naming scheme to another. Nothing in a file is run, and nothing is "
    "half-written.\n"
    "Usage: levin convert SRC DST [FLAGS]\n\n"
    "  SRC                   .safetensors, .pt, .pth, .bin, .ckpt, an index of several, or a folder with one of "
    "these;\n"
    "                        or a checkpoint, whether one process wrote it or many ranks their parts\n"
    "  DST                   a file, or with --shard-bytes or --to checkpoint a folder\n"
    "  --to FORMAT           safetensors or pth (by the ending of DST); checkpoint: all of a checkpoint, with its\n"
    "                        tensors in one piece each, as one process writes it\n"
    "  --dtype TYPE          float32, bfloat16 or float16 for all that is floating point\n"
    "  --naming SCHEME       torchvision, timm, huggingface or levin: rename the weights of a ViT, ResNet\n"
    "                        or decoder (GPT-2, Llama)\n"
    "  --from-naming SCHEME  how SRC names them (found out by itself)\n"
    "  --select GLOB         only these names of SRC; may come again, and !GLOB leaves names out\n"
    "  --strip-prefix P      take this from the beginning of names, before they are renamed (\"module.\" where all\n"
    "                        names of a torch file have it)\n"
    "  --add-prefix P        put this before names, after they are renamed\n"
    "  --shard-bytes N       split into files of at most N bytes (5GB, 500MB) with an index\n"
    "  --root NAME           the part to take: of a torch file (state_dict), of a checkpoint (model); \"\" for all of "
    "it\n"
    "                        (auto)\n"
    "  --overwrite           replace DST\n";

/// One tensor of the result: what it is made of, and how large it will be.
struct ConvertItem {
  models::RenamedWeight weight;  // sources are names of the file
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape = {};
  uint64_t bytes = 0;
};

std::vector<ConvertItem> plan_conversion(const WeightSource& file, const WeightFlags& flags) {
  const auto prefix = flags.get("--strip-prefix");
  std::vector<std::string> names;
  std::map<std::string, std::string> origin;
  for (const auto& entry : file.entries()) {
    if (!passes(entry.name, flags.all("--select"))) continue;
    auto name = entry.name;
    if (!prefix.empty() && name.starts_with(prefix)) name.erase(0, prefix.size());
    LEVIN_CHECK(origin.emplace(name, entry.name).second, "[levin convert] two tensors would be \"", name, "\"");
    names.push_back(std::move(name));
  }
  LEVIN_CHECK(!names.empty(), "[levin convert] \"", file.path().string(), "\" has ", file.entries().size(),
              " tensors, and none of them was selected");
  std::vector<models::RenamedWeight> plan;
  const auto to = flags.get("--naming");
  LEVIN_CHECK(!to.empty() || !flags.has("--from-naming"), "[levin convert] --from-naming goes with --naming");
  if (to.empty()) {
    for (const auto& name : names) plan.push_back({name, {name}});
  } else {
    auto from = flags.get("--from-naming");
    if (from.empty()) from = models::detect_naming(names).scheme;
    LEVIN_CHECK(!from.empty(),
                "[levin convert] the names are not of a vit or resnet of torchvision, timm or "
                "huggingface, or of a decoder of huggingface or levin: \"",
                names[0], "\", ... (--strip-prefix may help)");
    plan = models::plan_naming(names, from, to);
  }
  const auto dtype = flags.get("--dtype");
  const auto wanted = dtype.empty() ? c10::ScalarType::Undefined : dtype_from_name("levin convert", dtype);
  std::vector<ConvertItem> items;
  for (auto& weight : plan) {
    std::vector<std::vector<int64_t>> shapes;
    for (auto& source : weight.sources) {
      source = origin.at(source);
      shapes.push_back(file.at(source).shape);
    }
    const auto& first = file.at(weight.sources[0]);
    LEVIN_CHECK(first.type != c10::ScalarType::Undefined, "[levin convert] \"", first.name, "\" is of ", first.dtype,
                ", which cannot be read");
    const bool cast = wanted != c10::ScalarType::Undefined && c10::isFloatingType(first.type);
    ConvertItem item{std::move(weight), cast ? wanted : first.type};
    item.bytes = c10::elementSize(item.dtype);
    item.shape = models::renamed_shape(item.weight, shapes);
    for (const auto size : item.shape) item.bytes *= static_cast<uint64_t>(size);
    item.weight.name = flags.get("--add-prefix") + item.weight.name;
    items.push_back(std::move(item));
  }
  return items;
}

/// A tensor of the result, out of what it is made of.
Tensor make_item(const ConvertItem& item, const std::function<Tensor(const std::string&)>& source) {
  std::vector<Tensor> parts;
  for (const auto& name : item.weight.sources) parts.push_back(source(name));
  auto tensor = parts.size() == 1 ? parts[0] : at::cat(parts, 0);
  if (item.weight.parts > 1) {
    const auto rows = tensor.size(0) / item.weight.parts;
    tensor = tensor.slice(0, item.weight.part * rows, (item.weight.part + 1) * rows).clone();
  }
  return item.weight.transposed ? tensor.t().contiguous() : tensor;
}

/// All of a part of the result. What shared memory in the file and is not changed shares it still.
NamedTensors read_items(const WeightSource& file, std::span<const ConvertItem> items, ProgressBar& bar) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const auto& item : items)
    for (const auto& source : item.weight.sources)
      if (seen.insert(source).second) names.push_back(source);
  std::map<std::string, Tensor> sources;
  for (auto& [name, tensor] : file.read(names)) sources.emplace(name, std::move(tensor));
  std::map<std::pair<void*, c10::ScalarType>, Tensor> cast;  // tied tensors stay tied
  NamedTensors tensors;
  for (const auto& item : items) {
    auto tensor = make_item(item, [&](const std::string& name) { return sources.at(name); });
    if (tensor.scalar_type() != item.dtype) {
      auto& known = cast[{tensor.data_ptr(), item.dtype}];
      if (!known.defined() || known.sizes() != tensor.sizes() || tensor.numel() == 0) known = tensor.to(item.dtype);
      tensor = known;
    }
    tensors.emplace_back(item.weight.name, tensor);
    bar.advance(static_cast<int64_t>(item.bytes));
  }
  return tensors;
}

/// One tensor at a time is in memory, except that a file of torch.save is put together whole.
void write_items(const fs::path& path, const WeightSource& file, std::span<const ConvertItem> items,
                 const std::string& format, ProgressBar& bar) {
  if (format == "pth") return write_torch_file(path, read_items(file, items, bar));
  NamedTensors like;
  std::map<std::string_view, const ConvertItem*> by_name;
  for (const auto& item : items) {
    like.emplace_back(item.weight.name, at::empty(item.shape, at::TensorOptions(item.dtype).device(at::kMeta)));
    by_name.emplace(item.weight.name, &item);
  }
  AtomicFile out(path);
  const auto read = [&](const std::string& name) {
    const auto& item = *by_name.at(name);
    const auto tensor = make_item(item, [&](const std::string& source) { return file.read(source); });
    bar.advance(static_cast<int64_t>(item.bytes));
    return tensor.to(item.dtype);
  };
  write_safetensors(out.writer(), like, read, {{"format", "pt"}});
  out.commit();
}

/// Who names a prefix or tensors himself means the names as SRC has them.
bool strips_module(const WeightFlags& flags) {
  for (const auto& pattern : flags.all("--select"))
    if (pattern.starts_with("module.") || pattern.starts_with("!module.")) return false;
  return !flags.has("--strip-prefix");
}

bool holds_only_weights(const fs::path& folder) {
  for (const auto& item : fs::directory_iterator(folder)) {
    const auto name = item.path().filename().string();
    if (!item.is_regular_file() ||
        !(name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".index.json")))
      return false;
  }
  return true;
}

void check_target(const fs::path& target, bool folder, bool overwrite) {
  if (!fs::exists(target)) return;
  LEVIN_CHECK(
      fs::is_directory(target) == folder, "[levin convert] \"", target.string(), "\" is a ",
      folder ? "file; with --shard-bytes a folder is written" : "folder; name a file in it, or give --shard-bytes");
  if (folder && fs::is_empty(target)) return;
  LEVIN_CHECK(overwrite, "[levin convert] \"", target.string(), "\" is there already; --overwrite replaces it");
  LEVIN_CHECK(!folder || holds_only_weights(target), "[levin convert] \"", target.string(),
              "\" holds other things than weights; name another folder");
}

size_t write_shards(const WeightSource& file, const std::vector<ConvertItem>& items, const fs::path& target,
                    const std::string& format, uint64_t shard_bytes, ProgressBar& bar) {
  std::vector<std::pair<size_t, size_t>> shards;
  uint64_t filled = 0;
  uint64_t total = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (shards.empty() || (filled > 0 && filled + items[i].bytes > shard_bytes)) {
      shards.emplace_back(i, i);
      filled = 0;
    }
    shards.back().second = i + 1;
    filled += items[i].bytes;
    total += items[i].bytes;
  }
  const std::string stem = format == "pth" ? "pytorch_model" : "model";
  const std::string ending = format == "pth" ? ".bin" : ".safetensors";
  AtomicFolder folder(target);
  std::map<std::string, std::string> places;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto name =
        shards.size() == 1 ? stem + ending : fmt::format("{}-{:05}-of-{:05}{}", stem, i + 1, shards.size(), ending);
    const auto part = std::span(items).subspan(shards[i].first, shards[i].second - shards[i].first);
    write_items(folder.path() / name, file, part, format, bar);
    for (const auto& item : part) places[item.weight.name] = name;
  }
  if (shards.size() > 1) {
    const nlohmann::ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", places}};
    write_file(folder.path() / (stem + ending + ".index.json"), index.dump(2) + "\n");
  }
  folder.commit();
  return shards.size();
}

/// `--to checkpoint`: all of a checkpoint, for a run to go on from.
int convert_checkpoint(const fs::path& source, const fs::path& target, const WeightFlags& flags) {
  for (const char* flag : {"--dtype", "--naming", "--from-naming", "--select", "--strip-prefix", "--add-prefix",
                           "--shard-bytes", "--root"})
    LEVIN_CHECK(!flags.has(flag), "[levin convert] --to checkpoint takes all of a checkpoint as it is; leave ", flag,
                " out");
  LEVIN_CHECK(detail::looks_like_checkpoint(source), "[levin convert] \"", source.string(),
              "\" is not a checkpoint, so --to checkpoint can do nothing with it");
  LEVIN_CHECK(!fs::exists(target) || flags.has("--overwrite") || (fs::is_directory(target) && fs::is_empty(target)),
              "[levin convert] \"", target.string(), "\" is there already; --overwrite replaces it");
  {
    std::optional<ProgressBar> bar;
    std::optional<DropBar> drop;
    uint64_t before = 0;
    const auto progress = [&](uint64_t done, uint64_t all) {
      if (!bar)
        drop.emplace(bar.emplace("converting", static_cast<int64_t>(all), ProgressOptions{.unit = "B", .keep = false}));
      bar->advance(static_cast<int64_t>(done - before));
      before = done;
    };
    consolidate_checkpoint(source, target, {.progress = progress});
  }
  const detail::CheckpointReader written(target);
  uint64_t total = 0;
  for (const auto& tensor : written.manifest().tensors) total += written.like(tensor.id).nbytes();
  fmt::print("{}: {} tensors, {}, a checkpoint with {}\n", target.string(), written.manifest().tensors.size(),
             format_bytes(static_cast<double>(total)), join(written.keys()));
  return 0;
}

}  // namespace

int convert(const std::vector<std::string>& words, const Args&) {
  if (wants_help(words)) {
    std::fputs(kConvertHelp, stdout);
    return 0;
  }
  const WeightFlags flags("levin convert", words, {"--overwrite"},
                          {"--to", "--dtype", "--naming", "--from-naming", "--select", "--strip-prefix", "--add-prefix",
                           "--shard-bytes", "--root"},
                          {"SRC", "DST"});
  const std::vector<std::string> schemes(models::naming_schemes().begin(), models::naming_schemes().end());
  flags.get("--naming", "", schemes);
  flags.get("--from-naming", "", schemes);
  flags.get("--dtype", "", {"float32", "bfloat16", "float16"});
  const auto shard_bytes = flags.bytes("--shard-bytes");
  const fs::path target = flags.file(1);
  auto format = flags.get("--to", "", {"safetensors", "pth", "checkpoint"});
  if (format == "checkpoint") return convert_checkpoint(flags.file(0), target, flags);
  if (format.empty()) {
    const auto ending = target.extension().string();
    const bool torch = ending == ".pth" || ending == ".pt" || ending == ".bin" || ending == ".ckpt";
    LEVIN_CHECK(torch || ending == ".safetensors" || shard_bytes > 0, "[levin convert] \"", target.string(),
                "\" does not tell the format by its ending; say --to safetensors or --to pth");
    format = torch ? "pth" : "safetensors";
  }
  check_target(target, shard_bytes > 0, flags.has("--overwrite"));
  const WeightSource file(flags.file(0), flags.get("--root", "auto"), strips_module(flags));
  const auto items = plan_conversion(file, flags);
  file.verify();
  uint64_t total = 0;
  for (const auto& item : items) total += item.bytes;
  size_t files = 1;
  {
    ProgressBar bar("converting", static_cast<int64_t>(total), {.unit = "B", .keep = false});
    const DropBar drop(bar);
    if (shard_bytes > 0)
      files = write_shards(file, items, target, format, shard_bytes, bar);
    else
      write_items(target, file, items, format, bar);
  }
  fmt::print("{}: {} {}, {}, {} {} of {}\n", target.string(), items.size(), items.size() == 1 ? "tensor" : "tensors",
             format_bytes(static_cast<double>(total)), files, files == 1 ? "file" : "files", format);
  if (!file.stripped().empty())
    fmt::print("names are without \"{0}\", which all names of {1} have (--add-prefix {0} keeps it)\n", file.stripped(),
               file.path().string());
  return 0;
}

}  // namespace levin::cli
