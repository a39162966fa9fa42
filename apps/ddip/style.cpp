#include "style.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <array>
#include <ctime>

#include "ddip/launch/rank_list.h"

namespace ddip::app {

std::string Style::paint(const char* code, std::string_view text) const {
  return colour ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

std::string Style::by_rank(int rank, std::string_view text) const {
  constexpr std::array kColours = {"36", "33", "35", "32", "34", "31"};
  return paint(kColours.at(static_cast<size_t>(rank < 0 ? 0 : rank) % kColours.size()), text);
}

std::string Style::foreign(std::string_view text) const { return colour ? std::string(text) : plain(text); }

std::string plain(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\x1b') {
      out += text[at];
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == '[') {
      at += 2;
      while (at < text.size() && (text[at] < '@' || text[at] > '~')) ++at;  // parameters, then one final byte
    }
  }
  return out;
}

std::string duration(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{:.3g} h", seconds / 3600);
  return fmt::format("{:.0f} d", seconds / 86400);
}

std::string moment(double seconds_since_epoch) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(static_cast<std::time_t>(seconds_since_epoch)));
}

std::string counted(size_t number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

std::string bytes(double number) {
  constexpr std::array kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; number >= 1024 && unit + 1 < kUnits.size(); ++unit) number /= 1024;
  return fmt::format("{:.{}f} {}", number, number < 9.95 && unit > 0 ? 1 : 0, kUnits.at(unit));
}

std::string ranks_in_words(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + launch::format_rank_list(ranks);
}

std::string one_line(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::string out;
  for (char byte : plain(text)) {
    if (byte == '\n')
      out += "; ";
    else
      out += static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f ? ' ' : byte;
  }
  return out;
}

std::string shortened(std::string_view text, size_t columns) {
  auto continues = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; };
  size_t glyphs = 0;
  for (char byte : text) glyphs += continues(byte) ? 0 : 1;
  if (glyphs <= columns) return std::string(text);
  size_t at = 0;
  for (size_t seen = 0; at < text.size(); ++at) {
    if (!continues(text[at]) && seen++ + 1 >= columns) break;
  }
  return std::string(text.substr(0, at)) + "…";
}

}  // namespace ddip::app
