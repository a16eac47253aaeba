#include <bit>
#include <cstring>
#include <unordered_map>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/pickle.h"
#include "levin/io/weights/pickle_nodes.h"

namespace levin::pickle {

/// Runs the opcodes of one pickle. Containers are listed as they are made: a pickle may tie them into cycles, and those
/// that are no part of the result are taken apart one by one, which neither leaks nor recurses.
class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const Options& options, std::string_view where)
      : bytes_(bytes), options_(options), where_(where) {}
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine() {
    for (auto& value : containers_) clear(value);
  }

  Value run();
  size_t used() const { return at_; }

  static detail::Dict& dict_of(const Value& value) { return *value.get<std::shared_ptr<detail::Dict>>(Kind::dict); }

 private:
  template <class... Args>
  [[noreturn]] void refuse(const Args&... args) const {
    throw Error(levin::detail::concat("[pickle] \"", where_, "\": ", args..., " (at byte ", begin_, ")"));
  }
  void step(uint8_t code);
  void numbers(uint8_t code);
  void strings(uint8_t code);
  void containers(uint8_t code);
  void names(uint8_t code);

  std::span<const std::byte> take(uint64_t count);
  template <class T>
  T number();
  std::string string(uint64_t count);
  std::string line();
  Value long_integer(uint64_t count);

  void push(Value value);
  Value pop();
  Value& top();
  std::vector<Value> pop_mark();
  Value container(Value value);

  void memoize(uint64_t index);
  void recall(uint64_t index);
  void global(const std::string& module, const std::string& name);
  void call(const char* opcode, const Value& callee, const Value& arguments);
  void make_instance(const char* opcode, const Value& type, const Value& arguments);
  void build();
  void count_bytes(size_t count);
  void set_items(const Value& dict, std::span<Value> items);
  void append(const Value& list, std::span<Value> items);

  void check_result(const Value& result);
  static void clear(const Value& value);
  static const void* address(const Value& value);

  std::span<const std::byte> bytes_;
  const Options& options_;
  std::string where_;
  size_t at_ = 0;
  size_t begin_ = 0;
  size_t made_ = 0;
  size_t called_bytes_ = 0;
  bool stopped_ = false;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Value> memo_;
  std::vector<Value> containers_;
};

detail::Dict& detail::dict_of(const Value& value) {
  return Machine::dict_of(value);
}

std::span<const std::byte> Machine::take(uint64_t count) {
  if (count > bytes_.size() - at_)
    refuse("ends too early: ", count, " bytes are announced and ", bytes_.size() - at_, " are left");
  const auto part = bytes_.subspan(at_, count);
  at_ += count;
  return part;
}

template <class T>
T Machine::number() {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
  return value;
}

std::string Machine::string(uint64_t count) {
  const auto part = take(count);
  return {reinterpret_cast<const char*>(part.data()), part.size()};
}

std::string Machine::line() {
  const auto rest = bytes_.subspan(at_);
  const auto* end = static_cast<const std::byte*>(rest.empty() ? nullptr : std::memchr(rest.data(), '\n', rest.size()));
  if (!end) refuse("a line without an end");
  auto text = string(static_cast<uint64_t>(end - rest.data()));
  ++at_;
  return text;
}

Value Machine::long_integer(uint64_t count) {
  auto bytes = string(count);
  // Padding is the sign, repeated.
  while (bytes.size() > 1) {
    const auto last = static_cast<signed char>(bytes.back());
    const auto before = static_cast<signed char>(bytes[bytes.size() - 2]);
    if ((last != 0 || before < 0) && (last != -1 || before >= 0)) break;
    bytes.pop_back();
  }
  if (bytes.size() > 8) return Value(Kind::big_integer, std::move(bytes));
  const bool negative = !bytes.empty() && static_cast<signed char>(bytes.back()) < 0;
  uint64_t value = negative ? ~uint64_t{0} : 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  return Value(static_cast<int64_t>(value));
}

void Machine::push(Value value) {
  if (++made_ > options_.limits.values) refuse("more than ", options_.limits.values, " values");
  if (stack_.size() >= options_.limits.stack) refuse("more than ", options_.limits.stack, " values on the stack");
  stack_.push_back(std::move(value));
}

Value& Machine::top() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse("takes a value from an empty stack");
  return stack_.back();
}

Value Machine::pop() {
  Value value = std::move(top());
  stack_.pop_back();
  return value;
}

std::vector<Value> Machine::pop_mark() {
  if (marks_.empty()) refuse("looks for a mark that was never set");
  const auto first = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
  std::vector<Value> values(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return values;
}

Value Machine::container(Value value) {
  containers_.push_back(value);
  return value;
}

void Machine::memoize(uint64_t index) {
  if (memo_.size() >= options_.limits.values) refuse("remembers more than ", options_.limits.values, " values");
  memo_[index] = top();
}

void Machine::recall(uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) refuse("asks for value ", index, " of its memo, which was never put there");
  push(found->second);
}

void Machine::global(const std::string& module, const std::string& name) {
  const auto full = module + "." + name;
  if (!options_.globals.contains(full) && !(options_.classes && options_.classes(full)))
    refuse("asks for ", shown(full), ", which is not allowed", options_.advice.empty() ? "" : "; ", options_.advice);
  push(Value::global(full));
}

void Machine::call(const char* opcode, const Value& callee, const Value& arguments) {
  if (!callee.is(Kind::global)) refuse(opcode, " calls ", kind_name(callee.kind()), "; only allowed names can be");
  if (!arguments.is(Kind::tuple)) refuse(opcode, " has ", kind_name(arguments.kind()), " where arguments are due");
  const auto found = options_.globals.find(callee.global());
  if (found == options_.globals.end()) return make_instance(opcode, callee, arguments);
  const auto& handler = found->second;
  if (!handler) refuse(opcode, " calls ", callee.global(), ", which may be named, not called");
  auto value = handler(arguments.items());
  // A call copies what it is given, and the same thing can be given again and again.
  if (value.is(Kind::dict)) made_ += value.pairs().size();
  if (value.is(Kind::set) || value.is(Kind::list) || value.is(Kind::tuple)) made_ += value.items().size();
  if (value.is(Kind::bytes) || value.is(Kind::text)) count_bytes(value.text().size());
  if (const auto object = value.object<Object>()) count_bytes(object->bytes());
  push(address(value) ? container(std::move(value)) : std::move(value));
}

void Machine::make_instance(const char* opcode, const Value& type, const Value& arguments) {
  if (opcode != std::string_view("NEWOBJ") || !arguments.items().empty())
    refuse(opcode, " calls the class ", shown(type.global()), "; only objects without arguments are read");
  auto value = Value::dict();
  dict_of(value).type = std::get<std::shared_ptr<const detail::Global>>(type.data_);
  push(container(std::move(value)));
}

void Machine::count_bytes(size_t count) {
  called_bytes_ += count;
  // Twice: what is encoded from text is made once as bytes, and may then become an array.
  if (called_bytes_ > 2 * bytes_.size()) refuse("asks for more memory than it has bytes");
}

void Machine::build() {
  const auto state = pop();
  auto& target = top();
  if (const auto object = target.object<Object>()) {
    object->build(state);
    return count_bytes(object->bytes());
  }
  if (const auto name = target.class_name(); !name.empty()) {
    if (!state.is(Kind::dict))
      refuse("an object of class ", shown(name), " has ", kind_name(state.kind()),
             " for its state, which only its code could read");
    std::vector<Value> items;
    for (const auto& [key, value] : state.pairs()) items.insert(items.end(), {key, value});
    made_ += items.size();
    return set_items(target, items);
  }
  // A subclass of dict brings its attributes (a state dict its versions); they are not part of the values.
  if (target.is(Kind::dict) && (state.is(Kind::dict) || state.is_none())) return;
  refuse("BUILD gives ", kind_name(target.kind()), " a state that is ", kind_name(state.kind()));
}

void Machine::set_items(const Value& dict, std::span<Value> items) {
  if (!dict.is(Kind::dict)) refuse("sets items of ", kind_name(dict.kind()));
  if (items.size() % 2 != 0) refuse("a key of a dict has no value");
  auto& node = dict_of(dict);
  for (size_t i = 0; i < items.size(); i += 2) {
    auto& key = items[i];
    const bool named = key.is(Kind::text) || key.is(Kind::bytes);
    if (named && key.text().size() > options_.limits.key_bytes) refuse("a key of ", key.text().size(), " bytes");
    const auto name = named ? shown(key.text()) : std::string(kind_name(key.kind()));
    if (!node.set(std::move(key), std::move(items[i + 1]))) refuse("the key \"", name, "\" stands twice in a dict");
  }
}

void Machine::append(const Value& list, std::span<Value> items) {
  if (!list.is(Kind::list) && !list.is(Kind::set)) refuse("appends to ", kind_name(list.kind()));
  auto& into = std::get<std::shared_ptr<detail::Sequence>>(list.data_)->items;
  into.insert(into.end(), std::make_move_iterator(items.begin()), std::make_move_iterator(items.end()));
}

const void* Machine::address(const Value& value) {
  if (const auto* sequence = std::get_if<std::shared_ptr<detail::Sequence>>(&value.data_)) return sequence->get();
  if (const auto* dict = std::get_if<std::shared_ptr<detail::Dict>>(&value.data_)) return dict->get();
  return nullptr;
}

void Machine::clear(const Value& value) {
  if (const auto* sequence = std::get_if<std::shared_ptr<detail::Sequence>>(&value.data_)) (*sequence)->items.clear();
  if (const auto* dict = std::get_if<std::shared_ptr<detail::Dict>>(&value.data_)) (*dict)->pairs.clear();
}

/// Walks the tree once per shared part, with a stack of its own; refuses cycles, depth, and trees that would be too
/// large if each shared part were written out.
void Machine::check_result(const Value& result) {
  struct Frame {
    Value value;
    size_t next = 0;
    size_t total = 1;
  };
  std::unordered_map<const void*, size_t> totals;  // 0: being walked
  std::vector<Frame> frames;
  const auto limit = options_.limits.values;
  size_t total = 1;
  const auto enter = [&](const Value& value) -> size_t {
    const void* place = address(value);
    if (!place) return 1;
    const auto [found, fresh] = totals.emplace(place, 0);
    if (!fresh && found->second == 0) refuse("a value contains itself");
    if (!fresh) return found->second;
    if (frames.size() >= options_.limits.depth) refuse("values are nested deeper than ", options_.limits.depth);
    frames.push_back({value});
    return 0;
  };
  total = enter(result);
  while (!frames.empty()) {
    const auto index = frames.size() - 1;
    const Value here = frames[index].value;
    const Value* child = nullptr;
    const auto next = frames[index].next;
    if (here.is(Kind::dict)) {
      if (next < here.pairs().size()) child = &here.pairs()[next].second;
    } else if (next < here.items().size()) {
      child = &here.items()[next];
    }
    if (!child) {
      total = frames[index].total;
      if (total > limit) refuse("more than ", limit, " values when shared ones are counted at each place");
      totals[address(here)] = total;
      frames.pop_back();
      if (!frames.empty()) frames.back().total += total;
      continue;
    }
    ++frames[index].next;
    frames[index].total += enter(*child);
  }
  std::erase_if(containers_, [&](const Value& value) { return totals.contains(address(value)); });
}

Value Machine::run() {
  const auto version = bytes_.size() >= 2 && bytes_[0] == std::byte{0x80} ? std::to_integer<int>(bytes_[1]) : -1;
  if (version < 2 || version > 5) refuse("is no pickle of protocol 2 to 5");
  at_ = 2;
  while (!stopped_) {
    begin_ = at_;
    if (at_ == bytes_.size()) refuse("ends without the opcode STOP");
    step(number<uint8_t>());
  }
  auto result = pop();
  if (!stack_.empty() || !marks_.empty()) refuse("leaves ", stack_.size(), " values on the stack");
  check_result(result);
  return result;
}

void Machine::step(uint8_t code) {
  switch (code) {
    case '.':
      stopped_ = true;
      return;  // STOP
    case 0x95:
      number<uint64_t>();
      return;  // FRAME
    case '(':
      marks_.push_back(stack_.size());
      ++made_;
      break;  // MARK
    case '0':
      pop();
      return;  // POP
    case '1':
      pop_mark();
      return;  // POP_MARK
    case '2':
      push(Value(top()));
      return;  // DUP
    case 'q':
      memoize(number<uint8_t>());
      return;  // BINPUT
    case 'r':
      memoize(number<uint32_t>());
      return;  // LONG_BINPUT
    case 0x94:
      memoize(memo_.size());
      return;  // MEMOIZE
    case 'h':
      recall(number<uint8_t>());
      return;  // BINGET
    case 'j':
      recall(number<uint32_t>());
      return;  // LONG_BINGET
    case 'N':
    case 0x88:
    case 0x89:
    case 'J':
    case 'K':
    case 'M':
    case 'G':
    case 0x8a:
    case 0x8b:
      return numbers(code);
    case 'T':
    case 'U':
    case 'X':
    case 0x8c:
    case 0x8d:
    case 'B':
    case 'C':
    case 0x8e:
    case 0x96:
      return strings(code);
    case ')':
    case 't':
    case 0x85:
    case 0x86:
    case 0x87:
    case ']':
    case 'l':
    case 'a':
    case 'e':
    case '}':
    case 'd':
    case 's':
    case 'u':
    case 0x8f:
    case 0x90:
    case 0x91:
      return containers(code);
    case 'c':
    case 0x93:
    case 'R':
    case 0x81:
    case 0x92:
    case 'b':
    case 'Q':
      return names(code);
    default:
      refuse("opcode ", static_cast<int>(code), " is not one of protocols 2 to 5 that can be read");
  }
  if (marks_.size() > options_.limits.stack || made_ > options_.limits.values) refuse("too many marks");
}

void Machine::numbers(uint8_t code) {
  switch (code) {
    case 'N':
      return push(Value());  // NONE
    case 0x88:
      return push(Value(true));  // NEWTRUE
    case 0x89:
      return push(Value(false));  // NEWFALSE
    case 'J':
      return push(Value(static_cast<int64_t>(number<int32_t>())));  // BININT
    case 'K':
      return push(Value(static_cast<int64_t>(number<uint8_t>())));  // BININT1
    case 'M':
      return push(Value(static_cast<int64_t>(number<uint16_t>())));  // BININT2
    case 0x8a:
      return push(long_integer(number<uint8_t>()));  // LONG1
    case 'G': {                                      // BINFLOAT, big-endian
      const auto bits = __builtin_bswap64(number<uint64_t>());
      return push(Value(std::bit_cast<double>(bits)));
    }
    default: {  // LONG4
      const auto count = number<int32_t>();
      if (count < 0) refuse("an integer of ", count, " bytes");
      return push(long_integer(static_cast<uint64_t>(count)));
    }
  }
}

void Machine::strings(uint8_t code) {
  const auto text = [&](Kind kind, uint64_t count) { push(Value(kind, string(count))); };
  switch (code) {
    case 'U':
      return text(Kind::bytes, number<uint8_t>());  // SHORT_BINSTRING, of Python 2
    case 'T': {                                     // BINSTRING, of Python 2
      const auto count = number<int32_t>();
      if (count < 0) refuse("a string of ", count, " bytes");
      return text(Kind::bytes, static_cast<uint64_t>(count));
    }
    case 'X':
      return text(Kind::text, number<uint32_t>());  // BINUNICODE
    case 0x8c:
      return text(Kind::text, number<uint8_t>());  // SHORT_BINUNICODE
    case 0x8d:
      return text(Kind::text, number<uint64_t>());  // BINUNICODE8
    case 'B':
      return text(Kind::bytes, number<uint32_t>());  // BINBYTES
    case 'C':
      return text(Kind::bytes, number<uint8_t>());  // SHORT_BINBYTES
    default:
      return text(Kind::bytes, number<uint64_t>());  // BINBYTES8, BYTEARRAY8
  }
}

void Machine::containers(uint8_t code) {
  const auto sequence = [&](Kind kind, std::vector<Value> items) {
    push(container(Value::sequence(kind, std::move(items))));
  };
  switch (code) {
    case ')':
      return sequence(Kind::tuple, {});  // EMPTY_TUPLE
    case ']':
      return sequence(Kind::list, {});  // EMPTY_LIST
    case 0x8f:
      return sequence(Kind::set, {});  // EMPTY_SET
    case 't':
      return sequence(Kind::tuple, pop_mark());  // TUPLE
    case 'l':
      return sequence(Kind::list, pop_mark());  // LIST
    case 0x91:
      return sequence(Kind::set, pop_mark());  // FROZENSET
    case 0x85:
    case 0x86:
    case 0x87: {  // TUPLE1 to TUPLE3
      std::vector<Value> items(code - 0x84u);
      for (size_t i = items.size(); i-- > 0;) items[i] = pop();
      return sequence(Kind::tuple, std::move(items));
    }
    case 'a': {  // APPEND
      auto item = pop();
      return append(top(), {&item, 1});
    }
    case 'e':
    case 0x90: {  // APPENDS, ADDITEMS
      auto items = pop_mark();
      return append(top(), items);
    }
    case '}':
      return push(container(Value::dict()));  // EMPTY_DICT
    case 'd': {                               // DICT
      auto items = pop_mark();
      push(container(Value::dict()));
      return set_items(top(), items);
    }
    case 's': {  // SETITEM
      std::vector<Value> pair(2);
      pair[1] = pop();
      pair[0] = pop();
      return set_items(top(), pair);
    }
    default: {  // SETITEMS
      auto items = pop_mark();
      return set_items(top(), items);
    }
  }
}

void Machine::names(uint8_t code) {
  switch (code) {
    case 'c': {  // GLOBAL
      const auto module = line();
      return global(module, line());
    }
    case 0x93: {  // STACK_GLOBAL
      const auto name = pop();
      const auto module = pop();
      if (!name.is(Kind::text) || !module.is(Kind::text)) refuse("a name that is not made of two strings");
      return global(module.text(), name.text());
    }
    case 'R':
    case 0x81: {  // REDUCE, NEWOBJ
      const auto arguments = pop();
      const auto callee = pop();
      return call(code == 'R' ? "REDUCE" : "NEWOBJ", callee, arguments);
    }
    case 0x92: {  // NEWOBJ_EX
      const auto keywords = pop();
      const auto arguments = pop();
      const auto callee = pop();
      if (!keywords.is(Kind::dict) || !keywords.pairs().empty()) refuse("NEWOBJ_EX with keyword arguments");
      return call("NEWOBJ_EX", callee, arguments);
    }
    case 'b':
      return build();  // BUILD
    default: {         // BINPERSID
      const auto id = pop();
      if (!options_.persistent) refuse("a persistent id, which has no meaning here");
      return push(options_.persistent(id));
    }
  }
}

Value load(std::span<const std::byte> bytes, const Options& options, std::string_view where, size_t* used) {
  Machine machine(bytes, options, where);
  Value result;
  try {
    result = machine.run();
  } catch (const Error& error) {
    const std::string_view line = error.what();
    constexpr std::string_view kMark = "[pickle] ";
    if (!line.starts_with(kMark) || line.substr(kMark.size()).starts_with('"')) throw;
    throw Error(levin::detail::concat("[pickle] \"", where, "\": ", line.substr(kMark.size())));
  }
  if (used) *used = machine.used();
  LEVIN_CHECK(used || machine.used() == bytes.size(), "[pickle] \"", where, "\": ", bytes.size() - machine.used(),
              " bytes after its end");
  return result;
}

}  // namespace levin::pickle
