#include "levin/loggers/events.h"

#include "levin/io/images/image.h"

namespace levin::detail {
namespace {

// A Summary has one value, which has a tag and one of many contents.
Message summary_of(const Message& value) {
  return Message().message(1, value);
}

}  // namespace

Message version_event(double time) {
  return Message().real(1, time).text(3, "brain.Event:2").message(10, Message().text(1, "levin"));
}

Message summary_event(double time, int64_t step, const Message& summary) {
  return Message().real(1, time).integer(2, step).message(5, summary);
}

Message scalar_summary(const std::string& tag, double value) {
  return summary_of(Message().text(1, tag).kept_real32(2, static_cast<float>(value)));
}

Message histogram_summary(const std::string& tag, const Histogram& histogram) {
  Message histo;
  histo.real(1, histogram.min).real(2, histogram.max).real(3, histogram.count);
  histo.real(4, histogram.sum).real(5, histogram.sum_squares);
  histo.reals(6, histogram.limits).reals(7, histogram.counts);
  return summary_of(Message().text(1, tag).message(5, histo));
}

Message image_summary(const std::string& tag, const at::Tensor& pixels) {
  Message image;
  image.integer(1, pixels.size(0)).integer(2, pixels.size(1)).integer(3, pixels.size(2));
  image.text(4, encode_image(pixels.permute({2, 0, 1})));
  return summary_of(Message().text(1, tag).message(4, image));
}

Message text_summary(const std::string& tag, const std::string& text) {
  constexpr int kString = 7;
  const auto shape = Message().message(2, Message().integer(1, 1));
  const auto tensor = Message().integer(1, kString).message(2, shape).kept_text(8, text);
  const auto plugin = Message().message(1, Message().text(1, "text"));
  return summary_of(Message().text(1, tag + "/text_summary").message(8, tensor).message(9, plugin));
}

}  // namespace levin::detail
