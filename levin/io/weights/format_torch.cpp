#include <algorithm>
#include <map>
#include <unordered_map>

#include "levin/io/weights/indexed_files.h"
#include "levin/io/weights/libtorch.h"
#include "levin/io/weights/torch_file.h"
#include "levin/io/weights/weight_formats.h"

namespace levin::detail {
namespace {

/// Before the names of a model inside DistributedDataParallel or DataParallel.
constexpr std::string_view kWrapper = "module.";

class TorchWeights final : public OpenWeights {
 public:
  TorchWeights(const std::filesystem::path& file, const WeightIndex* index, const WeightOptions& options) {
    if (index) {
      places_ = open_indexed("weights", *index, parts_);
    } else {
      parts_.emplace_back(file, TorchFileOptions{.root = options.root});
      for (const auto& entry : parts_[0].entries()) places_.emplace(entry.name, 0);
      metadata = parts_[0].metadata();
      root = parts_[0].root();
    }
    for (const auto& part : parts_) {
      files.push_back(part.path());
      for (const auto& entry : part.entries())
        entries.push_back({.name = entry.name,
                           .dtype = dtype_name(entry.dtype),
                           .type = entry.dtype,
                           .shape = entry.shape,
                           .bytes = entry.bytes(),
                           .by_rows = entry.is_contiguous()});
    }
    // C++ has no wrapper around a module: "module" is a name that its owner chose.
    const bool python = std::all_of(parts_.begin(), parts_.end(),
                                    [](const auto& part) { return part.kind() == TorchFileKind::pickle; });
    if (options.strip_module && !options.root.empty() && python) strip_wrapper();
  }

  Tensor read(std::string_view name) const override {
    const auto full = stripped + std::string(name);
    return parts_[places_.at(full)].read(full);
  }
  NamedTensors read_all(const std::vector<std::string>& names) const override {
    std::map<size_t, std::vector<std::string>> by_file;
    for (const auto& name : names) by_file[places_.at(stripped + name)].push_back(stripped + name);
    std::unordered_map<std::string, Tensor> found;
    for (const auto& [file, its_names] : by_file)
      for (auto& [name, tensor] : parts_[file].read(its_names)) found.emplace(name, std::move(tensor));
    NamedTensors tensors;
    for (const auto& name : names) tensors.emplace_back(name, found.at(stripped + name));
    return tensors;
  }
  void read_rows(std::string_view name, int64_t first, Tensor& into) const override {
    const auto full = stripped + std::string(name);
    const auto& part = parts_[places_.at(full)];
    const auto& entry = part.at(full);
    entry.is_contiguous() ? part.read_rows(entry, first, into) : OpenWeights::read_rows(name, first, into);
  }

 private:
  void strip_wrapper() {
    const bool wrapped = std::all_of(entries.begin(), entries.end(), [](const auto& entry) {
      return entry.name.size() > kWrapper.size() && entry.name.starts_with(kWrapper);
    });
    if (!wrapped || entries.empty()) return;
    stripped = kWrapper;
    for (auto& entry : entries) entry.name.erase(0, kWrapper.size());
  }

  std::vector<TorchFile> parts_;
  std::unordered_map<std::string, size_t> places_;
};

std::shared_ptr<const OpenWeights> open_torch(const std::filesystem::path& file, const WeightIndex* index,
                                              const WeightOptions& options) {
  return std::make_shared<TorchWeights>(file, index, options);
}

}  // namespace

WeightFormat torch_format() {
  return {.name = "torch",
          .word = "pth",
          .endings = {".pth", ".pt", ".bin", ".ckpt"},
          .stem = "pytorch_model",
          .folder_ending = ".bin",
          .matches = [](const std::filesystem::path& file) { return is_torch_file(file) && !is_libtorch_file(file); },
          .open = open_torch,
          .write = write_torch_file};
}

}  // namespace levin::detail
