#include "ddip/client/start.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "ddip/base/error.h"
#include "ddip/base/fd.h"
#include "ddip/net/local_socket.h"

namespace ddip::client {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

// posix_spawn, not fork: we may be inside a Python process with many threads. The child detaches itself.
pid_t spawn(const std::string& program, const std::string& marker, int input, int output) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  std::string name = program, command = "serve";
  char* argv[] = {name.data(), command.data(), nullptr};
  // The marker alone: everything else is in its config, so nothing secret lands in /proc/PID/environ.
  std::string variable = "DDIP_GROUP=" + marker;
  char* envp[] = {variable.data(), nullptr};
  pid_t pid = 0;
  int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv, envp);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) throw ConfigError(fmt::format("cannot start {}: {}", program, std::strerror(error)));
  return pid;
}

std::string random_hex() {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) throw_errno("getrandom");
  return fmt::format("{:016x}", number);
}

// To a socket, not a pipe: a coordinator that died at once must not kill its caller by SIGPIPE.
void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EPIPE || errno == ECONNRESET)) return;  // it is gone; what it said can still be read
    if (count < 0) throw_errno("hand the configuration over");
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

json start_group(const StartOptions& options, const std::function<void(const std::string&)>& progress) {
  auto [config_read, config_write] = net::socket_pair();
  auto [status_read, status_write] = make_pipe();
  json config = options.config;
  config["marker"] = config.at("name").get<std::string>() + "." + random_hex();
  pid_t pid = spawn(options.program, config.at("marker").get<std::string>(), config_read.get(), status_write.get());
  config_read.reset();
  status_write.reset();
  send_all(config_write.get(), config.dump(-1, ' ', false, json::error_handler_t::replace));
  config_write.reset();
  ::waitpid(pid, nullptr, 0);  // the first process only forks the detached one and goes

  // The coordinator enforces the limit and names the rank; ours is only for a coordinator that does not answer.
  auto deadline = Clock::now() + std::chrono::duration<double>(options.timeout + 10);
  std::string buffer;
  for (;;) {
    pollfd event{status_read.get(), POLLIN, 0};
    int ready = ::poll(&event, 1, 100);
    if (ready < 0 && errno != EINTR) throw_errno("poll");
    if (ready <= 0) {
      progress("");
      if (Clock::now() > deadline)
        throw TimedOut(fmt::format("the coordinator did not answer in {} s", options.timeout + 10));
      continue;
    }
    char bytes[4096];
    ssize_t count = ::read(status_read.get(), bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw PeerLost("the coordinator ended before the group was ready; see its coordinator.log");
    buffer.append(bytes, static_cast<size_t>(count));
    for (size_t end; (end = buffer.find('\n')) != std::string::npos; buffer.erase(0, end + 1)) {
      json line = json::parse(buffer.substr(0, end), nullptr, false);
      if (!line.is_object()) throw ProtocolError("the coordinator said: " + buffer.substr(0, end));
      if (line.contains("error")) {
        std::string why = line.at("error").get<std::string>();
        if (line.value("timed_out", false)) throw TimedOut(why);
        throw ConfigError(why);
      }
      if (line.contains("ready")) return line.at("ready");
      progress(line.value("progress", ""));
    }
  }
}

}  // namespace ddip::client
