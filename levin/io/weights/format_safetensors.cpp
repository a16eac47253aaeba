#include <algorithm>
#include <array>
#include <unordered_map>

#include "levin/core/files.h"
#include "levin/io/weights/safetensors_model.h"
#include "levin/io/weights/weight_formats.h"

namespace levin::detail {
namespace {

class SafetensorsWeights final : public OpenWeights {
 public:
  explicit SafetensorsWeights(const std::filesystem::path& path) : model_(path) {
    for (const auto& file : model_.files()) {
      files.push_back(file.path());
      metadata.insert(file.metadata().begin(), file.metadata().end());
      for (const auto& entry : file.entries()) {
        const auto* known = find_safetensors_type(entry.dtype);
        const auto type = known ? known->type : c10::ScalarType::Undefined;
        const auto dtype = type == c10::ScalarType::Undefined ? entry.dtype : dtype_name(type);
        entries.push_back({entry.name, dtype, type, entry.shape, entry.bytes()});
      }
    }
    for (const auto& file : model_.files()) add_aliases(file);
  }

  Tensor read(std::string_view name) const override { return model_.read(kept(name)); }
  NamedTensors read_all(const std::vector<std::string>& names) const override {
    NamedTensors tensors;
    std::unordered_map<std::string_view, Tensor> shared;
    for (const auto& name : names) {
      auto& tensor = shared[kept(name)];
      if (!tensor.defined()) tensor = model_.read(kept(name));
      tensors.emplace_back(name, tensor);
    }
    return tensors;
  }
  void read_into(std::string_view name, Tensor& into) const override { model_.read_into(kept(name), into); }
  void read_rows(std::string_view name, int64_t first, Tensor& into) const override {
    for (const auto& file : model_.files())
      if (const auto* entry = file.find(kept(name))) return file.read_rows(*entry, first, into);
  }

 private:
  /// safetensors.torch.save_model keeps one name of a tied tensor, and says which in the metadata: {left out: kept}.
  void add_aliases(const SafetensorsFile& file) {
    for (const auto& [name, other] : file.metadata()) {
      if (name == "format" || model_.contains(name) || !file.find(other) || !aliases_.emplace(name, other).second)
        continue;
      auto entry = *std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.name == other; });
      entry.name = name;
      entry.is_alias = true;
      entries.push_back(std::move(entry));
    }
  }
  std::string_view kept(std::string_view name) const {
    const auto found = aliases_.find(std::string(name));
    return found == aliases_.end() ? name : std::string_view(found->second);
  }

  SafetensorsModel model_;
  std::unordered_map<std::string, std::string> aliases_;
};

/// The length of the header in eight bytes, then its JSON.
bool is_safetensors(const std::filesystem::path& path) {
  const FileReader file(path);
  std::array<std::byte, 9> head{};
  if (file.size() < head.size()) return false;
  file.read(0, head);
  return head[8] == std::byte{'{'};
}

std::shared_ptr<const OpenWeights> open_safetensors(const std::filesystem::path& file, const WeightIndex*,
                                                    const WeightOptions&) {
  return std::make_shared<SafetensorsWeights>(file);
}

const SafetensorsMetadata kTorchTensors{{"format", "pt"}};

void write_all(const std::filesystem::path& path, const NamedTensors& tensors) {
  write_safetensors(path, tensors, kTorchTensors);
}

void write_each(const std::filesystem::path& path, const NamedTensors& like,
                const std::function<Tensor(const std::string& name)>& read) {
  AtomicFile file(path);
  write_safetensors(file.writer(), like, read, kTorchTensors);
  file.commit();
}

}  // namespace

WeightFormat safetensors_format() {
  return {.name = "safetensors",
          .word = "safetensors",
          .endings = {".safetensors"},
          .stem = "model",
          .folder_ending = ".safetensors",
          .matches = is_safetensors,
          .open = open_safetensors,
          .write = write_all,
          .write_each = write_each};
}

}  // namespace levin::detail
