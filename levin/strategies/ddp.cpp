#include "levin/strategies/ddp.h"

#include <charconv>
#include <limits>
#include <optional>
#include <ranges>
#include <thread>

#include <ATen/Context.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/nn/modules/embedding.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/devices/graphs.h"
#include "levin/distributed/failure.h"
#include "levin/strategies/comm_hooks.h"
#include "levin/strategies/ddp_capture.h"
#include "levin/strategies/ddp_reducer.h"
#include "levin/strategies/layout.h"
#include "levin/strategies/module_states.h"
#include "levin/strategies/sync_batchnorm.h"

namespace levin {
namespace {

using detail::NamedState;

/// Parameters whose gradients are sparse: the reducer must know before it sees one.
std::vector<bool> sparse_parameters(torch::nn::Module& module, std::span<const NamedState> parameters) {
  std::vector<bool> sparse(parameters.size(), false);
  const auto mark = [&](const Tensor& weight) {
    for (size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].tensor.is_same(weight)) sparse[i] = true;
  };
  const auto look = [&](torch::nn::Module& one) {
    if (const auto* embedding = one.as<torch::nn::EmbeddingImpl>(); embedding && embedding->options.sparse())
      mark(embedding->weight);
    if (const auto* bag = one.as<torch::nn::EmbeddingBagImpl>(); bag && bag->options.sparse()) mark(bag->weight);
  };
  look(module);
  for (const auto& child : module.modules(/*include_self=*/false)) look(*child);
  return sparse;
}

/// The parameter indices in the message of Reducer::check_finalized, which is the only place that tells them.
std::vector<size_t> indices_without_gradient(const std::string& message) {
  std::vector<size_t> indices;
  const auto heading = message.find("Parameter indices which did not receive grad");
  auto at = heading == std::string::npos ? heading : message.find(": ", heading);
  if (at == std::string::npos) return indices;
  for (const char* p = message.data() + at + 2; p < message.data() + message.size() && *p != '\n';) {
    size_t index = 0;
    const auto [end, error] = std::from_chars(p, message.data() + message.size(), index);
    if (error == std::errc()) {
      indices.push_back(index);
      p = end;
    } else {
      ++p;
    }
  }
  return indices;
}

/// Puts the reducer's paragraph about an idle find_unused_parameters into one line of rank 0; other warnings go their
/// way.
class QuietWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().starts_with("find_unused_parameters=True"))
      warn_once(
          "[ddp] find_unused_parameters is set, but every parameter took part in this step; without it steps are "
          "faster");
    else
      c10::WarningHandler::process(warning);
  }
};

/// One module under the reducer.
///
/// The reducer is armed for a backward pass when a gradient first reaches an output or a parameter of the module. So a
/// module that is no part of the loss is left alone, a second backward through the same graph is reduced again, and
/// several forwards before one backward count as one. What torch::autograd::grad computes outside of backward (a
/// gradient penalty) is no pass.
///
/// The place of a gradient in its bucket decides in which order the ranks are added up, so all passes have the same
/// buckets, from the first on: it shows in which order gradients come, and is reduced at its end, in the buckets that
/// follow from that. A run that resumes anywhere then adds as the one that was not disturbed. (torch's first pass has
/// buckets of its own.)
class DdpModule : public ModuleSync, private UnevenInputs {
 public:
  DdpModule(torch::nn::Module& module, std::shared_ptr<Collective> group, const DdpOptions& options,
            std::vector<NamedState> parameters, std::vector<NamedState> frozen, int number, bool captured)
      : number_(number),
        group_(std::move(group)),
        options_(options),
        parameters_(std::move(parameters)),
        frozen_(std::move(frozen)),
        buffers_(detail::changing_buffers(module)) {
    std::vector<Tensor> tensors;
    std::unordered_map<size_t, std::string> names;
    for (const auto& parameter : parameters_) {
      names[tensors.size()] = parameter.name;
      tensors.push_back(parameter.tensor);
    }
    const auto sparse = sparse_parameters(module, parameters_);
    const auto cap = static_cast<int64_t>(options_.bucket_cap_mb * 1024 * 1024);
    const auto first_cap = std::min<int64_t>(cap, c10d::kDefaultFirstBucketBytes);
    // The first pass builds the buckets, but where gradients may be missing. In a static graph the reducer looks up the
    // parameters of the first pass in buckets, whichever they are.
    std::vector<std::vector<size_t>> buckets;
    if (options_.static_graph || options_.find_unused_parameters) {
      const auto limits = options_.static_graph
                              ? std::vector<size_t>{std::numeric_limits<size_t>::max()}
                              : std::vector<size_t>{static_cast<size_t>(first_cap), static_cast<size_t>(cap)};
      buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(tensors, limits, sparse));
      std::reverse(buckets.begin(), buckets.end());  // gradients come in about the reverse order of registration
    }
    // It holds the ends of the autograd graph, which stay on the stream on which they are made.
    std::optional<c10::StreamGuard> on_stream;
    if (captured && tensors[0].is_cuda()) {
      at::globalContext().setWarnOnAccumulateGradStreamMismatch(false);
      on_stream.emplace(detail::graph_stream(tensors[0].device()));
    }
    reducer_ = std::make_shared<detail::OpenReducer>(
        tensors, std::move(buckets), group_->process_group(), sparse, cap, options_.find_unused_parameters,
        options_.gradient_as_bucket_view, std::move(names), first_cap, /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, std::vector<int64_t>{});
    reducer_->own_views();
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
    on_stream.reset();
    const auto device = tensors[0].device();
    const std::vector<int> devices = device.is_cpu() ? std::vector<int>{} : std::vector<int>{device.index()};
    logger_->set_construction_data_and_log(module.name(), devices, -1, options_.broadcast_buffers,
                                           options_.sync_batchnorm, options_.static_graph);
    if (options_.static_graph) {
      reducer_->set_static_graph();
      logger_->set_static_graph();
    }
    if (auto hook = detail::make_comm_hook(options_, *group_)) {
      reducer_->register_comm_hook(std::move(hook));
      logger_->set_comm_hook(options_.comm_hook);
    }
    alive_ = std::make_shared<bool>(true);
    for (const auto& parameter : parameters_)
      parameter.tensor.register_hook([this, alive = alive_](const Tensor&) {
        if (*alive) arm();
      });
    if (captured) watch_gradients();
    if (reducer_->should_rebuild_buckets()) watch_first_pass();
  }

  ~DdpModule() override {
    *alive_ = false;
    end_first_pass();
    // The reducer's destructor may throw; nothing may leave this one.
    try {
      logger_.reset();
      reducer_.reset();
    } catch (const std::exception&) {
    }
  }

  void before_forward() override {
    if (options_.sync_batchnorm) batchnorm_.emplace(*group_);
    if (!at::GradMode::is_enabled() || !sync_) return;
    // The reducer speaks past the group.
    if (const auto* failures = group_->failures()) failures->check_process("ddp");
    if (!forward_prepared_ && !detail::is_capturing()) {
      logger_->set_runtime_stats_and_log();
      reducer_->prepare_for_forward();
      forward_prepared_ = true;
    }
    if (joining_) say_still_stepping();
    if (options_.broadcast_buffers) detail::broadcast_states(*group_, buffers_, joining_ ? authority_ : 0);
  }

  UnevenInputs* uneven_inputs() override { return this; }

  // Ranks that join uneven inputs make different numbers of steps.
  bool communicates() const override { return at::GradMode::is_enabled() && !joining_; }
  // Buckets are built when the first pass has shown in which order gradients come.
  bool is_settled() const override { return !at::GradMode::is_enabled() || !reducer_->should_rebuild_buckets(); }
  std::string prepare_capture(bool keeps_gradients) override;
  // The reducer lets gradients be its buckets, and would put others aside.
  Tensor gradient_memory(const Tensor& param) override {
    if (!options_.gradient_as_bucket_view || reducer_->should_rebuild_buckets()) return {};
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].tensor.is_same(param)) return reducer_->bucket_view(i);
    return {};
  }
  void capture_failed() override {
    captured_.reset();
    reducer_->forget_pass();
    batchnorm_.reset();
    backward_batchnorm_.reset();
    loss_ = Tensor();
    in_backward_ = armed_ = forward_prepared_ = hands_out_leaf_ = false;
  }
  uint64_t layout_version() const override { return rebuilt_; }

  void begin(bool divide_by_initial_world_size) override {
    LEVIN_CHECK(!options_.static_graph && !options_.sync_batchnorm && sync_,
                "[ddp] join_uneven_inputs does not go with ",
                options_.static_graph     ? "static_graph"
                : options_.sync_batchnorm ? "sync_batchnorm"
                                          : "no_backward_sync",
                ": a rank without a batch could not take part in it");
    joining_ = true;
    static_divisor_ = divide_by_initial_world_size;
  }

  void end() override {
    if (!std::exchange(joining_, false)) return;
    // What the others do in a step, in the same order, with zeros. A rank that ends last finds nobody left.
    at::NoGradGuard no_grad;
    while (count_stepping(false) > 0) {
      find_authority(false);
      if (options_.broadcast_buffers) detail::broadcast_states(*group_, buffers_, authority_);
      // A rank that has made no step knows of no order.
      if (reducer_->should_rebuild_buckets()) build_buckets();
      group_->run("ddp.join", [&](c10d::ProcessGroup& ranks) {
        for (auto& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/true))
          reducer_->run_comm_hook(bucket)->waitAndThrow();
        if (!options_.find_unused_parameters) return;
        auto used = std::vector<Tensor>{reducer_->get_local_used_map_on_device()};
        ranks.allreduce(used)->wait();
      });
    }
    // Ranks that ended before have not stepped since: a last one's values are everybody's.
    find_authority(last_to_step_);
    last_to_step_ = false;
    detail::broadcast_states(*group_, parameters_, authority_);
    detail::broadcast_states(*group_, buffers_, authority_);
  }

  void leave_forward() override { batchnorm_.reset(); }

  void after_forward(std::span<Tensor> outputs) override {
    if (!at::GradMode::is_enabled() || !sync_) return;
    // A module that is frozen as a whole has nothing to reduce: a discriminator in the step of its generator.
    if (std::ranges::none_of(parameters_, trains) && std::ranges::none_of(frozen_, trains)) return;
    for (auto& output : outputs) {
      if (!output.requires_grad()) continue;
      // A hook on a leaf would stay there for good; a parameter that is handed out as it is must be waited for in any
      // case.
      if (output.is_leaf()) {
        hands_out_leaf_ = true;
        continue;
      }
      output.register_hook([this, alive = alive_](const Tensor&) {
        if (*alive) arm();
      });
    }
  }

  void before_backward(const Tensor& loss) override {
    if (options_.sync_batchnorm) backward_batchnorm_.emplace(*group_);
    ++backwards_;
    in_backward_ = true;
    if (!sync_) return;
    came_.clear();
    loss_ = loss;
    if (hands_out_leaf_) arm();
  }

  void after_backward(const std::exception* failure) override {
    if (failure && detail::is_capturing()) return;  // capture_failed follows
    backward_batchnorm_.reset();
    in_backward_ = false;
    loss_ = Tensor();
    if (failure) return backward_failed(*failure);
    hands_out_leaf_ = false;
    if (!armed_) return;
    armed_ = false;
    if (captured_) {
      captured_->finish();
      captured_.reset();
      reducer_->forget_pass();
      return;
    }
    forward_prepared_ = false;
    if (sync_) average_thawed();
    if (reducer_->should_rebuild_buckets()) return reduce_first_pass();
    if (reducer_->finalized()) return;
    if (!reducer_->began()) fail_shared(kNoneTookPart);
    try {
      reducer_->check_finalized();
    } catch (const std::exception& error) {
      fail_unused(indices_without_gradient(error.what()));
    }
  }

  void set_sync(bool enabled) override {
    LEVIN_CHECK(enabled || !joining_, "[ddp] no_backward_sync does not go with join_uneven_inputs");
    sync_ = enabled;
  }
  void sync_buffers() override {
    if (options_.broadcast_buffers) detail::broadcast_states(*group_, buffers_);
  }

 private:
  static bool trains(const NamedState& parameter) { return parameter.tensor.requires_grad(); }

  void backward_failed(const std::exception& error) {
    auto* failures = group_->failures();
    // A collective inside backward has said it all, or somebody has ended the group while one waited.
    if (failures->failed()) {
      if (dynamic_cast<const Error*>(&error)) return;
      throw Error(failures->reason());
    }
    const auto line = one_line(error);
    const bool from_outside = line.find("gloo") != std::string::npos || line.find("NCCL") != std::string::npos ||
                              !failures->closed_peers().empty();
    if (from_outside) group_->run("ddp", [&](c10d::ProcessGroup&) { throw std::runtime_error(line); });
    // What the reducer knows of a static graph does not survive a pass that was cut off.
    if (options_.static_graph)
      failures->leave({FailureReport::Kind::kFailed,
                       line + " (with static_graph no step can follow a backward that threw; leave it out)"});
    else if (const auto most = most_started())
      recover(*most);
    else
      failures->leave({FailureReport::Kind::kFailed, line});
  }

  /// Parameters that were frozen at setup and train now: the reducer does not know them. What no rank has a gradient of
  /// has none.
  void average_thawed() {
    const at::NoGradGuard no_grad;
    std::vector<Tensor> thawed;
    for (const auto& state : frozen_)
      if (state.tensor.requires_grad()) thawed.push_back(state.tensor);
    if (thawed.empty()) return;
    std::vector<int64_t> here;
    for (const auto& param : thawed) here.push_back(param.grad().defined());
    auto used = at::tensor(here, at::kLong).to(thawed[0].device());
    group_->all_reduce(used, ReduceOp::kMax);
    used = used.cpu();
    for (size_t i = 0; i < thawed.size(); ++i) {
      if (used.const_data_ptr<int64_t>()[i] == 0) continue;
      auto& grad = thawed[i].mutable_grad();
      if (!grad.defined()) grad = at::zeros_like(thawed[i]);
      group_->all_reduce(grad, ReduceOp::kMean);
    }
  }

  /// How many ranks make a step now; a rank that does not says so.
  int64_t count_stepping(bool steps) {
    counted_ = at::full({1}, steps ? 1 : 0, at::device(parameters_[0].tensor.device()).dtype(at::kLong));
    group_->run("ddp.join", [&](c10d::ProcessGroup& ranks) {
      std::vector<Tensor> tensors{counted_};
      count_work_ = ranks.allreduce(tensors);
      count_work_->wait();
    });
    stepping_ = counted_.item<int64_t>();
    if (stepping_ > 0) last_to_step_ = steps;
    return stepping_;
  }

  /// The largest of the ranks that say yes: its buffers, and at the end its parameters, are everybody's.
  void find_authority(bool mine) {
    auto rank = at::full({1}, mine ? group_->rank() : -1, at::device(parameters_[0].tensor.device()).dtype(at::kLong));
    group_->run("ddp.join", [&](c10d::ProcessGroup& ranks) {
      std::vector<Tensor> tensors{rank};
      c10d::AllreduceOptions how;
      how.reduceOp = c10d::ReduceOp::MAX;
      ranks.allreduce(tensors, how)->wait();
    });
    authority_ = static_cast<int>(std::max<int64_t>(rank.item<int64_t>(), 0));
  }

  void say_still_stepping() {
    count_stepping(true);
    // The reducer asks it for its divisor.
    reducer_->set_forward_pass_work_handle(count_work_, static_divisor_);
    find_authority(true);
  }

  void arm() {
    if (armed_ || !sync_ || !in_backward_) return;
    LEVIN_CHECK(!at::GradMode::is_enabled(),
                "[ddp] backward with create_graph is not possible: gradients are averaged over the ranks, and no graph "
                "leads through that; use torch::autograd::grad with create_graph for the part of the loss that needs "
                "it, and fabric.backward(loss) for the sum");
    armed_ = true;
    if (reducer_->should_rebuild_buckets()) {
      detail::refuse_capture("ddp has not seen its first pass");
      // That of a static graph counts how often each parameter is used. What was counted while gradients were only
      // accumulated must not be in.
      if (options_.static_graph) reducer_->forget_counts();
      return;
    }
    if (detail::is_capturing()) {
      captured_ = std::make_unique<detail::CapturedPass>(*group_, captured_plan());
      return;
    }
    std::vector<Tensor> roots;
    if (options_.find_unused_parameters) roots.push_back(loss_);
    QuietWarnings handler;
    c10::WarningUtils::WarningHandlerGuard guard(&handler);
    reducer_->prepare_for_backward(roots);
  }

  using GradientHook = torch::autograd::utils::LambdaPostHook;

  /// Notes the order in which gradients come. The reducer does not expect them in the first pass.
  void watch_first_pass() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      auto node = torch::autograd::impl::grad_accumulator(parameters_[i].tensor);
      const auto key = node->add_post_hook(std::make_unique<GradientHook>(
          [this, i, alive = alive_](const std::vector<Tensor>& outputs, const std::vector<Tensor>&) {
            if (*alive && armed_) came_.push_back(i);
            return outputs;
          }));
      first_pass_hooks_.emplace_back(std::move(node), key);
    }
  }
  void end_first_pass() {
    for (const auto& [node, key] : first_pass_hooks_) node->del_post_hook(key);
    first_pass_hooks_.clear();
  }

  /// Parameters by their last gradient of this pass, then those without one.
  std::vector<size_t> order_of_gradients() const {
    std::vector<size_t> order;
    std::vector<bool> placed(parameters_.size(), false);
    const auto place = [&](size_t param) {
      if (!placed[param]) order.push_back(param);
      placed[param] = true;
    };
    for (const auto param : came_ | std::views::reverse) place(param);
    std::ranges::reverse(order);
    for (size_t param = parameters_.size(); param-- > 0;) place(param);
    return order;
  }

  void build_buckets() {
    group_->run("ddp", [&](c10d::ProcessGroup&) {
      reducer_->build_buckets(order_of_gradients());
      reducer_->own_views();
    });
    ++rebuilt_;
    end_first_pass();
  }

  void reduce_first_pass() {
    if (options_.static_graph) {
      build_buckets();
      group_->run("ddp", [&](c10d::ProcessGroup&) {
        reducer_->prepare_for_backward({});
        reducer_->delay_all_reduce();
      });
      for (const auto& parameter : parameters_) has_gradient_.push_back(parameter.tensor.grad().defined());
      return;
    }
    std::vector<int> times(parameters_.size(), 0);
    for (const auto param : came_) ++times[param];
    std::vector<size_t> missing;
    for (size_t param = 0; param < parameters_.size(); ++param) {
      if (times[param] == 0) missing.push_back(param);
      if (times[param] > 1)
        fail_shared(fmt::format("parameter \"{}\" got its gradient {} times in one backward", parameters_[param].name,
                                times[param]),
                    "let each parameter be used outside of nested backward passes, or set static_graph (strategy "
                    "\"ddp_static_graph\")");
    }
    if (missing.size() == parameters_.size()) fail_shared(kNoneTookPart);
    if (!missing.empty()) fail_unused(missing);
    build_buckets();
    const auto divisor = joining_ && !static_divisor_ ? stepping_ : group_->size();
    group_->run("ddp", [&](c10d::ProcessGroup&) { reducer_->reduce_all(static_cast<int>(divisor)); });
  }

  /// Tells a captured pass of every gradient. The reducer, which has its own hooks, does not expect them then.
  void watch_gradients() {
    for (size_t i = 0; i < parameters_.size(); ++i)
      torch::autograd::impl::grad_accumulator(parameters_[i].tensor)
          ->add_post_hook(std::make_unique<GradientHook>(
              [this, i, alive = alive_](const std::vector<Tensor>& outputs, const std::vector<Tensor>&) {
                if (*alive && captured_ && in_backward_) captured_->ready(i);
                return outputs;
              }));
  }

  detail::CapturedPassPlan captured_plan() const {
    detail::CapturedPassPlan plan{.buckets = reducer_->buckets(),
                                  .allows_unused = options_.find_unused_parameters && !options_.static_graph,
                                  .gradients_are_views = options_.gradient_as_bucket_view};
    for (size_t i = 0; i < parameters_.size(); ++i) {
      plan.names.push_back(parameters_[i].name);
      plan.params.push_back(parameters_[i].tensor);
      plan.uses.push_back(options_.static_graph ? reducer_->uses(i) : 1);
    }
    if (options_.static_graph) plan.used_somewhere = has_gradient_;
    if (options_.comm_hook == "fp16") plan.travels_as = at::kHalf;
    if (options_.comm_hook == "bf16") plan.travels_as = at::kBFloat16;
    return plan;
  }

  /// How many reductions of this backward some rank has started, when backward has failed on every rank; none when it
  /// has not, or they cannot be ended.
  std::optional<size_t> most_started() {
    // A rank whose backward did not fail waits for this one; others come here at about the same time.
    constexpr std::chrono::milliseconds kPatience{3000};
    const auto start = std::chrono::steady_clock::now();
    const auto key = [&](int rank) { return fmt::format("ddp/{}/failed/{}/{}", number_, backwards_, rank); };
    const size_t mine = armed_ ? reducer_->started() : 0;
    size_t most = mine, least = mine;
    try {
      const auto store = group_->store();
      store->set(key(group_->rank()), std::to_string(mine));
      for (int rank = 0; rank < group_->size(); ++rank) {
        while (!store->check({key(rank)})) {
          if (std::chrono::steady_clock::now() > start + kPatience || group_->failures()->others_failed()) return {};
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        const auto theirs = static_cast<size_t>(std::stoul(store->get_to_str(key(rank))));
        most = std::max(most, theirs);
        least = std::min(least, theirs);
      }
    } catch (const std::exception&) {
      return {};
    }
    if (most != least && reducer_->has_sparse()) return {};
    return most;
  }

  /// After a backward that failed on every rank: the next one can follow. Gradients, some of which are averaged and
  /// some not, are none.
  void recover(size_t most) {
    if (!armed_) reducer_->prepare_for_backward({});  // as on the ranks that have come further
    group_->run("ddp", [&](c10d::ProcessGroup&) { reducer_->drain(most); });
    reducer_->forget_pass();
    armed_ = forward_prepared_ = hands_out_leaf_ = false;
    for (const auto& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  }

  /// Ends the group because the gradients of these parameters did not come.
  [[noreturn]] void fail_unused(const std::vector<size_t>& indices) {
    std::vector<std::string> names;
    bool frozen = true;
    for (const auto index : indices)
      if (index < parameters_.size()) {
        names.push_back(fmt::format("\"{}\"", parameters_[index].name));
        frozen = frozen && !parameters_[index].tensor.requires_grad();
      }
    constexpr size_t kShown = 8;
    auto list = fmt::format("{}", fmt::join(std::span(names).first(std::min(kShown, names.size())), ", "));
    if (names.size() > kShown) list += fmt::format(" and {} more", names.size() - kShown);
    const auto what = fmt::format("parameter{} {}", names.size() == 1 ? "" : "s", list);
    if (names.empty()) fail_shared("some parameters got no gradient");
    if (!frozen) fail_shared(what + " got no gradient");
    fail_shared(what + " frozen after setup",
                "freeze before fabric.setup, or set find_unused_parameters (strategy "
                "\"ddp_find_unused_parameters_true\") to freeze at any time");
  }

  [[noreturn]] void fail_shared(const std::string& what, const char* other_advice = nullptr) {
    constexpr auto kAdvice =
        "let every parameter take part in the loss, freeze it (requires_grad = false), or set find_unused_parameters "
        "(strategy "
        "\"ddp_find_unused_parameters_true\")";
    constexpr auto kAdviceUnused = "find_unused_parameters needs at least one that does";
    const auto* advice = other_advice ? other_advice : options_.find_unused_parameters ? kAdviceUnused : kAdvice;
    group_->failures()->fail("ddp",
                             {FailureReport::Kind::kShared, fmt::format("[ddp] {} on {{ranks}}; {}", what, advice)});
  }

  static constexpr auto kNoneTookPart = "no parameter of the module took part in the loss";

  const int number_;
  const std::shared_ptr<Collective> group_;
  const DdpOptions options_;
  const std::vector<NamedState> parameters_;
  /// The rest, at setup.
  const std::vector<NamedState> frozen_;
  const std::vector<NamedState> buffers_;
  std::shared_ptr<detail::OpenReducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
  /// The backward pass that is being captured.
  std::unique_ptr<detail::CapturedPass> captured_;
  bool kernels_loaded_ = false;
  /// Outlives this object in hooks of graphs that the user still holds.
  std::shared_ptr<bool> alive_;
  std::optional<SyncBatchNormScope> batchnorm_;
  std::optional<SyncBatchNormScope> backward_batchnorm_;  // for units that compute again there
  Tensor loss_;
  bool sync_ = true;
  bool forward_prepared_ = false;
  bool in_backward_ = false;
  int64_t backwards_ = 0;
  bool armed_ = false;
  bool hands_out_leaf_ = false;
  /// The first pass: parameters in the order in which their gradients came, and the hooks that note it.
  std::vector<size_t> came_;
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, uintptr_t>> first_pass_hooks_;
  /// Of a static graph: the parameters that had a gradient after the first pass, from whatever rank.
  std::vector<bool> has_gradient_;
  uint64_t rebuilt_ = 0;
  bool joining_ = false;
  bool static_divisor_ = true;
  bool last_to_step_ = false;
  int64_t stepping_ = 0;
  int authority_ = 0;
  Tensor counted_;
  c10::intrusive_ptr<c10d::Work> count_work_;
};

std::string DdpModule::prepare_capture(bool) {
  if (!at::GradMode::is_enabled()) return {};
  if (joining_) return "ranks join uneven inputs, and say in every step whether they continue";
  if (options_.comm_hook == "powersgd") return "comm_hook \"powersgd\" counts its steps on the host";
  if (reducer_->has_sparse()) return "ddp sums sparse gradients, whose sizes change";
  if (std::ranges::any_of(frozen_, [](const auto& state) { return state.tensor.requires_grad(); }))
    return "parameters that were frozen at setup train now, and are averaged after backward";
  if (!std::exchange(kernels_loaded_, true)) detail::load_pass_kernels(reducer_->buckets());
  return {};
}

}  // namespace

DdpStrategy::DdpStrategy(DdpOptions options)
    : Strategy({.name = "ddp",
                .collective = {.backend = options.process_group_backend, .timeout = options.timeout},
                .syncs_batchnorm = true}),
      options_(std::move(options)) {
  LEVIN_CHECK(options_.bucket_cap_mb > 0, "[ddp] bucket_cap_mb is ", options_.bucket_cap_mb,
              "; it must be more than 0");
  detail::check_comm_hook(options_);
}

std::unique_ptr<Strategy> strategy_of(const DdpOptions& options) {
  return std::make_unique<DdpStrategy>(options);
}

std::vector<NamedStrategy> DdpStrategy::names() {
  return {named_strategy("ddp", DdpOptions{}),
          named_strategy("ddp_find_unused_parameters_true", DdpOptions{.find_unused_parameters = true}),
          named_strategy("ddp_find_unused_parameters_false", DdpOptions{}),
          named_strategy("ddp_static_graph", DdpOptions{.static_graph = true})};
}

StateLayout DdpStrategy::layout_over(int ranks) const {
  return {.ranks = ranks, .gradient_buckets = ranks > 1};  // alone there is nothing to reduce
}

std::unique_ptr<ModuleSync> DdpStrategy::setup_module(torch::nn::Module& module) {
  if (!group().process_group()) return nullptr;
  auto parameters = detail::unique_parameters(module);
  if (takes_) std::erase_if(parameters, [&](const auto& parameter) { return !takes_(parameter.tensor); });
  const auto buffers = detail::unique_buffers(module);
  detail::check_same_states(name(), *group_, "parameter", parameters);
  detail::check_same_states(name(), *group_, "buffer", buffers);
  detail::broadcast_states(*group_, parameters);
  detail::broadcast_states(*group_, buffers);
  std::vector<NamedState> trained, frozen;
  for (const auto& parameter : parameters) (parameter.tensor.requires_grad() ? trained : frozen).push_back(parameter);
  if (trained.empty()) return nullptr;
  auto options = options_;
  options.sync_batchnorm = options.sync_batchnorm || sync_batchnorm_;
  return std::make_unique<DdpModule>(module, group_, options, std::move(trained), std::move(frozen), modules_++,
                                     captured_);
}

}  // namespace levin
