// How a child process ended.
#pragma once

#include <sys/types.h>

#include <string>

namespace ddip {

struct Ending {
  int exit_code = 0;  // meaningful when signal == 0
  int signal = 0;
  double user_seconds = 0;
  double system_seconds = 0;
  long max_rss_kib = 0;
};

// Reaps our own (or adopted) child if it has ended; nothing otherwise.
bool reap(pid_t pid, Ending& ending);

// How the reason begins when ddip itself sent the SIGKILL; what follows says why.
inline constexpr const char* kEndedByUs = "ended by ddip (SIGKILL): ";

// "exit code 3", "killed by SIGKILL", "killed by SIGSEGV (core dumps are off)".
std::string describe(const Ending& ending);

}  // namespace ddip
