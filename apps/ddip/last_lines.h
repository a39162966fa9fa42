// Standard output that holds the newest N lines back until release(): --tail. Without N it writes at once.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace ddip::app {

class LastLines {
 public:
  explicit LastLines(std::optional<size_t> most) : most_(most) {}

  void write(std::string_view text);
  // What was held back; from here on everything is written at once.
  void release();

 private:
  std::optional<size_t> most_;
  std::deque<std::string> held_;  // whole lines; the last may still lack its end
};

}  // namespace ddip::app
