#pragma once

#include <filesystem>

#include "levin/checkpoint/shards.h"
#include "levin/optim/optimizer.h"

namespace levin {

struct SaveRawOptions {
  /// Writes what LibTorch's torch::load(optimizer, path) reads, in place of a file for Python.
  bool libtorch = false;
  /// Which tensors of the state are shards. When it is set, every rank of its group must call, and rank 0 writes.
  ShardMap* shards = nullptr;
};

/// Writes the state of an optimizer for Python, as torch.save(optimizer.state_dict(), path) does. There
/// `optimizer.load_state_dict(torch.load(path))` takes it; here load_raw(path, optimizer) does. Parameters are numbered
/// in the order of the optimizer's groups, so both sides give them in the same order.
void save_raw(const std::filesystem::path& path, const Optimizer& optimizer, const SaveRawOptions& options = {});

}  // namespace levin
