#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "levin/plots/drawing.h"

namespace levin::detail {
namespace {

/// Strokes, apart by blanks. A point is two digits: across, and up from two below the line that letters stand on. The
/// corners of a stroke that begins with ~ are rounded.
using Entry = std::pair<char, std::string_view>;
constexpr auto kStrokes = std::to_array<Entry>({
    {'A', "022842 1434"},
    {'B', "0802 ~082848452505 ~052545422202"},
    {'C', "~4738180703123243"},
    {'D', "0802 ~082848422202"},
    {'E', "48080242 0535"},
    {'F', "480802 0535"},
    {'G', "~4738180703123243 434525"},
    {'H', "0208 4248 0545"},
    {'I', "0208"},
    {'J', "~3833221203"},
    {'K', "0802 4804 1542"},
    {'L', "080242"},
    {'M', "0208346862"},
    {'N', "02084248"},
    {'O', "~183847433212030718"},
    {'P', "0208 ~082848452505"},
    {'Q', "~183847433212030718 2441"},
    {'R', "0208 ~082848452505 2542"},
    {'S', "~473818070615354443321203"},
    {'T', "0848 2822"},
    {'U', "~080312324348"},
    {'V', "082248"},
    {'W', "0812375268"},
    {'X', "0248 0842"},
    {'Y', "0825 4825 2522"},
    {'Z', "08480242"},
    {'a', "4642 ~4536160503123243"},
    {'b', "0802 ~0516364543321203"},
    {'c', "~4536160503123243"},
    {'d', "4842 ~4536160503123243"},
    {'e', "0444 ~444536160503123243"},
    {'f', "~38181612 0636"},
    {'g', "~4641301001 ~4536160503123243"},
    {'h', "0802 ~0516364542"},
    {'i', "0206 0808"},
    {'j', "~161000 1818"},
    {'k', "0802 3603 1432"},
    {'l', "0802"},
    {'m', "0206 ~0516263532 ~3546566562"},
    {'n', "0206 ~0516364542"},
    {'o', "~163645433212030516"},
    {'p', "0600 ~0516364543321203"},
    {'q', "4640 ~4536160503123243"},
    {'r', "0206 ~041636"},
    {'s', "~45361605143443321203"},
    {'t', "~18132232 0636"},
    {'u', "~0603123243 4642"},
    {'v', "062246"},
    {'w', "0612355266"},
    {'x', "0246 0642"},
    {'y', "0622 4610"},
    {'z', "06460242"},
    {'0', "~183847433212030718"},
    {'1', "072822"},
    {'2', "~071838474502 0242"},
    {'3', "~07183847463525 ~25354443321203"},
    {'4', "32380444"},
    {'5', "480805 ~0516364543321203"},
    {'6', "~38280603123243 ~4344351504"},
    {'7', "084812"},
    {'8', "~183847463515060718 ~153544433212030415"},
    {'9', "~12224447381807 ~0706153546"},
    {'.', "0202"},
    {',', "1201"},
    {':', "0202 0505"},
    {';', "0505 1201"},
    {'!', "0804 0202"},
    {'?', "~07183847462524 2222"},
    {'-', "0525"},
    {'+', "0444 2226"},
    {'=', "0545 0343"},
    {'<', "460442"},
    {'>', "064402"},
    {'/', "0138"},
    {'\\', "0831"},
    {'|', "0900"},
    {'%', "0248 ~0818170708 ~3343423233"},
    {'(', "~18060310"},
    {')', "~08161300"},
    {'[', "18080010"},
    {']', "08181000"},
    {'_', "0141"},
    {'*', "2327 0446 0644"},
    {'#', "1218 3238 0343 0747"},
    {'\'', "0806"},
    {'"', "0806 2826"},
});

using Stroke = std::vector<Drawing::Point>;

/// Cuts corners, twice; the ends of an open stroke stay.
Stroke rounded(Stroke points) {
  const bool closed = points.front().x == points.back().x && points.front().y == points.back().y;
  for (int pass = 0; pass < 2; ++pass) {
    Stroke cut;
    if (!closed) cut.push_back(points.front());
    for (size_t i = 0; i + 1 < points.size(); ++i) {
      const auto &a = points[i], &b = points[i + 1];
      cut.push_back({0.75 * a.x + 0.25 * b.x, 0.75 * a.y + 0.25 * b.y});
      cut.push_back({0.25 * a.x + 0.75 * b.x, 0.25 * a.y + 0.75 * b.y});
    }
    cut.push_back(closed ? cut.front() : points.back());
    points = std::move(cut);
  }
  return points;
}

}  // namespace

Glyph glyph_of(char character) {
  const auto* found =
      std::find_if(kStrokes.begin(), kStrokes.end(), [&](const Entry& e) { return e.first == character; });
  std::string_view code = found != kStrokes.end() ? found->second : "0208484202";
  Glyph glyph;
  while (!code.empty()) {
    auto word = code.substr(0, code.find(' '));
    code.remove_prefix(std::min(code.size(), word.size() + 1));
    const bool is_round = word.front() == '~';
    if (is_round) word.remove_prefix(1);
    Stroke stroke;
    for (size_t i = 0; i + 1 < word.size(); i += 2) {
      stroke.push_back({static_cast<double>(word[i] - '0'), static_cast<double>(word[i + 1] - '0') - 2});
      glyph.width = std::max(glyph.width, stroke.back().x);
    }
    glyph.strokes.push_back(is_round ? rounded(std::move(stroke)) : std::move(stroke));
  }
  return glyph;
}

}  // namespace levin::detail
