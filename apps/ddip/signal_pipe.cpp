#include "signal_pipe.h"

#include <fcntl.h>
#include <signal.h>

#include <array>
#include <cerrno>

#include "ddip/base/error.h"

namespace ddip::app {
namespace {

int target = -1;  // a handler reaches nothing else

void pass_on(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(target, &byte, 1);
  errno = saved;
}

}  // namespace

SignalPipe::SignalPipe(std::initializer_list<int> signals) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw_errno("pipe");
  read_end_ = Fd(ends[0]);
  write_end_ = Fd(ends[1]);
  target = write_end_.get();
  struct sigaction action{};
  action.sa_handler = pass_on;
  for (int signal : signals) ::sigaction(signal, &action, nullptr);
}

std::vector<int> SignalPipe::take() {
  std::array<unsigned char, 64> bytes{};
  const ssize_t count = ::read(read_end_.get(), bytes.data(), bytes.size());
  return count > 0 ? std::vector<int>(bytes.begin(), bytes.begin() + count) : std::vector<int>();
}

}  // namespace ddip::app
