// A thread that no signal interrupts: they are the main thread's. A fault of its own it still feels: blocked, it would
// end the process unheard.
#pragma once

#include <functional>
#include <thread>

namespace ddip {

std::thread start_quiet_thread(std::function<void()> body);

}  // namespace ddip
