#include "levin/data/batch_pipe.h"

#include <algorithm>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/core/words.h"

namespace levin {

NumWorkers::NumWorkers(int count) : count_(count) {
  LEVIN_CHECK(count >= 0 && count <= 1024, "[data] num_workers ", count,
              " is not allowed (0 to 1024, or \"auto\" for as many as there are cores)");
}

NumWorkers::NumWorkers(std::string_view word) {
  if (word == "auto") return;
  int count = 0;
  for (const char c : word) {
    LEVIN_CHECK(c >= '0' && c <= '9' && word.size() <= 4, "[data] num_workers \"", word,
                "\" is not known (a number, or \"auto\")");
    count = count * 10 + (c - '0');
  }
  LEVIN_CHECK(!word.empty(), "[data] num_workers is empty (a number, or \"auto\")");
  *this = NumWorkers(count);
}

namespace detail {

DeviceCopy::DeviceCopy(c10::Device device)
    : device_(device), stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}

void DeviceCopy::run(const std::function<void()>& f, std::optional<c10::Event>& arrived) {
  const c10::StreamGuard guard(stream_);
  {
    const std::lock_guard lock(mutex_);
    for (auto& batch : retired_) batch.used.block(stream_);
    retired_.clear();
  }
  f();
  arrived.emplace(device_.type());
  arrived->record(stream_);
}

void DeviceCopy::wait(c10::Event& arrived) const {
  arrived.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

void DeviceCopy::retire(std::vector<Tensor> tensors) {
  const auto stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  for (const auto& tensor : tensors)
    if (tensor.device() == device_ && (tensor.use_count() > 1 || tensor.storage().use_count() > 1))
      tensor.record_stream(stream);
  Retired batch{c10::Event(device_.type()), std::move(tensors)};
  batch.used.record(stream);
  const std::lock_guard lock(mutex_);
  retired_.push_back(std::move(batch));
}

void SampleWork::make(int64_t sample) noexcept {
  try {
    make_sample(sample);
  } catch (...) {
    bad_[static_cast<size_t>(sample)] = 1;
    if (bad_samples_->skip) bad_samples_->count.fetch_add(1, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    if (first_bad_ >= 0 && first_bad_ < sample) return;
    first_bad_ = sample;
    error_ = std::current_exception();
  }
}

std::string SampleWork::name() const {
  return concat("batch ", id_.shown, " of epoch ", id_.epoch);
}

bool SampleWork::check() {
  if (first_bad_ < 0) return true;
  if (bad_samples_->skip) {
    if (std::count(bad_.begin(), bad_.end(), 0) > 0) return true;
    if (bad_samples_->drop_batches) return false;
    for (int64_t attempt = 0; spare; ++attempt) {
      const auto index = spare(attempt);
      if (!index) break;
      replace_first(*index);
      try {
        make_sample(0);
      } catch (const Interrupted&) {
        throw;
      } catch (const std::exception&) {
        continue;  // its own batch counts it
      }
      bad_[0] = 0;
      return true;
    }
  }
  const auto say = [&](std::string what) {
    if (const auto end = what.find('\n'); end != std::string::npos) what.resize(end);
    // A dataset of ours has said which sample already.
    fail(concat(what.starts_with("[data] sample") ? "" : concat("[data] ", sample_name(first_bad_), ": "), what,
                !bad_samples_->skip ? ""
                : spare             ? " (and no other sample is good)"
                                    : " (and no other sample of its batch is good)"));
  };
  try {
    std::rethrow_exception(error_);
  } catch (const Interrupted&) {
    throw;
  } catch (const c10::Error& error) {
    say(error.what_without_backtrace());
  } catch (const std::exception& error) {
    say(error.what());
  }
  return false;
}

void fail_collate(const std::exception& error, const std::string& batch, std::span<const int64_t> indices) {
  constexpr size_t kShown = 16;
  std::vector<std::string> names;
  for (const int64_t index : indices.first(std::min(indices.size(), kShown))) names.push_back(std::to_string(index));
  if (indices.size() > kShown) names.emplace_back("...");
  fail(concat("[data] collate of ", batch, " (samples ", join(names), "): ", one_line(error)));
}

EngineOptions engine_options(const LoaderOptions& options, bool whole, bool to_device, int local_ranks) {
  EngineOptions engine{.persistent = options.persistent_workers, .timeout = options.timeout};
  if (!options.num_workers.is_auto())
    engine.workers = options.num_workers.count();
  else if (whole)
    engine.workers = to_device ? 1 : 0;
  else
    // A GPU is kept busy by two threads of its own, forward and backward.
    engine.workers = std::max(usable_cores() / std::max(local_ranks, 1) - (to_device ? 2 : 0), 1);
  // Enough that every thread has a sample while the caller takes a batch.
  const int64_t busy = whole ? engine.workers - 1 : (engine.workers + options.batch_size - 1) / options.batch_size;
  engine.ahead = options.prefetch_factor + std::max<int64_t>(busy, 0);
  // A GPU decodes several batches at a time, each of them for longer than it takes to read its files.
  if (to_device && options.decode != "cpu") engine.ahead += 3;
  return engine;
}

void check_loader_options(const LoaderOptions& options) {
  LEVIN_CHECK(options.batch_size >= 1, "[data] batch_size ", options.batch_size, " is not allowed (1 or more)");
  LEVIN_CHECK(options.prefetch_factor >= 1, "[data] prefetch_factor ", options.prefetch_factor,
              " is not allowed (1 or more)");
  LEVIN_CHECK(options.timeout >= 0, "[data] timeout ", options.timeout, " is not allowed (seconds; 0 is no limit)");
  LEVIN_CHECK(!options.shuffle || options.sampler.empty(), "[data] shuffle and the sampler \"", options.sampler.name(),
              "\" exclude each other; leave one out");
  static const std::vector<std::string> known{"stop", "skip"};
  if (std::find(known.begin(), known.end(), options.bad_samples) == known.end())
    fail_unknown("data", "bad_samples", options.bad_samples, known);
  static const std::vector<std::string> decoders{"cpu", "gpu", "auto"};
  if (std::find(decoders.begin(), decoders.end(), options.decode) == decoders.end())
    fail_unknown("data", "decode", options.decode, decoders);
  LEVIN_CHECK(options.decode_on_cpu >= 0 && options.decode_on_cpu <= 1, "[data] decode_on_cpu ", options.decode_on_cpu,
              " is not allowed (0 to 1)");
}

}  // namespace detail

}  // namespace levin
