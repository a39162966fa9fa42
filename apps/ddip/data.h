// The parts of `ddip data`.
#pragma once

#include <chrono>
#include <filesystem>

#include "command.h"
#include "ddip/data/event_set.h"

namespace ddip::app {

// The value of a flag that `ddip data WHAT` cannot do without.
launch::FlagText needed(const launch::Flags& flags, const std::string& what, const std::string& flag);
data::EventFormat event_format(const launch::FlagText& flag);

int data_synth(const Context& context, const launch::Flags& flags);
int data_view(const launch::Flags& flags, const std::filesystem::path& source);
int data_convert(const Context& context, const launch::Flags& flags, const std::filesystem::path& source,
                 const std::filesystem::path& target);

// A line that shows how far it is, on a terminal and from the second second on; gone when it is destroyed.
class Count {
 public:
  Count(bool shown, uint64_t whole) : shown_(shown), whole_(whole) {}
  ~Count();
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;
  void done(uint64_t events);

 private:
  bool shown_;
  uint64_t whole_;
  bool drawn_ = false;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

}  // namespace ddip::app
