#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

namespace torch::nn {
class Module;
}

namespace levin {

using at::Tensor;

class Call;
class Unit;

/// Why a unit's forward runs: for its output, or again in backward, for the activations that were not kept.
enum class Phase : uint8_t { kForward, kRecompute };

/// Where an interceptor stands around a forward; smaller is further outside. Any number between is allowed;
/// interceptors of equal order nest in the order in which they were attached.
enum class Order : int {
  kProfiler = 100,
  kStage = 150,
  kSharding = 200,
  kCheckpointing = 300,
  /// Inside of checkpointing: a part of what a unit computes again in backward.
  kRecompute = 350,
  kInnermost = 400
};

/// Something that happens around the forward of a unit. One object may serve many units.
///
///     struct Timer : levin::Interceptor {
///       void around(levin::Call& call) override {
///         Span span(call.module().name());      // RAII: closed also when forward throws
///         call.proceed();
///       }
///     };
class Interceptor {
 public:
  virtual ~Interceptor() = default;
  /// Must run `call.proceed()` exactly once (or `call.skip(...)`, which stands in for it), or throw.
  virtual void around(Call& call) = 0;
  /// Whether it may look at the result in Phase::kRecompute. Where nobody does, the last product of a unit that runs
  /// again may be left out, and its result has no values.
  virtual bool sees_result() const { return true; }
};

namespace detail {
/// Interceptors under way on this thread that may see results.
int watched_results();

struct InterceptorEntry {
  int order;
  uint64_t id;
  std::shared_ptr<Interceptor> interceptor;
};
using InterceptorList = std::vector<InterceptorEntry>;
class RecomputeScope;
}  // namespace detail

/// One run of a unit's forward, as its interceptors see it.
class Call {
 public:
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Unit& unit() const { return unit_; }
  torch::nn::Module& module() const;
  Phase phase() const;

  /// Runs the interceptors further inside, then forward.
  void proceed();

  /// Every defined tensor among the arguments; assign to it to give forward another. Before `proceed` only: forward may
  /// consume its arguments. Arguments of types that each_tensor does not know are passed over.
  virtual void each_input(c10::function_ref<void(Tensor&)> f) = 0;
  /// Every defined tensor of the result; assign to it to give the caller another. After `proceed` only.
  virtual void each_output(c10::function_ref<void(Tensor&)> f) = 0;

  /// Puts a result in the place of forward, which then does not run: the call counts as done. `f` is called for every
  /// tensor that a result has, all of them undefined so far. False, and nothing has happened: a result of that type
  /// cannot be made of tensors alone. Before `proceed` only, and in its place.
  bool skip(c10::function_ref<void(Tensor&)> f);

  /// Copies the arguments as they are now and returns what runs the rest of this call again, later, as often as needed,
  /// in Phase::kRecompute (nested units included): the interceptors further inside than the one that asked, then
  /// forward; the result is dropped. Keeps the module alive. Before `proceed` only. An Error when an argument cannot be
  /// copied.
  virtual std::function<void()> replay() = 0;

 protected:
  /// Takes the unit's interceptors of a greater order than that.
  Call(Unit& unit, int after_order);
  ~Call() = default;

  /// Runs everything; an Error when an interceptor forgot to proceed.
  void run();
  virtual void invoke() = 0;
  int order() const { return order_; }
  void check_before_forward(const char* what) const;
  void check_after_forward(const char* what) const;

 private:
  Unit& unit_;
  std::shared_ptr<const detail::InterceptorList> interceptors_;
  size_t next_ = 0;
  int order_;
  bool started_ = false;
  bool finished_ = false;

 protected:
  virtual bool make_result(c10::function_ref<void(Tensor&)> f) = 0;

 public:
  /// Every tensor of the result, also one that is undefined. After `proceed` only; an Error as of each_output.
  virtual void each_result(c10::function_ref<void(Tensor&)> f) = 0;
};

/// Keeps an interceptor at a unit; letting go of it detaches. Outlives its unit without harm.
class [[nodiscard]] Attachment {
 public:
  Attachment() = default;
  Attachment(Attachment&& other) noexcept;
  Attachment& operator=(Attachment&& other) noexcept;
  ~Attachment() { detach(); }

  void detach() noexcept;
  /// Lets go without detaching: the interceptor stays for the life of its unit.
  void keep() noexcept { unit_.reset(); }
  explicit operator bool() const { return !unit_.expired(); }

 private:
  friend class Unit;
  Attachment(std::weak_ptr<Unit*> unit, uint64_t id) : unit_(std::move(unit)), id_(id) {}

  std::weak_ptr<Unit*> unit_;
  uint64_t id_ = 0;
};

/// A module whose forward can be intercepted: every module that was declared with LEVIN_MODULE (levin/nn/unit.h).
/// `dynamic_cast<levin::Unit*>(&module)` finds out. A copy or clone of a unit starts without interceptors.
class Unit {
 public:
  Unit() = default;
  Unit(const Unit&) noexcept {}
  Unit& operator=(const Unit&) noexcept { return *this; }
  virtual ~Unit() = default;

  virtual torch::nn::Module& as_module() = 0;

  /// Not while another thread runs this unit. Within a running call it counts from the next call on.
  Attachment attach(std::shared_ptr<Interceptor> interceptor, Order order);
  size_t num_interceptors() const { return interceptors_ ? interceptors_->size() : 0; }
  /// Whether one of exactly this order is attached.
  bool has_interceptor(Order order) const;

  Phase call_phase() const { return phase_; }

 protected:
  bool intercepted() const noexcept { return interceptors_ != nullptr; }

 private:
  friend class Attachment;
  friend class Call;
  friend class detail::RecomputeScope;

  void detach(uint64_t id);

  std::shared_ptr<const detail::InterceptorList> interceptors_;  // replaced as a whole: a running call keeps its own
  std::shared_ptr<Unit*> self_;
  uint64_t next_id_ = 0;
  Phase phase_ = Phase::kForward;
};

}  // namespace levin
