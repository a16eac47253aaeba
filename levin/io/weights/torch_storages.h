#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "levin/io/weights/pickle.h"

/// The two formats that torch.save has had; for TorchFile.
namespace levin::detail {

/// The storages of an open file, by their keys.
class TorchStorages {
 public:
  virtual ~TorchStorages() = default;
  virtual const std::filesystem::path& path() const = 0;
  virtual uint64_t bytes(const std::string& storage) const = 0;
  /// Bytes from `begin` of a storage on.
  virtual void read(const std::string& storage, uint64_t begin, std::span<std::byte> into) const = 0;
  /// Compares the checksum of a storage, where the format has one; an Error when it differs.
  virtual void verify(const std::string& storage) const = 0;
};

struct TorchContent {
  std::shared_ptr<const TorchStorages> storages;
  /// The unpickled object, with tensors as TorchTensorObject.
  pickle::Value whole;
  /// Whether numbers are big-endian.
  bool swapped = false;
  /// Whether it is a TorchScript archive: of LibTorch's torch::save, or of torch.jit.save.
  bool script = false;
};

/// What torch has written since 1.6: a zip archive with data.pkl and a file for each storage.
TorchContent open_torch_zip(const std::filesystem::path& path);
/// What it wrote before, and still does with _use_new_zipfile_serialization=False: five pickles (a magic number, the
/// version, the sizes of types, the object, the keys of its storages), and the storages one after the other.
TorchContent open_torch_legacy(const std::filesystem::path& path);

/// Enough bytes of a file to tell its format.
std::string torch_beginning(const std::filesystem::path& path);
bool is_torch_zip(std::string_view beginning);
bool is_torch_legacy(std::string_view beginning);
/// The format of torch before 0.1.10, which is refused.
bool is_torch_tar(std::string_view beginning);

}  // namespace levin::detail
