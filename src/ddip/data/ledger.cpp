#include "ddip/data/ledger.h"

#include <fmt/format.h>

#include <charconv>

#include "ddip/base/error.h"

namespace ddip::data {

void Ledger::add(uint64_t sample) { add_range(sample, sample); }

void Ledger::add(const Ledger& other) {
  for (const auto& [first, last] : other.ranges_) add_range(first, last);
}

void Ledger::add_range(uint64_t first, uint64_t last) {
  // The range that begins at or before us, if it reaches us.
  auto at = ranges_.upper_bound(first);
  if (at != ranges_.begin()) {
    auto before = std::prev(at);
    if (before->second >= first || before->second + 1 == first) {
      first = before->first;
      last = std::max(last, before->second);
      at = ranges_.erase(before);
    }
  }
  // Those that begin inside us or right behind.
  while (at != ranges_.end() && (at->first <= last || at->first == last + 1)) {
    last = std::max(last, at->second);
    at = ranges_.erase(at);
  }
  ranges_.emplace(first, last);
}

bool Ledger::contains(uint64_t sample) const {
  auto at = ranges_.upper_bound(sample);
  return at != ranges_.begin() && std::prev(at)->second >= sample;
}

uint64_t Ledger::count() const {
  uint64_t sum = 0;
  for (const auto& [first, last] : ranges_) sum += last - first + 1;
  return sum;
}

std::string Ledger::text() const {
  std::string text;
  for (const auto& [first, last] : ranges_) {
    if (!text.empty()) text += ',';
    text += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
  }
  return text;
}

Ledger Ledger::parse(const std::string& text) {
  Ledger ledger;
  const char* at = text.data();
  const char* end = at + text.size();
  auto number = [&] {
    uint64_t value = 0;
    auto [stop, error] = std::from_chars(at, end, value);
    // The last number of all has no next one, which ranges need.
    if (error != std::errc() || value == UINT64_MAX)
      throw ConfigError(fmt::format("'{}' is no list of samples: 0-99,105 was expected", text.substr(0, 60)));
    at = stop;
    return value;
  };
  while (at != end) {
    uint64_t first = number(), last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
    }
    if (last < first || (at != end && (*at != ',' || at + 1 == end)))
      throw ConfigError(fmt::format("'{}' is no list of samples: 0-99,105 was expected", text.substr(0, 60)));
    if (at != end) ++at;
    ledger.add_range(first, last);
  }
  return ledger;
}

}  // namespace ddip::data
