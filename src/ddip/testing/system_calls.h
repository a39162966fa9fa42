// Faults at the n-th system call: a child process that runs `body` is killed there, or the call fails there.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace ddip::testing {

enum class Outcome { finished, killed };

// `body` runs in a forked child, which is killed when it is about to make its n-th system call (the first is 1).
// `finished`: it made fewer, and came to its end.
Outcome kill_at_call(int n, const std::function<void()>& body);

// What a forked child does, of the calls that `names` has a letter for, in order.
std::string trace_calls(const std::map<long, char>& names, const std::function<void()>& body);

// All calls named `number` (SYS_fsync) fail with `error` in a forked child. What `body` returned, or threw, as text.
std::string fail_calls(long number, int error, const std::function<std::string()>& body);

}  // namespace ddip::testing
