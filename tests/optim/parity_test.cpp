// The numbers of torch.optim, step by step, and bit-equal continuation from a saved state.
#include "make_optimizer.h"

namespace levin::optim {
namespace {

using namespace testing;

class Parity : public ::testing::TestWithParam<size_t> {
 protected:
  static const Json& cases() {
    static const Json all = fixture("optimizers");
    return all;
  }
  const Json& test() const { return cases().at(GetParam()); }
  at::ScalarType dtype() const { return test().at("dtype") == "float32" ? at::kFloat : at::kDouble; }
  double tolerance() const { return dtype() == at::kFloat ? 1e-6 : 1e-12; }
  std::string label() const { return test().at("optimizer").get<std::string>() + " " + test().at("options").dump(); }
};

TEST_P(Parity, EqualsTorch) {
  Problem problem(dtype());
  auto optimizer = make_optimizer(test(), problem.groups);
  for (int step = 1; step <= 10; ++step) {
    problem.set_grads(step);
    optimizer.step();
    const auto snapshot = test().at("snapshots").find(std::to_string(step));
    if (snapshot == test().at("snapshots").end()) continue;
    for (size_t k = 0; k < problem.all.size(); ++k)
      expect_near(problem.all[k], snapshot->at(k), tolerance(),
                  label() + " step " + std::to_string(step) + " parameter " + std::to_string(k));
  }
  // The state has torch's names and values.
  const auto state = optimizer.state_dict();
  const auto& mine = state.at("state").to_dict();
  ASSERT_EQ(mine.size(), test().at("state").size()) << label();
  for (const auto& [index, theirs] : test().at("state").items()) {
    const auto& of_param = mine.at(index).to_dict();
    ASSERT_EQ(of_param.size(), theirs.size()) << label() << " parameter " << index;
    for (const auto& [name, sum] : theirs.items())
      EXPECT_NEAR(of_param.at(name).to_tensor().to(at::kDouble).sum().item<double>(), sum.get<double>(),
                  tolerance() * 30)
          << label() << " " << name;
  }
}

TEST_P(Parity, ContinuesBitEqualFromSavedState) {
  Problem problem(dtype());
  auto optimizer = make_optimizer(test(), problem.groups);
  Problem other(dtype());
  for (int step = 1; step <= 10; ++step) {
    if (step == 5) {
      for (size_t k = 0; k < problem.all.size(); ++k) other.all[k].data().copy_(problem.all[k].data());
      auto resumed = make_optimizer(test(), other.groups);
      // State that is there already must give way, too.
      other.set_grads(3);
      auto before = optimizer.state_dict();
      resumed.load_state_dict(before);
      for (int rest = 5; rest <= 10; ++rest) {
        other.set_grads(rest);
        resumed.step();
      }
    }
    problem.set_grads(step);
    optimizer.step();
  }
  for (size_t k = 0; k < problem.all.size(); ++k)
    EXPECT_TRUE(torch::equal(problem.all[k], other.all[k])) << label() << " parameter " << k;
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Parity, ::testing::Range<size_t>(0, 44));

TEST(ParityFixture, IsWhole) {
  EXPECT_EQ(fixture("optimizers").size(), 44u);
}

}  // namespace
}  // namespace levin::optim
