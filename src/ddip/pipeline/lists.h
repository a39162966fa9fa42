// Many short lists in one piece of memory. A list that is equal to one of the last few takes nothing: rates seldom
// change, and the stages of a rank take turns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace ddip::pipeline {

template <typename T>
class Lists {
 public:
  static constexpr int32_t kNone = -1;

  // Its number; none: it is empty.
  int32_t add(std::span<const T> list) {
    if (list.empty()) return kNone;
    const auto count = static_cast<int32_t>(ends_.size());
    for (int32_t number = count; number-- > std::max(count - kNear, 0);) {
      if (std::ranges::equal(at(number), list)) return number;
    }
    items_.insert(items_.end(), list.begin(), list.end());
    ends_.push_back(items_.size());
    return count;
  }

  std::span<const T> at(int32_t number) const {
    if (number == kNone) return {};
    const auto place = static_cast<size_t>(number);
    const size_t begin = place == 0 ? 0 : ends_[place - 1];
    return std::span(items_).subspan(begin, ends_[place] - begin);
  }

  size_t bytes() const { return std::span(items_).size_bytes() + std::span(ends_).size_bytes(); }

 private:
  static constexpr int32_t kNear = 8;
  std::vector<T> items_;
  std::vector<size_t> ends_;
};

}  // namespace ddip::pipeline
