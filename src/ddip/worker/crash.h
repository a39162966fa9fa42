// The last words of a worker that dies by a signal of its own making (SIGSEGV, SIGABRT, …). They are written to a
// memory file whose other end the agent holds, because the pipes that carry ordinary output die with us.
#pragma once

#include <string>

namespace ddip::worker {

// Installs handlers that copy what lies unread in the output pipes to `file` and then let the signal do its work.
// REQUIRES: before faulthandler.enable(), which calls the handlers that were there before it.
void keep_last_words(int file);

// For one that has to be ended by SIGKILL, which no handler sees: this line instead. Nothing without keep_last_words().
void leave_last_line(const std::string& line);

// Which pipes those are now; any thread.
void last_words_come_from(int out_pipe, int err_pipe);

}  // namespace ddip::worker
