// The errors a caller may meet. Everything else that can go wrong is an outcome (returned) or a bug (DDIP_CHECK).
#pragma once

#include <stdexcept>
#include <string>

namespace ddip {

// Someone asked for something that cannot be: wrong flag, wrong name, wrong shape. The message is one line:
// what, where, what was expected.
struct ConfigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A process we were talking to is gone.
struct PeerLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A deadline passed.
struct TimedOut : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A peer sent bytes that are not our protocol; the connection is closed, nothing of it was acted upon.
struct ProtocolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A stage of a pipeline has failed on another rank. The message is what that rank said.
struct StageFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A system call failed: "what: strerror(errno)".
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace ddip
