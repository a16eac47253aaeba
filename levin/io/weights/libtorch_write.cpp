#include <algorithm>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/serialize/output-archive.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/weights/libtorch.h"

namespace levin {
namespace {

using torch::serialize::OutputArchive;

/// Tensors in host memory of their own size: an archive writes the whole memory behind a view. Those that are one stay
/// one.
class HostTensors {
 public:
  Tensor operator()(const Tensor& tensor) {
    LEVIN_CHECK(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_meta(),
                "[libtorch] a tensor that is undefined, sparse, quantized or meta cannot be written");
    const auto key = fmt::format("{} {} {} {}", fmt::ptr(tensor.numel() == 0 ? nullptr : tensor.const_data_ptr()),
                                 c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","),
                                 fmt::join(tensor.strides(), ","));
    auto& known = known_[key];
    if (known.defined()) return known;
    const auto here = tensor.detach().cpu().contiguous();
    const bool view = here.storage().nbytes() != here.nbytes();
    known = view ? here.clone() : here;
    return known;
  }

 private:
  std::map<std::string, Tensor> known_;
};

/// Python tells buffers from parameters, LibTorch's torch::load does not.
bool is_buffer(std::string_view name, const Tensor& tensor) {
  const auto last = name.substr(name.rfind('.') + 1);
  return !(tensor.is_floating_point() || tensor.is_complex()) || last == "running_mean" || last == "running_var";
}

/// The parts of a module by their names, in order.
struct Part {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::vector<std::pair<std::string, std::unique_ptr<Part>>> parts;

  Part& part(const std::string& name) {
    for (auto& [known, below] : parts)
      if (known == name) return *below;
    return *parts.emplace_back(name, std::make_unique<Part>()).second;
  }
  bool has(const std::string& name) const {
    const auto is = [&](const auto& item) { return item.first == name; };
    return std::any_of(tensors.begin(), tensors.end(), is) || std::any_of(parts.begin(), parts.end(), is);
  }
  void add(std::string_view name, std::string_view full, const Tensor& tensor) {
    const auto dot = name.find('.');
    const std::string first(name.substr(0, dot));
    LEVIN_CHECK(!first.empty(), "[libtorch] \"", full, "\" is no name of a module's tensor");
    if (dot != name.npos) return part(first).add(name.substr(dot + 1), full, tensor);
    LEVIN_CHECK(!has(first), "[libtorch] \"", full, "\" stands twice, or is a tensor and a module at once");
    tensors.emplace_back(first, tensor);
  }
  /// Makes room for a module, whether it has tensors or not.
  void add_module(std::string_view name) {
    const auto dot = name.find('.');
    auto& below = part(std::string(name.substr(0, dot)));
    if (dot != name.npos) below.add_module(name.substr(dot + 1));
  }
  /// A Sequential has a module at every number.
  void fill_numbers() {
    int64_t most = -1;
    for (auto& [name, below] : parts) {
      below->fill_numbers();
      const bool number = name.size() < 6 && name.find_first_not_of("0123456789") == name.npos;
      most = number ? std::max<int64_t>(most, std::stoll(name)) : most;
    }
    for (int64_t i = 0; i < most; ++i)
      if (!has(std::to_string(i))) part(std::to_string(i));
  }
  void put(OutputArchive& archive, HostTensors& host) const {
    for (const auto& [name, tensor] : tensors) {
      const bool buffer = is_buffer(name, tensor);
      archive.write(name, buffer ? host(tensor) : host(tensor).detach().requires_grad_(true), buffer);
    }
    for (const auto& [name, below] : parts) {
      LEVIN_CHECK(std::none_of(tensors.begin(), tensors.end(), [&](const auto& item) { return item.first == name; }),
                  "[libtorch] \"", name, "\" is a tensor and a module at once");
      OutputArchive nested(archive.compilation_unit());
      below->put(nested, host);
      archive.write(name, nested);
    }
  }
};

Tensor size_tensor(size_t size) {
  return at::scalar_tensor(static_cast<int64_t>(size), at::kLong);
}

/// A value of an optimizer's state or options as LibTorch's optimizers have it.
c10::IValue option_value(const StateValue& value) {
  const auto& held = value.variant();
  if (const auto* flag = std::get_if<bool>(&held)) return *flag;
  if (const auto* whole = std::get_if<int64_t>(&held)) return *whole;
  if (const auto* real = std::get_if<double>(&held)) return *real;
  if (const auto* text = std::get_if<std::string>(&held)) return *text;
  if (value.is_list() && value.to_list().size() == 2)
    return std::tuple(value.to_list()[0].to_double(), value.to_list()[1].to_double());
  return {};
}

void put_state(OutputArchive& archive, const StateDict& state, HostTensors& host) {
  for (const auto& [name, value] : state) {
    if (value.empty()) continue;
    if (value.is_list()) {
      const auto& items = value.to_list();
      // Room that nothing was put into yet, which LBFGS makes again.
      if (std::any_of(items.begin(), items.end(), [](const auto& item) { return item.empty(); })) continue;
      std::vector<Tensor> list;
      for (const auto& item : items) list.push_back(host(item.to_tensor()));
      archive.write(name, c10::IValue(list));
    } else if (name == "step" || name == "func_evals" || name == "n_iter") {
      // Python counts in a tensor, C++ in a number.
      const auto count = value.is_tensor() ? value.to_tensor().item<double>() : value.to_double();
      archive.write(name, c10::IValue(static_cast<int64_t>(count)));
    } else if (value.is_tensor()) {
      archive.write(name, c10::IValue(host(value.to_tensor())));
    } else {
      archive.write(name, option_value(value));
    }
  }
}

}  // namespace

void detail::put_module(OutputArchive& archive, const NamedTensors& tensors, const std::vector<std::string>& modules) {
  Part whole;
  for (const auto& [name, tensor] : tensors) whole.add(name, name, tensor);
  for (const auto& name : modules) whole.add_module(name);
  whole.fill_numbers();
  HostTensors host;
  whole.put(archive, host);
}

void detail::put_optimizer(OutputArchive& archive, const StateDict& state) {
  LEVIN_CHECK(state.contains("state") && state.contains("param_groups"),
              "[libtorch] an optimizer's state has \"state\" and \"param_groups\"");
  HostTensors host;
  // LibTorch knows a parameter by its address; any number that is not 0 will do.
  const auto key_of = [](const std::string& number) { return std::to_string(std::stoll(number) + 1); };
  archive.write("pytorch_version", c10::IValue("1.5.0"));
  OutputArchive states(archive.compilation_unit());
  for (const auto& [number, value] : state.at("state").to_dict()) {
    OutputArchive one(archive.compilation_unit());
    put_state(one, value.to_dict(), host);
    states.write(key_of(number), one);
  }
  archive.write("state", states);
  OutputArchive groups(archive.compilation_unit());
  const auto& list = state.at("param_groups").to_list();
  groups.write("param_groups/size", size_tensor(list.size()));
  for (size_t g = 0; g < list.size(); ++g) {
    OutputArchive group(archive.compilation_unit());
    const auto& params = list[g].to_dict().at("params").to_list();
    group.write("params/size", size_tensor(params.size()));
    for (size_t i = 0; i < params.size(); ++i)
      group.write(fmt::format("params/{}", i), c10::IValue(key_of(std::to_string(params[i].to_int()))));
    OutputArchive options(archive.compilation_unit());
    for (const auto& [name, value] : list[g].to_dict())
      if (name != "params") options.write(name, option_value(value));
    group.write("options", options);
    groups.write(fmt::format("param_groups/{}", g), group);
  }
  archive.write("param_groups", groups);
}

void detail::write_archive(const std::filesystem::path& path, OutputArchive& archive) {
  AtomicFile file(path);
  archive.save_to([&](const void* bytes, size_t count) {
    file.writer().write(std::span(static_cast<const std::byte*>(bytes), count));
    return count;
  });
  file.commit();
}

void write_libtorch_file(const std::filesystem::path& path, const NamedTensors& tensors,
                         const std::vector<std::string>& modules) {
  OutputArchive archive;
  detail::put_module(archive, tensors, modules);
  detail::write_archive(path, archive);
}

void write_libtorch_optimizer(const std::filesystem::path& path, const StateDict& state) {
  OutputArchive archive;
  detail::put_optimizer(archive, state);
  detail::write_archive(path, archive);
}

}  // namespace levin
