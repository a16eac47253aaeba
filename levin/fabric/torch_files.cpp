// torch::save and torch::load of what was set up with a Fabric.
#include "levin/fabric/torch_files.h"

#include <algorithm>
#include <iterator>

#include <sys/mman.h>
#include <torch/serialize/output-archive.h>
#include <unistd.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/together.h"
#include "levin/core/error.h"
#include "levin/fabric/fabric_core.h"
#include "levin/io/weights/libtorch.h"

namespace levin::detail {
namespace {

using torch::serialize::OutputArchive;

std::vector<Tensor> tensors_of(const torch::nn::Module& module) {
  auto all = module.parameters();
  const auto buffers = module.buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  return all;
}

std::vector<Tensor> params_of(const torch::optim::Optimizer& optimizer) {
  std::vector<Tensor> all;
  for (const auto& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

/// Whether other ranks have shards of a tensor, or of what an optimizer keeps for it.
bool is_spread(const FabricCore& core, const std::vector<Tensor>& tensors) {
  auto* shards = core.strategy->shards();
  return shards && std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
           return shards->find(tensor) || shards->find_slots(tensor);
         });
}

/// What torch::save writes, of whichever ranks have it.
struct TorchSave {
  std::shared_ptr<FabricCore> core;
  std::vector<Tensor> tensors;
  /// What is put into an archive; shards among it.
  std::function<StateDict()> state;
  std::function<void(OutputArchive&, const StateDict&)> put;

  bool spread() const { return core && is_spread(*core, tensors); }

  StateDict full(bool everyone) const {
    auto& strategy = *core->strategy;
    LEVIN_CHECK(strategy.data_place().size == strategy.group().size(), "[torch::save] strategy \"", strategy.name(),
                "\" has parts of the model on other ranks; write fabric.save(path, {{\"model\", net}})");
    return full_state_dict(state(), *strategy.shards(), {.rank0_only = !everyone});
  }

  bool to_file(const std::string& path) const {
    if (!core || core->placement.world_size <= 1) return false;
    if (!spread()) {  // every rank writes the same file
      OutputArchive archive;
      put(archive, state());
      write_archive(path, archive);
      return true;
    }
    auto& group = core->strategy->group();
    const auto first = levin::broadcast_string(group, path, 0);
    together(group, [&] {
      LEVIN_CHECK(path == first, "[torch::save] under strategy \"", core->strategy->name(),
                  "\" all ranks write one file together, and they name \"", first, "\" and \"", path, "\"");
    });
    const auto all = full(/*everyone=*/false);
    together(group, [&] {
      if (group.rank() != 0) return;
      OutputArchive archive;
      put(archive, all);
      write_archive(path, archive);
    });
    return true;
  }

  bool to_archive(OutputArchive& archive) const {
    if (!spread()) return false;
    put(archive, full(/*everyone=*/true));
    return true;
  }
};

/// As Module::save does, with full tensors in place of the module's own.
void put_full_module(OutputArchive& archive, const torch::nn::Module& module, const StateDict& state) {
  NamedTensors tensors;
  for (const auto& [name, value] : state)
    if (value.is_tensor() && value.to_tensor().defined()) tensors.emplace_back(name, value.to_tensor());
  std::vector<std::string> modules;
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    if (item.value()->is_serializable()) modules.push_back(item.key());
  put_module(archive, tensors, modules);
}

TorchSave saved(const torch::nn::Module& module) {
  auto tensors = tensors_of(module);
  auto core = owner_of(tensors, /*plain=*/true);
  const bool spread = core && is_spread(*core, tensors);
  if (!core) check_no_copy_of_shards(module);
  return {.core = std::move(core),
          .tensors = std::move(tensors),
          .state = [&module] { return module_state_dict(module); },
          .put =
              [&module, spread](OutputArchive& archive, const StateDict& state) {
                spread ? put_full_module(archive, module, state) : module.save(archive);
              }};
}

TorchSave saved(std::shared_ptr<FabricCore> core, const Optimizer& optimizer) {
  return {.core = std::move(core),
          .tensors = optimizer.all_params(),
          .state = [optimizer] { return optimizer.state_dict(); },
          .put = put_optimizer};
}

TorchSave saved(const torch::optim::Optimizer& optimizer) {
  Optimizer outer;
  if (auto core = core_with(optimizer, outer)) {
    auto result = saved(core, outer);
    if (!result.spread()) result.put = [&](OutputArchive& archive, const StateDict&) { optimizer.save(archive); };
    return result;
  }
  return {.core = core_of(optimizer), .tensors = {}, .state = {}, .put = {}};
}

void load_target(const FabricCore& core, const StateRef& target, const TorchInput& input) {
  auto& strategy = *core.strategy;
  RawOptions options{.shards = strategy.shards()};
  if (core.placement.world_size > 1) {
    options.group = &strategy.group();
    options.group->barrier("torch::load");
  }
  load_raw(input.path(), target, options);
}

}  // namespace

void check_no_shards(const std::vector<Tensor>& tensors) {
  const auto core = owner_of(tensors, /*plain=*/false);
  if (!core) return;
  for (const auto& tensor : tensors)
    LEVIN_CHECK(!is_shard(*core, tensor), "[torch::save] a tensor is ", tensor.sizes(), ", this rank's shard of ",
                at::IntArrayRef(core->strategy->shards()->find(tensor)->sizes), " under strategy \"",
                core->strategy->name(), "\"; write torch::save(net, path), which every rank calls");
}

bool save_to_file(const torch::nn::Module& module, const std::string& path) {
  return saved(module).to_file(path);
}
bool save_to_file(const torch::optim::Optimizer& optimizer, const std::string& path) {
  return saved(optimizer).to_file(path);
}
bool save_to_file(const Optimizer& optimizer, const std::string& path) {
  return saved(core_of(optimizer), optimizer).to_file(path);
}

bool put_full(const torch::nn::Module& module, OutputArchive& archive) {
  return saved(module).to_archive(archive);
}
bool put_full(const torch::optim::Optimizer& optimizer, OutputArchive& archive) {
  return saved(optimizer).to_archive(archive);
}
bool put_full(const Optimizer& optimizer, OutputArchive& archive) {
  if (!saved(core_of(optimizer), optimizer).to_archive(archive)) put_optimizer(archive, optimizer.state_dict());
  return true;
}

std::shared_ptr<FabricCore> core_of(const torch::nn::Module& module) {
  return owner_of(tensors_of(module), /*plain=*/true);
}

std::shared_ptr<FabricCore> core_of(const torch::optim::Optimizer& optimizer) {
  Optimizer outer;
  if (auto core = core_with(optimizer, outer)) return core;
  const auto params = params_of(optimizer);
  const auto core = owner_of(params, /*plain=*/false);
  LEVIN_CHECK(!core || !is_spread(*core, params),
              "[torch::save, torch::load] this optimizer has parameters that are "
              "shards under strategy \"",
              core->strategy->name(), "\", and was not set up; pass it to fabric.setup");
  return nullptr;
}

std::shared_ptr<FabricCore> core_of(const Optimizer& optimizer) {
  return owner_of(optimizer.all_params(), /*plain=*/true);
}

void load_from(const std::shared_ptr<FabricCore>& core, torch::nn::Module& module, const TorchInput& input) {
  ++core->version;
  load_target(*core, StateRef(module), input);
}

void load_from(const std::shared_ptr<FabricCore>& core, torch::optim::Optimizer& optimizer, const TorchInput& input) {
  Optimizer outer;
  core_with(optimizer, outer);
  ++core->version;
  load_target(*core, StateRef(outer), input);
}

void load_from(const std::shared_ptr<FabricCore>& core, Optimizer& optimizer, const TorchInput& input) {
  if (!core) return load_raw(input.path(), optimizer);
  ++core->version;
  load_target(*core, StateRef(optimizer), input);
}

namespace {

/// A file in memory alone, and its path.
std::pair<int, std::string> in_memory(const char* data, size_t size) {
  const int fd = ::memfd_create("torch::load", MFD_CLOEXEC);
  LEVIN_CHECK(fd >= 0, "[torch::load] there is no memory for a file: ", std::strerror(errno));
  while (size > 0) {
    const auto wrote = ::write(fd, data, size);
    if (wrote < 0) {
      const int why = errno;
      ::close(fd);
      throw Error(concat("[torch::load] there is no memory for a file: ", std::strerror(why)));
    }
    data += wrote;
    size -= static_cast<size_t>(wrote);
  }
  return {fd, concat("/proc/self/fd/", fd)};
}

}  // namespace

TorchInput::TorchInput(const char* data, size_t size, Device) {
  std::tie(fd_, path_) = in_memory(data, size);
}

TorchInput::TorchInput(std::istream& stream, Device) {
  const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  std::tie(fd_, path_) = in_memory(bytes.data(), bytes.size());
}

TorchInput::TorchInput(const Read& read, const std::function<size_t()>& size, Device) {
  std::string bytes(size(), '\0');
  const auto got = read(0, bytes.data(), bytes.size());
  LEVIN_CHECK(got == bytes.size(), "[torch::load] ", bytes.size(), " bytes are announced, and ", got, " were read");
  std::tie(fd_, path_) = in_memory(bytes.data(), bytes.size());
}

TorchInput::~TorchInput() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace levin::detail
