#include "levin/optim/clip.h"

#include "fixtures.h"

namespace levin::optim {
namespace {

using namespace testing;

TEST(Clip, NormEqualsTorch) {
  for (const auto& test : fixture("clip")) {
    Problem problem(test.at("dtype") == "float32" ? at::kFloat : at::kDouble);
    problem.set_grads(1);
    const double norm_type =
        test.at("norm_type").is_string() ? std::numeric_limits<double>::infinity() : test.at("norm_type").get<double>();
    const double tolerance = problem.dtype == at::kFloat ? 1e-6 : 1e-12;
    const auto total = clip_grad_norm(problem.all, test.at("max_norm"), norm_type);
    EXPECT_NEAR(total.item<double>(), test.at("total").get<double>(), tolerance * test.at("total").get<double>());
    for (size_t k = 0; k < problem.all.size(); ++k)
      if (!test.at("grads")[k].is_null())
        expect_near(problem.all[k].grad(), test.at("grads")[k], tolerance, test.dump().substr(0, 60));
  }
}

TEST(Clip, CountsATiedParameterOnceAndPassesOverTheRest) {
  auto w = torch::ones({4}).requires_grad_();
  auto empty = torch::ones({0}).requires_grad_();
  auto none = torch::ones({3}).requires_grad_();
  w.mutable_grad() = torch::full({4}, 2.0);
  empty.mutable_grad() = torch::ones({0});
  const std::vector<at::Tensor> params{w, empty, none, w};
  EXPECT_FLOAT_EQ(clip_grad_norm(params, 1.0).item<float>(), 4);
  EXPECT_NEAR(grad_norm(params).item<float>(), 1, 1e-5);
  EXPECT_EQ(clip_grad_norm(std::vector<at::Tensor>{none}, 1.0).item<float>(), 0);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_NEAR(clip_grad_norm(params, 10.0, infinity).item<float>(), 0.5, 1e-5);
}

TEST(Clip, MixesDtypes) {
  auto a = torch::ones({2}).requires_grad_();
  auto b = torch::ones({2}, at::kDouble).requires_grad_();
  a.mutable_grad() = torch::full({2}, 3.0);
  b.mutable_grad() = torch::full({2}, 4.0, at::kDouble);
  const std::vector<at::Tensor> params{a, b};
  EXPECT_NEAR(clip_grad_norm(params, 1.0).item<double>(), std::sqrt(50.0), 1e-6);
  EXPECT_NEAR(b.grad()[0].item<double>(), 4 / std::sqrt(50.0), 1e-6);
}

TEST(Clip, ValueClampsInPlace) {
  auto flat = torch::tensor({-3.0f, -0.5f, 0.5f, 3.0f});
  auto w = torch::zeros({4}).requires_grad_();
  w.mutable_grad() = flat;
  clip_grad_value(std::vector<at::Tensor>{w}, 1);
  EXPECT_TRUE(torch::equal(flat, torch::tensor({-1.0f, -0.5f, 0.5f, 1.0f})));
}

TEST(Clip, NonFiniteOnDemand) {
  auto w = torch::zeros({2}).requires_grad_();
  w.mutable_grad() = torch::tensor({1.0f, std::numeric_limits<float>::infinity()});
  const std::vector<at::Tensor> params{w};
  EXPECT_THAT(error_of([&] { clip_grad_norm(params, 1, 2, true); }),
              ::testing::HasSubstr("the norm of the gradients is inf"));
  EXPECT_EQ(w.grad()[0].item<float>(), 1) << "an error changes nothing";
  EXPECT_TRUE(std::isinf(clip_grad_norm(params, 1).item<float>()));
  EXPECT_THAT(error_of([&] { clip_grad_norm(params, -1); }), ::testing::HasSubstr("max_norm=-1"));
  EXPECT_THAT(error_of([&] { clip_grad_norm(params, 1, 0); }), ::testing::HasSubstr("norm_type=0"));
}

}  // namespace
}  // namespace levin::optim
