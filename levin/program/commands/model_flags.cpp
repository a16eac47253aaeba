#include "levin/program/commands/model_flags.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/io/weights/weights.h"

namespace levin::cli {

void ModelFlags::describe(Flags& flags) {
  flags.flag("dtype", dtype, "of the weights [what config.json says]", "NAME", {"float32", "bfloat16", "float16"});
  flags.flag("quantize", quantize,
             "linear layers of the blocks in few bits: int8, int8-weights, int4, int4:64, nf4, nf4-double or fp8 "
             "[what config.json says]",
             "NAME");
  flags.flag("device", device, "where it runs: cpu, cuda, cuda:1 [cpu]", "NAME");
}

models::OpenModelOptions ModelFlags::options(const std::string& command) const {
  models::OpenModelOptions asked;
  asked.quantize = quantize;
  if (!dtype.empty()) asked.dtype = dtype_from_name(command.c_str(), dtype);
  try {
    asked.device = c10::Device(device.empty() ? "cpu" : device);
  } catch (const c10::Error&) {
    throw Error(fmt::format("[{}] --device \"{}\" is not known (cpu, cuda, cuda:1)", command, shown(device)));
  }
  const auto& kind = accelerator_of(asked.device);
  LEVIN_CHECK(kind.device_count() > std::max<int>(asked.device.index(), 0), "[", command, "] --device ", device, ": ",
              kind.device_count() == 0 ? kind.why_unavailable() : "there is no such device");
  return asked;
}

}  // namespace levin::cli
