#include "ddip/comm/shm/watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ddip/base/error.h"
#include "ddip/base/pidfd.h"
#include "ddip/base/quiet_thread.h"

namespace ddip::comm::shm {

Watch::Watch(const Segment& segment, int rank)
    : segment_(segment), rank_(rank), peers_(static_cast<size_t>(segment.world())), stop_(::eventfd(0, EFD_CLOEXEC)) {
  int pair[2];
  if (!stop_ || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) throw_errno("watch over ranks");
  abort_ours_.reset(pair[0]);
  abort_theirs_.reset(pair[1]);
  for (int peer = 0; peer < segment.world(); ++peer) {
    pid_t pid = segment.line(peer).pid.load();
    if (peer == rank || pid == ::getpid()) continue;  // ranks of one process are told apart by its tests only
    peers_[static_cast<size_t>(peer)] = open_pidfd(pid);
    if (!peers_[static_cast<size_t>(peer)] && !segment.line(peer).left) segment.poison(1 + static_cast<uint32_t>(peer));
  }
  thread_ = start_quiet_thread([this] { run(); });
}

Watch::~Watch() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t count = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Watch::run() {
  std::vector<pollfd> events;
  for (const Fd& peer : peers_) events.push_back({peer.get(), POLLIN, 0});  // poll skips what is -1
  events.push_back({abort_ours_.get(), POLLIN, 0});
  events.push_back({stop_.get(), POLLIN, 0});
  for (;;) {
    if (::poll(events.data(), events.size(), -1) < 0) continue;
    if (events.back().revents) return;
    pollfd& abort = events[peers_.size()];
    if (abort.revents) {
      abort.fd = -1;
      segment_.poison(kAborted);
    }
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      if (!events[peer].revents) continue;
      events[peer].fd = -1;
      // One that said goodbye is missed by those only who still wait for it.
      if (!segment_.line(static_cast<int>(peer)).left.load()) segment_.poison(1 + static_cast<uint32_t>(peer));
    }
  }
}

}  // namespace ddip::comm::shm
