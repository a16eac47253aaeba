#include "levin/checkpoint/torch_optimizer.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include <ATen/ops/scalar_tensor.h>

#include "levin/core/error.h"
#include "levin/io/weights/libtorch.h"
#include "levin/io/weights/torch_file.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

std::string name_inside(const std::string& name, const std::string& key) {
  return name.empty() ? key : name + "." + key;
}

std::string key_text(const pickle::Value& key) {
  return key.is(pickle::Kind::integer) ? std::to_string(key.integer())
         : key.is(pickle::Kind::text)  ? key.text()
                                       : std::string();
}

/// Below `name`; tensors are read from the file.
StateValue state_value(const TorchFile& file, const pickle::Value& value, const std::string& name) {
  switch (value.kind()) {
    case pickle::Kind::boolean:
      return value.boolean();
    case pickle::Kind::integer:
      return value.integer();
    case pickle::Kind::real:
      return value.real();
    case pickle::Kind::text:
      return value.text();
    case pickle::Kind::list:
    case pickle::Kind::tuple: {
      StateList list;
      for (const auto& item : value.items())
        list.push_back(state_value(file, item, name_inside(name, std::to_string(list.size()))));
      return list;
    }
    case pickle::Kind::dict: {
      StateDict dict;
      for (const auto& [key, item] : value.pairs())
        if (const auto text = key_text(key); !text.empty())
          dict[text] = state_value(file, item, name_inside(name, text));
      return dict;
    }
    case pickle::Kind::object:
      return file.find(name) ? StateValue(file.read(name)) : StateValue();
    case pickle::Kind::none:
    case pickle::Kind::big_integer:
    case pickle::Kind::bytes:
    case pickle::Kind::set:
    case pickle::Kind::global:
      return {};  // no optimizer's state has them
  }
  return {};
}

bool is_any_optimizer(const pickle::Value* value) {
  return is_optimizer_state(value) || is_libtorch_optimizer(value);
}

int64_t size_at(const StateDict& dict, std::string_view name) {
  const auto& size = dict.at(name).to_tensor();
  LEVIN_CHECK(size.numel() == 1 && size.scalar_type() == at::kLong, "\"", name, "\" is not one whole number");
  const auto count = size.item<int64_t>();
  LEVIN_CHECK(count >= 0 && static_cast<size_t>(count) < dict.size(), "\"", name, "\" says ", count, ", and ",
              dict.size() - 1, " values stand beside it");
  return count;
}

/// LibTorch's layout in that of state_dict(): parameters by their numbers, not by their addresses; groups as a list;
/// steps counted in tensors.
StateDict from_libtorch(const StateDict& file) {
  const auto& states = file.at("state").to_dict();
  const auto& groups = file.at("param_groups").to_dict();
  StateDict numbered;
  StateList list;
  int64_t number = 0;
  for (int64_t g = 0, count = size_at(groups, "param_groups/size"); g < count; ++g) {
    const auto& group = groups.at(concat("param_groups/", g)).to_dict();
    StateDict out = group.at("options").to_dict();
    StateList params;
    // A tied parameter stands as often as it is registered.
    std::unordered_set<std::string> seen;
    for (int64_t i = 0, size = size_at(group, "params/size"); i < size; ++i) {
      const auto& address = group.at(concat("params/", i)).to_string();
      if (!seen.insert(address).second) continue;
      if (const auto* found = states.find(address)) {
        StateDict state = found->to_dict();
        if (const auto* step = state.find("step"))
          state["step"] = at::scalar_tensor(static_cast<double>(step->to_int()), at::kFloat);
        numbered[std::to_string(number)] = std::move(state);
      }
      params.emplace_back(number++);
    }
    out["params"] = std::move(params);
    list.emplace_back(std::move(out));
  }
  return {{"state", std::move(numbered)}, {"param_groups", std::move(list)}};
}

/// The state of an optimizer in the layout of state_dict(), whoever wrote it.
StateDict optimizer_state(const TorchFile& file, const pickle::Value& value, const std::string& name) {
  const auto state = state_value(file, value, name).to_dict();
  if (!is_libtorch_optimizer(&value)) return state;
  try {
    return from_libtorch(state);
  } catch (const Error& error) {
    throw Error(concat("[load_raw] \"", file.path().string(),
                       "\" has a state of an optimizer that is damaged: ", error.what()));
  }
}

/// The tensors and values of a module by dotted names.
void flatten(const StateDict& dict, const std::string& prefix, StateDict& into) {
  for (const auto& [name, value] : dict) {
    if (value.is_dict())
      flatten(value.to_dict(), prefix + name + ".", into);
    else
      into[prefix + name] = value;
  }
}

bool holds_tensors(const StateValue& value) {
  if (value.is_tensor()) return true;
  if (!value.is_dict()) return false;
  const auto& dict = value.to_dict();
  return std::any_of(dict.begin(), dict.end(), [](const auto& item) { return holds_tensors(item.second); });
}

/// The value at the end of "a.0.b"; null when there is none.
const pickle::Value* find_at(const pickle::Value& whole, std::string_view way) {
  const auto* at = &whole;
  while (!way.empty()) {
    const auto dot = std::min(way.find('.'), way.size());
    const auto word = way.substr(0, dot);
    way.remove_prefix(std::min(dot + 1, way.size()));
    if (at->is(pickle::Kind::dict)) {
      at = at->find(word);
    } else if (at->is(pickle::Kind::list) || at->is(pickle::Kind::tuple)) {
      size_t index = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), index);
      at = error == std::errc() && end == word.data() + word.size() && index < at->items().size() ? &at->items()[index]
                                                                                                  : nullptr;
    } else {
      at = nullptr;
    }
    if (!at) return nullptr;
  }
  return at;
}

std::string likely_key(const pickle::Value& whole, const std::string& where) {
  if (is_any_optimizer(&whole)) return {};
  const auto* several = whole.is(pickle::Kind::dict) ? whole.find("optimizer_states") : nullptr;
  if (several && several->is(pickle::Kind::list)) {
    const auto count = several->items().size();
    LEVIN_CHECK(count <= 1, "[load_raw] \"", where, "\" has the states of ", count,
                " optimizers; .key says which: \"optimizer_states.0\" to \"optimizer_states.", count - 1, "\"");
    if (count == 1) return "optimizer_states.0";
  }
  for (const std::string key : {"optimizer", "optimizer_state_dict"})
    if (is_any_optimizer(find_at(whole, key))) return key;
  if (!whole.class_name().empty()) {
    std::vector<std::string> found;
    for (const auto& [key, value] : whole.pairs())
      if (is_libtorch_optimizer(&value)) found.push_back(key_text(key));
    LEVIN_CHECK(found.size() <= 1, "[load_raw] \"", where, "\" has the states of ", found.size(),
                " optimizers; .key says which: \"", found.front(), "\", \"", found.back(), "\"");
    if (found.size() == 1) return found[0];
  }
  throw Error(concat(
      "[load_raw] \"", where, "\" has no state of an optimizer: a dict with \"state\" and ",
      "\"param_groups\" is needed, as torch.save(optimizer.state_dict(), path) writes it, or a file of LibTorch's ",
      "torch::save(optimizer, path); .key says where in the file it stands"));
}

}  // namespace

bool TorchOptimizerFile::recognizes(const fs::path& path) const {
  std::error_code error;
  return fs::is_regular_file(path, error) && is_torch_file(path);
}

void TorchOptimizerFile::save(const fs::path& path, const StateDict&) const {
  throw Error(concat("[checkpoint.save] \"", path.string(), "\": save_raw writes an optimizer's state for torch"));
}

StateDict TorchOptimizerFile::load(const fs::path& path) const {
  LEVIN_CHECK(fs::exists(path), "[load_raw] \"", path.string(), "\" does not exist");
  LEVIN_CHECK(recognizes(path), "[load_raw] \"", path.string(),
              "\" has no state of an optimizer; it comes from a checkpoint, from a file of "
              "torch.save(optimizer.state_dict()) or from a .ckpt of Lightning");
  const TorchFile file(path);
  const auto key = key_.empty() ? likely_key(file.tree(), path.string()) : key_;
  const auto* state = find_at(file.tree(), key);
  LEVIN_CHECK(is_any_optimizer(state), "[load_raw] \"", path.string(), "\" has no state of an optimizer at \"", key,
              "\": a dict with \"state\" and \"param_groups\" is needed");
  return {{"optimizer", optimizer_state(file, *state, key)}};
}

bool LibtorchFile::recognizes(const fs::path& path) const {
  std::error_code error;
  return fs::is_regular_file(path, error) && is_libtorch_file(path);
}

void LibtorchFile::save(const fs::path& path, const StateDict&) const {
  throw Error(concat("[checkpoint.save] \"", path.string(), "\": torch::save and save_raw write files of LibTorch"));
}

StateDict LibtorchFile::load(const fs::path& path) const {
  const TorchFile file(path);
  const auto& whole = file.tree();
  if (is_libtorch_optimizer(&whole)) return {{"optimizer", optimizer_state(file, whole, "")}};
  StateDict state;
  if (!whole.is(pickle::Kind::dict)) return state;
  for (const auto& [key, value] : whole.pairs()) {
    const auto name = key_text(key);
    if (is_libtorch_optimizer(&value)) {
      state[name] = optimizer_state(file, value, name);
      continue;
    }
    auto read = state_value(file, value, name);
    if (read.is_dict() && holds_tensors(read)) {
      StateDict flat;
      flatten(read.to_dict(), "", flat);
      read = std::move(flat);
    }
    state[name] = std::move(read);
  }
  return state;
}

}  // namespace levin::detail
