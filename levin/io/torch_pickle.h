#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "levin/io/pickle.h"
#include "levin/io/torch_file.h"

/// What torch's pickles may name, and the tensors they make; for TorchFile.
namespace levin::detail {

/// A tensor of a file: its place, no data. The name is given when the tree is walked.
struct TorchTensorObject : pickle::Object {
  std::string_view what() const override { return "a tensor"; }
  /// A parameter brings attributes (the names of its dimensions); they are not part of its data.
  void build(const pickle::Value&) override {}

  TorchEntry entry;
};

/// Reads data.pkl. `record_bytes` tells the length of the record of a storage, or throws when there is none.
pickle::Value load_torch_pickle(std::string_view bytes, const std::function<uint64_t(const std::string&)>& record_bytes,
                                std::string_view where);

}  // namespace levin::detail
