// Sleeping on a 32-bit word in memory that processes share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ddip {

// Until the word is not `expected` any more, somebody wakes us, or the time is over; also for no reason at all.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds patience);
void futex_wake_all(std::atomic<uint32_t>& word);

}  // namespace ddip
