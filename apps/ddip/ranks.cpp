#include "ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "ddip/agent/process.h"
#include "ddip/base/error.h"
#include "ddip/base/pidfd.h"
#include "ddip/base/process_scan.h"

namespace ddip::app {

using namespace std::chrono_literals;

namespace {

constexpr const char* kMarkerName = "DDIP_RUN";  // DDIP_GROUP may be that of a group we run inside of
constexpr auto kTick = 100ms;
constexpr size_t kMostReads = 256;  // a pipe holds less

std::string new_marker() {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) throw_errno("getrandom");
  return fmt::format("run.{:016x}", number);
}

StoreHost::Options store_options(const RunOptions& options, const std::string& marker) {
  auto environment = options.environment;
  environment[kMarkerName] = marker;
  environment.try_emplace("DDIP_GROUP", marker);
  return {options.python, std::move(environment), options.port};
}

std::pair<Fd, Fd> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

Ranks::Ranks(RunOptions options, const Context& context)
    : options_(std::move(options)),
      context_(context),
      marker_(new_marker()),
      signals_({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2}),
      watchdog_(kMarkerName, marker_),
      store_(store_options(options_, marker_)),
      output_({options_.prefix, context.out.terminal && context.err.terminal,
               context.out.terminal ? RankOutput::Frames::newest : RankOutput::Frames::keep, context.out,
               [this](int stream, std::string_view bytes) { write_out(stream, bytes); }}) {
  ::signal(SIGPIPE, SIG_IGN);
  if (!options_.store) store_.release();
}

Ranks::~Ranks() {
  store_.stop();
  send_all(SIGKILL);
  sweep_processes_with(kMarkerName, marker_, {});
}

std::map<std::string, std::string> Ranks::environment_of(int rank) const {
  auto environment = options_.environment;
  const std::string own = std::to_string(rank), all = std::to_string(options_.ranks);
  environment[kMarkerName] = marker_;
  environment.try_emplace("DDIP_GROUP", marker_);
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) environment[name] = own;
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) environment[name] = all;
  environment["GROUP_RANK"] = "0";
  environment["GROUP_WORLD_SIZE"] = "1";
  environment["ROLE_NAME"] = "default";
  environment["MASTER_ADDR"] = "127.0.0.1";
  environment["MASTER_PORT"] = std::to_string(store_.port());
  environment["TORCHELASTIC_RUN_ID"] = marker_;
  environment["TORCHELASTIC_RESTART_COUNT"] = "0";
  environment["TORCHELASTIC_MAX_RESTARTS"] = "0";
  environment["TORCHELASTIC_USE_AGENT_STORE"] = options_.store ? "True" : "False";
  environment.try_emplace("GLOO_SOCKET_IFNAME", "lo");
  environment.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  environment.try_emplace("PYTHONUNBUFFERED", "1");  // into a pipe Python would hold its lines back
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  environment.try_emplace("OMP_NUM_THREADS",
                          std::to_string(std::max(1u, cores / static_cast<unsigned>(options_.ranks))));
  return environment;
}

// One rank without prefix has our own streams: bars and colours are as if it had been started by hand.
void Ranks::start(int rank) {
  const bool direct = options_.ranks == 1 && !options_.prefix;
  Rank& entry = ranks_.emplace_back();
  agent::Command command;
  command.argv = options_.command;
  command.environment = environment_of(rank);
  Fd out, err;
  if (!direct) {
    std::tie(entry.out, out) = make_pipe();
    std::tie(entry.err, err) = make_pipe();
    command.output = out.get();
    command.error = err.get();
  }
  entry.pid = agent::start(command);
  entry.pidfd = open_pidfd(entry.pid);
}

void Ranks::start_all() {
  for (int rank = 0; rank < options_.ranks; ++rank) start(rank);
  if (options_.store && options_.store_at_once) store_.start();
}

size_t Ranks::alive() const {
  return static_cast<size_t>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return bool(rank.pidfd); }));
}

int Ranks::run() {
  start_all();
  while (alive() > 0) turn(kTick);
  store_.stop();
  // What ranks left running ends now; it may hold their pipes open.
  sweep_processes_with(kMarkerName, marker_, {});
  drain();
  output_.finish_all();
  return first_failure_;
}

// Waits for the next thing to happen, and answers it.
void Ranks::turn(std::chrono::milliseconds patience) {
  std::vector<pollfd> events = {{signals_.readable(), POLLIN, 0}, {options_.store ? store_.watched() : -1, POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    for (int fd : {rank.out.get(), rank.err.get(), rank.pidfd.get()}) events.push_back({fd, POLLIN, 0});  // -1: ignored
  }
  const int ready = ::poll(events.data(), events.size(), static_cast<int>(patience.count()));
  if (ready < 0 && errno != EINTR) throw_errno("poll");
  kill_if_late();
  if (ready <= 0) return output_.refresh();
  if (events[0].revents != 0) on_signals();
  if (events[1].revents != 0) {
    if (std::string text = store_.on_readable(); !text.empty()) output_.say("ddip run: " + text);
  }
  for (size_t index = 0; index < ranks_.size(); ++index) {
    const int rank = static_cast<int>(index);
    if (events[2 + 3 * index].revents != 0) read_from(rank, 1);
    if (events[3 + 3 * index].revents != 0) read_from(rank, 2);
    if (events[4 + 3 * index].revents != 0) on_ended(rank);
  }
}

bool Ranks::read_from(int rank, int stream) {
  Fd& pipe = stream == 1 ? ranks_[static_cast<size_t>(rank)].out : ranks_[static_cast<size_t>(rank)].err;
  std::array<char, 65536> part;
  const ssize_t count = ::read(pipe.get(), part.data(), part.size());
  if (count > 0)
    output_.write(rank, stream, {part.data(), static_cast<size_t>(count)});
  else if (count == 0 || (errno != EINTR && errno != EAGAIN))
    pipe.reset();
  return count > 0;
}

void Ranks::on_ended(int rank) {
  Rank& entry = ranks_[static_cast<size_t>(rank)];
  Ending ending;
  if (!reap(entry.pid, ending)) return;
  entry.pidfd.reset();
  const int code = ending.signal != 0 ? 128 + ending.signal : ending.exit_code;
  if (code == 0 || first_failure_ != 0) return;
  first_failure_ = code;
  const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
  while (read_from(rank, 2) && Clock::now() < begun_ + std::chrono::duration<double>(seconds) + 1s) {
    // Its last words come before ours. The pipe may be held by children, so: only what is there.
    pollfd more{entry.err.get(), POLLIN, 0};
    if (::poll(&more, 1, 0) <= 0) break;
  }
  const std::string others =
      ending_ || alive() == 0 ? ""
                              : fmt::format("; stopping the other {}", alive() == 1 ? "one" : std::to_string(alive()));
  const bool by_us = ending.signal == SIGKILL && !killed_because_.empty();
  output_.say(context_.err.red("ddip run: ") + fmt::format("rank {} {}: {} (pid {}, after {}){}", rank,
                                                           presses_ > 0 ? "ended" : "failed",
                                                           by_us ? kEndedByUs + killed_because_ : describe(ending),
                                                           entry.pid, duration(seconds), others));
  if (ending_) return;  // everybody has been told already
  ending_ = true;
  send_all(SIGTERM);
  begin_grace();
}

void Ranks::begin_grace() {
  kill_at_ = std::min(kill_at_, Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.grace));
}

void Ranks::kill_if_late() {
  if (Clock::now() <= kill_at_) return;
  kill_at_ = Clock::time_point::max();
  killed_because_ = fmt::format("it did not leave within {:g} s", options_.grace.count());
  send_all(SIGKILL);
}

void Ranks::on_signals() {
  for (int signal : signals_.take()) {
    if (signal == SIGTSTP) {
      send_all(SIGSTOP);
      ::raise(SIGSTOP);
      send_all(SIGCONT);
    } else if (signal == SIGCONT || signal == SIGUSR1 || signal == SIGUSR2) {
      send_all(signal);
    } else {
      ++presses_;
      ending_ = true;
      send_all(presses_ == 1 ? signal : presses_ == 2 ? SIGTERM : SIGKILL);
      begin_grace();
    }
  }
}

void Ranks::send_all(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.pidfd) ::kill(-rank.pid, signal);  // of one that ended, the number may be somebody else's by now
  }
}

// Never blocks while a signal waits: who stops reading us must not make Ctrl-C useless.
void Ranks::write_out(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    std::array<pollfd, 2> events = {{{fd, POLLOUT, 0}, {signals_.readable(), POLLIN, 0}}};
    if (::poll(events.data(), events.size(), static_cast<int>(kTick.count())) < 0 && errno != EINTR)
      throw_errno("poll");
    if (events[1].revents != 0) on_signals();
    kill_if_late();
    if (presses_ >= 3) return;  // nobody reads us, and the user wants out
    if (events[0].revents == 0) continue;
    const ssize_t count = ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), 4096));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) {  // nobody reads us any more: the ranks learn it as they would without us
      if (first_failure_ == 0) first_failure_ = 128 + SIGPIPE;
      if (!std::exchange(ending_, true)) {
        send_all(SIGPIPE);
        begin_grace();
      }
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

// Everybody who wrote is dead; what they wrote is still in the pipes. Whoever escaped the sweep is not listened to.
void Ranks::drain() {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    for (int stream : {1, 2}) {
      Fd& pipe = stream == 1 ? ranks_[static_cast<size_t>(rank)].out : ranks_[static_cast<size_t>(rank)].err;
      for (size_t reads = 0; pipe && reads < kMostReads; ++reads) {
        pollfd event{pipe.get(), POLLIN, 0};
        const int ready = ::poll(&event, 1, 0);
        if (ready > 0)
          read_from(rank, stream);
        else if (ready == 0 || errno != EINTR)
          pipe.reset();
      }
    }
  }
}

}  // namespace ddip::app
