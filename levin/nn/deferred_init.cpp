#include "levin/nn/deferred_init.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include "levin/nn/deferred_tape.h"
#include "levin/nn/forward_dtype.h"
#include "levin/nn/module_access.h"

namespace levin {
namespace {

using Stack = torch::jit::Stack;
constexpr auto kKey = c10::DispatchKey::DeferredInit;

/// What the scopes of this thread do to the ops that come by.
struct Recorder {
  InitOptions options;
  std::shared_ptr<detail::Tape> tape;          // null: tensors are made at once
  std::vector<detail::WeakStorage> elsewhere;  // made in the scope on another device than asked
  Recorder* outer = nullptr;
};
thread_local Recorder* current = nullptr;

/// One call of an op, with its arguments on the stack.
struct Op {
  const c10::OperatorHandle& handle;
  Stack& stack;
  const std::string& name;
  size_t count;

  Op(const c10::OperatorHandle& h, Stack& s)
      : handle(h), stack(s), name(h.schema().name()), count(h.schema().arguments().size()) {}

  c10::IValue& arg(size_t i) const { return stack[stack.size() - count + i]; }
  c10::IValue* find(std::string_view wanted) const {
    for (size_t i = 0; i < count; ++i)
      if (handle.schema().arguments()[i].name() == wanted) return &arg(i);
    return nullptr;
  }
  bool random() const { return handle.hasTag(at::Tag::nondeterministic_seeded); }
  bool has_generator() const {
    const auto* generator = find("generator");
    return generator && !generator->isNone();
  }
};

template <class F>
void each_tensor_in(const c10::IValue& value, const F& f) {
  if (value.isTensor())
    f(value.toTensor());
  else if (value.isList())
    for (const auto& element : value.toListRef()) each_tensor_in(element, f);
}

bool has_tensors(const Op& op) {
  bool found = false;
  for (size_t i = 0; i < op.count; ++i)
    each_tensor_in(op.arg(i), [&](const Tensor& tensor) { found |= tensor.defined(); });
  return found;
}

std::vector<Tensor> deferred_arguments(const Op& op) {
  std::vector<Tensor> found;
  for (size_t i = 0; i < op.count; ++i)
    each_tensor_in(op.arg(i), [&](const Tensor& tensor) {
      if (detail::tape_of(tensor)) found.push_back(tensor);
    });
  return found;
}

/// The device with its index, as a tensor on it says it.
c10::Device concrete(c10::Device device) {
  if (device.is_cpu()) return c10::Device(c10::kCPU);
  if (device.has_index() || device.is_meta()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

/// Ops that only look at a tensor from another side and never at its data.
bool is_view(const Op& op) {
  static const std::unordered_set<std::string_view> views{
      "alias",     "as_strided", "chunk",   "detach",           "diagonal",       "expand",    "expand_as",
      "movedim",   "narrow",     "permute", "select",           "slice",          "split",     "squeeze",
      "swapaxes",  "swapdims",   "t",       "transpose",        "unbind",         "unflatten", "unfold",
      "unsqueeze", "view",       "view_as", "split_with_sizes", "requires_grad_", "detach_",   "is_same_size",
      "numpy_T",   "mT"};
  return op.name.starts_with("aten::") && views.contains(std::string_view(op.name).substr(6));
}

/// An op that changes its first tensor in place and needs no other tensor: what initializers are made of.
bool is_initializer(const Op& op) {
  const auto& schema = op.handle.schema();
  if (op.count == 0 || schema.returns().size() != 1 || !op.arg(0).isTensor() || op.has_generator()) return false;
  const auto* alias = schema.arguments()[0].alias_info();
  if (!alias || !alias->isWrite() || op.handle.hasTag(at::Tag::inplace_view)) return false;
  if (!op.name.ends_with('_') || op.name == "aten::set_" || op.name.starts_with("aten::resize")) return false;
  for (size_t i = 1; i < op.count; ++i) {
    bool tensors = false;
    each_tensor_in(op.arg(i), [&](const Tensor& tensor) { tensors |= tensor.defined(); });
    if (tensors) return false;
  }
  return true;
}

/// Runs an op at once; a random one draws what it would have drawn had nothing been deferred.
void run_now(const Op& op, std::optional<c10::Device> device) {
  const bool random = current->tape && op.random() && !op.has_generator();
  const auto place = concrete(device.value_or(c10::Device(c10::kCPU)));
  if (random) current->tape->before_random(place);
  op.handle.callBoxed(&op.stack);
  if (random) current->tape->after_random(place);
}

/// What a factory will make, found out on the meta device; undefined when it cannot be deferred.
Tensor plan(const Op& op) {
  const auto* layout = op.find("layout");
  const auto* pinned = op.find("pin_memory");
  if (op.has_generator() || (layout && !layout->isNone() && layout->toLayout() != c10::kStrided) ||
      (pinned && !pinned->isNone() && pinned->toBool()))
    return {};
  Stack stack(op.stack.end() - static_cast<std::ptrdiff_t>(op.count), op.stack.end());
  *Op(op.handle, stack).find("device") = c10::Device(c10::kMeta);
  try {
    op.handle.callBoxed(&stack);
  } catch (const c10::Error&) {
    return {};  // no meta kernel, or wrong arguments: the real call will tell
  }
  auto planned = stack.back().toTensor();
  return planned.numel() > 0 ? planned : Tensor();
}

void make(const Op& op, c10::IValue& device) {
  auto& recorder = *current;
  if (device.isNone() && recorder.options.device) device = *recorder.options.device;
  auto* dtype = op.find("dtype");
  if (dtype && dtype->isNone() && recorder.options.dtype && detail::makes_default_dtype(op.handle, op.stack))
    *dtype = *recorder.options.dtype;
  const auto place = concrete(device.isNone() ? c10::Device(c10::kCPU) : device.toDevice());
  const auto planned = recorder.tape && !place.is_meta() ? plan(op) : Tensor();
  if (planned.defined()) {
    auto made = recorder.tape->make(planned, place);
    device = place;  // to be run by whoever materializes, whatever device is current then
    if (op.name != "aten::empty" && op.name != "aten::empty_strided") {
      Stack args(op.stack.end() - static_cast<std::ptrdiff_t>(op.count), op.stack.end());
      recorder.tape->record_factory(op.handle, std::move(args), made);
    }
    torch::jit::drop(op.stack, op.count);
    op.stack.emplace_back(std::move(made));
  } else {
    run_now(op, place);
  }
  if (recorder.options.device && op.stack.back().isTensor()) {
    const auto& made = op.stack.back().toTensor();
    if (made.device() != concrete(*recorder.options.device) && made.has_storage())
      recorder.elsewhere.push_back(made.storage().getWeakStorageImpl());
  }
}

void intercept(const c10::OperatorHandle& handle, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  const Op op(handle, *stack);
  auto* device = op.find("device");
  if (device && !has_tensors(op) && handle.schema().returns().size() == 1) return make(op, *device);
  const auto deferred = deferred_arguments(op);
  if (!deferred.empty() && !is_view(op)) {
    if (current->tape && is_initializer(op)) {
      Stack args(stack->end() - static_cast<std::ptrdiff_t>(op.count), stack->end());
      const auto self = deferred.front();
      detail::tape_of(self)->record_inplace(handle, std::move(args));
      torch::jit::drop(*stack, op.count);
      stack->emplace_back(self);
      return;
    }
    materialize(deferred);
  }
  std::optional<c10::Device> place;
  for (size_t i = 0; i < op.count && !place; ++i)
    each_tensor_in(op.arg(i), [&](const Tensor& tensor) {
      if (tensor.defined() && !place) place = tensor.device();
    });
  run_now(op, place);
}

/// Registered once, when the first scope is opened; without a scope the key is never set.
void register_fallback() {
  static torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
    return made;
  }();
}

template <class F>
void each_registered(torch::nn::Module& module, const F& f) {
  for (auto& item : detail::ModuleAccess::parameters(module))
    if (item.value().defined()) f(item.value(), true);
  for (auto& item : detail::ModuleAccess::buffers(module))
    if (item.value().defined()) f(item.value(), false);
  for (auto& child : detail::ModuleAccess::children(module)) each_registered(*child.value(), f);
}

}  // namespace

struct InitScope::State {
  Recorder recorder;
  std::optional<c10::impl::IncludeDispatchKeyGuard> include;

  void close() {
    if (!include) return;
    include.reset();
    current = recorder.outer;
    if (recorder.tape) recorder.tape->end_scope();
  }
};

InitScope::InitScope(const InitOptions& options) : state_(std::make_unique<State>()) {
  LEVIN_CHECK(!(options.empty && options.deferred),
              "[init_module] .empty and .deferred exclude each other; take .deferred and materialize(tensors, false)");
  LEVIN_CHECK(!options.dtype || c10::isFloatingType(*options.dtype), "[init_module] .dtype ", *options.dtype,
              " is not a floating type");
  register_fallback();
  auto& recorder = state_->recorder;
  recorder.options = options;
  if (options.deferred || options.empty) recorder.tape = std::make_shared<detail::Tape>();
  recorder.outer = current;
  current = &recorder;
  state_->include.emplace(kKey);
}

InitScope::~InitScope() {
  state_->close();
}

void InitScope::finish(torch::nn::Module& module) {
  state_->close();
  auto& recorder = state_->recorder;
  std::set<c10::StorageImpl*> parameters, registered;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> elsewhere;
  for (const auto& weak : recorder.elsewhere)
    if (auto storage = weak.lock()) elsewhere.push_back(std::move(storage));
  each_registered(module, [&](Tensor& tensor, bool is_parameter) {
    if (!tensor.has_storage()) return;
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    if (std::any_of(elsewhere.begin(), elsewhere.end(), [&](const auto& each) { return each.get() == storage; })) {
      if (detail::tape_of(tensor)) materialize(std::span(&tensor, 1), true);
      const c10::AutoGradMode no_grad(false);
      tensor.set_data(tensor.to(*recorder.options.device));
      return;
    }
    registered.insert(storage);
    if (is_parameter) parameters.insert(storage);
  });
  if (!recorder.tape) return;
  std::set<c10::StorageImpl*> loaded, now;
  const auto waiting = recorder.tape->waiting();
  for (const auto& storage : waiting) {
    if (recorder.options.empty)
      (parameters.contains(storage.get()) ? loaded : now).insert(storage.get());
    else if (!registered.contains(storage.get()))
      now.insert(storage.get());
  }
  if (!loaded.empty()) recorder.tape->materialize(loaded, false);
  if (!now.empty()) recorder.tape->materialize(now, true);
}

bool is_deferred(const Tensor& tensor) {
  return detail::tape_of(tensor) != nullptr;
}

bool is_deferred(const torch::nn::Module& module) {
  bool found = false;
  each_registered(const_cast<torch::nn::Module&>(module), [&](const Tensor& t, bool) { found |= is_deferred(t); });
  return found;
}

void materialize(std::span<const Tensor> tensors, bool initialize) {
  std::map<std::shared_ptr<detail::Tape>, std::set<c10::StorageImpl*>> by_tape;
  for (const auto& tensor : tensors)
    if (auto* tape = detail::tape_of(tensor))
      by_tape[tape->shared_from_this()].insert(tensor.storage().unsafeGetStorageImpl());
  for (const auto& [tape, storages] : by_tape) tape->materialize(storages, initialize);
}

void materialize(torch::nn::Module& module) {
  std::vector<Tensor> tensors;
  each_registered(module, [&](const Tensor& tensor, bool) { tensors.push_back(tensor); });
  materialize(tensors, true);
}

}  // namespace levin
