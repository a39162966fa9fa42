// Which samples of an epoch are done: exactly, and in few bytes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace ddip::data {

class Ledger {
 public:
  void add(uint64_t sample);
  void add(std::span<const uint64_t> samples) {
    for (uint64_t sample : samples) add(sample);
  }
  void add(const Ledger& other);  // what another rank did

  bool contains(uint64_t sample) const;
  uint64_t count() const;

  // "0-99,105": to keep it in a checkpoint. parse() throws ConfigError.
  std::string text() const;
  static Ledger parse(const std::string& text);

  bool operator==(const Ledger&) const = default;

 private:
  void add_range(uint64_t first, uint64_t last);

  std::map<uint64_t, uint64_t> ranges_;  // first → last; apart from each other by at least one
};

}  // namespace ddip::data
