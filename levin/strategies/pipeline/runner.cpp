#include "levin/strategies/pipeline/runner.h"

#include <algorithm>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/strategies/pipeline/backward.h"

namespace levin {
namespace {

using Kind = PipelineAction::Kind;
using Key = std::pair<int, int>;  // stage and micro-batch

/// The same number on every rank.
int64_t hash_of(const std::vector<std::string>& texts) {
  uint64_t hash = 1469598103934665603ull;
  for (const auto& text : texts)
    for (const unsigned char c : text + "\n") hash = (hash ^ c) * 1099511628211ull;
  return static_cast<int64_t>(hash);
}

/// Tags of messages: the stage at the sending end, the direction, the micro-batch and the tensor.
int tag_of(int stage, int microbatch, bool backward, size_t tensor) {
  return (((microbatch * 512 + stage) * 2 + (backward ? 1 : 0)) * 4 + static_cast<int>(tensor % 4)) & 0x7ffff;
}
int shapes_tag(int stage) {
  return 0x80000 + stage * 2;
}

std::string describe(const PipelineAction& action) {
  const bool forward =
      action.kind == Kind::kForward || action.kind == Kind::kSendForward || action.kind == Kind::kReceiveForward;
  const auto what = forward ? "forward" : "backward";
  if (action.is_compute()) return fmt::format("{} of stage {}, micro-batch {}", what, action.stage, action.microbatch);
  return fmt::format("{} {} of stage {}, micro-batch {}", action.is_send() ? "sending" : "receiving", what,
                     action.stage, action.microbatch);
}

}  // namespace

/// A micro-batch of a stage between its forward and its backward.
struct PipelineRunner::Live {
  std::vector<Tensor> inputs;   // leaves
  std::vector<Tensor> outputs;  // with a graph
  Tensor loss;
  std::unique_ptr<detail::StageBackward> backward;
};

struct PipelineRunner::Step {
  const PipelineSchedule& schedule;
  const MicrobatchStep& work;
  bool with_grad;
  int64_t rows = 0;
  std::map<Key, Live> live;
  /// What has come for a stage: inputs, and gradients of outputs; with the transfer that brings them.
  struct Arrival {
    std::vector<Tensor> tensors;
    std::shared_ptr<Transfer> transfer;
  };
  std::map<Key, Arrival> inputs, output_grads;
  /// What waits to be sent.
  std::map<Key, std::vector<Tensor>> outputs, input_grads;
  std::vector<std::shared_ptr<Transfer>> under_way;
  Tensor loss;

  std::vector<Tensor> take(std::map<Key, Arrival>& from, const PipelineAction& action, const char* what) {
    const auto found = from.find({action.stage, action.microbatch});
    LEVIN_CHECK(found != from.end(), "[pipeline] ", describe(action), " has no ", what, "; the schedule is wrong");
    if (found->second.transfer) found->second.transfer->wait();
    auto tensors = std::move(found->second.tensors);
    from.erase(found);
    return tensors;
  }
};

namespace {

/// One Transfer for several arrivals: waited for once.
class Once final : public Transfer {
 public:
  explicit Once(std::unique_ptr<Transfer> inner) : inner_(std::move(inner)) {}
  void wait() override {
    if (const auto inner = std::move(inner_)) inner->wait();
  }

 private:
  std::unique_ptr<Transfer> inner_;
};

}  // namespace

PipelineRunner::PipelineRunner(StageModule& module, Collective& group) : module_(module), group_(group) {}

detail::StageShapes& PipelineRunner::shapes_to(const Step& step, int stage, int microbatch) {
  return shapes_[{stage, step.work.shapes[static_cast<size_t>(microbatch)]}];
}

void PipelineRunner::check_shapes(const MicrobatchStep& step) const {
  if (group_.size() == 1) return;
  const auto hash = hash_of(step.shapes);
  const auto all = group_.exchange("pipeline", hash);
  const auto other = std::ranges::find_if(all, [&](int64_t each) { return each != hash; });
  LEVIN_CHECK(other == all.end(), "[pipeline] rank ", other - all.begin(),
              " of the pipeline has a batch of another shape than rank ", group_.rank(),
              "; ranks of one pipeline see the same batches");
}

PipelineSchedule PipelineRunner::forward_only(const PipelineSchedule& schedule) {
  auto forward = schedule;
  for (auto& actions : forward.actions) actions.clear();
  for (int microbatch = 0; microbatch < schedule.microbatches; ++microbatch)
    for (int stage = 0; stage < schedule.stages(); ++stage)
      forward.actions[static_cast<size_t>(schedule.rank_of(stage))].push_back(
          {.kind = Kind::kForward, .stage = stage, .microbatch = microbatch});
  int group = 0;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::vector<PipelineAction> all;
    for (const auto& action : forward.actions[static_cast<size_t>(rank)]) {
      const int before = action.stage > 0 ? schedule.rank_of(action.stage - 1) : rank;
      const int behind = action.stage + 1 < schedule.stages() ? schedule.rank_of(action.stage + 1) : rank;
      if (before != rank) all.push_back({Kind::kReceiveForward, action.stage, action.microbatch, before, group++});
      all.push_back(action);
      if (behind != rank) all.push_back({Kind::kSendForward, action.stage, action.microbatch, behind, group++});
    }
    forward.actions[static_cast<size_t>(rank)] = std::move(all);
  }
  return forward;
}

Tensor PipelineRunner::run(const PipelineSchedule& schedule, const MicrobatchStep& work) {
  LEVIN_CHECK(schedule.ranks == group_.size() && schedule.stages() == module_.stages(), "[pipeline] the schedule has ",
              schedule.ranks, " ranks and ", schedule.stages(), " stages, and there are ", group_.size(), " and ",
              module_.stages());
  LEVIN_CHECK(static_cast<int>(work.rows.size()) == schedule.microbatches, "[pipeline] the schedule has ",
              schedule.microbatches, " micro-batches, and the batch ", work.rows.size());
  check_shapes(work);
  Step step{.schedule = schedule, .work = work, .with_grad = at::GradMode::is_enabled()};
  step.rows = std::accumulate(work.rows.begin(), work.rows.end(), int64_t{0});
  counts_ = {};
  const auto plan = step.with_grad ? schedule : forward_only(schedule);
  const auto& actions = plan.actions[static_cast<size_t>(group_.rank())];
  {
    const StageModule::Shown shown(module_);
    for (size_t i = 0; i < actions.size();) {
      const auto& action = actions[i];
      if (observer_) observer_(action);
      group_.note_doing(describe(action));
      if (action.is_compute()) {
        counts_.actions.push_back(action);
        const auto compute = [&] { action.kind == Kind::kForward ? forward(step, action) : backward(step, action); };
        around_ ? around_(action, compute) : compute();
        ++i;
        continue;
      }
      std::vector<PipelineAction> together;
      for (; i < actions.size() && !actions[i].is_compute() && actions[i].group == action.group; ++i)
        together.push_back(actions[i]);
      counts_.actions.insert(counts_.actions.end(), together.begin(), together.end());
      transfer(step, together);
    }
    group_.note_doing("the end of a pipeline step");
    for (const auto& transfer : step.under_way) transfer->wait();
  }
  module_.check_unused();
  if (!step.loss.defined()) step.loss = at::zeros({}, at::device(module_.device()).dtype(at::kFloat));
  if (group_.size() > 1) group_.broadcast(step.loss, module_.rank_of(module_.stages() - 1));
  return step.loss;
}

/// Others that wait for this rank are told for whom it waits itself.
void PipelineRunner::note_receiving(const PipelineAction& action, int stage) {
  const int peer = module_.rank_of(stage);
  if (peer != group_.rank())
    group_.note_doing(fmt::format("receiving from rank {} of its pipeline, for {}", peer, describe(action)));
}

void PipelineRunner::forward(Step& step, const PipelineAction& action) {
  const int stage = action.stage;
  const auto part = static_cast<size_t>(action.microbatch);
  const bool is_last = stage + 1 == module_.stages();
  Live live;
  if (stage > 0) {
    note_receiving(action, stage - 1);
    live.inputs = step.take(step.inputs, action, "input");
    group_.note_doing(describe(action));
    if (step.with_grad)
      for (auto& input : live.inputs) input.requires_grad_();
  }
  auto output = module_.run(
      stage, [&] { return step.work.forward(part); }, stage > 0 ? &shapes_to(step, stage, action.microbatch) : nullptr,
      live.inputs, is_last ? nullptr : &shapes_to(step, stage + 1, action.microbatch));
  if (is_last) {
    const bool has_loss = output.loss.defined() && output.loss.numel() == 1;
    LEVIN_CHECK(has_loss || !step.with_grad, "[pipeline] the step must return a loss of one element, which it did not ",
                "for micro-batch ", action.microbatch);
    if (!has_loss) return;  // an evaluation need not
    const auto weight = static_cast<double>(step.work.rows[part]) / static_cast<double>(step.rows);
    const auto counted = output.loss.detach().to(at::kFloat).reshape({}) * weight;
    step.loss = step.loss.defined() ? step.loss + counted : counted;
    if (step.with_grad) live.loss = step.work.scale(output.loss * weight);
  } else {
    std::vector<Tensor> sent;
    for (const auto& tensor : output.tensors) sent.push_back(tensor.detach());
    if (module_.rank_of(stage + 1) == group_.rank()) {
      // A leaf of its own: the graphs of stages are apart, also on one rank.
      step.inputs[{stage + 1, action.microbatch}] = {std::move(sent), nullptr};
    } else {
      step.outputs[{stage, action.microbatch}] = std::move(sent);
    }
    live.outputs = std::move(output.tensors);
  }
  if (!step.with_grad) return;
  step.live[{stage, action.microbatch}] = std::move(live);
  counts_.peak_live = std::max(counts_.peak_live, static_cast<int>(step.live.size()));
}

void PipelineRunner::backward(Step& step, const PipelineAction& action) {
  const Key key{action.stage, action.microbatch};
  const auto found = step.live.find(key);
  LEVIN_CHECK(found != step.live.end(), "[pipeline] ", describe(action), " comes before its forward");
  auto& live = found->second;
  if (action.kind == Kind::kBackwardWeight) {
    live.backward->of_weights(weights_);
    step.live.erase(found);
    return;
  }
  std::vector<Tensor> grads(1), roots;
  if (live.loss.defined()) {
    roots = {std::move(live.loss)};
  } else {
    note_receiving(action, action.stage + 1);
    grads = step.take(step.output_grads, action, "gradient");
    group_.note_doing(describe(action));
    roots = std::move(live.outputs);
  }
  live.backward = std::make_unique<detail::StageBackward>(std::move(roots), std::move(grads), std::move(live.inputs));
  const bool at_once = action.kind == Kind::kBackward;
  auto of_inputs = at_once ? live.backward->all() : live.backward->of_inputs();
  if (at_once) step.live.erase(found);
  if (action.stage == 0) return;
  if (module_.rank_of(action.stage - 1) == group_.rank())
    step.output_grads[{action.stage - 1, action.microbatch}] = {std::move(of_inputs), nullptr};
  else
    step.input_grads[key] = std::move(of_inputs);
}

void PipelineRunner::transfer(Step& step, const std::vector<PipelineAction>& actions) {
  // What is received in a shape that is not known yet comes after the rest: the rank that knows it may wait for that.
  std::vector<PipelineAction> now, later;
  for (const auto& action : actions) {
    if (action.kind == Kind::kSendForward) send_shapes(step, action);
    const bool is_new =
        action.kind == Kind::kReceiveForward && shapes_to(step, action.stage, action.microbatch).inputs.empty();
    (is_new ? later : now).push_back(action);
  }
  if (!now.empty()) post(step, now);
  for (const auto& action : later) {
    receive_shapes(step, action);
    post(step, {action});
  }
}

void PipelineRunner::post(Step& step, const std::vector<PipelineAction>& actions) {
  std::vector<Message> messages;
  std::vector<Step::Arrival*> arrivals;
  for (const auto& action : actions) {
    const bool backward = action.kind == Kind::kSendBackward || action.kind == Kind::kReceiveBackward;
    const Key key{action.stage, action.microbatch};
    if (action.is_send()) {
      auto node = (backward ? step.input_grads : step.outputs).extract(key);
      LEVIN_CHECK(!node.empty(), "[pipeline] ", describe(action), " comes before it was computed");
      size_t i = 0;
      for (auto& tensor : node.mapped()) {
        (backward ? counts_.backward_bytes : counts_.forward_bytes) += static_cast<int64_t>(tensor.nbytes());
        messages.push_back({tensor.contiguous(), action.peer, tag_of(action.stage, action.microbatch, backward, i++)});
      }
      continue;
    }
    // Of a forward that is received the other end is the stage before, of a backward the stage behind.
    const int sender = backward ? action.stage + 1 : action.stage - 1;
    const auto& shapes = shapes_to(step, backward ? action.stage + 1 : action.stage, action.microbatch);
    auto& arrival = (backward ? step.output_grads : step.inputs)[key];
    size_t i = 0;
    for (const auto& spec : shapes.carried_specs()) {
      arrival.tensors.push_back(at::empty(spec.sizes, at::device(module_.device()).dtype(spec.dtype)));
      messages.push_back(
          {arrival.tensors.back(), action.peer, tag_of(sender, action.microbatch, backward, i++), /*receives=*/true});
    }
    arrivals.push_back(&arrival);
  }
  std::string what = describe(actions.front());
  if (actions.size() > 1) what += fmt::format(" and {} more", actions.size() - 1);
  const auto under_way = std::make_shared<Once>(group_.start("pipeline: " + what, std::move(messages)));
  for (auto* arrival : arrivals) arrival->transfer = under_way;
  if (arrivals.size() < actions.size()) step.under_way.push_back(under_way);
}

// Shapes are told once: before the first micro-batch of a shape, as a text on the host.
void PipelineRunner::send_shapes(Step& step, const PipelineAction& action) {
  auto& shapes = shapes_to(step, action.stage + 1, action.microbatch);
  if (std::exchange(shapes.told, true)) return;
  const auto text = shapes.to_text();
  auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  const auto length = at::tensor({static_cast<int64_t>(text.size())}, at::kLong);
  const int tag = shapes_tag(action.stage);
  step.under_way.push_back(group_.start("pipeline: sending shapes", {{length, action.peer, tag}}));
  step.under_way.push_back(group_.start("pipeline: sending shapes", {{bytes, action.peer, tag + 1}}));
}

void PipelineRunner::receive_shapes(Step& step, const PipelineAction& action) {
  auto& shapes = shapes_to(step, action.stage, action.microbatch);
  if (!shapes.inputs.empty()) return;
  const int tag = shapes_tag(action.stage - 1);
  const auto operation = "pipeline: " + describe(action);
  auto length = at::empty({1}, at::kLong);
  group_.start(operation, {{length, action.peer, tag, true}})->wait();
  auto bytes = at::empty({length.item<int64_t>()}, at::kByte);
  group_.start(operation, {{bytes, action.peer, tag + 1, true}})->wait();
  const auto* start = bytes.const_data_ptr<uint8_t>();
  shapes = detail::StageShapes::from_text(std::string(start, start + bytes.numel()));
}

}  // namespace levin
