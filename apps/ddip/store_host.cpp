#include "store_host.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>

#include "ddip/agent/process.h"
#include "ddip/base/error.h"
#include "ddip/base/pidfd.h"
#include "ddip/net/local_socket.h"
#include "scripts.h"
#include "style.h"

namespace ddip::app {
namespace {

std::pair<Fd, Fd> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

std::string last_words(int fd) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t count = 0; (count = ::read(fd, part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<size_t>(count));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return one_line(text.substr(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1));
}

}  // namespace

StoreHost::StoreHost(Options options) : options_(std::move(options)) {
  auto [listener, port] = net::listen_on_loopback(options_.port);
  listener_ = std::move(listener);
  port_ = port;
}

StoreHost::~StoreHost() { stop(); }

void StoreHost::stop() {
  life_.reset();
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
}

void StoreHost::start() {
  if (options_.python.empty()) {
    failure_ = "no Python found";
    return;
  }
  auto [life_read, life_write] = make_pipe();
  auto [errors_read, errors_write] = make_pipe();
  Fd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  agent::Command command;
  command.argv = {options_.python, "-c", scripts::store_host};
  command.environment = options_.environment;
  command.environment["OMP_NUM_THREADS"] = "1";
  command.descriptors = {listener_.get(), life_read.get()};
  command.output = null.get();
  command.error = errors_write.get();
  try {
    pid_ = agent::start(command);
  } catch (const ConfigError& error) {
    failure_ = error.what();
    return;
  }
  pidfd_ = open_pidfd(pid_);
  life_ = std::move(life_write);
  errors_ = std::move(errors_read);
}

int StoreHost::watched() const { return pid_ != 0 ? pidfd_.get() : listener_.get(); }

std::string StoreHost::on_readable() {
  if (pid_ != 0) {  // it ended; that matters to nobody until somebody knocks
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    pidfd_.reset();
    failure_ = last_words(errors_.get());
    if (failure_.empty()) failure_ = "it ended";
    return "";
  }
  if (failure_.empty()) {
    start();
    if (failure_.empty()) return "";
  }
  listener_.reset();  // refused at once is better than waiting for ever
  return fmt::format("no store for torch.distributed on port {}: {} ({}); --python PATH names one that has torch",
                     port_, failure_, options_.python.empty() ? "python3" : options_.python);
}

}  // namespace ddip::app
