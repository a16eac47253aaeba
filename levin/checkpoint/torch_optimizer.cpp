#include "levin/checkpoint/torch_optimizer.h"

#include <charconv>

#include "levin/core/error.h"
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

bool is_optimizer_state(const pickle::Value* value) {
  return value && value->is(pickle::Kind::dict) && value->find("state") && value->find("param_groups");
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
  if (is_optimizer_state(&whole)) return {};
  const auto* several = whole.is(pickle::Kind::dict) ? whole.find("optimizer_states") : nullptr;
  if (several && several->is(pickle::Kind::list)) {
    const auto count = several->items().size();
    LEVIN_CHECK(count <= 1, "[load_raw] \"", where, "\" has the states of ", count,
                " optimizers; .key says which: \"optimizer_states.0\" to \"optimizer_states.", count - 1, "\"");
    if (count == 1) return "optimizer_states.0";
  }
  for (const std::string key : {"optimizer", "optimizer_state_dict"})
    if (is_optimizer_state(find_at(whole, key))) return key;
  throw Error(concat("[load_raw] \"", where, "\" has no state of an optimizer: a dict with \"state\" and ",
                     "\"param_groups\" is needed, as torch.save(optimizer.state_dict(), path) writes it; .key says ",
                     "where in the file it stands"));
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
  LEVIN_CHECK(is_optimizer_state(state), "[load_raw] \"", path.string(), "\" has no state of an optimizer at \"", key,
              "\": a dict with \"state\" and \"param_groups\" is needed");
  return {{"optimizer", state_value(file, *state, key)}};
}

}  // namespace levin::detail
