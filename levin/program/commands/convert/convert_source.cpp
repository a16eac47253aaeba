#include "levin/program/commands/convert/convert_source.h"

#include "levin/core/error.h"

namespace levin::cli {

WeightEntry checkpoint_entry(const levin::detail::CheckpointReader& reader, const std::string& name,
                             const std::string& id) {
  const auto like = reader.like(id);
  return {name, dtype_name(like.scalar_type()), like.scalar_type(), like.sizes().vec(), like.nbytes()};
}

void verify_with_progress(const levin::detail::CheckpointReader& reader) {
  uint64_t total = 0;
  for (const auto& tensor : reader.manifest().tensors) total += reader.like(tensor.id).nbytes();
  ProgressBar bar("comparing checksums", static_cast<int64_t>(total), {.unit = "B", .keep = false});
  const DropBar drop(bar);
  reader.verify(0, 1, [&](uint64_t bytes) { bar.advance(static_cast<int64_t>(bytes)); });
  bar.discard();
}

WeightSource::WeightSource(const std::filesystem::path& path, const std::string& root, bool strip_module)
    : path_(path) {
  if (!levin::detail::looks_like_checkpoint(path)) {
    file_.emplace(path, WeightOptions{.root = root, .strip_module = strip_module});
    return;
  }
  checkpoint_.emplace(path);
  const auto add = [&](const std::string& name, const std::string& id) {
    places_.emplace(name, std::pair(entries_.size(), id));
    entries_.push_back(checkpoint_entry(*checkpoint_, name, id));
  };
  if (root.empty()) {
    for (const auto& [name, id] : checkpoint_->list_all()) add(name, id);
  } else {
    const auto key = checkpoint_->choose_key("levin convert", root == "auto" ? "" : root, "--root NAME");
    for (const auto& [name, id] : checkpoint_->list(key)) add(name, id);
  }
}

const WeightEntry& WeightSource::at(const std::string& name) const {
  return file_ ? file_->at(name) : entries_[places_.at(name).first];
}

Tensor WeightSource::read(const std::string& name) const {
  return file_ ? file_->read(name) : checkpoint_->read_tensor(places_.at(name).second);
}

NamedTensors WeightSource::read(const std::vector<std::string>& names) const {
  if (file_) return file_->read(names);
  NamedTensors tensors;
  std::map<std::string, Tensor> by_id;
  for (const auto& name : names) {
    auto& tensor = by_id[places_.at(name).second];
    if (!tensor.defined()) tensor = read(name);
    tensors.emplace_back(name, tensor);
  }
  return tensors;
}

void WeightSource::verify() const {
  if (checkpoint_) verify_with_progress(*checkpoint_);
}

}  // namespace levin::cli
