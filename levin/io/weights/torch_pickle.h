#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "levin/io/weights/pickle.h"
#include "levin/io/weights/torch_file.h"

/// What torch's pickles may name, and the tensors they make; for TorchFile.
namespace levin::detail {

/// A tensor of a file: its place, no data. The name is given when the tree is walked.
struct TorchTensorObject : pickle::Object {
  std::string_view what() const override { return "a tensor"; }
  /// A parameter brings attributes (the names of its dimensions); they are not part of its data.
  void build(const pickle::Value&) override {}

  TorchEntry entry;
};

/// An argparse.Namespace: its numbers and texts, for people.
struct NamespaceObject : pickle::Object {
  std::string_view what() const override { return "an argparse.Namespace"; }
  void build(const pickle::Value& state) override;
  size_t bytes() const override { return size; }

  std::map<std::string, std::string> values;
  size_t size = 0;
};
/// A number, a text or None as people read it; nothing for other values.
std::optional<std::string> plain_text(const pickle::Value& value);

/// Tells how many bytes a storage has in the file, which the pickle says to have this many elements of this many bytes;
/// throws when there is none of that key.
using StorageBytes = std::function<uint64_t(const std::string& key, uint64_t elements, uint64_t width)>;
/// Reads the pickle of the saved object. `used` as in pickle::load. `script`: of a TorchScript archive, whose objects
/// are read as dicts of their attributes.
pickle::Value load_torch_pickle(std::span<const std::byte> bytes, const StorageBytes& storage_bytes,
                                std::string_view where, size_t* used = nullptr, bool script = false);

}  // namespace levin::detail
