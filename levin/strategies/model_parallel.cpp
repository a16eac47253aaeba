#include "levin/strategies/model_parallel.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <mutex>
#include <sstream>
#include <unordered_set>

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/distributed/single.h"
#include "levin/nn/context/split.h"
#include "levin/nn/deferred_init.h"
#include "levin/strategies/float_norm.h"
#include "levin/strategies/fsdp.h"
#include "levin/strategies/layout.h"
#include "levin/strategies/module_states.h"
#include "levin/strategies/pipeline/pipelined_module.h"
#include "levin/strategies/pipeline/stage_optimizer.h"

namespace levin {
namespace {

/// Gradients of parameters that every rank has, and of which each saw a part, are summed as they come.
void sum_gradients(const TensorSplit::Parameter& parameter, const TensorRanks& ranks) {
  if (parameter.sums_grad) {
    parameter.tensor.register_hook([ranks](const Tensor& grad) {
      auto sum = grad.contiguous().clone();
      ranks->all_reduce(sum);
      return sum;
    });
    return;
  }
  if (parameter.shared.count == 0) return;
  // Keys and values that several ranks have: each rank adds its own to their places among all of them.
  const auto& ranges = parameter.slice.ranges;
  const auto all_rows = 2 * (ranges[2].first - ranges[1].first), first = parameter.slice.whole[0] - all_rows;
  parameter.tensor.register_hook([ranks, ranges, first, all_rows, own = parameter.shared](const Tensor& grad) {
    auto sizes = grad.sizes().vec();
    sizes[0] = all_rows;
    auto all = at::zeros(sizes, grad.options());
    auto at = own.first;
    for (size_t i = 1; i < ranges.size(); ++i) {
      all.narrow(0, ranges[i].first - first, ranges[i].count).copy_(grad.narrow(0, at, ranges[i].count));
      at += ranges[i].count;
    }
    ranks->all_reduce(all);
    auto sum = grad.clone();
    at = own.first;
    for (size_t i = 1; i < ranges.size(); ++i) {
      sum.narrow(0, at, ranges[i].count).copy_(all.narrow(0, ranges[i].first - first, ranges[i].count));
      at += ranges[i].count;
    }
    return sum;
  });
}

/// What is whole on every rank draws the same random numbers on every rank: those of the first.
void take_random_state(Collective& ranks, c10::Device device) {
  std::vector<c10::Device> devices{c10::Device(c10::kCPU)};
  if (device.is_cuda()) devices.push_back(device);
  for (const auto& each : devices) {
    auto generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard lock(generator.mutex());
    auto state = generator.get_state();
    ranks.broadcast(state);
    if (ranks.rank() > 0) generator.set_state(state);
  }
}

/// The gradient that counts for a norm: rows that another rank has too are left out. `first` is the first row here of
/// what the rank has of the split parameter.
Tensor counted(const TensorSplit::Parameter* parameter, const Tensor& grad, int64_t first) {
  if (!parameter || parameter->owns_shared) return grad;
  return grad.narrow(0, 0, std::clamp<int64_t>(parameter->shared.first - first, 0, grad.size(0)));
}

/// Words of a strategy's name that say how state is sharded and what is recomputed. False: another word.
bool takes_sharding_word(const std::string& word, FsdpOptions& options) {
  const auto equals = word.find('=');
  const auto name = word.substr(0, equals), value = equals == word.npos ? std::string() : word.substr(equals + 1);
  if (name == "sharding") {
    LEVIN_CHECK(value == "full" || value == "grad_op", "[model_parallel] \"", shown(word),
                "\": sharding may be \"full\" or \"grad_op\"");
    options.sharding_strategy = value;
    return true;
  }
  if (name == "checkpointing") {
    LEVIN_CHECK(value == "full" || value == "none", "[model_parallel] \"", shown(word),
                "\": checkpointing may be \"full\" (of the blocks that repeat) or \"none\"; for others give "
                "ModelParallelOptions::fsdp");
    if (value == "full") options.activation_checkpointing_policy = policy::repeated();
    return true;
  }
  if (word != "offload") return false;
  options.cpu_offload = true;
  return true;
}

}  // namespace

ModelParallelStrategy::ModelParallelStrategy(ModelParallelOptions options)
    : ModelParallelStrategy("model_parallel", std::move(options)) {
  const auto& kind = options_.fsdp.sharding_strategy;
  LEVIN_CHECK(kind == "full" || kind == "grad_op", "[model_parallel] fsdp.sharding_strategy \"", kind,
              "\" is what the mesh says (dp_replicate, dp_shard); it may be \"full\" or \"grad_op\"");
  (void)make_inner(2);  // refuses what cannot be before there are ranks
}

ModelParallelStrategy::ModelParallelStrategy(std::string name, ModelParallelOptions options)
    : Strategy({.name = std::move(name),
                .collective = {.backend = options.fsdp.process_group_backend, .timeout = options.fsdp.timeout},
                .syncs_batchnorm = true}),
      options_(std::move(options)) {}

std::unique_ptr<Strategy> strategy_of(const ModelParallelOptions& options) {
  return std::make_unique<ModelParallelStrategy>(options);
}

std::vector<NamedStrategy> ModelParallelStrategy::names() {
  return {named_strategy("model_parallel", ModelParallelOptions{})};
}

NamedStrategy ModelParallelStrategy::named(const std::string& text) {
  ModelParallelOptions options;
  const std::vector<std::pair<std::string, int*>> sizes{{"pp", &options.mesh.pp},
                                                        {"dp_replicate", &options.mesh.dp_replicate},
                                                        {"dp_shard", &options.mesh.dp_shard},
                                                        {"cp", &options.mesh.cp},
                                                        {"tp", &options.mesh.tp},
                                                        {"ep", &options.mesh.ep},
                                                        {"microbatches", &options.pipeline.microbatches},
                                                        {"chunks", &options.pipeline.chunks}};
  std::vector<std::string> known{"sequence_parallel", "schedule"};
  for (const auto& [name, value] : sizes) known.push_back(name);
  // Where another one is -1, nothing is left for dp_shard.
  if (text.find("=-1") != text.npos) options.mesh.dp_shard = 1;
  known.insert(known.end(), {"sharding=grad_op", "checkpointing=full", "offload"});
  std::istringstream words(text.substr(text.find(':') + 1));
  for (std::string word; std::getline(words, word, ',');) {
    if (takes_sharding_word(word, options.fsdp)) continue;
    const auto equals = word.find('=');
    const auto name = word.substr(0, equals);
    const auto size = std::find_if(sizes.begin(), sizes.end(), [&](const auto& each) { return each.first == name; });
    if (name == "sequence_parallel" && equals == word.npos) {
      options.sequence_parallel = true;
      continue;
    }
    const auto value = equals == word.npos ? std::string() : word.substr(equals + 1);
    if (name == "schedule") {
      options.pipeline.schedule = pipeline_schedule_traits(value).name;  // an unknown one is said here
      continue;
    }
    if (size == sizes.end()) fail_unknown("model_parallel", "size", name, known);
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *size->second);
    LEVIN_CHECK(error == std::errc() && end == value.data() + value.size(), "[model_parallel] \"", word,
                "\" is no size; write ", name, "=2");
  }
  LEVIN_CHECK(options.pipeline.microbatches >= 0, "[model_parallel] microbatches ", options.pipeline.microbatches,
              " must be 1 or more, or 0 to choose");
  return named_strategy(text, options);
}

std::unique_ptr<Strategy> ModelParallelStrategy::make_inner(int ranks) const {
  return std::make_unique<FsdpStrategy>(options_.fsdp, ranks);
}

bool ModelParallelStrategy::saves_full() const {
  return options_.fsdp.state_dict_type == "full";
}

void ModelParallelStrategy::on_connect() {
  const auto sizes = options_.mesh.over(group_->size());
  LEVIN_CHECK(sizes.pp == 1 || !options_.fsdp.optimizer_in_backward, "[", name(),
              "] optimizer_in_backward steps before the gradients of what several stages have (tied embeddings) are ",
              "summed; leave it out where pp is ", sizes.pp);
  if (sizes.pp > 1) detail::check_schedule(options_.pipeline, sizes.pp);
  mesh_ = std::make_unique<Mesh>(group_, sizes);
  if (sizes.pp > 1) mesh_->fold("stages", "pp", "cp");
  inner_ = make_inner(mesh_->size("fsdp"));
  traits_.places_modules = inner_->traits().places_modules;
  inner_->connect(mesh_->shared_group("loss"), device_);
  if (sizes.ep > 1) {
    auto* sharded = dynamic_cast<detail::ShardedStrategy*>(inner_.get());
    LEVIN_CHECK(sharded, "[", name(), "] ep ", sizes.ep, " needs state that is sharded");
    sharded->set_spread(
        {.takes = [this](const Tensor& param) { return find_experts(param) != nullptr; },
         .ranks = mesh_->shared_group("expert_shard"),
         .replicas = mesh_->shared_group("dp_replicate"),
         .whole_numel =
             [this](const Tensor& param) { return c10::multiply_integers(find_experts(param)->slice.whole); }});
  }
  shards_ = std::make_shared<TensorShards>(*group_);
  shards_->set_saves_full(saves_full());
}

void ModelParallelStrategy::share_random_state() {
  if (mesh_->size("tp") > 1) take_random_state(mesh_->group("tp"), device_);
}

DataPlace ModelParallelStrategy::data_place() const {
  return {mesh_->coordinate("batch"), mesh_->size("batch")};
}

ShardMap* ModelParallelStrategy::shards() {
  if (!mesh_) return nullptr;
  const bool spreads = mesh_->size("tp") * mesh_->size("pp") * mesh_->size("ep") > 1;
  return spreads || inner_->shards() ? shards_.get() : nullptr;
}

std::unique_ptr<ModuleSync> ModelParallelStrategy::setup_module(torch::nn::Module& module) {
  (void)group();
  inner_->set_precision(precision_);
  inner_->set_captured(captured_);
  if (sync_batchnorm_) inner_->sync_batchnorm();  // ranks of one copy have the same batch
  const auto params = detail::unique_parameters(module);
  const bool adopted = std::any_of(params.begin(), params.end(), [&](const auto& each) { return find(each.tensor); });
  if (mesh_->size("tp") > 1 && !adopted) split(module);
  if (mesh_->size("tp") == 1 && mesh_->size("pp") > 1) take_values(module);
  if (mesh_->size("ep") > 1) spread_experts(module);
  if (mesh_->size("cp") > 1) split_context(module, {.size = mesh_->size("cp")}, mesh_->shared_group("cp"));
  auto sync = mesh_->size("pp") > 1 ? setup_stages(module) : inner_->setup_module(module);
  add_shards(module);
  return sync;
}

std::unique_ptr<ModuleSync> ModelParallelStrategy::setup_stages(torch::nn::Module& module) {
  auto sync = std::make_unique<detail::PipelinedModule>(module, options_.pipeline, mesh_->shared_group("pp"),
                                                        mesh_->group("stages"));
  if (auto* sharded = dynamic_cast<detail::ShardedStrategy*>(inner_.get()))
    sharded->set_filter([self = sync->self()](const Tensor& parameter) {
      const auto here = self.lock();
      const auto* state = here ? (*here)->find(parameter) : nullptr;
      return !state || (*here)->stages().holds(*state);
    });
  sync->set_inner(inner_->setup_module(module));
  sync->set_device(device_);
  pipelines_.push_back(sync->self());
  return sync;
}

/// Rank 0's values on every rank, of a module that is not split.
void ModelParallelStrategy::take_values(torch::nn::Module& module) {
  const auto params = detail::unique_parameters(module), buffers = detail::unique_buffers(module);
  detail::check_same_states(name(), *group_, "parameter", params);
  detail::check_same_states(name(), *group_, "buffer", buffers);
  for (const auto* states : {&params, &buffers})
    for (const auto& state : *states) {
      if (is_deferred(state.tensor)) materialize(std::span<const Tensor>(&state.tensor, 1));
      detail::broadcast_states(*group_, std::array{state});
    }
}

void ModelParallelStrategy::take_value(const Tensor& parameter) const {
  if (is_deferred(parameter)) materialize(std::span<const Tensor>(&parameter, 1));
  detail::broadcast_states(*group_, std::array{detail::NamedState{{}, parameter}});
}

void ModelParallelStrategy::spread_experts(torch::nn::Module& module) {
  LEVIN_CHECK(!precision_.fp8, "[", name(), "] precision \"", precision_.name,
              "\" is not possible where experts are spread over ranks (ep); use \"bf16-mixed\"");
  std::function<void(const Tensor&)> take;
  // Where layers are split or cut into stages every rank has rank 0's values already.
  if (mesh_->size("tp") * mesh_->size("pp") == 1) {
    detail::check_same_states(name(), *group_, "parameter", detail::unique_parameters(module));
    take = [this](const Tensor& parameter) { take_value(parameter); };
  }
  expert_splits_.push_back(split_experts(module, {.size = mesh_->size("ep")}, mesh_->shared_group("ep"),
                                         mesh_->shared_group("loss"), SplitValues::kTaken, take));
}

const detail::PipelinedModule* ModelParallelStrategy::pipelined(const Tensor& parameter) const {
  for (const auto& weak : pipelines_)
    if (const auto module = weak.lock(); module && (*module)->find(parameter)) return *module;
  return nullptr;
}

bool ModelParallelStrategy::is_first_holder(const Tensor& parameter) const {
  const auto* module = pipelined(parameter);
  return !module || module->is_first(*module->find(parameter));
}

void ModelParallelStrategy::split(torch::nn::Module& module) {
  LEVIN_CHECK(!precision_.fp8, "[", name(), "] precision \"", precision_.name,
              "\" is not possible where layers are split over ranks; use \"bf16-mixed\"");
  detail::check_same_states(name(), *group_, "parameter", detail::unique_parameters(module));
  for (auto& buffer : module.buffers())
    if (is_deferred(buffer)) materialize(std::span<const Tensor>(&buffer, 1));
  const auto buffers = detail::unique_buffers(module);
  detail::check_same_states(name(), *group_, "buffer", buffers);
  detail::broadcast_states(*group_, buffers);
  const auto ranks = mesh_->shared_group("tp");
  const TensorParallelOptions options{ranks->size(), options_.sequence_parallel, options_.plan};
  // Rank 0's values, one parameter at a time: the whole model is on no rank if it need not be.
  const auto take = [this](const Tensor& param) { take_value(param); };
  splits_.push_back(split_tensors(module, options, ranks, SplitValues::kTaken, take));
  watch_split(*splits_.back());
}

void ModelParallelStrategy::adopt_split(std::shared_ptr<TensorSplit> split) {
  (void)group();
  LEVIN_CHECK(split && &split->ranks() == &mesh_->group("tp"), "[", name(),
              "] a model that was opened split must have been opened with mesh().shared_group(\"tp\")");
  LEVIN_CHECK(split->options().sequence_parallel == options_.sequence_parallel, "[", name(),
              "] sequence_parallel needs a model that was not opened split");
  watch_split(*split);
  splits_.push_back(std::move(split));
}

void ModelParallelStrategy::watch_split(const TensorSplit& split) {
  take_random_state(split.ranks(), device_);
  for (const auto& parameter : split.parameters()) {
    auto tensor = parameter.tensor;
    if (!tensor.is_floating_point()) continue;
    // What is frozen may be trained later; a tensor takes hooks only while it needs a gradient.
    const bool trains = tensor.requires_grad();
    tensor.set_requires_grad(true);
    sum_gradients(parameter, split.shared_ranks());
    tensor.set_requires_grad(trains);
  }
}

std::optional<TensorSlice> ModelParallelStrategy::slice_of(const Tensor& parameter) const {
  const auto *part = find(parameter), *experts = find_experts(parameter);
  const bool is_split = part && part->is_split();
  if (!experts) return is_split ? std::optional(part->slice) : std::nullopt;
  const auto& own = experts->slice.ranges[0];
  return is_split ? part->slice.of_rows(own.first, own.count) : experts->slice;
}

/// Places in the tensors that one process has: first the part of tp and ep, then the rows of that part. Of a parameter
/// of another stage this rank has no rows.
void ModelParallelStrategy::add_shards(const torch::nn::Module& module) {
  auto* sharded = inner_->shards();
  const bool first_of_tp = mesh_->coordinate("tp") == 0, first_of_copies = mesh_->coordinate("loss") == 0;
  for (const auto& [name, param] : detail::unique_parameters(module)) {
    const auto* stages = pipelined(param);
    const auto* state = stages ? stages->find(param) : nullptr;
    const bool staged = state && static_cast<int>(stages->stages().holders(*state).size()) < mesh_->size("pp");
    const auto* rows = sharded ? sharded->find(param) : nullptr;
    const auto* part = find(param);
    const bool first = find_experts(param) ? mesh_->coordinate("expert_loss") == 0 : first_of_copies;
    const bool writes = (rows ? rows->writes : first) && is_first_holder(param);
    if (auto slice = slice_of(param)) {
      if (rows || staged) slice = slice->of_rows(rows ? rows->start : 0, detail::rows_of(param));
      shards_->add(param, {.sizes = slice->whole,
                           .writes = writes && (first_of_tp || (part && part->is_split())),
                           .slice = std::make_shared<const TensorSlice>(*slice)});
    } else if (rows || staged) {
      shards_->add(param, {.sizes = rows ? rows->sizes : state->sizes,
                           .start = rows ? rows->start : 0,
                           .writes = writes && first_of_tp});
    }
  }
  for (const auto& [name, buffer] : detail::unique_buffers(module))
    if (const auto* stages = pipelined(buffer)) {
      const auto& state = *stages->find(buffer);
      const bool is_home = stages->stages().rank_of(state.home) == mesh_->coordinate("pp");
      shards_->add(buffer, {.sizes = state.sizes, .writes = is_home && first_of_copies && first_of_tp});
    }
}

StateLayout ModelParallelStrategy::layout_over(int ranks) const {
  const auto sizes = options_.mesh.over(ranks);
  auto layout = make_inner(sizes.dp_shard * sizes.cp)->layout_over(ranks / sizes.tp / sizes.pp);
  const auto experts = std::make_shared<std::shared_ptr<ExpertSplit>>();
  if (sizes.tp * sizes.cp * sizes.ep > 1)
    layout.split_module = [options = TensorParallelOptions{sizes.tp, options_.sequence_parallel, options_.plan}, sizes,
                           experts](torch::nn::Module& module) {
      if (options.size > 1) {
        const auto split = split_tensors(module, options, std::make_shared<ImaginedCollective>(0, options.size));
        for (const auto& parameter : split->parameters())
          if (parameter.tensor.requires_grad()) sum_gradients(parameter, split->shared_ranks());
      }
      if (sizes.ep > 1)
        *experts =
            split_experts(module, {.size = sizes.ep}, std::make_shared<ImaginedCollective>(0, sizes.ep),
                          std::make_shared<ImaginedCollective>(0, sizes.dp_replicate * sizes.dp_shard * sizes.cp));
      if (sizes.cp > 1) split_context(module, {.size = sizes.cp}, std::make_shared<ImaginedCollective>(0, sizes.cp));
    };
  if (sizes.ep > 1)
    layout.expert_ranks = [experts, ranks = sizes.dp_shard * sizes.cp / sizes.ep](const Tensor& parameter) {
      return (*experts)->find(parameter) ? ranks : 0;
    };
  const bool connected = mesh_ && group_->size() == ranks;
  if (sizes.pp > 1)
    layout.pipeline = {.options = options_.pipeline,
                       .ranks = sizes.pp,
                       .rank = connected ? mesh_->coordinate("pp") : 0,
                       .microbatches = [options = options_.pipeline, pp = sizes.pp](int64_t rows) {
                         return detail::microbatches_of(options, pp, rows);
                       }};
  return layout;
}

std::string ModelParallelStrategy::why_not_captured() const {
  if (mesh_->size("pp") > 1) return "ranks that have stages communicate within a step";
  if (mesh_->size("tp") > 1) return "ranks that share layers communicate within a step";
  if (mesh_->size("cp") > 1) return "ranks that share sequences communicate within a step";
  if (mesh_->size("ep") > 1) return "ranks exchange tokens within a step";
  return inner_->why_not_captured();
}

const TensorSplit::Parameter* ModelParallelStrategy::find_experts(const Tensor& parameter) const {
  for (const auto& split : expert_splits_)
    if (const auto* found = split->find(parameter)) return found;
  return nullptr;
}

const TensorSplit::Parameter* ModelParallelStrategy::find(const Tensor& parameter) const {
  for (const auto& split : splits_)
    if (const auto* found = split->find(parameter)) return found;
  return nullptr;
}

/// What the optimizer is told where parameters are split: sums are taken over both axes.
ParamShards ModelParallelStrategy::shards_of_params() const {
  const auto find_shard = [this](const Tensor& param) {
    std::optional<ParamShard> shard;
    auto* sharded = inner_->shards();
    if (const auto* rows = sharded ? sharded->find(param) : nullptr) {
      const auto numel = c10::multiply_integers(rows->sizes);
      shard = {numel == 0 ? 0 : rows->start * (numel / rows->whole_rows()), numel};
    } else if (const auto* part = find(param); part && part->is_split()) {
      shard = {0, param.numel()};
    }
    return shard;
  };
  const auto sum = [this](const Tensor& local, std::span<const Tensor> params) {
    auto total = local;
    const auto add_over = [&](Collective& ranks, const auto& is_spread) {
      auto all = total.clone();
      ranks.all_reduce(all);
      auto spread = at::empty({local.size(0), 1}, at::kBool);
      for (size_t i = 0; i < params.size(); ++i) spread.mutable_data_ptr<bool>()[i] = is_spread(params[i]);
      total = at::where(spread.to(local.device()), all, total);
    };
    auto* sharded = inner_->shards();
    add_over(mesh_->group("fsdp"), [&](const Tensor& param) { return sharded && sharded->find(param) != nullptr; });
    add_over(mesh_->group("tp"), [&](const Tensor& param) {
      const auto* part = find(param);
      return part && part->is_split();
    });
    return total;
  };
  return {find_shard, sum};
}

Optimizer ModelParallelStrategy::setup_optimizer(Optimizer optimizer) {
  const auto traits = optimizer.traits();
  const bool splits = mesh_->size("tp") > 1, staged = mesh_->size("pp") > 1;
  if (splits || staged) {
    const bool repeats = std::any_of(splits_.begin(), splits_.end(), [](const auto& each) {
      return std::any_of(each->parameters().begin(), each->parameters().end(),
                         [](const auto& parameter) { return parameter.shared.count > 0; });
    });
    LEVIN_CHECK(
        traits && (traits->elementwise || (traits->tensor_sums && !repeats)), "[", name(), "] ", optimizer.name(),
        !traits ? " does not say that it steps each element separately" : " steps by figures of full parameters",
        ", and each rank has a part of them; use AdamW or SGD, or strategy \"ddp\"");
  }
  LEVIN_CHECK(mesh_->size("ep") == 1 || (traits && traits->elementwise), "[", name(), "] ", optimizer.name(),
              traits ? " steps by figures of full parameters" : " does not say that it steps each element separately",
              ", and each rank has some of the experts (ep); use AdamW or SGD, or leave ep out");
  auto wrapped = inner_->setup_optimizer(optimizer);
  if (splits) optimizer.impl()->set_shards(shards_of_params());
  if (staged)
    wrapped = Optimizer(std::make_shared<detail::StageOptimizer>(std::move(wrapped), [this](const Tensor& param) {
      const auto* module = pipelined(param);
      return module && !module->stages().holds(*module->find(param));
    }));
  shards_->add_optimizer(staged ? wrapped : optimizer);
  return wrapped;
}

Tensor ModelParallelStrategy::grad_norm(std::span<const Tensor> params, double norm_type) {
  if (mesh_->size("tp") * mesh_->size("pp") * mesh_->size("ep") == 1) return inner_->grad_norm(params, norm_type);
  LEVIN_CHECK(!options_.fsdp.optimizer_in_backward, "[", name(),
              "] gradients cannot be clipped by their norm with optimizer_in_backward: they are gone when it is known");
  const at::NoGradGuard no_grad;
  const bool largest = std::isinf(norm_type);
  auto* sharded = inner_->shards();
  // Sums of powers, or the largest: [is sharded over fsdp][is split over tp]. What every rank has counts once. Of
  // experts the ranks of fsdp have different ones, or different rows of the same ones.
  const auto place = options_.fsdp.cpu_offload ? c10::Device(at::kCPU) : device_;
  std::array<std::array<Tensor, 2>, 2> sums;
  for (auto& row : sums)
    for (auto& sum : row) sum = at::zeros({}, at::TensorOptions(place).dtype(at::kFloat));
  const auto join = [&](const Tensor& a, const Tensor& b) { return largest ? at::maximum(a, b) : a + b; };
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& param : params) {
    if (!param.grad().defined() || !seen.insert(param.unsafeGetTensorImpl()).second) continue;
    if (!is_first_holder(param)) continue;
    const auto* part = find(param);
    const auto* rows = sharded ? sharded->find(param) : nullptr;
    const auto grad = counted(part, param.grad(), rows ? rows->start : 0);
    if (grad.numel() == 0) continue;
    const auto norm = detail::float_norm(grad, norm_type).to(place, at::kFloat);
    auto& sum = sums[rows || find_experts(param) ? 1 : 0][part && part->is_split() ? 1 : 0];
    sum = join(sum, largest ? norm : norm.pow(norm_type));
  }
  const auto op = largest ? ReduceOp::kMax : ReduceOp::kSum;
  auto over_fsdp = at::stack({sums[1][0], sums[1][1]});
  mesh_->group("fsdp").all_reduce(over_fsdp, op);
  auto over_tp = join(sums[0][1], over_fsdp[1]);
  mesh_->group("tp").all_reduce(over_tp, op);
  auto total = join(join(sums[0][0], over_fsdp[0]), over_tp);
  mesh_->group("pp").all_reduce(total, op);
  return largest ? total : total.pow(1 / norm_type);
}

}  // namespace levin
