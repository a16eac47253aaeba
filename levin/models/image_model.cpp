#include "levin/models/image_model.h"

#include "levin/core/error.h"

namespace levin::models {

void replace_head(const ImageModel& model, int64_t num_classes) {
  LEVIN_CHECK(!model.is_empty(), "[replace_head] the model is empty");
  LEVIN_CHECK(num_classes > 0, "[replace_head] num_classes must be positive, got ", num_classes);
  model.ptr()->replace_head(num_classes);
}

void to_channels_last(torch::nn::Module& module) {
  for (auto& parameter : module.parameters())
    if (parameter.dim() == 4) parameter.set_data(parameter.data().contiguous(at::MemoryFormat::ChannelsLast));
}

}  // namespace levin::models
