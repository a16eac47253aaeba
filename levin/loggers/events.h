#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/core/state_dict.h"
#include "levin/loggers/histogram.h"
#include "levin/loggers/wire.h"

namespace levin::detail {

/// TensorBoard's messages. An event carries a time, a step and one of the summaries below.
Message version_event(double time);
Message summary_event(double time, int64_t step, const Message& summary);

Message scalar_summary(const std::string& tag, double value);
Message histogram_summary(const std::string& tag, const Histogram& histogram);
/// Pixels [H, W, C] of uint8, stored as a PNG.
Message image_summary(const std::string& tag, const at::Tensor& pixels);
Message text_summary(const std::string& tag, const std::string& text);

/// The three summaries of the HParams tab: which hyperparameters and metrics there are, the values of this run, and
/// that it has ended. Dicts become names with slashes, and lists their text.
std::vector<Message> hparams_summaries(const StateDict& values, std::span<const std::string> metrics);

}  // namespace levin::detail
