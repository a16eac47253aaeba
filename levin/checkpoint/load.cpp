#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/reader.h"
#include "levin/checkpoint/together.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/io/safetensors_model.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

using detail::CheckpointReader;

/// Adds to an error which name of which checkpoint it was about.
void load_one(const StateRef& ref, const CheckpointReader& reader, const std::string& name, ShardMap* shards) {
  try {
    if (!shards || !ref.optimizer()) {
      ref.load(reader.read(name));
      return;
    }
    ShardTargets targets(*shards);
    targets.add({name}, ref.optimizer());
    ref.load(reader.read(name, targets));
  } catch (const Error& error) {
    throw Error(
        fmt::format("[checkpoint.load] \"{}\" of \"{}\" cannot be loaded: {}", name, reader.where(), error.what()));
  }
}

/// Weights from elsewhere as a source.
class ModelSource : public detail::TensorSource {
 public:
  explicit ModelSource(const SafetensorsModel& model) : model_(model) {}
  std::vector<std::string> names() const override { return model_.names(); }
  Tensor like(const std::string& name) const override {
    if (!model_.contains(name)) return {};
    const auto& entry = model_.at(name);
    return at::empty(entry.shape, at::TensorOptions().dtype(entry.scalar_type()).device(at::kMeta));
  }
  Tensor read(const std::string& name) const override { return model_.read(name); }
  void read_into(const std::string& name, Tensor& into) const override { model_.read_into(name, into); }
  void read_rows(const std::string& name, int64_t start, Tensor& into) const override {
    if (model_.at(name).shape.empty()) return TensorSource::read_rows(name, start, into);
    for (const auto& file : model_.files())
      if (const auto* entry = file.find(name)) return file.read_rows(*entry, start, into);
  }

 private:
  const SafetensorsModel& model_;
};

/// Runs a step of loading; with shards together with the other ranks, so that all go on or none.
void step(ShardMap* shards, const std::function<void()>& work) {
  if (shards)
    detail::together(shards->group(), work);
  else
    work();
}

bool skips(const LoadOptions& options, const std::string& name) {
  return std::find(options.skip.begin(), options.skip.end(), name) != options.skip.end();
}

void verify_share(const CheckpointReader& reader, ShardMap* shards) {
  reader.verify(shards ? shards->group().rank() : 0, shards ? shards->group().size() : 1);
}

/// The part of a checkpoint that one thing takes.
void load_raw_checkpoint(const fs::path& path, const StateRef& target, const RawOptions& options) {
  std::optional<CheckpointReader> reader;
  std::string key;
  std::unique_ptr<detail::TensorSource> source;
  detail::ModuleLoad load;
  step(options.shards, [&] {
    reader.emplace(path);
    key = reader->choose_key("load_raw", options.key, ".key");
    if (!target.module()) return;
    LEVIN_CHECK(reader->is_dict(key), "[load_raw] \"", key, "\" of \"", reader->where(), "\" is not a module's state");
    source = reader->tensors(key);
    load.add(*target.module(), *source, "", options.shards);
    load.check("load_raw", reader->where(), options.strict);
  });
  step(options.shards, [&] { verify_share(*reader, options.shards); });
  step(options.shards, [&] {
    if (target.module())
      load.run(reader->where());
    else
      load_one(target, *reader, key, options.shards);
  });
}

}  // namespace

StateDict load_checkpoint(const fs::path& folder, const State& state, LoadOptions options) {
  std::optional<CheckpointReader> reader;
  std::vector<std::string> keys;
  const auto there = [&](const std::string& name) { return std::find(keys.begin(), keys.end(), name) != keys.end(); };

  // All that can be known before a byte of data is read comes first: a refused load changes nothing.
  detail::ModuleLoad modules;
  std::vector<std::unique_ptr<detail::TensorSource>> sources;
  step(options.shards, [&] {
    reader.emplace(folder);
    keys = reader->keys();
    for (const auto& [name, ref] : state.items()) {
      if (!there(name)) {
        modules.add_missing(name);
      } else if (ref.module()) {
        LEVIN_CHECK(reader->is_dict(name), "[checkpoint.load] \"", name, "\" of \"", reader->where(),
                    "\" is not a module's state");
        sources.push_back(reader->tensors(name));
        modules.add(*ref.module(), *sources.back(), name + ".", options.shards);
      }
    }
    modules.check("checkpoint.load", reader->where(), options.strict);
  });
  if (options.verify) step(options.shards, [&] { verify_share(*reader, options.shards); });

  StateDict leftover;
  step(options.shards, [&] {
    // Variables are the ones whose kind may be wrong, so they go before anything large is overwritten.
    for (const auto& [name, ref] : state.items())
      if (there(name) && (ref.is_variable() || ref.tensor())) load_one(ref, *reader, name, options.shards);
    modules.run(reader->where());
    for (const auto& [name, ref] : state.items())
      if (there(name) && !ref.is_variable() && !ref.tensor() && !ref.module())
        load_one(ref, *reader, name, options.shards);
    if (options.leftover)
      for (const auto& name : keys)
        if (!state.find(name) && !skips(options, name)) leftover[name] = reader->read(name);
  });
  return leftover;
}

StateDict load_checkpoint(const fs::path& folder, LoadOptions options) {
  return load_checkpoint(folder, State(), options);
}

StateDict load_checkpoint(const fs::path& folder, const ShardTargets& targets, LoadOptions options) {
  std::optional<CheckpointReader> reader;
  step(&targets.shards(), [&] { reader.emplace(folder); });
  if (options.verify) step(&targets.shards(), [&] { verify_share(*reader, &targets.shards()); });
  StateDict state;
  step(&targets.shards(), [&] {
    for (const auto& name : reader->keys())
      if (!skips(options, name)) state[name] = reader->read(name, targets);
  });
  return state;
}

void load_raw(const fs::path& path, const StateRef& target, const RawOptions& options) {
  if (fs::is_directory(path) && fs::exists(path / detail::kManifestFile))
    return load_raw_checkpoint(path, target, options);
  std::optional<SafetensorsModel> model;
  std::optional<ModelSource> source;
  detail::ModuleLoad load;
  step(options.shards, [&] {
    LEVIN_CHECK(target.module(), "[load_raw] \"", path.string(),
                "\" has the weights of a module, only a module can take them");
    model.emplace(path);
    source.emplace(*model);
    load.add(*target.module(), *source, "", options.shards);
    load.check("load_raw", path.string(), options.strict);
  });
  step(options.shards, [&] { load.run(path.string()); });
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

std::optional<fs::path> latest_good_checkpoint(const fs::path& folder) {
  std::error_code error;
  std::vector<std::pair<double, fs::path>> found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    // Hidden folders are those still being written, or left by a process that died.
    if (!it->is_directory() || it->path().filename().string().starts_with('.')) continue;
    try {
      const CheckpointReader reader(it->path());
      found.emplace_back(reader.manifest().saved_at, it->path());
    } catch (const Error& reason) {
      log_warning(fmt::format("passed over: {}", reason.what()));
    }
  }
  std::sort(found.rbegin(), found.rend());
  for (const auto& [when, path] : found) {
    try {
      verify_checkpoint(path);
      return path;
    } catch (const Error& reason) {
      log_warning(fmt::format("passed over: {}", reason.what()));
    }
  }
  return std::nullopt;
}

}  // namespace levin
