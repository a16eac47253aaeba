#include "levin/io/images/image.h"

#include <atomic>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/weights/safetensors.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;

fs::path image_folder() {
  return fs::path(levin::testing::source_dir()) / "tests/io/fixtures/images";
}

std::string fixture(const std::string& name) {
  return read_file(image_folder() / name);
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Tensor decode(const std::string& file, const ImageOptions& options = {}) {
  return decode_image(bytes_of(file), options);
}

// "no error", or the one line that decoding gives.
std::string image_error(const std::string& file, const ImageOptions& options = {}) {
  const auto line = error_of([&] { decode(file, options); });
  if (line != "no error") {
    EXPECT_TRUE(line.starts_with("[image] ")) << line;
    EXPECT_LT(line.size(), 250u) << line;
  }
  return line;
}

void expect_error(const std::string& file, const std::string& words, const ImageOptions& options = {}) {
  const auto line = image_error(file, options);
  EXPECT_NE(line.find(words), std::string::npos) << line;
}

Tensor crop(const Tensor& image, const ImageRegion& region) {
  return image.slice(1, region.top, region.top + region.height).slice(2, region.left, region.left + region.width);
}

ImageMode mode_named(std::string_view name) {
  return name == "L" ? ImageMode::kGray : name == "RGBA" ? ImageMode::kRgba : ImageMode::kRgb;
}

// How far two images are apart at most; 999 when they are not of one shape.
int64_t distance(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return 999;
  return (a.to(at::kInt) - b.to(at::kInt)).abs().max().item<int64_t>();
}

TEST(Image, GivesPillowsPixels) {
  SafetensorsFile expected(image_folder() / "expected.safetensors");
  int compared = 0;
  for (const auto& entry : expected.entries()) {
    const auto slash = entry.name.find('/');
    const auto name = entry.name.substr(0, slash);
    const auto how = entry.name.substr(slash + 1);
    const auto pixels = expected.read(entry.name).permute({2, 0, 1});
    Tensor got;
    if (how == "cut") {
      const auto file = fixture(name);
      got = decode(file.substr(0, file.size() / 2), {.allow_truncated = true});
    } else if (std::isdigit(how[0])) {
      got = decode(fixture(name), {.at_least = std::stoll(how)});
      got = got.slice(1, std::max<int64_t>(0, got.size(1) - 40)).slice(2, got.size(2) - 30);
    } else {
      got = decode(fixture(name), {.mode = mode_named(how), .apply_exif = name.starts_with("turned")});
    }
    // Versions of libjpeg-turbo smooth the blocks of an unfinished progressive file differently.
    EXPECT_LE(distance(got, pixels), entry.name == "progressive_420.jpg/cut" ? 2 : 0)
        << entry.name << " " << got.sizes() << " " << pixels.sizes();
    ++compared;
  }
  EXPECT_GT(compared, 150);
}

TEST(Image, HeadsSayWhatTheFileIs) {
  const auto info = [](const std::string& name) { return image_info(bytes_of(fixture(name))); };
  const auto palette = info("color3_4.png");
  EXPECT_EQ(palette.format, "png");
  EXPECT_EQ(palette.height, 11);
  EXPECT_EQ(palette.width, 13);
  EXPECT_EQ(palette.channels, 3);
  EXPECT_EQ(palette.bit_depth, 4);
  EXPECT_EQ(info("color4_16.png").channels, 2);
  EXPECT_EQ(info("color4_16.png").bit_depth, 16);
  EXPECT_EQ(info("turned_6.png").orientation, 6);
  const auto grey = info("grey.jpg");
  EXPECT_EQ(grey.format, "jpeg");
  EXPECT_EQ(grey.height, 45);
  EXPECT_EQ(grey.width, 59);
  EXPECT_EQ(grey.channels, 1);
  EXPECT_EQ(info("cmyk.jpg").channels, 3);
  for (int turn = 1; turn <= 8; ++turn) EXPECT_EQ(info(fmt::format("turned_{}.jpg", turn)).orientation, turn);
}

TEST(Image, GivesTheChannelsOfTheFile) {
  const ImageOptions unchanged{.mode = ImageMode::kUnchanged};
  for (const auto& [name, channels] : std::vector<std::pair<std::string, int64_t>>{{"color0_1.png", 1},
                                                                                   {"color0_16.png", 1},
                                                                                   {"color2_8.png", 3},
                                                                                   {"color3_2.png", 3},
                                                                                   {"color4_8.png", 2},
                                                                                   {"color4_16_interlaced.png", 2},
                                                                                   {"color6_16.png", 4},
                                                                                   {"key0_8.png", 1},
                                                                                   {"grey.jpg", 1},
                                                                                   {"cmyk.jpg", 3}}) {
    const auto image = decode(fixture(name), unchanged);
    EXPECT_EQ(image.size(0), channels) << name;
    EXPECT_EQ(decoded_shape(image_info(bytes_of(fixture(name))), unchanged).channels, channels) << name;
  }
  const auto grey_alpha = decode(fixture("color4_8.png"), unchanged);
  const auto rgba = decode(fixture("color4_8.png"), {.mode = ImageMode::kRgba});
  EXPECT_TRUE(torch::equal(grey_alpha, rgba.slice(0, 2)));
}

TEST(Image, LiesInMemoryRowByRow) {
  const auto image = decode(fixture("baseline_420.jpg"));
  EXPECT_EQ(image.sizes(), (std::vector<int64_t>{3, 45, 59}));
  EXPECT_EQ(image.strides(), (std::vector<int64_t>{1, 59 * 3, 3}));
  EXPECT_EQ(image.scalar_type(), at::kByte);
  auto room = torch::full({45, 59, 3}, 7, at::kByte);
  decode_image_into(bytes_of(fixture("baseline_420.jpg")), {room.mutable_data_ptr<uint8_t>(), 45 * 59 * 3});
  EXPECT_TRUE(torch::equal(room.permute({2, 0, 1}), image));
  EXPECT_EQ(error_of([&] {
              decode_image_into(bytes_of(fixture("baseline_420.jpg")), {room.mutable_data_ptr<uint8_t>(), 45 * 59 * 2});
            }),
            "[image] the image has 45 x 59 pixels of 3 bytes, 7965 in all, and there is room for 5310")
      << "a place of the wrong size was taken";
}

// Every region must have the pixels that the whole image has there.
void expect_regions(const std::string& name, int count, const ImageOptions& base = {}) {
  const auto file = fixture(name);
  const auto whole = decode(file, base);
  std::mt19937 chance(11);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(chance);
  };
  for (int i = 0; i < count; ++i) {
    ImageRegion region;
    region.height = draw(1, i % 2 ? whole.size(1) : std::min<int64_t>(5, whole.size(1)));
    region.width = i % 4 == 0 ? whole.size(2) : draw(1, i % 3 ? whole.size(2) : std::min<int64_t>(5, whole.size(2)));
    region.top = draw(0, whole.size(1) - region.height);
    region.left = draw(0, whole.size(2) - region.width);
    auto options = base;
    options.region = region;
    const auto part = decode(file, options);
    ASSERT_EQ(distance(part, crop(whole, region)), 0)
        << name << ": " << region.height << " x " << region.width << " at " << region.top << ", " << region.left;
  }
}

TEST(Image, RegionsOfJpegAreExact) {
  for (const std::string kind : {"baseline", "progressive"}) {
    for (const std::string samples : {"444", "422", "420", "411", "440", "410"}) {
      expect_regions(kind + "_" + samples + ".jpg", 150);
    }
  }
  for (const std::string name : {"large_420", "large_444", "large_progressive"}) expect_regions(name + ".jpg", 100);
  for (const std::string name :
       {"grey", "grey_progressive", "restart", "arithmetic", "adobe_rgb", "cmyk", "ycck", "tiny"}) {
    expect_regions(name + ".jpg", 40);
    expect_regions(name + ".jpg", 20, {.mode = ImageMode::kGray});
    expect_regions(name + ".jpg", 20, {.mode = ImageMode::kRgba});
  }
}

TEST(Image, RegionsOfPngAreExact) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(image_folder())) {
    if (entry.path().extension() != ".png") continue;
    for (const auto mode : {ImageMode::kUnchanged, ImageMode::kGray, ImageMode::kRgb, ImageMode::kRgba}) {
      expect_regions(entry.path().filename(), 12, {.mode = mode});
    }
    ++files;
  }
  EXPECT_GT(files, 20);
}

TEST(Image, RegionsLieInTheUprightImage) {
  for (int turn = 1; turn <= 8; ++turn) expect_regions(fmt::format("turned_{}.jpg", turn), 40, {.apply_exif = true});
  expect_regions("turned_6.png", 40, {.apply_exif = true});
  // Without the option a photograph stays as it is stored.
  EXPECT_EQ(decode(fixture("turned_6.jpg")).size(1), 13);
  EXPECT_EQ(decode(fixture("turned_6.jpg"), {.apply_exif = true}).size(1), 22);
}

TEST(Image, RefusesRegionsBeyondTheImage) {
  const auto file = fixture("color2_8.png");
  for (const ImageRegion region :
       {ImageRegion{0, 0, 12, 1}, ImageRegion{0, 0, 1, 14}, ImageRegion{-1, 0, 1, 1}, ImageRegion{0, 0, 0, 1},
        ImageRegion{11, 0, 1, 1}, ImageRegion{0, 5, 1, INT64_MAX}}) {
    expect_error(file, "is not within the image, which has 11 x 13", {.region = region});
  }
  expect_error(file, "exclude each other", {.region = ImageRegion{0, 0, 1, 1}, .at_least = 4});
}

TEST(Image, LargePngComesInBlocks) {
  const auto pixels =
      torch::arange(3 * 1500 * 1100).mul(2654435761).bitwise_right_shift(13).bitwise_and(63).to(at::kByte);
  const auto image = pixels.reshape({3, 1500, 1100});
  const auto file = encode_image(image, {.compression = 1});
  EXPECT_TRUE(torch::equal(decode(file), image));
  for (const ImageRegion region : {ImageRegion{0, 0, 10, 1100}, ImageRegion{700, 300, 500, 400},
                                   ImageRegion{1499, 1099, 1, 1}, ImageRegion{1000, 0, 500, 1100}}) {
    EXPECT_TRUE(torch::equal(decode(file, {.region = region}), crop(image, region)));
  }
  const auto rows = decode(file.substr(0, file.size() / 2), {.allow_truncated = true});
  EXPECT_TRUE(torch::equal(rows.slice(1, 0, 700), image.slice(1, 0, 700)));
  EXPECT_TRUE(rows.slice(1, 800).eq(128).all().item<bool>());
  expect_error(file.substr(0, file.size() / 2), "the PNG file ends after row 7");
}

TEST(Image, ReadsWhatItWrites) {
  for (const int64_t channels : {1, 2, 3, 4}) {
    const auto image = torch::randint(0, 256, {channels, 19, 23}, at::kByte);
    const auto file = encode_image(image);
    EXPECT_TRUE(torch::equal(decode(file, {.mode = ImageMode::kUnchanged}), image)) << channels;
    EXPECT_EQ(encode_image(image.permute({1, 2, 0}).contiguous().permute({2, 0, 1})), file);
  }
  const auto photo = decode(fixture("baseline_444.jpg"));
  for (const int quality : {100, 50}) {
    const auto again = decode(encode_image(photo, {.format = "jpeg", .quality = quality}));
    EXPECT_LT((again.to(at::kFloat) - photo).abs().mean().item<float>(), quality == 100 ? 5 : 12);
  }
  const auto grey = decode(fixture("grey.jpg"), {.mode = ImageMode::kGray});
  EXPECT_EQ(image_info(bytes_of(encode_image(grey, {.format = "jpeg"}))).channels, 1);
}

TEST(Image, FilesAreNamed) {
  const testing::TemporaryFolder folder;
  const auto image = torch::randint(0, 256, {3, 8, 9}, at::kByte);
  write_image(folder / "a.png", image);
  EXPECT_TRUE(torch::equal(read_image(folder / "a.png"), image));
  write_image(folder / "a.JPEG", image);
  EXPECT_EQ(image_info(bytes_of(read_file(folder / "a.JPEG"))).format, "jpeg");
  // What a file is called does not matter.
  fs::rename(folder / "a.png", folder / "b.jpg");
  EXPECT_TRUE(torch::equal(read_image(folder / "b.jpg"), image));
  write_file(folder / "cut.png", encode_image(image).substr(0, 90));
  const auto where = (folder / "cut.png").string();
  EXPECT_TRUE(
      error_of([&] { read_image(folder / "cut.png"); }).starts_with("[image] \"" + where + "\": the PNG file ends "))
      << error_of([&] { read_image(folder / "cut.png"); });
  EXPECT_NE(error_of([&] { read_image(folder / "none.png"); }).find("none.png"), std::string::npos);
  EXPECT_NE(error_of([&] { write_image(folder / "a.jpgg", image); }).find("did you mean \".jpg\""), std::string::npos)
      << error_of([&] { write_image(folder / "a.jpgg", image); });
  EXPECT_FALSE(fs::exists(folder / "a.jpgg"));
}

TEST(Image, RefusesToEncodeWhatIsNoImage) {
  const auto error = [](const Tensor& pixels, const EncodeOptions& options = {}) -> std::string {
    return error_of([&] { encode_image(pixels, options); });
  };
  const auto pixels = torch::zeros({4, 2, 2}, at::kByte);
  EXPECT_EQ(error(pixels), "no error");
  EXPECT_EQ(error(pixels, {.format = "jpeg"}), "[encode_image] a JPEG has 1 or 3 channels, and the pixels have 4");
  EXPECT_EQ(error(torch::zeros({5, 2, 2}, at::kByte)),
            "[encode_image] a PNG has 1 to 4 channels, and the pixels have 5");
  EXPECT_NE(error(torch::zeros({3, 2, 2})).find("must be uint8 [C, H, W], and are Float [3, 2, 2]"), std::string::npos);
  EXPECT_NE(error(torch::zeros({3, 0, 2}, at::kByte)).find("must be uint8"), std::string::npos);
  EXPECT_NE(error({}).find("undefined"), std::string::npos);
  EXPECT_NE(error(pixels, {.format = "gif"}).find("known: png, jpeg"), std::string::npos);
  EXPECT_NE(error(pixels, {.compression = 10}).find("0 to 9"), std::string::npos);
  EXPECT_NE(error(pixels.slice(0, 0, 1), {.format = "jpeg", .quality = 0}).find("1 to 100"), std::string::npos);
  EXPECT_NE(error(torch::zeros({1, 1, 70000}, at::kByte), {.format = "jpeg"}).find("libjpeg cannot write 1 x 70000"),
            std::string::npos);
}

uint32_t png_checksum(std::string_view bytes) {
  uint32_t value = ~0u;
  for (const char byte : bytes) {
    value ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
  }
  return ~value;
}

std::string png_start(uint32_t width, uint32_t height, int depth = 8, int color = 2) {
  auto file = fixture("color2_8.png").substr(0, 33);
  for (int i = 0; i < 4; ++i) file[16 + i] = static_cast<char>(width >> (24 - 8 * i));
  for (int i = 0; i < 4; ++i) file[20 + i] = static_cast<char>(height >> (24 - 8 * i));
  file[24] = static_cast<char>(depth);
  file[25] = static_cast<char>(color);
  const auto checksum = png_checksum(file.substr(12, 17));
  for (int i = 0; i < 4; ++i) file[29 + i] = static_cast<char>(checksum >> (24 - 8 * i));
  return file;
}

TEST(Image, RefusesBrokenPng) {
  const auto file = fixture("color2_8.png");
  expect_error("", "there are no bytes");
  expect_error("GIF89a............", "neither PNG nor JPEG");
  expect_error(file.substr(0, 7), "neither PNG nor JPEG");
  expect_error(file.substr(0, 20), "ends within its head, after 20 bytes");
  expect_error(file.substr(0, 33), "ends within its head");
  auto bad = file;
  bad[17] = 1;
  expect_error(bad, "the checksum of IHDR does not fit");
  const auto rest = file.substr(33);
  expect_error(png_start(0, 11) + rest, "declares 11 x 0 pixels");
  expect_error(png_start(13, 0x80000000u) + rest, "declares 2147483648 x 13 pixels");
  expect_error(png_start(100000, 100000) + rest, "declares 100000 x 100000 pixels, more than max_pixels (178956970)");
  expect_error(png_start(13000, 13000) + rest, "bytes cannot hold 13000 x 13000 pixels");
  expect_error(png_start(13, 11, 8, 5) + rest, "colour type 5 with 8 bits");
  expect_error(png_start(13, 11, 16, 3) + rest, "colour type 3 with 16 bits");
  expect_error(png_start(13, 11, 8, 3) + rest, "has no palette");
  expect_error(png_start(13, 12) + rest, "the PNG file ends after row 11 of 12");
  expect_error(png_start(13, 11, 8, 2) + file.substr(8), "has two headers");
  expect_error(file, "more than max_pixels (142)", {.max_pixels = 142});
  EXPECT_EQ(image_error(file, {.max_pixels = 143}), "no error");

  bad = file;
  bad[33 + 8 + 6] = static_cast<char>(bad[33 + 8 + 6] ^ 0x10);
  EXPECT_NE(image_error(bad), "no error");
  bad = file;
  bad[33 + 4] = 'j';
  expect_error(bad, "the PNG file has no pixels");  // it is passed over
  bad[33 + 4] = 'J';
  expect_error(bad, "an extension that is not known: JDAT");
  bad[33 + 4] = '\n';
  expect_error(bad, "has no chunk at byte 33");
}

TEST(Image, CutPngIsAnErrorAtEveryByte) {
  for (const std::string name : {"color2_8.png", "color3_8_interlaced.png", "extras.png"}) {
    const auto file = fixture(name);
    const auto whole = decode(file);
    // Without the stream's checksum and the mark of its end.
    const auto data_end = file.rfind("IEND") - 8 - 4 - 2 - (name == "extras.png" ? 19 : 0);
    for (size_t cut = 0; cut < data_end; ++cut) {
      const auto line = image_error(file.substr(0, cut));
      ASSERT_NE(line, "no error") << name << " " << cut;
    }
    const auto rows = decode(file.substr(0, data_end - 20), {.allow_truncated = true});
    EXPECT_EQ(rows.sizes(), whole.sizes());
    EXPECT_TRUE(torch::equal(rows.slice(1, 0, 1), whole.slice(1, 0, 1))) << name;
    EXPECT_FALSE(torch::equal(rows, whole)) << name;
  }
}

TEST(Image, FlippedBitsOfPngAreNoticed) {
  const auto file = fixture("color6_8.png");
  const auto begin = file.find("IDAT") + 4;
  const auto end = file.rfind("IEND") - 8;
  const auto whole = decode(file, {.mode = ImageMode::kRgba});
  for (auto at = begin; at < end; ++at) {
    auto bad = file;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    const auto line = image_error(bad, {.mode = ImageMode::kRgba});
    // Bits of the stream's own head may be free.
    if (line == "no error") {
      EXPECT_TRUE(torch::equal(decode(bad, {.mode = ImageMode::kRgba}), whole)) << at;
    }
  }
}

TEST(Image, RefusesBrokenJpeg) {
  const auto file = fixture("baseline_420.jpg");
  expect_error(file.substr(0, 2), "neither PNG nor JPEG");
  expect_error(file.substr(0, 60), "the JPEG file ends within its head, after 60 bytes");
  const auto frame = file.find("\xff\xc0");
  auto bad = file;
  bad.replace(frame + 5, 4, "\xff\xff\xff\xff");
  expect_error(bad, "declares 65535 x 65535 pixels, more than max_pixels");
  bad.replace(frame + 5, 4, std::string("\0\0\0\x10", 4));
  expect_error(bad, "declares 0 x 16 pixels");
  bad = file;
  bad[frame + 4] = 12;
  expect_error(bad, "samples of 12 bits; 8 can be read");
  bad = file;
  bad[frame + 9] = 2;
  expect_error(bad, "has 2 components; 1, 3 and 4 can be read");
  bad = file;
  bad[frame + 1] = '\xc3';  // lossless
  expect_error(bad, "the JPEG file is broken: ");
  bad = file;
  bad.replace(file.find("\xff\xc4"), 2, "\xff\xfe");  // its tables become a comment
  EXPECT_NE(image_error(bad).find("no error"), image_error(bad).find("Huffman"));
}

TEST(Image, CutJpegIsAnErrorUntilTheLastRow) {
  const auto file = fixture("baseline_420.jpg");
  int with_row = 0;
  for (size_t cut = 0; cut + 40 < file.size(); cut += 7) {
    const auto line = image_error(file.substr(0, cut));
    ASSERT_NE(line, "no error") << cut;
    with_row +=
        line.find("the JPEG file ends after row ") != std::string::npos && line.find(" of 45") != std::string::npos;
  }
  EXPECT_GT(with_row, 20);
  const auto progressive = fixture("progressive_422.jpg");
  for (size_t cut = 700; cut + 2 < progressive.size(); cut += 37) {
    expect_error(progressive.substr(0, cut), "the JPEG file ends within its ");
  }
  const auto arithmetic = fixture("arithmetic.jpg");
  expect_error(arithmetic.substr(0, arithmetic.size() / 2), "the JPEG file ends after row ");
  // A photograph that only lacks the end marker is whole.
  EXPECT_TRUE(torch::equal(decode(file.substr(0, file.size() - 2)), decode(file)));
}

TEST(Image, TooManyScansAreRefused) {
  // The scans of a progressive file, again and again.
  const auto file = fixture("progressive_420.jpg");
  const auto first = file.rfind("\xff\xc4");
  const auto scans = file.substr(first, file.size() - 2 - first);
  std::string bad = file.substr(0, file.size() - 2);
  for (int i = 0; i < 120; ++i) bad += scans;
  expect_error(bad + "\xff\xd9", "has more than 100 scans");
}

TEST(Image, ScaledDecodingKeepsTheLeastSide) {
  const auto file = fixture("large_420.jpg");  // 201 x 310
  const auto size = [&](int64_t least) {
    const auto image = decode(file, {.at_least = least});
    const auto shape = decoded_shape(image_info(bytes_of(file)), {.at_least = least});
    EXPECT_EQ(image.sizes(), (std::vector<int64_t>{shape.channels, shape.height, shape.width}));
    return image.size(1);
  };
  EXPECT_EQ(size(0), 201);
  EXPECT_EQ(size(101), 201);
  EXPECT_EQ(size(100), 101);
  EXPECT_EQ(size(50), 51);
  EXPECT_EQ(size(25), 26);
  EXPECT_EQ(size(1), 26);
  EXPECT_EQ(decode(fixture("color2_8.png"), {.at_least = 1}).size(1), 11);
}

TEST(Image, ThreadsDecodeAtOnce) {
  std::vector<std::string> files;
  std::vector<Tensor> expected;
  for (const std::string name :
       {"baseline_420.jpg", "color2_8.png", "progressive_422.jpg", "color3_8_interlaced.png"}) {
    files.push_back(fixture(name));
    expected.push_back(decode(files.back()));
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const auto k = static_cast<size_t>(t + i) % files.size();
        wrong += !torch::equal(decode(files[k]), expected[k]);
        wrong += image_error(files[k].substr(0, files[k].size() / 2)) == "no error";
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace levin
