#include "levin/trainer/metric_log.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/fabric/fabric.h"
#include "levin/trainer/cpu_number.h"

namespace levin::detail {
namespace {

constexpr std::string_view kSuffix = "/dataloader_idx_";

/// A sum over all ranks, where some of them have a batch together (tp, cp, pp) and say the same of it.
Tensor counted_once(const Tensor& sum, Fabric& fabric) {
  const int ranks = fabric.world_size() / fabric.strategy().data_place().size;
  return ranks > 1 ? sum / ranks : sum;
}

const char* op_word(bool mean_or_sum, bool minimum) {
  return mean_or_sum ? "sum" : minimum ? "min" : "max";
}

}  // namespace

double metric_number(const LoggedValue& value) {
  const auto* number = std::get_if<double>(&value);
  return number ? *number : std::get<Tensor>(value).item<double>();
}

MetricLog::Reduce MetricLog::reduce_of(std::string_view word) {
  if (word == "mean") [[likely]]
    return Reduce::kMean;
  const auto is = [&](std::string_view known) {
    return std::ranges::equal(word, known, {}, [](unsigned char c) { return std::tolower(c); });
  };
  if (is("mean") || is("avg")) return Reduce::kMean;
  if (is("sum")) return Reduce::kSum;
  if (is("min")) return Reduce::kMin;
  if (is("max")) return Reduce::kMax;
  fail_unknown("log", "reduce_fx", word, std::vector<std::string>{"mean", "sum", "min", "max"});
}

bool MetricLog::agrees(const Entry& entry, const LogOptions& options) {
  return entry.prog_bar == options.prog_bar && entry.logger == options.logger &&
         entry.sync_dist == (options.sync_dist && !options.rank_zero_only) &&
         entry.rank_zero_only == options.rank_zero_only && (!options.on_step || *options.on_step == entry.on_step) &&
         (!options.on_epoch || *options.on_epoch == entry.on_epoch) && entry.reduce == reduce_of(options.reduce_fx) &&
         entry.suffixed == (entry.dataloader_idx >= 0 && options.add_dataloader_idx);
}

MetricLog::Entry MetricLog::make_entry(const Call& call, std::string_view name, const LogOptions& options) const {
  const auto& site = *call.site;
  LEVIN_CHECK(site.kind != LogSite::Kind::kRefused, "[log] \"", name, "\" cannot be logged in ", site.hook,
              "; log it in a step, or in a hook of a batch or of an epoch");
  LEVIN_CHECK(!name.empty() && name.find(kSuffix) == std::string_view::npos, "[log] \"", name,
              "\" cannot be a name: ", kSuffix, "N is appended where there are several loaders");
  Entry e;
  e.name = name;
  e.site = call.site;
  e.hook = site.hook;
  const bool steps = site.kind == LogSite::Kind::kTrainStep;
  e.on_step = options.on_step.value_or(steps);
  e.on_epoch = options.on_epoch.value_or(!steps);
  LEVIN_CHECK(e.on_step || e.on_epoch, "[log] \"", name,
              "\": on_step and on_epoch are both false, so it would go nowhere");
  LEVIN_CHECK(site.kind != LogSite::Kind::kEpoch || (!e.on_step && e.on_epoch), "[log] \"", name, "\": in ", site.hook,
              " there is no step; leave on_step and on_epoch as they are");
  e.prog_bar = options.prog_bar;
  e.logger = options.logger;
  e.sync_dist = options.sync_dist && !options.rank_zero_only;
  e.rank_zero_only = options.rank_zero_only;
  e.reduce = reduce_of(options.reduce_fx);
  e.dataloader_idx = call.dataloader_idx;
  e.suffixed = call.dataloader_idx >= 0 && options.add_dataloader_idx;
  const auto suffix = e.suffixed ? concat(kSuffix, call.dataloader_idx) : std::string();
  const bool forks = e.on_step && e.on_epoch;
  e.step_name = e.name + (forks ? "_step" : "") + suffix;
  e.epoch_name = e.name + (forks ? "_epoch" : "") + suffix;
  e.name += suffix;
  return e;
}

MetricLog::Entry& MetricLog::entry(const Call& call, std::string_view name, const LogOptions& options) {
  const auto matches = [&](const Entry& e) {
    return e.dataloader_idx == call.dataloader_idx && (e.site == call.site || e.hook == call.site->hook) &&
           (e.suffixed ? e.name.size() > name.size() && e.name.compare(name.size(), kSuffix.size(), kSuffix) == 0 &&
                             e.name.compare(0, name.size(), name) == 0
                       : e.name == name);
  };
  if (cursor_ < entries_.size() && matches(entries_[cursor_])) [[likely]]
    return entries_[cursor_++];
  for (size_t i = 0; i < entries_.size(); ++i)
    if (matches(entries_[i])) {
      cursor_ = i + 1;
      return entries_[i];
    }
  auto made = make_entry(call, name, options);
  if (call.fabric && call.fabric->world_size() > 1 && made.on_epoch && !made.sync_dist && !made.rank_zero_only &&
      !training_)
    warn_once(concat("[log] \"", name, "\" is logged in ", call.site->hook,
                     " without sync_dist: what is shown is of rank 0's data only; set sync_dist = true"));
  logs_steps_ |= made.on_step && made.logger;
  entries_.push_back(std::move(made));
  cursor_ = entries_.size();
  return entries_.back();
}

void MetricLog::log(const Call& call, std::string_view name, const LoggedValue& given, const LogOptions& options) {
  auto& e = entry(call, name, options);
  if (!agrees(e, options)) [[unlikely]]
    throw Error(concat("[log] \"", name, "\" was logged before in ", e.hook,
                       " with other options; give both calls the same ones, or two names"));
  if (e.rank_zero_only && call.fabric->global_rank() != 0) return;

  bool wide = c10::get_default_dtype_as_scalartype() == at::kDouble;
  LoggedValue value = 0.0;
  if (const auto* tensor = std::get_if<Tensor>(&given)) {
    LEVIN_CHECK(tensor->defined() && tensor->numel() == 1, "[log] \"", name, "\" is a tensor of ",
                tensor->defined() ? tensor->numel() : 0, " elements; log a single number");
    wide |= tensor->scalar_type() == at::kDouble;
    if (tensor->is_cpu())
      value = cpu_number(*tensor);
    else
      value = tensor->detach().reshape({});
  } else {
    const double number = std::get<double>(given);
    value = wide ? number : static_cast<double>(static_cast<float>(number));
  }
  if (e.on_step) {
    if (e.sync_dist && call.fabric->world_size() > 1) {
      auto t =
          std::holds_alternative<double>(value)
              ? at::scalar_tensor(std::get<double>(value), wide ? at::kDouble : at::kFloat).to(call.fabric->device())
              : std::get<Tensor>(value).clone();
      const char* op = e.reduce == Reduce::kMean  ? "mean"
                       : e.reduce == Reduce::kSum ? "sum"
                       : e.reduce == Reduce::kMin ? "min"
                                                  : "max";
      t = call.fabric->all_reduce(t, op);
      if (e.reduce == Reduce::kSum) t = counted_once(t, *call.fabric);
      if (t.is_cpu())
        e.step = cpu_number(t);
      else
        e.step = t;
    } else {
      e.step = value;
    }
    e.has_step = true;
  }
  if (e.on_epoch) {
    int64_t size = 1;
    if (e.reduce == Reduce::kMean)
      size = options.batch_size ? *options.batch_size : call.batch && !call.batch->empty() ? call.batch->size() : 1;
    add(e, value, wide, size);
  }
}

void MetricLog::add(Entry& e, const LoggedValue& value, bool wide, int64_t batch_size) {
  const bool first = !e.has_epoch;
  e.has_epoch = true;
  e.wide |= wide;
  const auto* number = std::get_if<double>(&value);
  if (number && !e.device_total.defined()) {
    const double v = *number;
    // As torch's minimum and maximum: nan stays.
    const bool is_nan = std::isnan(v);
    switch (e.reduce) {
      case Reduce::kMean:
      case Reduce::kSum:
        if (e.wide) {
          e.total += v * static_cast<double>(batch_size);
        } else {
          const float product = static_cast<float>(v) * static_cast<float>(batch_size);
          e.total = static_cast<float>(e.total) + product;
        }
        break;
      case Reduce::kMin:
        if (first || is_nan || v < e.total) e.total = v;
        break;
      case Reduce::kMax:
        if (first || is_nan || v > e.total) e.total = v;
        break;
    }
  } else {
    // Values of the host and of the device may come under one name: from the first of the device on it has the total.
    at::NoGradGuard no_grad;
    const auto dtype = e.wide ? at::kDouble : at::kFloat;
    const auto v = number ? at::scalar_tensor(*number, dtype) : std::get<Tensor>(value).to(dtype);
    if (!first && !e.device_total.defined()) e.device_total = at::scalar_tensor(e.total, dtype);
    if (!first) e.device_total = e.device_total.to(number ? e.device_total.device() : v.device(), dtype);
    if (first)
      e.device_total = e.reduce == Reduce::kMean ? v * batch_size : v.clone();
    else if (e.reduce == Reduce::kMin)
      e.device_total = at::minimum(e.device_total, v);
    else if (e.reduce == Reduce::kMax)
      e.device_total = at::maximum(e.device_total, v);
    else
      e.device_total.add_(v, e.reduce == Reduce::kMean ? batch_size : 1);
  }
  e.weight += static_cast<double>(batch_size);
  e.result.reset();
}

LoggedValue MetricLog::epoch_value(Entry& e, Fabric& fabric) {
  if (e.result) return *e.result;
  const bool syncs = e.sync_dist && fabric.world_size() > 1;
  if (!syncs) {
    if (e.device_total.defined()) {
      e.result = e.reduce == Reduce::kMean ? e.device_total / e.weight : e.device_total.clone();
    } else if (e.reduce == Reduce::kMean) {
      e.result =
          e.wide ? e.total / e.weight : static_cast<double>(static_cast<float>(e.total) / static_cast<float>(e.weight));
    } else {
      e.result = e.total;
    }
    return *e.result;
  }
  auto total = e.device_total.defined()
                   ? e.device_total.to(fabric.device(), /*non_blocking=*/false, /*copy=*/true)
                   : at::scalar_tensor(e.total, e.wide ? at::kDouble : at::kFloat).to(fabric.device());
  const bool adds = e.reduce == Reduce::kMean || e.reduce == Reduce::kSum;
  total = fabric.all_reduce(total, op_word(adds, e.reduce == Reduce::kMin));
  if (e.reduce == Reduce::kSum) total = counted_once(total, fabric);
  if (e.reduce == Reduce::kMean) {
    auto weight = at::scalar_tensor(e.weight, at::kDouble).to(fabric.device());
    total = total / fabric.all_reduce(weight, "sum").to(total.scalar_type());
  }
  if (total.is_cpu())
    e.result = cpu_number(total);
  else
    e.result = total;
  return *e.result;
}

void MetricLog::publish_step(Published& into, int64_t dataloader_idx) const {
  for (const auto& e : entries_) {
    if (!e.has_step || e.dataloader_idx != dataloader_idx) continue;
    if (e.logger) into.log[e.step_name] = e.step;
    if (e.prog_bar) into.bar[e.step_name] = e.step;
    if (training_ && !e.rank_zero_only) {
      into.callback[e.name] = e.step;
      into.callback[e.step_name] = e.step;
    }
  }
}

void MetricLog::publish_epoch(Published& into, Fabric& fabric) {
  for (auto& e : entries_) {
    if (!e.has_epoch) continue;
    const auto value = epoch_value(e, fabric);
    if (e.logger) into.log[e.epoch_name] = value;
    if (e.prog_bar) into.bar[e.epoch_name] = value;
    if (!e.rank_zero_only) {
      into.callback[e.name] = value;
      into.callback[e.epoch_name] = value;
    }
  }
}

std::vector<std::map<std::string, double>> MetricLog::by_loader(size_t loaders, Fabric& fabric) {
  std::vector<std::map<std::string, double>> results(loaders);
  for (auto& e : entries_) {
    if (!e.has_epoch) continue;
    const double value = metric_number(epoch_value(e, fabric));
    for (size_t i = 0; i < loaders; ++i)
      if (e.dataloader_idx < 0 || static_cast<size_t>(e.dataloader_idx) == i) results[i][e.epoch_name] = value;
  }
  return results;
}

void MetricLog::reset() {
  for (auto& e : entries_) {
    e.has_step = e.has_epoch = e.wide = false;
    e.step = 0.0;
    e.total = e.weight = 0;
    e.device_total = Tensor();
    e.result.reset();
  }
  cursor_ = 0;
}

StateDict MetricLog::state_dict() const {
  StateList list;
  for (const auto& e : entries_)
    list.push_back(StateDict{{"name", e.name},
                             {"step_name", e.step_name},
                             {"epoch_name", e.epoch_name},
                             {"hook", e.hook},
                             {"loader", e.dataloader_idx},
                             {"suffixed", e.suffixed},
                             {"on_step", e.on_step},
                             {"on_epoch", e.on_epoch},
                             {"prog_bar", e.prog_bar},
                             {"logger", e.logger},
                             {"sync_dist", e.sync_dist},
                             {"rank_zero_only", e.rank_zero_only},
                             {"reduce", static_cast<int64_t>(e.reduce)},
                             {"has_step", e.has_step},
                             {"step", e.has_step ? metric_number(e.step) : 0.0},
                             {"has_epoch", e.has_epoch},
                             {"wide", e.wide},
                             {"total", e.device_total.defined() ? e.device_total.item<double>() : e.total},
                             {"on_device", e.device_total.defined()},
                             {"weight", e.weight}});
  return {{"entries", std::move(list)}};
}

void MetricLog::load_state_dict(const StateDict& state) {
  clear();
  for (const auto& item : state.at("entries").to_list()) {
    const auto& d = item.to_dict();
    Entry e;
    e.name = d.at("name").to_string();
    e.step_name = d.at("step_name").to_string();
    e.epoch_name = d.at("epoch_name").to_string();
    e.hook = d.at("hook").to_string();
    e.dataloader_idx = d.at("loader").to_int();
    e.suffixed = d.at("suffixed").to_bool();
    e.on_step = d.at("on_step").to_bool();
    e.on_epoch = d.at("on_epoch").to_bool();
    e.prog_bar = d.at("prog_bar").to_bool();
    e.logger = d.at("logger").to_bool();
    e.sync_dist = d.at("sync_dist").to_bool();
    e.rank_zero_only = d.at("rank_zero_only").to_bool();
    e.reduce = static_cast<Reduce>(d.at("reduce").to_int());
    e.has_step = d.at("has_step").to_bool();
    e.step = d.at("step").to_double();
    e.has_epoch = d.at("has_epoch").to_bool();
    e.wide = d.at("wide").to_bool();
    e.total = d.at("total").to_double();
    e.weight = d.at("weight").to_double();
    if (d.at("on_device").to_bool()) e.device_total = at::scalar_tensor(e.total, e.wide ? at::kDouble : at::kFloat);
    logs_steps_ |= e.on_step && e.logger;
    entries_.push_back(std::move(e));
  }
}

}  // namespace levin::detail
