#include "levin/nn/unit.h"

#include <algorithm>

#include <c10/util/Type.h>

#include "levin/nn/module_access.h"

namespace levin {

// ---- Attachment

Attachment::Attachment(Attachment&& other) noexcept : unit_(std::move(other.unit_)), id_(other.id_) {}

Attachment& Attachment::operator=(Attachment&& other) noexcept {
  if (this != &other) {
    detach();
    unit_ = std::move(other.unit_);
    id_ = other.id_;
  }
  return *this;
}

void Attachment::detach() noexcept {
  if (const auto unit = unit_.lock()) (*unit)->detach(id_);
  unit_.reset();
}

// ---- Unit

bool Unit::has_interceptor(Order order) const {
  return interceptors_ && std::any_of(interceptors_->begin(), interceptors_->end(),
                                      [&](const auto& entry) { return entry.order == static_cast<int>(order); });
}

Attachment Unit::attach(std::shared_ptr<Interceptor> interceptor, Order order) {
  LEVIN_CHECK(interceptor, "[unit.attach] the interceptor is null");
  auto list = interceptors_ ? std::make_shared<detail::InterceptorList>(*interceptors_)
                            : std::make_shared<detail::InterceptorList>();
  const auto place = std::upper_bound(list->begin(), list->end(), static_cast<int>(order),
                                      [](int mine, const auto& entry) { return mine < entry.order; });
  const auto id = next_id_++;
  list->insert(place, {static_cast<int>(order), id, std::move(interceptor)});
  if (!self_) self_ = std::make_shared<Unit*>(this);
  interceptors_ = std::move(list);
  return Attachment(self_, id);
}

void Unit::detach(uint64_t id) {
  if (!interceptors_) return;
  auto list = std::make_shared<detail::InterceptorList>(*interceptors_);
  std::erase_if(*list, [id](const auto& entry) { return entry.id == id; });
  if (list->empty()) list = nullptr;
  interceptors_ = std::move(list);
}

// ---- Call

namespace {

thread_local int watched = 0;

class WatchedResult {
 public:
  explicit WatchedResult(bool watches) : watches_(watches) { watched += watches_; }
  ~WatchedResult() { watched -= watches_; }
  WatchedResult(const WatchedResult&) = delete;
  WatchedResult& operator=(const WatchedResult&) = delete;

 private:
  const bool watches_;
};

}  // namespace

int detail::watched_results() {
  return watched;
}

Call::Call(Unit& unit, int after_order) : unit_(unit), interceptors_(unit.interceptors_), order_(after_order) {
  while (interceptors_ && next_ < interceptors_->size() && (*interceptors_)[next_].order <= after_order &&
         after_order != detail::kBeforeAll)
    ++next_;
}

torch::nn::Module& Call::module() const {
  return unit_.as_module();
}

Phase Call::phase() const {
  return unit_.phase_;
}

void Call::proceed() {
  LEVIN_CHECK(!started_, "[unit] an interceptor of ", module().name(),
              " ran the forward twice; Call::replay() gives what can run again");
  if (!interceptors_ || next_ == interceptors_->size()) {
    started_ = true;
    invoke();
    finished_ = true;
    return;
  }
  const auto& entry = (*interceptors_)[next_++];
  order_ = entry.order;
  const WatchedResult result(entry.interceptor->sees_result());
  entry.interceptor->around(*this);
}

bool Call::skip(c10::function_ref<void(Tensor&)> f) {
  check_before_forward("stand in for it");
  if (!make_result(f)) return false;
  started_ = finished_ = true;
  return true;
}

void Call::run() {
  proceed();
  LEVIN_CHECK(finished_, "[unit] an interceptor of ", module().name(), " returned without Call::proceed()");
}

void Call::check_before_forward(const char* what) const {
  LEVIN_CHECK(!started_, "[unit] an interceptor of ", module().name(), " asked to ", what,
              " after the forward has run; that is possible before Call::proceed() only");
}

void Call::check_after_forward(const char* what) const {
  LEVIN_CHECK(finished_, "[unit] an interceptor of ", module().name(), " asked to ", what,
              " before the forward has run; that is possible after Call::proceed() only");
}

std::string class_name(const torch::nn::Module& module) {
  std::string name = module.name();
  if (const auto arguments = name.find('<'); arguments != std::string::npos) name.resize(arguments);
  if (const auto colons = name.rfind("::"); colons != std::string::npos) name.erase(0, colons + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

namespace detail {

// ---- recompute

namespace {

void mark(torch::nn::Module& module, std::vector<Unit*>& units) {
  if (auto* unit = dynamic_cast<Unit*>(&module)) units.push_back(unit);
  for (auto& child : ModuleAccess::children(module)) mark(*child.value(), units);
}

}  // namespace

RecomputeScope::RecomputeScope(Unit& unit) {
  mark(unit.as_module(), marked_);
  // A unit below one that already runs again stays marked when this scope ends.
  std::erase_if(marked_, [](Unit* each) { return each->phase_ == Phase::kRecompute; });
  for (auto* each : marked_) each->phase_ = Phase::kRecompute;
}

RecomputeScope::~RecomputeScope() {
  for (auto* each : marked_) each->phase_ = Phase::kForward;
}

std::shared_ptr<torch::nn::Module> share_module(Unit& unit) {
  return unit.as_module().shared_from_this();
}

// ---- errors

void fail_cannot_replay(Unit& unit) {
  fail(concat(
      "[unit] forward of ", unit.as_module().name(),
      " takes an argument that cannot be copied, so it cannot run again in backward (activation checkpointing)"));
}

void fail_cannot_see_output(Unit& unit) {
  fail(
      concat("[unit] forward of ", unit.as_module().name(),
             " returns a type whose tensors cannot be seen; make it a plain struct or give it `template <class F> void "
             "each_tensor(F&& f)`"));
}

void fail_cannot_clone(const torch::nn::Module& module) {
  fail(concat("[clone] ", module.name(), " cannot be cloned; derive it from torch::nn::Cloneable<", module.name(),
              "> and make its parameters and submodules in reset()"));
}

void fail_empty_holder(const std::type_info& type) {
  fail(concat("[forward] this ", c10::demangle(type.name()),
              " is empty; assign it (name = register_module(\"name\", ...)) before it is called"));
}

// ---- what a clone needs

void set_class_name(const torch::nn::Module& module, const std::type_info& type) {
  auto& name = ModuleAccess::name(module);
  if (!name) name = c10::demangle(type.name());
}

void begin_clone(torch::nn::Module& copy) {
  ModuleAccess::parameters(copy).clear();
  ModuleAccess::buffers(copy).clear();
  ModuleAccess::children(copy).clear();
}

namespace {

void copy_tensors(const torch::nn::Module& original, const char* kind, torch::OrderedDict<std::string, Tensor>& copies,
                  const torch::OrderedDict<std::string, Tensor>& tensors, const std::optional<c10::Device>& device) {
  LEVIN_CHECK(copies.size() == tensors.size(), "[clone] reset() of ", original.name(), " makes ", copies.size(), " ",
              kind, ", but the module has ", tensors.size(), "; make all of them in reset()");
  for (const auto& item : tensors) {
    const auto& tensor = item.value();
    if (!tensor.defined()) continue;
    copies[item.key()].set_data(device && tensor.device() != *device ? tensor.to(*device) : tensor.clone());
  }
}

}  // namespace

void finish_clone(torch::nn::Module& copy, const torch::nn::Module& original,
                  const std::optional<c10::Device>& device) {
  copy_tensors(original, "parameters", ModuleAccess::parameters(copy), ModuleAccess::parameters(original), device);
  copy_tensors(original, "buffers", ModuleAccess::buffers(copy), ModuleAccess::buffers(original), device);
  auto& copies = ModuleAccess::children(copy);
  const auto& children = ModuleAccess::children(original);
  LEVIN_CHECK(copies.size() == children.size(), "[clone] reset() of ", original.name(), " makes ", copies.size(),
              " submodules, but the module has ", children.size(), "; make all of them in reset()");
  for (const auto& child : children) ModuleAccess::clone_into(*copies[child.key()], *child.value(), device);
}

template class Frame<Tensor, Tensor>;
template class Frame<Tensor, const Tensor&>;
template class Frame<Tensor, const Tensor&, const Tensor&>;

}  // namespace detail
}  // namespace levin
