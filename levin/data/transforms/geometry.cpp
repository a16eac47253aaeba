#include "levin/data/transforms/geometry.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>

#include "levin/core/error.h"
#include "levin/data/transforms/pixels.h"
#include "levin/data/transforms/warp.h"

namespace levin::transforms {
namespace {

double radians(double degrees) {
  return degrees * (std::numbers::pi / 180);
}

// The way back: from a place in the new image to one in the old.
std::array<double, 6> inverse_affine(const Point& center, double angle, const Point& translate, double scale,
                                     const Point& shear) {
  const double turn = radians(angle), shear_x = radians(shear.x), shear_y = radians(shear.y);
  const double a = std::cos(turn - shear_y) / std::cos(shear_y), b = -(a * std::tan(shear_x) + std::sin(turn));
  const double c = std::sin(turn - shear_y) / std::cos(shear_y), d = std::cos(turn) - c * std::tan(shear_x);
  const double x = center.x + translate.x, y = center.y + translate.y;
  std::array<double, 6> m = {d / scale, -b / scale, 0, -c / scale, a / scale, 0};
  m[2] = center.x - m[0] * x - m[1] * y;
  m[5] = center.y - m[3] * x - m[4] * y;
  return m;
}

// As Python rounds: the decimal number nearest to the exact binary one.
double round_to_15(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.15f", value);
  return std::strtod(text.data(), nullptr);
}

void check_warp(const Tensor& image, const Fill& fill, Interpolation interpolation, const char* operation) {
  detail::check_image(image, operation);
  LEVIN_CHECK(fill.values.size() <= 1 || static_cast<int64_t>(fill.values.size()) == image.size(0), "[", operation,
              "] fill has ", fill.values.size(), " values, the image ", image.size(0), " channels");
  const bool known = interpolation == Interpolation::kNearest || interpolation == Interpolation::kBilinear ||
                     (interpolation == Interpolation::kBicubic && detail::is_bytes(image));
  LEVIN_CHECK(known, "[", operation, "] interpolation may be nearest or bilinear, and bicubic for images of uint8");
}

Tensor warp_bytes(const Tensor& image, int64_t height, int64_t width, const detail::WarpMap& map,
                  Interpolation interpolation, const Fill& fill, const char* operation) {
  const bool alpha = interpolation != Interpolation::kNearest && detail::has_alpha(image.size(0));
  const detail::Pixels in(alpha ? detail::with_alpha_in(image, operation) : image, operation);
  std::vector<uint8_t> blank(static_cast<size_t>(in.channels));
  for (size_t c = 0; c < blank.size(); ++c)
    blank[c] = static_cast<uint8_t>(std::clamp(fill.of(static_cast<int64_t>(c)), 0.0, 255.0));
  Tensor result = detail::new_pixels(in.channels, height, width);
  detail::warp(in, result.mutable_data_ptr<uint8_t>(), height, width, map, interpolation, blank.data());
  if (alpha) detail::take_alpha_out(result);
  return result;
}

// A floating point image by torch's grid_sample; `grid` [1, H, W, 2] is in halves of the image from its middle.
Tensor sample_float(const Tensor& image, const Tensor& grid, Interpolation interpolation, const Fill& fill) {
  const bool nearest = interpolation == Interpolation::kNearest;
  const Tensor with_mask = at::cat({image, at::ones({1, image.size(1), image.size(2)}, image.options())}).unsqueeze(0);
  const Tensor sampled = at::grid_sampler_2d(with_mask, grid, nearest ? 1 : 0, 0, false).squeeze(0);
  const Tensor mask = sampled.slice(0, -1);
  Tensor result = sampled.slice(0, 0, -1);
  Tensor blank = at::empty({image.size(0), 1, 1}, at::kDouble);
  for (int64_t c = 0; c < image.size(0); ++c) blank.mutable_data_ptr<double>()[c] = fill.of(c);
  blank = blank.to(image.scalar_type());
  return nearest ? at::where(mask < 0.5, blank, result) : result.sub(blank).mul_(mask).add_(blank);
}

Tensor base_grid(int64_t height, int64_t width, double x_from, double y_from, const at::TensorOptions& options) {
  Tensor grid = at::ones({1, height, width, 3}, options);
  const auto line = [&](double from, int64_t count) {
    return at::linspace(from, from + static_cast<double>(count - 1), count, options);
  };
  grid.select(3, 0).copy_(line(x_from, width));
  grid.select(3, 1).copy_(line(y_from, height).unsqueeze(1));
  return grid.view({1, height * width, 3});
}

Tensor affine_float(const Tensor& image, const std::array<double, 6>& m, int64_t height, int64_t width,
                    Interpolation interpolation, const Fill& fill) {
  const Tensor half =
      at::tensor({0.5 * static_cast<double>(image.size(2)), 0.5 * static_cast<double>(image.size(1))}, image.options());
  const Tensor theta = at::tensor(at::ArrayRef<double>(m.data(), 6), image.options()).view({1, 2, 3}).transpose(1, 2);
  const Tensor grid = base_grid(height, width, (1.0 - static_cast<double>(width)) * 0.5,
                                (1.0 - static_cast<double>(height)) * 0.5, image.options())
                          .bmm(theta.div(half))
                          .view({1, height, width, 2});
  return sample_float(image, grid, interpolation, fill);
}

// In halves of the image from its middle, as floating point images want it.
Point from_middle(const Tensor& image, const std::optional<Point>& center) {
  if (!center) return {};
  return {center->x - 0.5 * static_cast<double>(image.size(2)), center->y - 0.5 * static_cast<double>(image.size(1))};
}

Size turned_size(const std::array<double, 6>& m, int64_t height, int64_t width) {
  const float half_w = 0.5f * static_cast<float>(width), half_h = 0.5f * static_cast<float>(height);
  float low_x = INFINITY, high_x = -INFINITY, low_y = INFINITY, high_y = -INFINITY;
  for (const float sx : {-half_w, half_w})
    for (const float sy : {-half_h, half_h}) {
      const float x = static_cast<float>(m[0]) * sx + static_cast<float>(m[1]) * sy + static_cast<float>(m[2]);
      const float y = static_cast<float>(m[3]) * sx + static_cast<float>(m[4]) * sy + static_cast<float>(m[5]);
      low_x = std::min(low_x, x), high_x = std::max(high_x, x), low_y = std::min(low_y, y),
      high_y = std::max(high_y, y);
    }
  const auto cut = [](float value) { return std::trunc(value * 1e4f) * 1e-4f; };
  return {static_cast<int64_t>(std::ceil(cut(high_y + half_h)) - std::floor(cut(low_y + half_h))),
          static_cast<int64_t>(std::ceil(cut(high_x + half_w)) - std::floor(cut(low_x + half_w)))};
}

// Pillow's Image.rotate.
Tensor rotate_bytes(const Tensor& image, double angle, const RotateOptions& options) {
  int64_t height = image.size(1), width = image.size(2);
  const Point center = options.center.value_or(Point{static_cast<double>(width) / 2, static_cast<double>(height) / 2});
  const double turn = -radians(angle);
  detail::WarpMap map;
  auto& m = map.at;
  m = {round_to_15(std::cos(turn)),  round_to_15(std::sin(turn)), 0,
       round_to_15(-std::sin(turn)), round_to_15(std::cos(turn)), 0};
  const auto moved = [&m](double x, double y) { return Point{m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5]}; };
  const Point middle = moved(-center.x, -center.y);
  m[2] = middle.x + center.x;
  m[5] = middle.y + center.y;
  if (options.expand) {
    double low_x = INFINITY, high_x = -INFINITY, low_y = INFINITY, high_y = -INFINITY;
    for (const double x : {0.0, static_cast<double>(width)})
      for (const double y : {0.0, static_cast<double>(height)}) {
        const Point corner = moved(x, y);
        low_x = std::min(low_x, corner.x), high_x = std::max(high_x, corner.x);
        low_y = std::min(low_y, corner.y), high_y = std::max(high_y, corner.y);
      }
    const auto new_width = static_cast<int64_t>(std::ceil(high_x) - std::floor(low_x));
    const auto new_height = static_cast<int64_t>(std::ceil(high_y) - std::floor(low_y));
    const Point corner =
        moved(-static_cast<double>(new_width - width) / 2.0, -static_cast<double>(new_height - height) / 2.0);
    m[2] = corner.x;
    m[5] = corner.y;
    width = new_width;
    height = new_height;
  }
  return warp_bytes(image, height, width, map, options.interpolation, options.fill, "transforms.rotate");
}

// The eight numbers of the map from `to` back to `from`, kept in single precision as torchvision does.
std::array<double, 8> perspective_map(const Corners& from, const Corners& to) {
  Tensor rows = at::zeros({8, 8}, at::kDouble), values = at::empty({8, 1}, at::kDouble);
  auto a = rows.accessor<double, 2>();
  auto b = values.accessor<double, 2>();
  for (int64_t i = 0; i < 4; ++i) {
    const Point &p = to[static_cast<size_t>(i)], &q = from[static_cast<size_t>(i)];
    const std::array<double, 8> x = {p.x, p.y, 1, 0, 0, 0, -q.x * p.x, -q.x * p.y};
    const std::array<double, 8> y = {0, 0, 0, p.x, p.y, 1, -q.y * p.x, -q.y * p.y};
    for (int64_t j = 0; j < 8; ++j) {
      a[2 * i][j] = x[static_cast<size_t>(j)];
      a[2 * i + 1][j] = y[static_cast<size_t>(j)];
    }
    b[2 * i][0] = q.x;
    b[2 * i + 1][0] = q.y;
  }
  const Tensor solved = at::linalg_solve(rows, values);
  std::array<double, 8> result;
  for (int64_t i = 0; i < 8; ++i)
    result[static_cast<size_t>(i)] = static_cast<float>(solved.const_data_ptr<double>()[i]);
  return result;
}

}  // namespace

Tensor affine(const Tensor& image, const AffineOptions& options) {
  check_warp(image, options.fill, options.interpolation, "transforms.affine");
  LEVIN_CHECK(options.scale > 0, "[transforms.affine] a scale of ", options.scale, " must be above 0");
  const int64_t height = image.size(1), width = image.size(2);
  if (!detail::is_bytes(image))
    return affine_float(image,
                        inverse_affine(from_middle(image, options.center), options.angle, options.translate,
                                       options.scale, options.shear),
                        height, width, options.interpolation, options.fill);
  const Point center =
      options.center.value_or(Point{static_cast<double>(width) * 0.5, static_cast<double>(height) * 0.5});
  const auto m = inverse_affine(center, options.angle, options.translate, options.scale, options.shear);
  detail::WarpMap map;
  std::copy(m.begin(), m.end(), map.at.begin());
  return warp_bytes(image, height, width, map, options.interpolation, options.fill, "transforms.affine");
}

Tensor rotate(const Tensor& image, double angle, const RotateOptions& options) {
  check_warp(image, options.fill, options.interpolation, "transforms.rotate");
  angle = std::fmod(angle, 360);
  if (angle < 0) angle += 360;
  const int64_t height = image.size(1), width = image.size(2);
  if (!options.center) {
    if (angle == 0) return image;
    if (angle == 180) return image.rot90(2, {1, 2});
    if ((angle == 90 || angle == 270) && (options.expand || height == width))
      return image.rot90(angle == 90 ? 1 : 3, {1, 2});
  }
  if (detail::is_bytes(image)) return rotate_bytes(image, angle, options);
  const auto m = inverse_affine(from_middle(image, options.center), -angle, {}, 1, {});
  const Size to = options.expand ? turned_size(m, height, width) : Size(height, width);
  return affine_float(image, m, to.height, to.width, options.interpolation, options.fill);
}

Tensor perspective(const Tensor& image, const Corners& from, const Corners& to, Interpolation interpolation,
                   const Fill& fill) {
  check_warp(image, fill, interpolation, "transforms.perspective");
  const int64_t height = image.size(1), width = image.size(2);
  const detail::WarpMap map{perspective_map(from, to), false};
  if (detail::is_bytes(image))
    return warp_bytes(image, height, width, map, interpolation, fill, "transforms.perspective");
  const auto options = image.options();
  const auto& m = map.at;
  const Tensor half = at::tensor({0.5 * static_cast<double>(width), 0.5 * static_cast<double>(height)}, options);
  const Tensor above = at::tensor({m[0], m[1], m[2], m[3], m[4], m[5]}, options).view({1, 2, 3}).transpose(1, 2);
  const Tensor below = at::tensor({m[6], m[7], 1.0, m[6], m[7], 1.0}, options).view({1, 2, 3}).transpose(1, 2);
  const Tensor base = base_grid(height, width, 0.5, 0.5, options);
  const Tensor grid = base.bmm(above.div(half)).div_(base.bmm(below)).sub_(1).view({1, height, width, 2});
  return sample_float(image, grid, interpolation, fill);
}

Tensor RandomRotation::operator()(const Tensor& image, Random& random) const {
  return rotate(image, random.uniform(degrees.low, degrees.high),
                {.interpolation = interpolation, .expand = expand, .center = center, .fill = fill});
}

Tensor RandomAffine::operator()(const Tensor& image, Random& random) const {
  detail::check_image(image, "transforms.RandomAffine");
  AffineOptions options{.interpolation = interpolation, .fill = fill, .center = center};
  options.angle = random.uniform(degrees.low, degrees.high);
  if (translate) {
    LEVIN_CHECK(translate->x >= 0 && translate->x <= 1 && translate->y >= 0 && translate->y <= 1,
                "[transforms.RandomAffine] translate is a part of the image, between 0 and 1");
    const double x = translate->x * static_cast<double>(image.size(2));
    const double y = translate->y * static_cast<double>(image.size(1));
    options.translate.x = std::nearbyint(random.uniform(-x, x));
    options.translate.y = std::nearbyint(random.uniform(-y, y));
  }
  if (scale) options.scale = random.uniform(scale->low, scale->high);
  if (shear) options.shear.x = random.uniform(shear->low, shear->high);
  if (shear_y) options.shear.y = random.uniform(shear_y->low, shear_y->high);
  return affine(image, options);
}

Tensor RandomPerspective::operator()(const Tensor& image, Random& random) const {
  detail::check_image(image, "transforms.RandomPerspective");
  LEVIN_CHECK(distortion_scale >= 0 && distortion_scale <= 1, "[transforms.RandomPerspective] distortion_scale ",
              distortion_scale, " is not between 0 and 1");
  if (!random.chance(p)) return image;
  const int64_t height = image.size(1), width = image.size(2);
  const auto reach = [&](int64_t side) {
    return static_cast<int64_t>(distortion_scale * static_cast<double>(side / 2)) + 1;
  };
  const int64_t reach_y = reach(height), reach_x = reach(width);
  const auto near = [&](int64_t count) { return static_cast<double>(random.integer(0, count - 1)); };
  const auto far = [&](int64_t side, int64_t count) {
    return static_cast<double>(random.integer(side - count, side - 1));
  };
  Corners to;
  to[0].x = near(reach_x), to[0].y = near(reach_y);
  to[1].x = far(width, reach_x), to[1].y = near(reach_y);
  to[2].x = far(width, reach_x), to[2].y = far(height, reach_y);
  to[3].x = near(reach_x), to[3].y = far(height, reach_y);
  const auto right = static_cast<double>(width - 1), bottom = static_cast<double>(height - 1);
  return perspective(image, {Point{0, 0}, {right, 0}, {right, bottom}, {0, bottom}}, to, interpolation, fill);
}

}  // namespace levin::transforms
