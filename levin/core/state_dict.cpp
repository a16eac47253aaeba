#include "levin/core/state_dict.h"

#include <array>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {
namespace {

constexpr std::array kKinds{"nothing", "a tensor", "a bool", "an integer", "a number", "a string", "a list", "a dict"};

template <class T>
const T& expect(const StateValue::Variant& value, const char* wanted) {
  const T* found = std::get_if<T>(&value);
  LEVIN_CHECK(found, "[state] expected ", wanted, ", found ", kKinds[value.index()]);
  return *found;
}

}  // namespace

StateDict::StateDict() = default;

StateDict::StateDict(std::initializer_list<std::pair<std::string_view, StateValue>> items) {
  items_.reserve(items.size());
  for (const auto& [name, value] : items) items_.emplace_back(std::string(name), value);
}

StateValue& StateDict::operator[](std::string_view name) {
  for (auto& [key, value] : items_)
    if (key == name) return value;
  return items_.emplace_back(std::string(name), StateValue()).second;
}

const StateValue* StateDict::find(std::string_view name) const {
  for (const auto& [key, value] : items_)
    if (key == name) return &value;
  return nullptr;
}

const StateValue& StateDict::at(std::string_view name) const {
  if (const auto* value = find(name)) return *value;
  std::vector<std::string> names;
  for (const auto& item : items_) names.push_back(item.first);
  fail_unknown("state", "name", name, names);
}

bool StateDict::erase(std::string_view name) {
  return std::erase_if(items_, [&](const Item& item) { return item.first == name; }) > 0;
}

bool StateDict::empty() const {
  return items_.empty();
}
size_t StateDict::size() const {
  return items_.size();
}
std::vector<StateDict::Item>::iterator StateDict::begin() {
  return items_.begin();
}
std::vector<StateDict::Item>::iterator StateDict::end() {
  return items_.end();
}
std::vector<StateDict::Item>::const_iterator StateDict::begin() const {
  return items_.begin();
}
std::vector<StateDict::Item>::const_iterator StateDict::end() const {
  return items_.end();
}

const Tensor& StateValue::to_tensor() const {
  return expect<Tensor>(value_, "a tensor");
}
bool StateValue::to_bool() const {
  return expect<bool>(value_, "a bool");
}
int64_t StateValue::to_int() const {
  return expect<int64_t>(value_, "an integer");
}
double StateValue::to_double() const {
  if (const auto* integer = std::get_if<int64_t>(&value_)) return static_cast<double>(*integer);
  return expect<double>(value_, "a number");
}
const std::string& StateValue::to_string() const {
  return expect<std::string>(value_, "a string");
}
const StateList& StateValue::to_list() const {
  return expect<StateList>(value_, "a list");
}
const StateDict& StateValue::to_dict() const {
  return expect<StateDict>(value_, "a dict");
}
StateDict& StateValue::to_dict() {
  return const_cast<StateDict&>(std::as_const(*this).to_dict());
}

}  // namespace levin
