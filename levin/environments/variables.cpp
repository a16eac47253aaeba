#include "levin/environments/variables.h"

#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "levin/core/error.h"

namespace levin {

std::optional<std::string> read_process_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

namespace detail {

std::optional<std::string> Variables::text(const char* name) const {
  auto value = read_(name);
  if (value && value->empty()) value.reset();
  return value;
}

std::string Variables::required_text(const char* name) const {
  auto value = text(name);
  if (!value) fail(fmt::format("{} is not set", name));
  return *value;
}

std::optional<int> Variables::number(const char* name) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  int number = 0;
  const char* end = value->data() + value->size();
  const auto parsed = std::from_chars(value->data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < 0)
    fail(fmt::format("{}=\"{}\" is not a whole number of at least 0", name, *value));
  return number;
}

int Variables::required_number(const char* name) const {
  const auto value = number(name);
  if (!value) fail(fmt::format("{} is not set", name));
  return *value;
}

std::optional<int> Variables::number(std::initializer_list<const char*> names) const {
  const char* first_name = nullptr;
  std::optional<int> first;
  for (const char* name : names) {
    const auto value = number(name);
    if (!value) continue;
    if (first && *first != *value)
      fail(fmt::format("{}={} and {}={} contradict each other; set one of them", first_name, *first, name, *value));
    if (!first) {
      first = value;
      first_name = name;
    }
  }
  return first;
}

std::optional<int> Variables::port(const char* name) const {
  const auto value = number(name);
  if (value && (*value < 1 || *value > 65535)) fail(fmt::format("{}={} is not a port: 1 to 65535", name, *value));
  return value;
}

void Variables::check_rank(const char* rank_name, int rank, const char* size_name, int size) const {
  if (rank < 0 || rank >= size)
    fail(fmt::format("{}={} does not fit {}={}; it must be 0 to {}", rank_name, rank, size_name, size, size - 1));
}

void Variables::check_world(const char* name, int world_size, const WorldAsked& asked) const {
  const int expected = asked.devices * asked.num_nodes;  // 0: any number will do
  if (expected != 0 && expected != world_size)
    fail(fmt::format("{}={}, but devices x num_nodes = {} x {} = {} processes were asked for", name, world_size,
                     asked.devices, asked.num_nodes, expected));
  if (world_size < 1) fail(fmt::format("{}={} must be at least 1", name, world_size));
}

void Variables::fail(const std::string& line) const {
  throw Error(fmt::format("[environment.{}] {}", environment_, line));
}

}  // namespace detail
}  // namespace levin
