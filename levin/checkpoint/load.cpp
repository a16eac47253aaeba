#include <algorithm>
#include <optional>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/checkpoint_format.h"
#include "levin/checkpoint/open_checkpoint.h"
#include "levin/checkpoint/reader.h"
#include "levin/checkpoint/state_copy.h"
#include "levin/checkpoint/together.h"
#include "levin/checkpoint/torch_optimizer.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/core/words.h"
#include "levin/io/weights/weights.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

using detail::CheckpointReader;
using detail::OpenCheckpoint;

/// Adds to an error which name of which checkpoint it was about.
template <class F>
auto about(const OpenCheckpoint& reader, const std::string& name, F&& f) {
  const auto line = [&](const std::exception& error) {
    return fmt::format("[checkpoint.load] \"{}\" of \"{}\" cannot be loaded: {}", name, reader.where(),
                       one_line(error));
  };
  try {
    return f();
  } catch (const c10::Error& error) {
    throw Error(line(error));
  } catch (const Error& error) {
    throw Error(line(error));
  }
}

void collect_tensors(const StateValue& value, const std::string& path, std::unordered_map<std::string, Tensor>& into) {
  if (value.is_tensor()) into.emplace(path, value.to_tensor());
  if (!value.is_dict()) return;
  for (const auto& [name, element] : value.to_dict()) collect_tensors(element, path + "\n" + name, into);
}

/// Values that have been read, and those who take them: all of them do, or nothing changes.
class ValueLoad {
 public:
  void add(const StateRef& ref, const OpenCheckpoint& reader, const std::string& name, ShardMap* shards) {
    about(reader, name, [&] {
      parts_.push_back({.ref = &ref, .name = name});
      auto& part = parts_.back();
      if (!ref.optimizer()) {
        part.value = reader.read(name);
        return;
      }
      std::optional<ShardTargets> targets;
      if (shards) targets.emplace(*shards).add({name}, ref.optimizer());
      auto& optimizer = *ref.optimizer().impl();
      if (auto described = reader.describe(name, targets ? &*targets : nullptr, part.tensors);
          described && optimizer.makes_room(described->to_dict()) && optimizer.check_state_dict(described->to_dict())) {
        part.value = std::move(*described);
        part.fits = true;
        return;
      }
      part.tensors.clear();
      part.value = targets ? reader.read(name, *targets) : reader.read(name);
      part.fits = optimizer.check_state_dict(part.value.to_dict());
    });
  }
  /// Those who may refuse.
  void run(const OpenCheckpoint& reader) { run(reader, /*fits=*/false); }
  /// Optimizers that have looked at theirs: no copies of what they are now.
  void run_checked(const OpenCheckpoint& reader) { run(reader, /*fits=*/true); }
  void put_back() noexcept { undo_.put_back(); }

 private:
  struct Part {
    const StateRef* ref;
    std::string name;
    StateValue value = {};
    /// Those that are still to be read, when there is room for them.
    std::vector<detail::DescribedTensor> tensors = {};
    /// It was looked at, and will be taken.
    bool fits = false;
  };

  void run(const OpenCheckpoint& reader, bool fits) {
    for (auto& part : parts_) {
      if (part.fits != fits) continue;
      about(reader, part.name, [&] {
        if (!fits) undo_.add(*part.ref);
        part.ref->load(part.value);
        fill(part);
      });
      part.value = {};
    }
  }

  static void fill(const Part& part) {
    if (part.tensors.empty()) return;
    std::unordered_map<std::string, Tensor> places;
    collect_tensors(part.ref->save(), part.name, places);
    for (const auto& tensor : part.tensors) {
      const auto place = places.find(fmt::format("{}", fmt::join(tensor.path, "\n")));
      if (place != places.end()) detail::read_to(place->second, tensor.like, tensor.read);
    }
  }

  std::vector<Part> parts_;
  detail::StateUndo undo_;
};

/// Weights from elsewhere as a source.
class WeightTensors : public detail::TensorSource {
 public:
  explicit WeightTensors(const WeightFile& file) : file_(file) {}
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& entry : file_.entries())
      if (!entry.is_alias) names.push_back(entry.name);
    std::ranges::sort(names);  // the order of a file means nothing
    return names;
  }
  Tensor like(const std::string& name) const override {
    const auto* entry = file_.find(name);
    if (!entry) return {};
    LEVIN_CHECK(entry->type != c10::ScalarType::Undefined, "[load_raw] \"", name, "\" of \"", file_.path().string(),
                "\" is of ", entry->dtype, ", which torch does not have");
    return at::empty(entry->shape, at::TensorOptions().dtype(entry->type).device(at::kMeta));
  }
  Tensor read(const std::string& name) const override { return file_.read(name); }
  void read_into(const std::string& name, Tensor& into) const override { file_.read_into(name, into); }
  void read_rows(const std::string& name, int64_t start, Tensor& into) const override {
    if (file_.at(name).shape.empty()) return TensorSource::read_rows(name, start, into);
    file_.read_rows(name, start, into);
  }

 private:
  const WeightFile& file_;
};

/// Runs a step of loading; with several ranks together with the others, so that all continue or none.
void step(Collective* group, const std::function<void()>& work) {
  if (group)
    detail::together(*group, work);
  else
    work();
}

template <class Options>
Collective* group_of(const Options& options) {
  return options.shards ? &options.shards->group() : options.group;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void verify_share(const OpenCheckpoint& reader, ShardMap* shards) {
  reader.verify(shards ? shards->group().rank() : 0, shards ? shards->group().size() : 1);
}

/// A checkpoint, or what a program wrote with LibTorch's OutputArchive.
std::unique_ptr<OpenCheckpoint> open_any(const fs::path& path, const CheckpointFormat* own) {
  static const detail::LibtorchFile libtorch;
  return detail::open_checkpoint(path,
                                 !find_checkpoint_format(path, own) && libtorch.recognizes(path) ? &libtorch : own);
}

/// torch::save(module) writes no name for the module itself.
void check_parts_of_libtorch(const fs::path& path, const State& state, const std::vector<std::string>& keys,
                             const LoadOptions& options) {
  if (state.items().empty() || find_checkpoint_format(path, options.format)) return;
  for (const auto& item : state.items())
    if (has(keys, item.name)) return;
  throw Error(
      fmt::format("[checkpoint.load] \"{}\" is a file of LibTorch and has no \"{}\"; one of torch::save(module) or "
                  "torch::save(optimizer) is loaded by load_raw(path, net) or load_raw(path, optimizer)",
                  path.string(), state.items().front().name));
}

/// The part of a checkpoint that one thing takes.
void load_raw_checkpoint(const fs::path& path, const StateRef& target, const RawOptions& options) {
  std::unique_ptr<OpenCheckpoint> reader;
  std::string key;
  std::unique_ptr<detail::TensorSource> source;
  detail::ModuleLoad load;
  ValueLoad value;
  auto* group = group_of(options);
  step(group, [&] {
    reader = detail::open_checkpoint(path, options.format);
    key = reader->choose_key("load_raw", options.key, ".key");
    if (!target.module()) return;
    LEVIN_CHECK(reader->is_dict(key), "[load_raw] \"", key, "\" of \"", reader->where(), "\" is not a module's state");
    source = reader->tensors(key);
    load.add(*target.module(), *source, "", options.shards);
    load.check("load_raw", reader->where(), options.strict);
  });
  step(group, [&] { verify_share(*reader, options.shards); });
  if (target.module()) return step(group, [&] { load.run(reader->where()); });
  try {
    step(group, [&] {
      value.add(target, *reader, key, options.shards);
      value.run(*reader);
    });
    step(group, [&] { value.run_checked(*reader); });
  } catch (...) {
    value.put_back();
    throw;
  }
}

}  // namespace

StateDict load_checkpoint(const fs::path& folder, const State& state, LoadOptions options) {
  std::unique_ptr<OpenCheckpoint> reader;
  std::vector<std::string> keys;
  const auto there = [&](const std::string& name) { return has(keys, name); };

  // All that can be known before a byte of data is read comes first: a refused load changes nothing.
  detail::ModuleLoad modules;
  std::vector<std::unique_ptr<detail::TensorSource>> sources;
  auto* group = group_of(options);
  step(group, [&] {
    reader = open_any(folder, options.format);
    keys = reader->keys();
    check_parts_of_libtorch(folder, state, keys, options);
    for (const auto& [name, ref] : state.items()) {
      if (!there(name)) {
        if (!has(options.optional, name)) modules.add_missing(name);
      } else if (ref.module()) {
        LEVIN_CHECK(reader->is_dict(name), "[checkpoint.load] \"", name, "\" of \"", reader->where(),
                    "\" is not a module's state");
        sources.push_back(reader->tensors(name));
        modules.add(*ref.module(), *sources.back(), name + ".", options.shards);
      }
    }
    modules.check("checkpoint.load", reader->where(), options.strict);
  });
  if (options.verify) step(group, [&] { verify_share(*reader, options.shards); });

  StateDict leftover;
  ValueLoad values;
  step(group, [&] {
    for (const auto& [name, ref] : state.items())
      if (there(name) && !ref.module()) values.add(ref, *reader, name, options.shards);
    if (options.leftover)
      for (const auto& name : keys)
        if (!state.find(name) && !has(options.skip, name)) leftover[name] = reader->read(name);
  });
  // Whoever may still refuse comes before optimizers and modules, which have been compared.
  try {
    step(group, [&] { values.run(*reader); });
    step(group, [&] {
      values.run_checked(*reader);
      modules.run(reader->where());
    });
  } catch (...) {
    values.put_back();
    throw;
  }
  return leftover;
}

StateDict load_checkpoint(const fs::path& folder, LoadOptions options) {
  return load_checkpoint(folder, State(), options);
}

StateDict load_checkpoint(const fs::path& folder, const ShardTargets& targets, LoadOptions options) {
  std::unique_ptr<OpenCheckpoint> reader;
  auto* group = &targets.shards().group();
  step(group, [&] { reader = open_any(folder, options.format); });
  if (options.verify) step(group, [&] { verify_share(*reader, &targets.shards()); });
  StateDict state;
  step(group, [&] {
    for (const auto& name : reader->keys())
      if (!has(options.skip, name)) state[name] = reader->read(name, targets);
  });
  return state;
}

void load_raw(const fs::path& path, const StateRef& target, const RawOptions& options) {
  if (find_checkpoint_format(path, options.format)) return load_raw_checkpoint(path, target, options);
  if (target.optimizer()) {
    const detail::TorchOptimizerFile format(options.key);
    auto of_file = options;
    of_file.key = {};
    of_file.format = &format;
    return load_raw_checkpoint(path, target, of_file);
  }
  std::optional<WeightFile> file;
  std::optional<WeightTensors> source;
  detail::ModuleLoad load;
  auto* group = group_of(options);
  step(group, [&] {
    LEVIN_CHECK(target.module(), "[load_raw] \"", path.string(),
                "\" is a weight file, which only a module or an optimizer can take");
    file.emplace(path, options.key.empty() ? WeightOptions() : WeightOptions{.root = options.key});
    source.emplace(*file);
    load.add(*target.module(), *source, "", options.shards);
    load.check("load_raw", path.string(), options.strict);
  });
  step(group, [&] { load.run(path.string()); });
}

void verify_checkpoint(const fs::path& folder) {
  CheckpointReader(folder).verify();
}

CheckpointInfo checkpoint_info(const fs::path& folder) {
  const CheckpointReader reader(folder);
  const auto& manifest = reader.manifest();
  return {manifest.version,  manifest.levin, manifest.torch,  manifest.world_size,
          manifest.saved_at, reader.keys(),  reader.sharded()};
}

std::optional<fs::path> latest_good_checkpoint(const fs::path& folder, const CheckpointFormat* format) {
  std::error_code error;
  std::vector<std::pair<double, fs::path>> found;
  size_t damaged = 0;
  const auto pass_over = [&](const fs::path& path, const std::exception& reason) {
    log_warning(fmt::format("passed over: {}", reason.what()));
    // A folder that has nothing to do with checkpoints is none that was lost.
    if (find_checkpoint_format(path, format) || detail::looks_like_checkpoint(path)) ++damaged;
  };
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    // Hidden folders are those still being written, or left by a process that died.
    if (it->path().filename().string().starts_with('.')) continue;
    const auto* known = find_checkpoint_format(it->path(), format);
    if (!known && !it->is_directory()) continue;
    try {
      // A folder that no format recognizes is passed over with the line that Levin's own has for it.
      found.emplace_back((known ? known : checkpoint_formats().front())->saved_at(it->path()), it->path());
    } catch (const std::exception& reason) {
      pass_over(it->path(), reason);
    }
  }
  std::sort(found.rbegin(), found.rend());
  for (const auto& [when, path] : found) {
    try {
      detail::open_checkpoint(path, format)->verify();
      return path;
    } catch (const std::exception& reason) {
      pass_over(path, reason);
    }
  }
  LEVIN_CHECK(damaged == 0, "[checkpoint.load] none of the ", damaged, " checkpoints in \"", folder.string(),
              "\" can be loaded; the lines above say why; to start from the beginning, move them away");
  return std::nullopt;
}

}  // namespace levin
