#include "levin/core/error.h"
#include "levin/loggers/events.h"
#include "levin/loggers/numbers.h"

namespace levin::detail {
namespace {

constexpr int kTypeString = 1;
constexpr int kTypeBool = 2;
constexpr int kTypeNumber = 3;
constexpr int kStatusSuccess = 1;

// What Python's str() makes of it.
std::string text_of(const StateValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return "None";
        } else if constexpr (std::is_same_v<T, bool>) {
          return v ? "True" : "False";
        } else if constexpr (std::is_same_v<T, int64_t>) {
          return std::to_string(v);
        } else if constexpr (std::is_same_v<T, double>) {
          return python_float(v);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return "'" + v + "'";
        } else if constexpr (std::is_same_v<T, Tensor>) {
          return concat("tensor ", c10::toString(v.scalar_type()), " ", v.sizes());
        } else if constexpr (std::is_same_v<T, StateList>) {
          std::string text = "[";
          for (const auto& element : v) text += (text.size() > 1 ? ", " : "") + text_of(element);
          return text + "]";
        } else {
          std::string text = "{";
          for (const auto& [name, element] : v)
            text += (text.size() > 1 ? ", '" : "'") + name + "': " + text_of(element);
          return text + "}";
        }
      },
      value.variant());
}

struct Tables {
  /// Of the experiment: names and types.
  Message experiment;
  /// Of the session: names and values.
  Message session;

  void add(const std::string& name, int type, const Message& value) {
    experiment.message(4, Message().text(1, name).integer(4, type));
    session.message(1, Message().kept_text(1, name).message(2, value));
  }
};

void flatten(const std::string& name, const StateValue& value, Tables& tables) {
  const auto& variant = value.variant();
  if (const auto* dict = std::get_if<StateDict>(&variant)) {
    for (const auto& [key, element] : *dict) flatten(name.empty() ? key : name + "/" + key, element, tables);
  } else if (const auto* list = std::get_if<StateList>(&variant);
             list && !list->empty() && std::ranges::all_of(*list, &StateValue::is_dict)) {
    for (size_t i = 0; i < list->size(); ++i) flatten(name + "/" + std::to_string(i), (*list)[i], tables);
  } else if (const auto* truth = std::get_if<bool>(&variant)) {
    tables.add(name, kTypeBool, Message().kept_bool(4, *truth));
  } else if (const auto* integer = std::get_if<int64_t>(&variant)) {
    tables.add(name, kTypeNumber, Message().kept_real(2, static_cast<double>(*integer)));
  } else if (const auto* real = std::get_if<double>(&variant)) {
    tables.add(name, kTypeNumber, Message().kept_real(2, *real));
  } else if (const auto* text = std::get_if<std::string>(&variant)) {
    tables.add(name, kTypeString, Message().kept_text(3, *text));
  } else {
    tables.add(name, kTypeString, Message().kept_text(3, text_of(value)));
  }
}

Message plugin_summary(const std::string& tag, int field, const Message& content) {
  const auto data = Message().message(field, content);
  const auto plugin = Message().text(1, "hparams").text(2, data.bytes());
  return Message().message(1, Message().text(1, tag).message(9, Message().message(1, plugin)));
}

}  // namespace

std::vector<Message> hparams_summaries(const StateDict& values, std::span<const std::string> metrics) {
  Tables tables;
  flatten("", values, tables);
  for (const auto& metric : metrics) tables.experiment.message(5, Message().message(1, Message().text(2, metric)));
  const auto end = Message().integer(1, kStatusSuccess);
  return {plugin_summary("_hparams_/experiment", 2, tables.experiment),
          plugin_summary("_hparams_/session_start_info", 3, tables.session),
          plugin_summary("_hparams_/session_end_info", 4, end)};
}

}  // namespace levin::detail
