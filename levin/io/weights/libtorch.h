#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "levin/core/state_dict.h"
#include "levin/io/weights/safetensors.h"

namespace torch::serialize {
class OutputArchive;
}

/// Files as LibTorch's own torch::save writes them, for torch::load: TorchScript archives with a container for each
/// module. Reading them is TorchFile's.
namespace levin {

/// Writes what torch::load(module, path) reads, whole or not at all: the tensors by their dotted names. Those that
/// share memory share it in the file; they may be on any device. torch.jit.load of Python opens it, too.
/// torch::load wants every module that is registered, also those without tensors (ReLU, Dropout): `modules` has their
/// names. Between the numbers of a Sequential they are filled in.
void write_libtorch_file(const std::filesystem::path& path, const NamedTensors& tensors,
                         const std::vector<std::string>& modules = {});
/// The names of all modules in a file of torch::save: those with tensors, and those without.
std::vector<std::string> libtorch_modules(const std::filesystem::path& path);
/// Writes what torch::load(optimizer, path) reads, from an optimizer's state_dict().
void write_libtorch_optimizer(const std::filesystem::path& path, const StateDict& state);

namespace detail {

/// Fills an archive as Module::save does.
void put_module(torch::serialize::OutputArchive& archive, const NamedTensors& tensors,
                const std::vector<std::string>& modules = {});
/// Fills an archive as torch::optim::Optimizer::save does.
void put_optimizer(torch::serialize::OutputArchive& archive, const StateDict& state);
/// Writes an archive to a file, whole or not at all.
void write_archive(const std::filesystem::path& path, torch::serialize::OutputArchive& archive);
/// Whether a file is a TorchScript archive; does not throw.
bool is_libtorch_file(const std::filesystem::path& path);

}  // namespace detail
}  // namespace levin
