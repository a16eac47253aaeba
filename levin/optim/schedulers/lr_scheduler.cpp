#include "levin/optim/schedulers/lr_scheduler.h"

#include <cmath>

namespace levin::optim::detail {

void read_state(const StateDict& in, const char* name, double& out) {
  if (const auto* value = in.find(name)) out = value->to_double();
}
void read_state(const StateDict& in, const char* name, int64_t& out) {
  if (const auto* value = in.find(name)) out = value->to_int();
}
void read_state(const StateDict& in, const char* name, bool& out) {
  if (const auto* value = in.find(name)) out = value->to_bool();
}
void read_state(const StateDict& in, const char* name, std::string& out) {
  if (const auto* value = in.find(name)) out = value->to_string();
}
void read_state(const StateDict& in, const char* name, std::vector<double>& out) {
  const auto* value = in.find(name);
  if (!value) return;
  out.clear();
  for (const auto& item : value->to_list()) out.push_back(item.to_double());
}
void read_state(const StateDict& in, const char* name, std::vector<int64_t>& out) {
  const auto* value = in.find(name);
  if (!value) return;
  out.clear();
  for (const auto& item : value->to_list()) out.push_back(item.to_int());
}

std::vector<double*> hyper_of_all_groups(const std::string& scheduler, const Optimizer& optimizer, const char* hyper) {
  LEVIN_CHECK(optimizer, "[", scheduler, "] the optimizer handle is empty; construct the optimizer first");
  std::vector<double*> addresses;
  for (size_t group = 0; group < optimizer.num_groups(); ++group) {
    double* address = optimizer.impl()->find_hyper(group, hyper);
    LEVIN_CHECK(address, "[", scheduler, "] ", optimizer.name(), " has no \"", hyper, "\" that could be scheduled");
    addresses.push_back(address);
  }
  return addresses;
}

std::vector<double> current(const std::vector<double*>& addresses) {
  std::vector<double> values;
  for (const double* address : addresses) values.push_back(*address);
  return values;
}

LrScheduler::LrScheduler(std::string name, const Optimizer& optimizer)
    : name_(std::move(name)), optimizer_(optimizer), lrs_(hyper_of_all_groups(name_, optimizer, "lr")) {
  for (size_t group = 0; group < lrs_.size(); ++group) {
    double* initial = optimizer.impl()->find_hyper(group, "initial_lr");
    if (initial && std::isnan(*initial)) *initial = lr(group);
    base_lrs_.push_back(initial ? *initial : lr(group));
  }
}

void LrScheduler::set_initial_lr(size_t group, double lr) {
  base_lrs_[group] = lr;
  if (double* initial = optimizer_.impl()->find_hyper(group, "initial_lr")) *initial = lr;
}

void LrScheduler::finish_update() {
  also_update();
  last_lr_ = current(lrs_);
}

void LrScheduler::step() {
  ++step_count_;
  ++last_epoch_;
  for (size_t group = 0; group < lrs_.size(); ++group) *lrs_[group] = next_lr(group);
  finish_update();
}

void LrScheduler::begin() {
  step_count_ = 0;
  is_initial_ = true;
  step();
  is_initial_ = false;
}

void LrScheduler::restart() {
  last_epoch_ = 0;
  for (size_t group = 0; group < lrs_.size(); ++group) *lrs_[group] = closed_lr(group);
  finish_update();
}

StateDict LrScheduler::state_dict() const {
  StateDict out;
  save(out);
  out["base_lrs"] = to_state(base_lrs_);
  out["last_epoch"] = last_epoch_;
  out["_step_count"] = step_count_;
  out["_last_lr"] = to_state(last_lr_);
  return out;
}

void LrScheduler::load_state_dict(const StateDict& in) {
  const size_t saved = in.at("base_lrs").to_list().size();
  LEVIN_CHECK(saved == num_groups(), "[", name_, ".load_state_dict] the saved state is of ", saved,
              " parameter groups, the optimizer has ", num_groups());
  load(in);
  read_state(in, "base_lrs", base_lrs_);
  read_state(in, "last_epoch", last_epoch_);
  read_state(in, "_step_count", step_count_);
  read_state(in, "_last_lr", last_lr_);
}

}  // namespace levin::optim::detail
