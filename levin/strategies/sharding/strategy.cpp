#include "levin/strategies/sharding/strategy.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <iterator>
#include <limits>
#include <unordered_map>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/host.h"
#include "levin/core/words.h"
#include "levin/devices/host_memory.h"
#include "levin/distributed/single.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/module_access.h"
#include "levin/optim/in_backward.h"
#include "levin/strategies/float_norm.h"
#include "levin/strategies/module_states.h"

namespace levin::detail {
namespace {

/// Ranks of one node, which must be neighbours and as many on each.
int ranks_per_node(Collective& group) {
  const auto hosts = gather_strings(group, host_name());
  const auto size = static_cast<size_t>(std::count(hosts.begin(), hosts.end(), hosts[0]));
  bool regular = hosts.size() % size == 0;
  for (size_t i = 0; i < hosts.size(); ++i) regular = regular && hosts[i] == hosts[i / size * size];
  LEVIN_CHECK(regular, "[fsdp] the nodes have different numbers of ranks; set hybrid_size");
  return static_cast<int>(size);
}

void check_shard_size(const ShardingPlan& plan, int size, int world) {
  LEVIN_CHECK(size >= 1 && size <= world && world % size == 0, "[", plan.name, "] the ", world,
              " ranks cannot be divided into groups of ", size, "; hybrid_size must divide the number of ranks");
}

}  // namespace

int ranks_on_this_node(Collective& group) {
  if (group.size() == 1) return 1;
  const auto hosts = gather_strings(group, host_name());
  return static_cast<int>(std::count(hosts.begin(), hosts.end(), host_name()));
}

bool is_full(std::string_view strategy, const std::string& state_dict_type) {
  static const std::vector<std::string> kTypes{"sharded", "full"};
  if (std::find(kTypes.begin(), kTypes.end(), state_dict_type) == kTypes.end())
    fail_unknown(strategy, "state_dict_type", state_dict_type, kTypes);
  return state_dict_type == "full";
}

ShardedStrategy::ShardedStrategy(ShardingPlan plan)
    : Strategy({.name = plan.name, .collective = plan.collective, .syncs_batchnorm = true, .places_modules = true}),
      plan_(std::move(plan)) {
  // Its copy would be waited for: there is nothing to compute before it.
  plan_.residency.keeps_last = plan_.offload;
  // Forward waits for copies; these need none. They are where activations have been.
  constexpr int kStay = 8;
  if (plan_.updates_in_place && plan_.residency.forward_prefetch > 0) plan_.residency.keeps_first = kStay;
}

void ShardedStrategy::on_connect() {
  const int world = group_->size();
  const int size = plan_.hybrid_by_node ? ranks_per_node(*group_) : plan_.shard_size == 0 ? world : plan_.shard_size;
  check_shard_size(plan_, size, world);
  if (size == world) {
    ranks_ = group_;
    replicas_ = std::make_shared<SingleCollective>();
  } else {
    const Mesh mesh(group_, {{"replicate", world / size}, {"shard", size}});
    ranks_ = mesh.shared_group("shard");
    replicas_ = mesh.shared_group("replicate");
  }
  lanes_ = std::make_shared<Lanes>(device_);
  if (world > 1) {
    auto order = std::make_shared<CallOrder>(group_, plan_.name);
    if (ranks_ != group_) order->add_part(ranks_);
    if (replicas_->size() > 1) order->add_part(replicas_);
    lanes_->set_order(std::move(order));
  }
  shards_ = std::make_shared<TensorShards>(*group_);
  shards_->set_saves_full(plan_.saves_full);
}

void ShardedStrategy::set_spread(SpreadParams spread) {
  (void)group();
  spread_ = std::move(spread);
  auto* order = lanes_->order();
  if (!order) return;
  for (const auto& part : {spread_.ranks, spread_.replicas})
    if (part->size() > 1 && part != ranks_ && part != replicas_ && part != group_) order->add_part(part);
}

std::string ShardedStrategy::why_not_captured() const {
  if (plan_.checkpoints_on_host) return "activations go to host memory and back";
  if (plan_.updates_in_place && group().size() == 1) return why_group_not_captured();  // modules say the rest
  if (plan_.offload) return "the optimizer's step is work of the host (offload)";
  if (plan_.optimizer_in_backward) return "optimizer_in_backward decides on the host what it has stepped";
  return why_group_not_captured();
}

GroupOptions ShardedStrategy::group_options() const {
  GroupOptions options{.device = device_,
                       .dtype = precision_.params,
                       .offload = plan_.offload,
                       .pin_memory = plan_.pin_memory,
                       .pin_gradients = plan_.pin_gradients,
                       .keeps_device_shards = plan_.keeps_device_shards,
                       .disk_folder = plan_.param_folder,
                       .param_dtype = plan_.mixed.param_dtype ? plan_.mixed.param_dtype : precision_.autocast,
                       .reduce_dtype = plan_.mixed.reduce_dtype,
                       .accumulate_dtype = plan_.mixed.accumulate_dtype,
                       .broadcast = plan_.broadcast,
                       .tells_use = plan_.keeps_full};
  // Gradients that go to the host stay as small as they come: the optimizer there reads them as they are.
  // (Not in float16: a loss scaler must unscale them in place.)
  if ((plan_.grads_as_computed || plan_.offload) && options.param_dtype != at::kHalf)
    options.grad_dtype = options.param_dtype;
  return options;
}

StateLayout ShardedStrategy::layout_over(int world) const {
  const bool connected = group_ && group_->size() == world;
  // The ranks of one node are not known before it is connected: all of them.
  const int unconnected = plan_.shard_size > 0 && !plan_.hybrid_by_node ? plan_.shard_size : world;
  const int ranks = connected ? ranks_->size() : unconnected;
  check_shard_size(plan_, ranks, world);
  return {
      .ranks = ranks,
      .shards_parameters = !plan_.keeps_full,
      .shards_gradients = !plan_.reduces_at_end,
      .shards_optimizer = true,
      .parameters_on_host = plan_.offload && !plan_.keeps_full && !plan_.keeps_device_shards,
      .gradients_on_host = plan_.offload,
      .optimizer_on_host = plan_.offload,
      .casts_parameters = true,
      .master_weights = plan_.keeps_full || plan_.keeps_device_shards,
      .gathers_ahead = plan_.residency.forward_prefetch > 0,
      .narrow_gradients = plan_.grads_as_computed,
      .replicas = world / ranks,
      .reduces_at_end = plan_.reduces_at_end,
      .parameters_on_disk = !plan_.param_folder.empty(),
      .optimizer_on_disk = !plan_.optimizer_folder.empty(),
      .optimizer_in_backward = plan_.optimizer_in_backward,
      .updates_in_place = plan_.updates_in_place,
      .param_dtype = plan_.mixed.param_dtype,
      .reduce_dtype = plan_.mixed.reduce_dtype,
      .accumulate_dtype = plan_.mixed.accumulate_dtype,
      .units = plan_.units,
      .checkpointing = plan_.checkpointing,
      .offload_activations = plan_.checkpoints_on_host,
      .plan_groups = [threshold = plan_.persistence_threshold, most = plan_.most_together](
                         const auto& params, size_t units) { return group_by_unit(params, units, threshold, most); },
      .make_residency = [options = plan_.residency](
                            const auto&, const auto&) { return std::make_unique<OrderedResidency>(options); },
  };
}

std::vector<SelectedUnit> ShardedStrategy::choose_units(torch::nn::Module& module) const {
  if (plan_.units) return select_units(module, *plan_.units);
  return policy::has_repeated(module) ? select_units(module, policy::repeated()) : std::vector<SelectedUnit>();
}

ShardedStrategy::Sharded ShardedStrategy::shard(torch::nn::Module& module, const std::vector<SelectedUnit>& given) {
  const auto owned_by = [&](const std::vector<SelectedUnit>& units) {
    auto owned = owned_params(module, units);
    if (takes_) std::erase_if(owned, [&](const auto& each) { return !takes_(each.param); });
    return owned;
  };
  auto units = given;
  auto owned = owned_by(units);
  if (takes_) {
    // Units of other ranks do not run here.
    std::vector<SelectedUnit> own;
    for (size_t i = 0; i < units.size(); ++i)
      if (std::any_of(owned.begin(), owned.end(), [&](const auto& each) { return each.unit == i; }))
        own.push_back(units[i]);
    units = std::move(own);
    owned = owned_by(units);
  }
  Sharded sharded;
  for (const auto& unit : units) sharded.units.push_back({unit.name, unit.unit, {}});
  sharded.units.push_back({"", nullptr, {}});
  std::vector<size_t> common, spread;
  for (size_t i = 0; i < owned.size(); ++i) (is_spread(owned[i].param) ? spread : common).push_back(i);
  add_groups(sharded, owned, common, false);
  if (!spread.empty()) add_groups(sharded, owned, spread, true);
  return sharded;
}

void ShardedStrategy::add_groups(Sharded& sharded, const std::vector<OwnedParam>& owned, const std::vector<size_t>& of,
                                 bool spread) {
  std::vector<GroupedParam> params;
  for (const auto index : of) {
    const auto& [name, param, unit] = owned[index];
    LEVIN_CHECK(param.layout() == at::kStrided && param.is_floating_point(), "[", plan_.name, "] parameter \"", name,
                "\" is ", param.toString(), "; only dense floating point parameters can be sharded");
    params.push_back({name, param.sizes().vec(), shard_dtype(param.scalar_type()), unit});
  }
  const auto plan = plan_groups(params, sharded.units.size() - 1);
  std::vector<std::string> names;
  for (const auto& group : plan.groups) names.push_back(group.name);
  for (size_t unit = 0; unit < plan.needs.size(); ++unit)
    for (const auto group : plan.needs[unit])
      if (names[group].empty()) names[group] = sharded.units[unit].name + (spread ? " (experts)" : "");
  const auto first = sharded.groups.size();
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    std::vector<ShardedParam> members;
    int64_t compared = 0;
    for (const auto index : plan.groups[i].params) {
      const auto& [name, param, unit] = owned[of[index]];
      if (spread) compared += spread_.whole_numel(param);
      members.push_back({.name = name, .param = param});
    }
    sharded.groups.push_back(std::make_unique<ShardGroup>(names[i], std::move(members), spread ? spread_.ranks : ranks_,
                                                          spread ? spread_.replicas : replicas_, lanes_,
                                                          options_of_group(plan, i), compared));
  }
  for (size_t unit = 0; unit < plan.needs.size(); ++unit)
    for (const auto group : plan.needs[unit]) sharded.units[unit].groups.push_back(sharded.groups[first + group].get());
}

GroupPlan ShardedStrategy::plan_groups(const std::vector<GroupedParam>& params, size_t units) {
  return layout().plan_groups(params, units);
}

GroupOptions ShardedStrategy::options_of_group(const GroupPlan& plan, size_t group) const {
  auto options = group_options();
  options.dtype = plan.groups[group].dtype;
  return options;
}

std::unique_ptr<Residency> ShardedStrategy::make_residency(const Sharded&) {
  auto options = plan_.residency;
  if (captured_) options.keeps_first = 0;  // the memory of a graph is not that of the next replay
  return std::make_unique<OrderedResidency>(options);
}

void ShardedStrategy::place_buffers(torch::nn::Module& module) const {
  const at::NoGradGuard no_grad;
  const auto dtype = plan_.mixed.buffer_dtype ? plan_.mixed.buffer_dtype : precision_.params;
  std::vector<Tensor> buffers;
  for (auto& buffer : module.buffers()) {
    if (!buffer.defined()) continue;
    if (is_deferred(buffer)) materialize(std::span<const Tensor>(&buffer, 1));
    auto to = buffer.options().device(device_);
    if (dtype && buffer.is_floating_point()) to = to.dtype(*dtype);
    buffer.set_data(buffer.to(to));
  }
  const auto states = unique_buffers(module);
  check_same_states(name(), *group_, "buffer", states);
  if (plan_.broadcast) broadcast_states(*group_, states);
}

// Before anything is allocated: a machine that runs out of memory ends the process without a word.
void ShardedStrategy::check_host_memory(const torch::nn::Module& module) const {
  const auto options = group_options();
  double bytes = 0, trained = 0;
  for (const auto& [name, param] : unique_parameters(module)) {
    const auto dtype = options.dtype.value_or(param.scalar_type()), computed = options.param_dtype.value_or(dtype);
    const auto share = static_cast<double>(param.numel()) / shards_of(param);
    bytes +=
        share * static_cast<double>(c10::elementSize(dtype) + (computed == dtype ? 0 : c10::elementSize(computed)));
    if (param.requires_grad())
      bytes += share * static_cast<double>(c10::elementSize(options.grad_dtype.value_or(dtype)));
    if (param.requires_grad()) trained += share * static_cast<double>(c10::elementSize(dtype));
  }
  const double here = ranks_on_this_node(*group_);
  const auto available = available_host_memory();
  constexpr double kGb = 1e9;
  LEVIN_CHECK(!available || bytes * here <= static_cast<double>(*available),
              fmt::format("[{}] offloading needs {:.1f} GB of host memory for parameters and gradients ({:.1f} GB more "
                          "for each state of the optimizer), and {:.1f} GB are free; use more ranks or nodes, a 16-bit "
                          "precision, or leave the offloading out",
                          plan_.name, bytes * here / kGb, trained * here / kGb, static_cast<double>(*available) / kGb));
}

void ShardedStrategy::check_not_stepped(const torch::nn::Module& module) const {
  for (const auto& [name, param] : unique_parameters(module)) {
    const auto optimizer = optim::detail::stepped_in_backward_by(param);
    LEVIN_CHECK(optimizer.empty(), "[", plan_.name, "] \"", name, "\" is stepped in backward by ", optimizer,
                " already; with optimizer_in_backward set up the module before its optimizer, or both by "
                "fabric.setup(module, optimizer)");
  }
}

std::unique_ptr<ModuleSync> ShardedStrategy::setup_module(torch::nn::Module& module) {
  (void)group();
  const auto units = choose_units(module);
  if (plan_.checkpointing) {
    auto attachments = attach_checkpointing(module, *plan_.checkpointing, {.cpu_offload = plan_.checkpoints_on_host});
    std::move(attachments.begin(), attachments.end(), std::back_inserter(checkpointing_));
  }
  // Ranks have different experts; who spread them has compared.
  auto same = unique_parameters(module);
  std::erase_if(same, [this](const auto& each) { return is_spread(each.tensor); });
  check_same_states(name(), *group_, "parameter", same);
  if (plan_.offload) check_host_memory(module);
  auto sharded = shard(module, units);
  place_buffers(module);
  bool all_whole = true;
  for (const auto& group : sharded.groups) {
    all_whole = all_whole && group->whole();
    if (group->whole() || shards_of(group->params().front().param) == 1) continue;
    for (const auto& param : group->params()) shards_->add(param.param, param.place);
  }
  if (all_whole) return nullptr;
  if (plan_.optimizer_in_backward) check_not_stepped(module);
  std::vector<Unit*> root_users;
  const auto& of_root = sharded.units.back().groups;
  for (const auto& each : module.modules(/*include_self=*/false)) {
    auto* unit = dynamic_cast<Unit*>(each.get());
    const bool chosen = std::any_of(units.begin(), units.end(), [&](const auto& one) { return one.unit == unit; });
    if (!unit || chosen) continue;
    const auto own = ModuleAccess::parameters(*each);
    const bool uses = std::any_of(of_root.begin(), of_root.end(), [&](ShardGroup* group) {
      return std::any_of(group->params().begin(), group->params().end(), [&](const ShardedParam& param) {
        return std::any_of(own.begin(), own.end(), [&](const auto& item) { return item.value().is_same(param.param); });
      });
    });
    if (uses) root_users.push_back(unit);
  }
  const bool syncs_batchnorm = plan_.sync_batchnorm || sync_batchnorm_;
  auto residency = make_residency(sharded);
  auto synced = std::make_unique<ShardedModule>(
      module, std::move(sharded.groups), std::move(sharded.units), lanes_, std::move(residency),
      ShardedModuleOptions{.strategy = plan_.name,
                           .root_users = std::move(root_users),
                           .everyone = plan_.broadcast ? group_ : nullptr,
                           .all_ranks = group_->size() > 1 ? group_ : nullptr,
                           .schedule = {.keeps_full = plan_.keeps_full,
                                        .reduces_at_end = plan_.reduces_at_end,
                                        .own_order = plan_.keeps_full && group_->size() > 1,
                                        .gathers_ahead = plan_.residency.forward_prefetch > 0},
                           .updates_in_place = plan_.updates_in_place,
                           .ranks = ranks_,
                           .batchnorm = syncs_batchnorm && group_->size() > 1 ? group_ : nullptr});
  modules_.push_back(synced->self());
  return synced;
}

void check_sharded_optimizer(std::string_view strategy, std::string_view optimizer,
                             const std::optional<OptimizerTraits>& traits, int ranks) {
  if (ranks <= 1) return;
  // Whatever steps each element separately gives the same on a shard.
  LEVIN_CHECK(traits, "[", strategy, "] ", optimizer,
              " does not say whether it steps each element separately, and each of the ", ranks,
              " ranks has a shard of the parameters; if it does, declare it: traits() returns {.elementwise = true} "
              "(an override of levin::OptimizerImpl, or of optim::DeclaresTraits beside torch::optim::Optimizer); if "
              "not, use strategy \"ddp\"");
  LEVIN_CHECK(traits->elementwise || traits->tensor_sums, "[", strategy, "] ", optimizer,
              " steps by figures of full parameters, and each of the ", ranks,
              " ranks has a shard of them; use AdamW8bit or SGD, or strategy \"ddp\"");
}

void check_optimizer_in_backward(std::string_view strategy, const PrecisionPlan& precision, std::string_view optimizer,
                                 const std::optional<OptimizerTraits>& traits, int ranks) {
  LEVIN_CHECK(
      ranks <= 1 || !traits || traits->elementwise, "[", strategy, "] ", optimizer,
      " needs norms over the shards of all ranks, and optimizer_in_backward steps each unit alone; use AdamW or "
      "SGD, or leave optimizer_in_backward out");
  LEVIN_CHECK(!precision.scales_loss, "[", strategy, "] optimizer_in_backward cannot wait for the loss scaler of ",
              "precision \"", precision.name, "\" or for skip_nonfinite; leave one of them out");
}

ParamShards ShardedStrategy::shards_of_params() const {
  const auto find = [shards = shards_](const Tensor& param) {
    std::optional<ParamShard> shard;
    if (const auto* place = shards->find(param)) {
      const auto numel = c10::multiply_integers(place->sizes);
      shard = {numel == 0 ? 0 : place->start * (numel / place->whole_rows()), numel};
    }
    return shard;
  };
  const auto sum = [shards = shards_, ranks = ranks_](const Tensor& local, std::span<const Tensor> params) {
    auto all = local.clone();
    ranks->all_reduce(all, ReduceOp::kSum);
    // A full parameter is on every rank, and counts once.
    auto is_sharded = at::empty({local.size(0), 1}, at::kBool);
    for (size_t i = 0; i < params.size(); ++i)
      is_sharded.mutable_data_ptr<bool>()[i] = shards->find(params[i]) != nullptr;
    return at::where(is_sharded.to(local.device()), all, local);
  };
  return {find, sum};
}

Optimizer ShardedStrategy::setup_optimizer(Optimizer optimizer) {
  const auto traits = optimizer.traits();
  if (ranks_->size() > 1) {
    check_sharded_optimizer(plan_.name, optimizer.name(), traits, ranks_->size());
    optimizer.impl()->set_shards(shards_of_params());
  }
  shards_->add_optimizer(optimizer);
  if (!plan_.optimizer_folder.empty()) {
    const bool possible = optimizer.impl()->set_slot_memory([folder = plan_.optimizer_folder](const Tensor& like) {
      return on_disk(folder, like.numel(), like.scalar_type()).view(like.sizes());
    });
    LEVIN_CHECK(possible, "[", plan_.name, "] the state of ", optimizer.name(),
                " cannot be put on disk; use one of levin::optim, or offload_optimizer to \"cpu\"");
  }
  const auto options = group_options();
  const bool has_copies = options.offload && options.param_dtype && !precision_.params;
  const bool wants_wide = !traits || !traits->narrow_gradients;
  if (!plan_.optimizer_in_backward && !has_copies && !wants_wide) return optimizer;
  if (plan_.optimizer_in_backward)
    check_optimizer_in_backward(plan_.name, precision_, optimizer.name(), traits, ranks_->size());
  const bool sharded = std::any_of(modules_.begin(), modules_.end(), [](const auto& weak) { return !weak.expired(); });
  if (!sharded) return plan_.optimizer_in_backward ? Optimizer(optim::OptimizerInBackward(optimizer)) : optimizer;
  auto wrapped = std::make_shared<UnitOptimizer>(optimizer, plan_.name, plan_.optimizer_in_backward);
  for (const auto& weak : modules_)
    if (const auto module = weak.lock()) {
      wrapped->add_groups((*module)->groups());
      (*module)->add_optimizer(wrapped);
    }
  return Optimizer(std::move(wrapped));
}

Tensor ShardedStrategy::grad_norm(std::span<const Tensor> params, double norm_type) {
  LEVIN_CHECK(!plan_.optimizer_in_backward, "[", plan_.name,
              "] gradients cannot be clipped by their norm with optimizer_in_backward: they are gone when it is known");
  const at::NoGradGuard no_grad;
  const bool largest = std::isinf(norm_type);
  // Powers of norms add up over tensors and ranks. [0] is of sharded parameters, [1] of full ones, which count once.
  std::array<Tensor, 2> sums;
  std::unordered_map<const c10::TensorImpl*, bool> seen;
  for (const auto& param : params) {
    const Tensor& grad = param.grad();
    if (!grad.defined() || grad.numel() == 0 || !seen.emplace(param.unsafeGetTensorImpl(), true).second) continue;
    auto norm = float_norm(grad, norm_type);
    norm = largest ? norm : norm.pow(norm_type);
    auto& sum = sums[shards_->find(param) ? 0 : 1];
    if (!sum.defined())
      sum = norm;
    else
      sum = largest ? at::maximum(sum, norm.to(sum.device())) : sum + norm.to(sum.device());
  }
  // On the host where the gradients are, so that all ranks do the same, also one that has no gradient.
  const auto place = plan_.offload ? c10::Device(at::kCPU) : device_;
  auto sharded = sums[0].defined() ? sums[0].to(place, at::kFloat) : at::zeros({}, at::TensorOptions(place));
  if (ranks_->failures()) ranks_->all_reduce(sharded, largest ? ReduceOp::kMax : ReduceOp::kSum);
  auto total = sharded;
  if (sums[1].defined()) {
    const auto whole = sums[1].to(place, at::kFloat);
    total = largest ? at::maximum(total, whole) : total + whole;
  }
  return largest ? total : total.pow(1 / norm_type);
}

}  // namespace levin::detail
