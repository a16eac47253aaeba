#include "levin/nn/unit.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/error_of.h"

namespace levin {
namespace {

namespace tnn = torch::nn;
using testing::error_of;

struct BlockImpl : tnn::Cloneable<BlockImpl> {
  explicit BlockImpl(int64_t n) : size(n) { reset(); }
  void reset() override { fc = register_module("fc", tnn::Linear(size, size)); }
  Tensor forward(const Tensor& x) { return fc(x).relu(); }
  int64_t size;
  tnn::Linear fc = nullptr;
};
LEVIN_MODULE(Block);

struct ValueImpl : tnn::Module {
  Tensor forward(Tensor x) { return x + 1; }
};
LEVIN_MODULE(Value);

struct Out {
  Tensor y;
  std::optional<Tensor> extra;
};
struct DefaultsImpl : tnn::Module {
  Out forward(const Tensor& x, const std::optional<Tensor>& mask = {}, int64_t scale = 2) {
    return {mask ? x * *mask * scale : x * scale, mask};
  }
};
LEVIN_MODULE(Defaults);

struct ConstImpl : tnn::Module {
  Tensor forward(const Tensor& x, double add = 1) const { return x + add; }
};
LEVIN_MODULE(Const);

struct OverloadedImpl : tnn::Module {
  Tensor forward(const Tensor& x) { return x * 2; }
  Tensor forward(const Tensor& x, const Tensor& y) { return x + y; }
};
LEVIN_MODULE(Overloaded);

struct TemplatedImpl : tnn::Module {
  template <class T>
  T forward(const T& x) {
    return x;
  }
};
LEVIN_MODULE(Templated);

struct VoidImpl : tnn::Module {
  void forward(Tensor& inout, int& count) {
    inout = inout + 1;
    ++count;
  }
};
LEVIN_MODULE(Void);

struct ReferenceImpl : tnn::Module {
  const Tensor& forward() { return kept; }
  Tensor kept = torch::ones({2});
};
LEVIN_MODULE(Reference);

struct Pair {
  Tensor sum, branch;
};
struct OpenImpl : tnn::Module {
  Tensor forward(const Tensor& x) { return open({x, {}}, 2).branch; }
  Pair open(Pair in, int64_t scale) { return {in.branch.defined() ? in.sum + in.branch : in.sum, in.sum * scale}; }
};
LEVIN_MODULE(Open);

struct MoveOnlyImpl : tnn::Module {
  Tensor forward(std::unique_ptr<Tensor> x) { return *x; }
};
LEVIN_MODULE(MoveOnly);

struct VirtualImpl : tnn::Module {
  virtual Tensor forward(const Tensor& x) { return x; }
};
LEVIN_MODULE(Virtual);

struct OpaqueResult {
  explicit OpaqueResult(Tensor t) : tensor(std::move(t)) {}
  Tensor tensor;
};
struct OpaqueImpl : tnn::Module {
  OpaqueResult forward(const Tensor& x) { return OpaqueResult(x); }
};
LEVIN_MODULE(Opaque);

struct BusyNamesImpl : tnn::Module {
  Tensor forward(const Tensor& x) { return run(x); }
  Tensor run(const Tensor& x) { return x * plain; }
  int plain = 2, phase = 3, module = 4, order = 5, unit = 6;
  struct Base {};
};
LEVIN_MODULE(BusyNames);

/// Writes down when it is entered and left.
struct Trace : Interceptor {
  Trace(std::string n, std::vector<std::string>& l) : name(std::move(n)), log(l) {}
  void around(Call& call) override {
    struct Scope {
      Trace& trace;
      explicit Scope(Trace& t, Phase phase) : trace(t) {
        trace.log.push_back((phase == Phase::kRecompute ? "again " : "") + trace.name);
      }
      ~Scope() { trace.log.push_back("/" + trace.name); }
    } scope(*this, call.phase());
    call.proceed();
  }
  std::string name;
  std::vector<std::string>& log;
};

struct Count : Interceptor {
  void around(Call& call) override {
    ++count;
    call.proceed();
  }
  int count = 0;
};

struct Lambda : Interceptor {
  explicit Lambda(std::function<void(Call&)> g) : f(std::move(g)) {}
  void around(Call& call) override { f(call); }
  std::function<void(Call&)> f;
};

std::shared_ptr<Interceptor> lambda(std::function<void(Call&)> f) {
  return std::make_shared<Lambda>(std::move(f));
}

template <class M>
Attachment count(M& module, const std::shared_ptr<Count>& counter) {
  return module->attach(counter, Order::kProfiler);
}

TEST(Unit, EveryWayToCallIsIntercepted) {
  auto counter = std::make_shared<Count>();
  Block block(4);
  const auto attached = count(block, counter);
  const auto x = torch::ones({2, 4});
  block(x);
  block->forward(x);
  EXPECT_EQ(counter->count, 2);
  tnn::Sequential sequential(block, tnn::ReLU());
  sequential->forward(x);
  EXPECT_EQ(counter->count, 3);
  tnn::AnyModule any(block);
  any.forward(x);
  EXPECT_EQ(counter->count, 4);
  EXPECT_EQ(any.get<Block>().ptr(), block.ptr());
  tnn::ModuleList list(block);
  list[0]->as<Block>()->forward(x);
  EXPECT_EQ(counter->count, 5);
  struct RootImpl : tnn::Module {
    explicit RootImpl(Block b) { inner = register_module("inner", std::move(b)); }
    Block inner = nullptr;
  } root(block);
  root.inner(x);
  EXPECT_EQ(counter->count, 6);
  const Block& constant = block;
  constant(x);
  EXPECT_EQ(counter->count, 7);
  // The Impl's own type knows nothing of interceptors: documented, and kept an honest fact here.
  list[0]->as<BlockImpl>()->forward(x);
  EXPECT_EQ(counter->count, 7);
}

TEST(Unit, AVirtualForwardIsInterceptedThroughTheImplToo) {
  auto counter = std::make_shared<Count>();
  Virtual module;
  const auto attached = count(module, counter);
  static_cast<VirtualImpl&>(*module).forward(torch::ones({1}));
  EXPECT_EQ(counter->count, 1);
}

TEST(Unit, DefaultArgumentsStayAndAreIntercepted) {
  auto counter = std::make_shared<Count>();
  Defaults module;
  const auto attached = count(module, counter);
  const auto x = torch::ones({2});
  EXPECT_EQ(module(x).y.sum().item<float>(), 4);
  EXPECT_EQ(module->forward(x, x).y.sum().item<float>(), 4);
  EXPECT_EQ(module->forward(x, {}, 5).y.sum().item<float>(), 10);
  EXPECT_EQ(counter->count, 3);
  tnn::AnyModule any(module);  // AnyModule needs all of them, as it does for a torch module without its macro
  EXPECT_EQ(any.forward<Out>(x, std::optional<Tensor>(), int64_t{3}).y.sum().item<float>(), 6);
  EXPECT_EQ(counter->count, 4);
}

TEST(Unit, OtherKindsOfForward) {
  auto counter = std::make_shared<Count>();
  const auto x = torch::ones({2});

  Const constant;
  const auto a = count(constant, counter);
  const Const& view = constant;
  view->forward(x);
  view(x, 2.0);
  tnn::Sequential(constant)->push_back(tnn::ReLU());
  EXPECT_EQ(counter->count, 2);

  Overloaded overloaded;
  const auto b = count(overloaded, counter);
  EXPECT_EQ(overloaded(x).sum().item<float>(), 4);
  EXPECT_EQ(overloaded->forward(x, x).sum().item<float>(), 4);
  EXPECT_EQ(counter->count, 4);

  Templated templated;
  const auto c = count(templated, counter);
  EXPECT_EQ(templated(3), 3);
  EXPECT_EQ(templated->forward(std::string("text")), "text");
  EXPECT_EQ(counter->count, 6);

  Void nothing;
  const auto d = count(nothing, counter);
  auto inout = torch::zeros({1});
  int calls = 0;
  nothing(inout, calls);
  EXPECT_EQ(inout.item<float>(), 1);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(counter->count, 7);

  Reference reference;
  const auto e = count(reference, counter);
  EXPECT_EQ(&reference->forward(), &reference->kept);
  EXPECT_EQ(counter->count, 8);

  MoveOnly move_only;
  const auto f = count(move_only, counter);
  EXPECT_TRUE(move_only(std::make_unique<Tensor>(x)).is_same(x));
  EXPECT_EQ(counter->count, 9);

  static_assert(std::invocable<Block&, Tensor>);
  static_assert(!std::invocable<Block&, Tensor, int>);
  static_assert(!std::invocable<Overloaded&, int, int, int>);
}

TEST(Unit, AnotherMethodIsInterceptedLikeForward) {
  Open unit;
  const auto x = torch::ones({2}), y = torch::full({2}, 5.0);
  EXPECT_TRUE(unit.call<&OpenImpl::open>(Pair{x, y}, 3).sum.equal(x + y));
  std::function<void()> again;
  int inputs = 0, outputs = 0, runs = 0;
  const auto outer = unit->attach(lambda([&](Call& call) {
                                    call.each_input([&](Tensor& input) { ++inputs, input = input * 2; });
                                    again = call.replay();
                                    call.proceed();
                                    call.each_output([&](Tensor& output) { ++outputs, output = output + 1; });
                                  }),
                                  Order::kCheckpointing);
  const auto inner = unit->attach(lambda([&](Call& call) {
                                    ++runs;
                                    call.proceed();
                                  }),
                                  Order::kInnermost);
  const auto result = unit.call<&OpenImpl::open>(Pair{x, y}, 3);
  EXPECT_TRUE(result.sum.equal(2 * (x + y) + 1));
  EXPECT_TRUE(result.branch.equal(2 * x * 3 + 1));
  EXPECT_EQ(inputs, 2);
  EXPECT_EQ(outputs, 2);
  again();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(unit(x).equal(2 * x * 2 + 1));  // forward is what it was
  EXPECT_TRUE(unit->has_interceptor(Order::kCheckpointing));
  EXPECT_FALSE(unit->has_interceptor(Order::kSharding));
  EXPECT_FALSE(Open()->has_interceptor(Order::kCheckpointing));
}

TEST(Unit, MembersOfTheUsersClassStayReachable) {
  BusyNames busy;
  EXPECT_EQ(busy->run(torch::ones({1})).item<float>(), 2);
  EXPECT_EQ(busy->plain + busy->phase + busy->module + busy->order + busy->unit, 20);
}

TEST(Unit, OrderIsByNumberThenByAttachment) {
  std::vector<std::string> log;
  Value module;
  const auto attach = [&](const char* name, Order order) {
    return module->attach(std::make_shared<Trace>(name, log), order);
  };
  const auto c = attach("checkpoint", Order::kCheckpointing);
  const auto p = attach("profiler", Order::kProfiler);
  auto s1 = attach("shard1", Order::kSharding);
  const auto s2 = attach("shard2", Order::kSharding);
  module(torch::ones({1}));
  EXPECT_EQ(log, (std::vector<std::string>{"profiler", "shard1", "shard2", "checkpoint", "/checkpoint", "/shard2",
                                           "/shard1", "/profiler"}));
  s1.detach();
  log.clear();
  module(torch::ones({1}));
  EXPECT_EQ(log, (std::vector<std::string>{"profiler", "shard2", "checkpoint", "/checkpoint", "/shard2", "/profiler"}));
}

TEST(Unit, ScopesCloseWhenForwardThrows) {
  std::vector<std::string> log;
  Block block(4);
  const auto attached = block->attach(std::make_shared<Trace>("trace", log), Order::kSharding);
  EXPECT_THROW(block(torch::ones({2, 3})), c10::Error);
  EXPECT_EQ(log, (std::vector<std::string>{"trace", "/trace"}));
}

TEST(Unit, InputsAndOutputsAreSeenAndReplaced) {
  Defaults module;
  int inputs = 0;
  const auto attached = module->attach(lambda([&](Call& call) {
                                         call.each_input([&](Tensor& t) {
                                           t = t * 10;
                                           ++inputs;
                                         });
                                         call.proceed();
                                         call.each_output([](Tensor& t) { t = t + 1; });
                                       }),
                                       Order::kSharding);
  const auto x = torch::ones({1}), mask = torch::ones({1});
  const auto out = module(x, mask);
  EXPECT_EQ(inputs, 2);
  EXPECT_EQ(out.y.item<float>(), 201);
  EXPECT_EQ(out.extra->item<float>(), 11);
  EXPECT_EQ(x.item<float>(), 1) << "the caller's tensors are not touched";
  inputs = 0;
  module(x);
  EXPECT_EQ(inputs, 1) << "an absent tensor is not visited";

  Overloaded overloaded;
  const auto second = overloaded->attach(lambda([](Call& call) {
                                           call.each_input([](Tensor& t) { t = t * 10; });
                                           call.proceed();
                                         }),
                                         Order::kSharding);
  auto variable = torch::ones({1});
  EXPECT_EQ(overloaded(variable, variable).item<float>(), 20);
  EXPECT_EQ(variable.item<float>(), 1);
}

TEST(Unit, ReplayRunsTheRestAgainAndMarksNestedUnits) {
  struct OuterImpl : tnn::Module {
    OuterImpl() { inner = register_module("inner", Value()); }
    Tensor forward(const Tensor& x, c10::IntArrayRef shape) { return inner(x).reshape(shape); }
    Value inner = nullptr;
  };
  LEVIN_MODULE(Outer);
  std::vector<std::string> log;
  std::function<void()> again;
  {
    Outer outer;
    const auto first = outer->attach(std::make_shared<Trace>("shard", log), Order::kSharding);
    const auto second = outer->attach(lambda([&](Call& call) {
                                        again = call.replay();
                                        call.proceed();
                                      }),
                                      Order::kCheckpointing);
    static auto inside = outer->attach(std::make_shared<Trace>("innermost", log), Order::kInnermost);
    static auto nested = outer->inner->attach(std::make_shared<Trace>("nested", log), Order::kSharding);
    std::vector<int64_t> shape{3, 1};
    outer(torch::ones({3}), shape);
    shape = {7, 7};
  }
  EXPECT_EQ(log, (std::vector<std::string>{"shard", "innermost", "nested", "/nested", "/innermost", "/shard"}));
  for (int i = 0; i < 2; ++i) {
    log.clear();
    again();
    EXPECT_EQ(log, (std::vector<std::string>{"again innermost", "again nested", "/nested", "/innermost"}));
  }
}

TEST(Unit, MistakesOfInterceptorsAreErrors) {
  Value module;
  const auto x = torch::ones({1});
  const auto with = [&](std::function<void(Call&)> f) {
    const auto attached = module->attach(lambda(std::move(f)), Order::kSharding);
    return error_of([&] { module(x); });
  };
  EXPECT_THAT(with([](Call&) {}), ::testing::HasSubstr("returned without Call::proceed()"));
  EXPECT_THAT(with([](Call& c) { c.proceed(), c.proceed(); }), ::testing::HasSubstr("ran the forward twice"));
  EXPECT_THAT(with([](Call& c) { c.each_output([](Tensor&) {}); }), ::testing::HasSubstr("before the forward has run"));
  EXPECT_THAT(with([](Call& c) { c.proceed(), c.each_input([](Tensor&) {}); }),
              ::testing::HasSubstr("after the forward has run"));
  EXPECT_EQ(module->num_interceptors(), 0u);

  MoveOnly move_only;
  const auto a = move_only->attach(lambda([](Call& c) { c.replay(); }), Order::kCheckpointing);
  EXPECT_THAT(error_of([&] { move_only(std::make_unique<Tensor>(x)); }), ::testing::HasSubstr("cannot be copied"));
  Opaque opaque;
  const auto b = opaque->attach(lambda([](Call& c) { c.proceed(), c.each_output([](Tensor&) {}); }), Order::kSharding);
  EXPECT_THAT(error_of([&] { opaque(x); }), ::testing::HasSubstr("cannot be seen"));
  Block empty = nullptr;
  EXPECT_THAT(error_of([&] { empty(x); }), ::testing::HasSubstr("is empty; assign it"));
}

TEST(Unit, AttachmentsOutliveUnitsAndChangeDuringACall) {
  Attachment kept;
  auto counter = std::make_shared<Count>();
  {
    Value module;
    kept = module->attach(counter, Order::kProfiler);
    EXPECT_TRUE(kept);
  }
  EXPECT_FALSE(kept);
  kept.detach();

  Value module;
  Attachment self;
  self = module->attach(lambda([&](Call& call) {
                          self.detach();
                          call.proceed();
                          kept = call.unit().attach(counter, Order::kProfiler);
                        }),
                        Order::kProfiler);
  module(torch::ones({1}));
  EXPECT_EQ(counter->count, 0);
  module(torch::ones({1}));
  EXPECT_EQ(counter->count, 1);
}

TEST(Unit, IsFoundAndNamedAsTheUsersClass) {
  Block block(4);
  tnn::Module& module = *block;
  EXPECT_NE(dynamic_cast<Unit*>(&module), nullptr);
  EXPECT_EQ(dynamic_cast<Unit*>(static_cast<tnn::Module*>(block->fc.get())), nullptr);
  EXPECT_EQ(class_name(module), "Block");
  EXPECT_EQ(class_name(*block->fc), "Linear");
  std::ostringstream text;
  text << block;
  EXPECT_THAT(text.str(), ::testing::HasSubstr("BlockImpl(\n  (fc): torch::nn::Linear(in_features=4"));
}

TEST(Unit, CloneIsAUnitWithItsOwnTensorsAndNoInterceptors) {
  Block block(4);
  auto counter = std::make_shared<Count>();
  const auto attached = count(block, counter);
  auto copy = std::dynamic_pointer_cast<Block::ContainedType>(block->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_TRUE(torch::equal(copy->fc->weight, block->fc->weight));
  EXPECT_FALSE(copy->fc->weight.is_same(block->fc->weight));
  EXPECT_NE(copy->fc->weight.data_ptr(), block->fc->weight.data_ptr());
  EXPECT_TRUE(copy->parameters()[0].is_same(copy->fc->weight));
  EXPECT_EQ(copy->num_interceptors(), 0u);
  EXPECT_EQ(block->num_interceptors(), 1u);
  Value plain;
  EXPECT_THAT(error_of([&] { plain->clone(); }), ::testing::HasSubstr("derive it from torch::nn::Cloneable<"));
  tnn::Sequential sequential(Block(4), Block(4));
  EXPECT_NE(dynamic_cast<Unit*>(std::dynamic_pointer_cast<tnn::SequentialImpl>(sequential->clone())->ptr(1).get()),
            nullptr);
}

}  // namespace
}  // namespace levin
