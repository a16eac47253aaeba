#include "levin/checkpoint/checkpoint_format.h"

#include <chrono>

#include "levin/checkpoint/folder_format.h"
#include "levin/checkpoint/format.h"
#include "levin/checkpoint/open_checkpoint.h"
#include "levin/checkpoint/state_files.h"
#include "levin/checkpoint/together.h"
#include "levin/core/files.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

/// The value with the rows that targets take.
StateValue take_rows(const StateValue& value, detail::StatePath& path, const ShardTargets& targets) {
  const auto below = [&](const std::string& name, const StateValue& element) {
    path.push_back(name);
    auto taken = take_rows(element, path, targets);
    path.pop_back();
    return taken;
  };
  if (value.is_tensor()) {
    const auto& tensor = value.to_tensor();
    const auto rows = tensor.defined() ? targets.find(path, tensor.sizes()) : std::nullopt;
    return rows ? StateValue(detail::narrow_rows(tensor, rows->start, rows->rows).reshape(rows->sizes).clone()) : value;
  }
  if (value.is_list()) {
    StateList list;
    for (const auto& element : value.to_list()) list.push_back(below(std::to_string(list.size()), element));
    return list;
  }
  if (!value.is_dict()) return value;
  StateDict dict;
  for (const auto& [name, element] : value.to_dict()) dict[name] = below(name, element);
  return dict;
}

/// A state in memory as an open checkpoint.
class LoadedCheckpoint final : public detail::OpenCheckpoint {
 public:
  LoadedCheckpoint(const fs::path& path, StateDict state) : where_(path.string()), state_(std::move(state)) {}

  const std::string& where() const override { return where_; }
  std::vector<std::string> keys() const override {
    std::vector<std::string> names;
    for (const auto& item : state_) names.push_back(item.first);
    return names;
  }
  bool is_dict(std::string_view key) const override { return state_.at(key).is_dict(); }
  StateValue read(std::string_view key) const override { return state_.at(key); }
  StateValue read(std::string_view key, const ShardTargets& targets) const override {
    detail::StatePath path{std::string(key)};
    return take_rows(state_.at(key), path, targets);
  }
  std::unique_ptr<detail::TensorSource> tensors(std::string_view key) const override {
    return detail::dict_source(state_.at(key).to_dict());
  }

 private:
  std::string where_;
  StateDict state_;
};

template <class Format>
const CheckpointFormat* instance_of() {
  static const Format format;
  return &format;
}

}  // namespace

void CheckpointFormat::remove(const fs::path& path) const {
  remove_whole(path);
}

double CheckpointFormat::saved_at(const fs::path& path) const {
  const auto time = std::chrono::file_clock::to_sys(fs::last_write_time(path));
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

void CheckpointFormat::save_with(const fs::path& path, const StateDict& state, const SaveOptions& options) const {
  const auto kept = options.filter.empty() ? state : detail::filtered(state, options.filter);
  if (!options.shards) return save(path, kept);
  const auto full = detail::gather_full_state(kept, *options.shards, options.targets, {});
  auto& group = options.shards->group();
  detail::together(group, [&] {
    if (group.rank() == 0) save(path, full);
  });
}

std::unique_ptr<detail::OpenCheckpoint> CheckpointFormat::open(const fs::path& path) const {
  return std::make_unique<LoadedCheckpoint>(path, load(path));
}

const std::vector<const CheckpointFormat*>& checkpoint_formats() {
  static const std::vector<const CheckpointFormat*> all{
      instance_of<detail::FolderFormat>(),
  };
  return all;
}

const CheckpointFormat* find_checkpoint_format(const fs::path& path, const CheckpointFormat* own) {
  if (own && own->recognizes(path)) return own;
  for (const auto* format : checkpoint_formats())
    if (format->recognizes(path)) return format;
  return nullptr;
}

}  // namespace levin
