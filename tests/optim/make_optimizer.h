#pragma once

#include "fixtures.h"
#include "levin/optim/adafactor.h"
#include "levin/optim/adagrad.h"
#include "levin/optim/adam.h"
#include "levin/optim/lamb.h"
#include "levin/optim/lion.h"
#include "levin/optim/sgd.h"

namespace levin::optim::testing {

template <class T>
void read(const Json& in, const char* name, T& out) {
  if (in.contains(name)) out = in.at(name);
}
template <class T>
void read(const Json& in, const char* name, std::optional<T>& out) {
  if (in.contains(name)) out = in.at(name).get<T>();
}

template <class T>
void read_sgd(const Json& in, T& out) {
  read(in, "lr", out.lr);
  read(in, "momentum", out.momentum);
  read(in, "dampening", out.dampening);
  read(in, "weight_decay", out.weight_decay);
  read(in, "nesterov", out.nesterov);
  read(in, "maximize", out.maximize);
}
template <class T>
void read_adam(const Json& in, T& out) {
  read(in, "lr", out.lr);
  read(in, "betas", out.betas);
  read(in, "eps", out.eps);
  read(in, "weight_decay", out.weight_decay);
  read(in, "amsgrad", out.amsgrad);
  read(in, "maximize", out.maximize);
}
template <class T>
void read_adagrad(const Json& in, T& out) {
  read(in, "lr", out.lr);
  read(in, "lr_decay", out.lr_decay);
  read(in, "weight_decay", out.weight_decay);
  read(in, "initial_accumulator_value", out.initial_accumulator_value);
  read(in, "eps", out.eps);
  read(in, "maximize", out.maximize);
}
template <class T>
void read_adafactor(const Json& in, T& out) {
  read(in, "lr", out.lr);
  read(in, "beta2_decay", out.beta2_decay);
  if (in.contains("eps")) {
    out.eps1 = in.at("eps")[0].get<double>();
    out.eps2 = in.at("eps")[1].get<double>();
  }
  read(in, "d", out.d);
  read(in, "weight_decay", out.weight_decay);
  read(in, "maximize", out.maximize);
}
template <class T>
void read_lion(const Json& in, T& out) {
  read(in, "lr", out.lr);
  read(in, "betas", out.betas);
  read(in, "weight_decay", out.weight_decay);
}

template <class T>
void read_lamb(const Json& in, T& out) {
  read(in, "lr", out.lr);
  read(in, "betas", out.betas);
  read(in, "eps", out.eps);
  read(in, "weight_decay", out.weight_decay);
  read(in, "bias_correction", out.bias_correction);
  read(in, "always_adapt", out.always_adapt);
  read(in, "max_trust_ratio", out.max_trust_ratio);
  read(in, "maximize", out.maximize);
}

template <class Handle, class Group, class Options, class Read>
Optimizer make(const Json& options, const Json& override_with, const std::vector<std::vector<at::Tensor>>& params,
               Read&& read_into) {
  Options defaults;
  read_into(options, defaults);
  Group first, second;
  first.params = params[0];
  second.params = params[1];
  read_into(override_with, second);
  return Handle(std::vector<Group>{first, second}, defaults);
}

/// The optimizer of a case of optimizers.json, over the two groups.
inline Optimizer make_optimizer(const Json& test, const std::vector<std::vector<at::Tensor>>& params) {
  const std::string name = test.at("optimizer");
  const Json &options = test.at("options"), &other = test.at("override");
  if (name == "SGD")
    return make<SGD, SGDGroup, SGDOptions>(options, other, params, [](auto& j, auto& o) { read_sgd(j, o); });
  if (name == "Adam")
    return make<Adam, AdamGroup, AdamOptions>(options, other, params, [](auto& j, auto& o) { read_adam(j, o); });
  if (name == "AdamW")
    return make<AdamW, AdamWGroup, AdamWOptions>(options, other, params, [](auto& j, auto& o) { read_adam(j, o); });
  if (name == "Adagrad")
    return make<Adagrad, AdagradGroup, AdagradOptions>(options, other, params,
                                                       [](auto& j, auto& o) { read_adagrad(j, o); });
  if (name == "Adafactor")
    return make<Adafactor, AdafactorGroup, AdafactorOptions>(options, other, params,
                                                             [](auto& j, auto& o) { read_adafactor(j, o); });
  if (name == "Lamb")
    return make<Lamb, LambGroup, LambOptions>(options, other, params, [](auto& j, auto& o) { read_lamb(j, o); });
  return make<Lion, LionGroup, LionOptions>(options, other, params, [](auto& j, auto& o) { read_lion(j, o); });
}

}  // namespace levin::optim::testing
