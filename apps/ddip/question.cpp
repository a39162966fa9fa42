#include "question.h"

#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>

#include "ddip/base/error.h"
#include "write_all.h"

namespace ddip::app {
namespace {

constexpr int kTickMs = 50;

constexpr std::array kEndings = {SIGTERM, SIGHUP, SIGQUIT};
termios settings_before;  // where a signal's handler finds them

// The shell that the terminal belongs to would not show what is typed.
void show_again_and_end(int signal) {
  ::tcsetattr(0, TCSANOW, &settings_before);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

// While it lives the terminal does not show what is typed. What was typed before the question is no answer to it.
class WithoutEcho {
 public:
  WithoutEcho() {
    if (::tcgetattr(0, &settings_before) != 0) throw_errno("read the terminal's settings");
    for (size_t i = 0; i < kEndings.size(); ++i) handlers_[i] = ::signal(kEndings[i], show_again_and_end);
    termios quiet = settings_before;
    quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    if (::tcsetattr(0, TCSAFLUSH, &quiet) != 0) {
      handle_as_before();
      throw_errno("stop the terminal's echo");
    }
  }
  WithoutEcho(const WithoutEcho&) = delete;
  WithoutEcho& operator=(const WithoutEcho&) = delete;
  ~WithoutEcho() {
    ::tcsetattr(0, TCSADRAIN, &settings_before);
    handle_as_before();
    [[maybe_unused]] ssize_t count = ::write(2, "\n", 1);  // the one that was typed was not shown either
  }

 private:
  void handle_as_before() {
    for (size_t i = 0; i < kEndings.size(); ++i) ::signal(kEndings[i], handlers_[i]);
  }

  std::array<sighandler_t, kEndings.size()> handlers_{};
};

Answer read_line(const std::function<bool()>& interrupted) {
  std::string line;
  for (;;) {
    if (interrupted()) return {Answer::Kind::interrupted, {}};
    // A press that comes just before a plain read() would wait for the next line.
    pollfd typed{0, POLLIN, 0};
    if (::poll(&typed, 1, kTickMs) <= 0) continue;
    char byte = 0;
    const ssize_t count = ::read(0, &byte, 1);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return {Answer::Kind::end_of_input, {}};
    if (byte == '\n') return {Answer::Kind::line, line};
    line += byte;
  }
}

}  // namespace

Answer ask(const std::string& prompt, bool secret, const std::function<bool()>& interrupted) {
  std::optional<WithoutEcho> quiet;
  if (secret) quiet.emplace();  // before the prompt: who sees it may type
  write_all(2, prompt);
  return read_line(interrupted);
}

}  // namespace ddip::app
