#include <algorithm>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/unicode/regex.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text::detail {

namespace {

constexpr size_t kNoMatch = std::string_view::npos;
constexpr size_t kMaxProgram = 50'000;
constexpr size_t kMaxBehind = 64;  // characters that a lookbehind tries

enum RegexFlags : uint8_t { kLazy = 1, kPossessive = 2, kBehind = 4, kNegative = 8 };

size_t step_back(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (text[at] & 0xc0) == 0x80);
  return at;
}

bool word_before(std::string_view text, size_t at) {
  return at > 0 && properties(decode_utf8(text, step_back(text, at)).point).is_word();
}

bool word_at(std::string_view text, size_t at) {
  return at < text.size() && properties(decode_utf8(text, at).point).is_word();
}

bool asserted(RegexNode::Assert which, std::string_view text, size_t at) {
  switch (which) {
    case RegexNode::Assert::kLineStart:
      return at == 0 || (text[at - 1] == '\n' && at < text.size());
    case RegexNode::Assert::kLineEnd:
      return at == text.size() || text[at] == '\n';
    case RegexNode::Assert::kTextStart:
      return at == 0;
    case RegexNode::Assert::kTextEnd:
      return at == text.size();
    case RegexNode::Assert::kTextEndOrNewline:
      return at == text.size() || (at + 1 == text.size() && text[at] == '\n');
    case RegexNode::Assert::kWord:
      return word_before(text, at) != word_at(text, at);
    case RegexNode::Assert::kNotWord:
      return word_before(text, at) == word_at(text, at);
  }
  return false;
}

bool may_be_empty(const RegexNode& node) {
  using Kind = RegexNode::Kind;
  switch (node.kind) {
    case Kind::kSet:
    case Kind::kChar:
      return false;
    case Kind::kSequence:
    case Kind::kAtomic:
      return std::all_of(node.parts.begin(), node.parts.end(), [](const auto& part) { return may_be_empty(*part); });
    case Kind::kChoice:
      return std::any_of(node.parts.begin(), node.parts.end(), [](const auto& part) { return may_be_empty(*part); });
    case Kind::kRepeat:
      return node.least == 0 || may_be_empty(*node.parts[0]);
    case Kind::kEmpty:
    case Kind::kLook:
    case Kind::kAssert:
      return true;
  }
  return true;
}

}  // namespace

Regex::Regex(std::string_view pattern) : pattern_(pattern) {
  const auto tree = parse_regex(pattern);
  emit(*tree, 0);
  add({.op = Instruction::Op::kMatch});
}

uint32_t Regex::add(Instruction instruction) {
  LEVIN_CHECK(program_.size() < kMaxProgram, "[regex] the pattern \"", shown(pattern_),
              "\" is too large when its counts are written out");
  program_.push_back(instruction);
  return static_cast<uint32_t>(program_.size() - 1);
}

void Regex::emit(const RegexNode& node, int depth) {
  using Kind = RegexNode::Kind;
  using Op = Instruction::Op;
  const auto here = [&] { return static_cast<uint32_t>(program_.size()); };
  switch (node.kind) {
    case Kind::kEmpty:
      break;
    case Kind::kSet:
      sets_.push_back(node.set);
      add({.op = Op::kSet, .a = static_cast<uint32_t>(sets_.size() - 1)});
      break;
    case Kind::kChar:
      add({.op = node.ignores_case ? Op::kFold : Op::kChar, .a = node.point});
      break;
    case Kind::kSequence:
      for (const auto& part : node.parts) emit(*part, depth + 1);
      break;
    case Kind::kChoice: {
      std::vector<uint32_t> ends;
      for (size_t i = 0; i + 1 < node.parts.size(); ++i) {
        const auto split = add({.op = Op::kSplit});
        program_[split].a = here();
        emit(*node.parts[i], depth + 1);
        ends.push_back(add({.op = Op::kJump}));
        program_[split].b = here();
      }
      emit(*node.parts.back(), depth + 1);
      for (const auto end : ends) program_[end].a = here();
      break;
    }
    case Kind::kRepeat:
      emit_repeat(node, depth);
      break;
    case Kind::kLook: {
      const uint8_t flags = static_cast<uint8_t>((node.behind ? kBehind : 0) | (node.negative ? kNegative : 0));
      const auto look = add({.op = Op::kLook, .flags = flags});
      emit(*node.parts[0], depth + 1);
      if (node.behind) add({.op = Op::kAt});
      add({.op = Op::kMatch});
      program_[look].a = here();
      break;
    }
    case Kind::kAtomic: {
      const auto atomic = add({.op = Op::kAtomic});
      emit(*node.parts[0], depth + 1);
      add({.op = Op::kMatch});
      program_[atomic].a = here();
      break;
    }
    case Kind::kAssert:
      add({.op = Op::kAssert, .a = static_cast<uint32_t>(node.assertion)});
      break;
  }
}

void Regex::emit_repeat(const RegexNode& node, int depth) {
  using Op = Instruction::Op;
  const auto here = [&] { return static_cast<uint32_t>(program_.size()); };
  const auto& body = *node.parts[0];
  if (body.kind == RegexNode::Kind::kSet || body.kind == RegexNode::Kind::kChar) {
    auto set = body.set;
    if (body.kind == RegexNode::Kind::kChar) {
      set.add(body.point, body.point);
      if (body.ignores_case) set.ignore_case();
      set.finish();
    }
    sets_.push_back(std::move(set));
    const uint8_t flags = static_cast<uint8_t>((node.greedy ? 0 : kLazy) | (node.possessive ? kPossessive : 0));
    add({.op = Op::kRun,
         .flags = flags,
         .a = static_cast<uint32_t>(sets_.size() - 1),
         .b = node.least,
         .c = node.most});
    return;
  }
  uint32_t atomic = 0;
  if (node.possessive) atomic = add({.op = Op::kAtomic});
  for (uint32_t i = 0; i < node.least; ++i) emit(body, depth + 1);
  const auto split = [&] {
    const auto at = add({.op = Op::kSplit});
    program_[at].a = program_[at].b = here();
    return at;
  };
  // The way out of a split is its second choice, of a lazy one its first.
  const auto leave = [&](uint32_t at) { (node.greedy ? program_[at].b : program_[at].a) = here(); };
  if (node.most == RegexNode::kNoLimit) {
    const auto start = split();
    const bool empty = may_be_empty(body);
    const auto mark = marks_;
    if (empty) add({.op = Op::kMark, .a = marks_++});
    emit(body, depth + 1);
    if (empty) add({.op = Op::kAgain, .a = mark});
    add({.op = Op::kJump, .a = start});
    leave(start);
    if (empty) {  // an iteration that took nothing ends the loop
      for (auto i = start; i < here(); ++i) {
        if (program_[i].op == Op::kAgain && program_[i].a == mark) program_[i].b = here();
      }
    }
  } else {
    std::vector<uint32_t> splits;
    for (uint32_t i = node.least; i < node.most; ++i) {
      splits.push_back(split());
      emit(body, depth + 1);
    }
    for (const auto at : splits) leave(at);
  }
  if (node.possessive) {
    add({.op = Op::kMatch});
    program_[atomic].a = here();
  }
}

struct Regex::Frame {
  uint32_t pc = 0;
  uint32_t kind =
      0;  // 0: continue at `at`; 1: a run that may give back down to `least`; 2: restore a mark; 3: a lazy run
  size_t at = 0, least = 0;
};

size_t Regex::run(std::string_view text, uint32_t start, size_t at, size_t must_end, Budget& budget, int depth) const {
  using Op = Instruction::Op;
  LEVIN_CHECK(depth < 100, "[regex] the pattern \"", shown(pattern_), "\" is nested too deeply");
  thread_local std::vector<std::vector<Frame>> stacks(128);
  auto& stack = stacks[static_cast<size_t>(depth)];
  stack.clear();
  std::vector<size_t> marks(marks_, kNoMatch);
  uint32_t pc = start;
  const auto back = [&]() -> bool {
    while (!stack.empty()) {
      auto& top = stack.back();
      if (top.kind == 0) {
        pc = top.pc;
        at = top.at;
        stack.pop_back();
        return true;
      }
      if (top.kind == 2) {
        marks[top.pc] = top.at;
        stack.pop_back();
      } else if (top.kind == 1) {
        top.at = step_back(text, top.at);
        at = top.at;
        pc = top.pc + 1;
        if (top.at <= top.least) stack.pop_back();
        return true;
      } else {
        const auto& lazy = program_[top.pc];
        if (top.least >= lazy.c || top.at >= text.size() || !sets_[lazy.a].contains(decode_utf8(text, top.at).point)) {
          stack.pop_back();
          continue;
        }
        top.at += decode_utf8(text, top.at).bytes;
        ++top.least;
        at = top.at;
        pc = top.pc + 1;
        return true;
      }
    }
    return false;
  };
  for (;;) {
    if (budget.steps-- == 0) {
      budget.steps = 0;
      ::levin::detail::fail(
          ::levin::detail::concat("[regex] the pattern \"", shown(pattern_), "\" needs too many steps"));
    }
    LEVIN_CHECK(stack.size() < 1'000'000, "[regex] the pattern \"", shown(pattern_), "\" needs too much memory");
    const auto& now = program_[pc];
    bool fine = true;
    switch (now.op) {
      case Op::kMatch:
        return at;
      case Op::kChar:
      case Op::kFold:
      case Op::kSet: {
        fine = at < text.size();
        if (!fine) break;
        const auto [point, bytes] = decode_utf8(text, at);
        fine = now.op == Op::kSet ? sets_[now.a].contains(point)
                                  : (now.op == Op::kChar ? point : fold_case(point)) == now.a;
        at += bytes;
        ++pc;
        break;
      }
      case Op::kSplit:
        stack.push_back({now.b, 0, at, 0});
        pc = now.a;
        break;
      case Op::kJump:
        pc = now.a;
        break;
      case Op::kRun: {
        const auto& set = sets_[now.a];
        const uint32_t most = now.flags & kLazy ? now.b : now.c;
        uint32_t count = 0;
        size_t least = at, end = at;
        for (; count < most && end < text.size(); ++count) {
          if (count == now.b) least = end;
          const auto [point, bytes] = decode_utf8(text, end);
          if (!set.contains(point)) break;
          end += bytes;
        }
        if (count == now.b) least = end;
        budget.steps -= std::min<uint64_t>(budget.steps, count / 8);
        fine = count >= now.b;
        if (!fine) break;
        if (now.flags & kLazy) {
          stack.push_back({pc, 3, end, count});
        } else if (!(now.flags & kPossessive) && end > least) {
          stack.push_back({pc, 1, end, least});
        }
        at = end;
        ++pc;
        break;
      }
      case Op::kAssert:
        fine = asserted(static_cast<RegexNode::Assert>(now.a), text, at);
        ++pc;
        break;
      case Op::kLook: {
        bool found = false;
        if (now.flags & kBehind) {
          size_t from = at;
          for (size_t i = 0; i <= kMaxBehind && !found; ++i) {
            found = run(text, pc + 1, from, at, budget, depth + 1) != kNoMatch;
            if (from == 0) break;
            from = step_back(text, from);
          }
        } else {
          found = run(text, pc + 1, at, 0, budget, depth + 1) != kNoMatch;
        }
        fine = found != static_cast<bool>(now.flags & kNegative);
        pc = now.a;
        break;
      }
      case Op::kAtomic: {
        const auto end = run(text, pc + 1, at, must_end, budget, depth + 1);
        fine = end != kNoMatch;
        at = end;
        pc = now.a;
        break;
      }
      case Op::kMark:
        stack.push_back({now.a, 2, marks[now.a], 0});
        marks[now.a] = at;
        ++pc;
        break;
      case Op::kAgain:
        pc = marks[now.a] == at ? now.b : pc + 1;
        break;
      case Op::kAt:
        fine = at == must_end;
        ++pc;
        break;
    }
    if (!fine && !back()) return kNoMatch;
  }
}

bool Regex::find(std::string_view text, size_t from, size_t& begin, size_t& end, Budget& budget) const {
  for (begin = from;; begin += utf8_length(text[begin])) {
    end = run(text, 0, begin, 0, budget, 0);
    if (end != kNoMatch) return true;
    if (begin >= text.size()) return false;
  }
}

}  // namespace levin::text::detail
