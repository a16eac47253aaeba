#include "levin/fabric/generators.h"

#include <ATen/CPUGeneratorImpl.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/fabric/fabric.h"
#include "levin/fabric/fabric_core.h"

namespace levin {
namespace detail {
namespace {

constexpr const char* kDevice = "device";
/// The rank whose states these are, where they are not those of all.
constexpr const char* kRank = "rank";

Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

std::string own_name(size_t index) {
  return concat("own_", index);
}

}  // namespace

GeneratorStates::GeneratorStates(std::weak_ptr<FabricCore> core, std::vector<at::Generator> own)
    : core_(std::move(core)), own_(std::move(own)) {
  for (const auto& generator : own_) LEVIN_CHECK(generator.defined(), "[fabric.generators] a generator is empty");
}

StateDict GeneratorStates::here() const {
  StateDict all{{"cpu", state_of(at::detail::getDefaultCPUGenerator()).unsqueeze(0)}};
  if (const auto core = core_.lock(); core && core->launched && !core->strategy->device().is_cpu())
    all[kDevice] = core->accelerator->rng_state(core->strategy->device()).unsqueeze(0);
  for (size_t i = 0; i < own_.size(); ++i) all[own_name(i)] = state_of(own_[i]).unsqueeze(0);
  return all;
}

void GeneratorStates::gather() {
  gathered_ = here();
  const auto core = core_.lock();
  if (!core || core->placement.world_size < 2) return;
  auto& strategy = *core->strategy;
  for (auto& [name, value] : gathered_)
    value = strategy.group().all_gather(value.to_tensor()[0].to(strategy.device())).cpu();
}

StateDict GeneratorStates::state_dict() const {
  if (!gathered_.empty()) return gathered_;
  auto mine = here();
  if (const auto core = core_.lock(); core && core->placement.world_size > 1)
    mine[kRank] = static_cast<int64_t>(core->placement.global_rank);
  return mine;
}

void GeneratorStates::load_state_dict(const StateDict& state) {
  for (const auto& [name, value] : state)
    LEVIN_CHECK(name == kRank ||
                    (value.is_tensor() && value.to_tensor().dim() == 2 && value.to_tensor().scalar_type() == at::kByte),
                "[generators.load] \"", name, "\" must be bytes [ranks, bytes of a state]");
  LEVIN_CHECK(state.contains("cpu"), "[generators.load] the state of the CPU's generator (\"cpu\") is missing");
  loaded_ = state;
  restore();
}

bool GeneratorStates::restore() {
  const auto core = core_.lock();
  if (loaded_.empty() || !core) return false;
  const auto ranks = loaded_.at("cpu").to_tensor().size(0);
  const int rank = core->placement.global_rank, world = core->placement.world_size;
  const auto* of = loaded_.find(kRank);
  const bool own = of && of->to_int() == rank;
  if (ranks != world && !own)
    warn_once(concat("[generators.load] the state is of ", ranks, " ranks and this run has ", world,
                     ": what is drawn will differ"));
  if (rank >= ranks && !own) return true;
  const auto mine = [&](const std::string& name) -> Tensor {
    const auto* found = loaded_.find(name);
    return found ? found->to_tensor()[own ? 0 : rank].cpu().clone() : Tensor();
  };
  for (size_t i = 0; i < own_.size(); ++i)
    if (const auto state = mine(own_name(i)); state.defined()) set_state(own_[i], state);
  if (const auto state = mine(kDevice); state.defined() && core->launched && !core->strategy->device().is_cpu())
    core->accelerator->set_rng_state(core->strategy->device(), state);
  set_state(at::detail::getDefaultCPUGenerator(), mine("cpu"));
  return true;
}

}  // namespace detail

Generators Fabric::generators(std::vector<at::Generator> own) {
  auto states = std::make_shared<detail::GeneratorStates>(core_, std::move(own));
  std::erase_if(core_->generators, [](const auto& known) { return known.expired(); });
  core_->generators.push_back(states);
  return Generators(std::move(states));
}

}  // namespace levin
