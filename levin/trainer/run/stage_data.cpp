// From loaders as they were handed over to the batches of this rank.
#include "levin/trainer/run/stage_data.h"

#include <algorithm>
#include <cmath>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/trainer/loops/together.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

/// The smallest fraction of `size` batches that is a whole batch, in few digits.
double least_fraction(int64_t size) {
  double digits = 1000;
  while (digits < 100 * static_cast<double>(size)) digits *= 10;
  return std::ceil(digits / static_cast<double>(size)) / digits;
}

int64_t limited(const char* option, const Limit& limit, int64_t size) {
  if (!limit.is_fraction()) return std::min(size, limit.count());
  if (limit.is_zero()) return 0;
  LEVIN_CHECK(size > 0, "[trainer] the loader that ", option, " ", limit.to_string(),
              " is about has no batches: its dataset is empty, or drop_last is set and it has fewer samples than one "
              "batch; give it more samples or a smaller batch_size");
  const auto count = static_cast<int64_t>(std::floor(static_cast<double>(size) * limit.fraction()));
  LEVIN_CHECK(count > 0, "[trainer] ", option, " ", limit.to_string(), " of ", size, size == 1 ? " batch" : " batches",
              " is less than one batch; write ", least_fraction(size), " or more, or a number of batches such as 1");
  return count;
}

AnyLoaders prepared(const Run& run, const AnyLoaders& loaders, bool training) {
  const auto& plan = run.plan;
  auto& fabric = *run.fabric;
  AnyLoaders result;
  for (auto source : loaders) {
    if (plan.overfits && source->shuffles()) {
      if (auto sequential = source->sequential()) source = sequential;
      log_warning("[trainer] overfit_batches needs the same batches in every epoch, so this loader is not shuffled");
    }
    const auto place = fabric.data_place();
    if (plan.use_distributed_sampler && place.size > 1) {
      // Where the parameters are sharded every forward gathers them: ranks must have the same number of batches, and
      // some samples are evaluated twice for that.
      const bool together = training || fabric.strategy().shards();
      if (auto own = source->distributed(place.rank, place.size, /*repeat=*/together)) {
        // A rank without any batch could not take part in the reduction of metrics; then some samples are repeated.
        auto least = at::scalar_tensor(own->size().value_or(1), at::kLong).to(fabric.device());
        if (!training && fabric.all_reduce(least, "min").item<int64_t>() == 0)
          own = source->distributed(place.rank, place.size, /*repeat=*/true);
        source = own;
      } else
        warn_once(
            "[trainer] a loader is not a levin::DataLoader, so its order stays: every rank sees all of its batches");
    }
    const auto device = run.model.module->prefetch_to_device ? fabric.device() : c10::Device(c10::kCPU);
    if (auto own = source->placed({.device = device,
                                   .local_ranks = fabric.local_world_size(),
                                   .fixed_size = training || fabric.world_size() > 1}))
      source = own;
    result.push_back(std::move(source));
  }
  return result;
}

void count_batches(StageData& data, const TrainerPlan& plan, const Limit& limit) {
  const char* option = plan.overfits && data.overfits ? "overfit_batches" : data.limit_option;
  data.batches.clear();
  data.seen.assign(data.loaders.size(), 0);
  for (const auto& source : data.loaders) {
    const auto size = source->size();
    if (size) {
      data.batches.emplace_back(limited(option, limit, *size));
    } else if (!limit.is_fraction()) {
      data.batches.emplace_back(limit.count());
    } else {
      LEVIN_CHECK(limit.is_all(), "[trainer] ", option, " ", limit.to_string(),
                  " is a fraction of a loader that does not know its size; give a number of batches");
      data.batches.emplace_back(std::nullopt);
    }
  }
  data.ready = true;
  data.orders_compared = false;
}

/// The loaders of the data module, or the module's.
AnyLoaders own_loaders(Run& run, Stage stage) {
  return run.model.data ? run.model.data->any_dataloader(stage) : run.model.module->any_dataloader(stage);
}

}  // namespace

std::string StageData::name_of(size_t index) const {
  return loaders.size() > 1 ? concat(name, " ", index) : name;
}

const Limit& eval_limit(const TrainerPlan& plan, Stage stage) {
  return stage == Stage::kTest ? plan.limit_test : stage == Stage::kPredict ? plan.limit_predict : plan.limit_val;
}

void load_train_data(Run& run) {
  auto& data = run.data.train;
  if (data.ready) return;
  const auto& plan = run.plan;
  auto loaders = run.data.asked_train;
  if (loaders.empty()) loaders = own_loaders(run, Stage::kTrain);
  LEVIN_CHECK(!loaders.empty(),
              "[trainer.fit] there is no training loader: pass one to fit, or override train_dataloader "
              "in the module or the data module");
  LEVIN_CHECK(loaders.size() == 1, "[trainer.fit] ", loaders.size(),
              " training loaders were given; combine them into one with levin::combine");
  data.loaders = prepared(run, loaders, /*training=*/true);
  count_batches(data, plan, plan.limit_train);
  const auto batches = data.batches.front();
  LEVIN_CHECK(!batches || *batches > 0, "[trainer.fit] the training loader has no batches");

  auto& val_every = run.data.val_every;
  val_every = 0;
  const auto& check = plan.val_check;
  if (check.unit() == Interval::Unit::kBatches) {
    val_every = check.count();
    LEVIN_CHECK(!batches || !plan.check_val_every_n_epoch || val_every <= *batches, "[trainer] val_check_interval ",
                val_every, " is more than the ", batches.value_or(0),
                " training batches of an epoch; set check_val_every_n_epoch to none to count across epochs");
  } else if (check.unit() == Interval::Unit::kFraction) {
    if (batches)
      val_every = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(*batches) * check.fraction()));
    else
      LEVIN_CHECK(check.fraction() == 1.0, "[trainer] val_check_interval ", check.to_string(),
                  " is a fraction of a loader that does not know its size; give a number of batches");
  }
  if (!run.logs.loggers.empty() && batches && plan.log_every_n_steps > *batches && !plan.barebones)
    warn_once(concat("[trainer] log_every_n_steps ", plan.log_every_n_steps, " is more than the ", *batches,
                     " training batches of an epoch: set it lower to see step metrics of every epoch"));
}

void load_eval_data(Run& run, Stage stage) {
  auto& data = run.data.eval(stage);
  if (data.ready) return;
  auto& fabric = *run.fabric;
  const bool fitting = run.state.fitting;
  auto loaders = fitting ? run.data.asked_val : data.loaders;
  if (loaders.empty()) loaders = own_loaders(run, stage);
  data.loaders = prepared(run, loaders, /*training=*/false);
  count_batches(data, run.plan, eval_limit(run.plan, stage));
  data.common.clear();
  for (const auto& batches : data.batches) data.common.push_back(batches.value_or(0));
  if (fitting && fabric.world_size() > 1 && !data.common.empty()) {
    const auto least = fabric.all_reduce(at::tensor(data.common, at::kLong).to(fabric.device()), "min").cpu();
    std::copy_n(least.const_data_ptr<int64_t>(), data.common.size(), data.common.begin());
  }
  // Where parameters are sharded every forward is a collective.
  if (fabric.strategy().shards())
    check_lengths(run, concat("trainer.", stage_name(fitting ? Stage::kTrain : stage)), data);
}

void set_train_batch_size(Run& run, int64_t batch_size) {
  load_train_data(run);
  auto& data = run.data;
  const auto source = data.asked_train.empty() ? data.train.loaders.front() : data.asked_train.front();
  const auto changed = source->with_batch_size(batch_size);
  LEVIN_CHECK(changed, "[trainer] the batch size of this loader cannot be changed: it is not a levin::DataLoader");
  data.asked_train = {changed};
  data.train.ready = false;
  load_train_data(run);
}

}  // namespace levin::detail
