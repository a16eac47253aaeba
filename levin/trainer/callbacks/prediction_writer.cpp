#include "levin/trainer/callbacks/prediction_writer.h"

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/weights/safetensors.h"
#include "levin/trainer/context.h"

namespace levin {
namespace {

void append_prediction(const StepOutput& output, const std::string& prefix, NamedTensors& tensors) {
  if (output.loss.defined()) tensors.emplace_back(prefix + "prediction", output.loss.detach());
  for (const auto& [name, tensor] : output.extra)
    if (tensor.defined()) tensors.emplace_back(prefix + name, tensor.detach());
}

}  // namespace

PredictionWriter::PredictionWriter(const std::string& write_interval) {
  static const std::vector<std::string> known{"batch", "epoch", "batch_and_epoch"};
  if (std::find(known.begin(), known.end(), write_interval) == known.end())
    fail_unknown("PredictionWriter", "write_interval", write_interval, known);
  on_batch_ = write_interval != "epoch";
  on_epoch_ = write_interval != "batch";
}

void PredictionWriter::write_on_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&) {
  detail::fail("[PredictionWriter] write_interval asks for write_on_batch_end, which is not overridden");
}

void PredictionWriter::write_on_epoch_end(TrainerContext&, const std::vector<std::vector<StepOutput>>&) {
  detail::fail("[PredictionWriter] write_interval asks for write_on_epoch_end, which is not overridden");
}

void PredictionWriter::on_predict_epoch_start(TrainerContext&) {
  predictions_.clear();
}

void PredictionWriter::on_predict_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                                            const StepInfo& at) {
  if (on_batch_) write_on_batch_end(run, output, batch, at);
  if (!on_epoch_) return;
  if (std::ssize(predictions_) <= at.dataloader_idx) predictions_.resize(static_cast<size_t>(at.dataloader_idx) + 1);
  auto kept = output;
  kept.each_tensor([](Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.detach().cpu();
  });
  predictions_[static_cast<size_t>(at.dataloader_idx)].push_back(std::move(kept));
}

void PredictionWriter::on_predict_epoch_end(TrainerContext& run) {
  if (!on_epoch_) return;
  write_on_epoch_end(run, predictions_);
  predictions_.clear();
}

SafetensorsPredictionWriter::SafetensorsPredictionWriter(SafetensorsPredictionWriterOptions options)
    : PredictionWriter(options.write_interval), options_(std::move(options)) {
  LEVIN_CHECK(!options_.output_dir.empty(), "[SafetensorsPredictionWriter] output_dir is empty; it names the folder");
}

void SafetensorsPredictionWriter::on_predict_start(TrainerContext&) {
  check_writable(options_.output_dir);
}

void SafetensorsPredictionWriter::write_on_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch&,
                                                     const StepInfo& at) {
  NamedTensors tensors;
  append_prediction(output, "", tensors);
  const auto loader = at.dataloader_idx > 0 ? fmt::format("loader_{}-", at.dataloader_idx) : std::string();
  write_safetensors(options_.output_dir / fmt::format("{}batch_{:05}-rank_{}.safetensors", loader, at.batch_idx,
                                                      run.fabric().global_rank()),
                    tensors);
}

void SafetensorsPredictionWriter::write_on_epoch_end(TrainerContext& run,
                                                     const std::vector<std::vector<StepOutput>>& predictions) {
  NamedTensors tensors;
  for (size_t loader = 0; loader < predictions.size(); ++loader)
    for (size_t batch = 0; batch < predictions[loader].size(); ++batch)
      append_prediction(predictions[loader][batch], fmt::format("{}/{}/", loader, batch), tensors);
  write_safetensors(options_.output_dir / fmt::format("predictions-rank_{}.safetensors", run.fabric().global_rank()),
                    tensors);
}

}  // namespace levin
