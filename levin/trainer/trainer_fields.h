#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "levin/config/fields.h"
#include "levin/trainer/options.h"

namespace levin::config {

// The trainer's values read and write themselves; here is what stands for them in a help.
template <class T>
struct TrainerValueCodec {
  static T read(const Node& node) { return T(std::string_view(detail::read_text(node))); }
  static Node write(const T& value) { return Node::of_text(value.to_string()); }
};
template <>
struct Codec<Limit> : TrainerValueCodec<Limit> {
  static std::string type() { return "N|FRACTION"; }
};
template <>
struct Codec<Interval> : TrainerValueCodec<Interval> {
  static std::string type() { return "N|FRACTION|TIME"; }
};
template <>
struct Codec<Duration> : TrainerValueCodec<Duration> {
  static std::string type() { return "TIME"; }
};

}  // namespace levin::config

namespace levin {

/// Adds a field for everything in TrainerOptions that can be said in words, as "trainer.max_epochs" and so on, bound to
/// `options`. Callbacks and the profiler are chosen by name and have options: their fields are in levin/cli/.
void add_trainer_fields(std::vector<config::Field>& into, TrainerOptions& options);

}  // namespace levin
