#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "levin/trainer/callback.h"

namespace levin {

struct OnExceptionCheckpointOptions {
  /// The folder. Defaults to "checkpoints" in the folder of the first logger, or in default_root_dir without loggers.
  std::filesystem::path dirpath = {};
  /// Without ".ckpt".
  std::string filename = "on_exception";
};

/// Keeps the state of a fit that an exception, Ctrl-C or a signal ends, and deletes it when a later fit comes to its
/// end. `ckpt_path = "last"` finds it.
class OnExceptionCheckpoint : public Callback {
 public:
  explicit OnExceptionCheckpoint(OnExceptionCheckpointOptions options = {});

  std::filesystem::path ckpt_path() const { return dirpath_ / (options_.filename + ".ckpt"); }

  CallbackOrder order() const override { return CallbackOrder::kCheckpoint; }
  void setup(TrainerContext& run, std::string_view stage) override;
  void teardown(TrainerContext& run, std::string_view stage) override;
  void on_exception(TrainerContext& run, const std::exception& error) override;

 private:
  OnExceptionCheckpointOptions options_;
  std::filesystem::path dirpath_;
  bool failed_ = false;
};

}  // namespace levin
