#include "ddip/worker/warm_parent.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "ddip/base/ending.h"
#include "ddip/base/error.h"
#include "ddip/base/pidfd.h"
#include "ddip/base/process_scan.h"
#include "ddip/net/blocking.h"
#include "ddip/wire/codec.h"

namespace ddip::worker {

using wire::json;
using wire::Message;
using wire::Type;

WarmParent::WarmParent(Fd socket, std::function<pid_t()> fork_here)
    : socket_(std::move(socket)), fork_here_(std::move(fork_here)) {
  ::signal(SIGINT, SIG_IGN);
}

void WarmParent::send(const Message& message) { net::send_blocking(socket_.get(), wire::encode(message)); }

void WarmParent::say_warmed(json report) { send({Type::warmed, wire::kNoRank, 0, 0, std::move(report), {}}); }

std::optional<Birth> WarmParent::serve() {
  net::BlockingReader reader(socket_.get());
  try {
    for (;;) {
      std::vector<pollfd> events = {{socket_.get(), POLLIN, 0}};
      for (const Child& child : children_) events.push_back({child.pidfd.get(), POLLIN, 0});
      if (::poll(events.data(), events.size(), -1) < 0 && errno != EINTR) throw_errno("poll");
      reap_children();
      if (!events[0].revents) continue;
      for (net::Parcel& parcel : reader.read_available()) {
        Message message = wire::decode(parcel.body);
        message.descriptors = std::move(parcel.descriptors);
        if (auto birth = on_message(std::move(message))) return birth;
      }
    }
  } catch (const PeerLost&) {
    kill_all();
    return std::nullopt;
  }
}

std::optional<Birth> WarmParent::on_message(Message message) {
  if (message.type != Type::fork) throw ProtocolError("a warm parent does not expect " + wire::name_of(message.type));
  pid_t pid = fork_here_();
  if (pid < 0) {
    send({Type::forked, message.rank, 0, message.id, {{"pid", 0}, {"why", "fork failed"}}, {}});
    return std::nullopt;
  }
  if (pid == 0) {
    ::setpgid(0, 0);
    socket_.reset();  // or the agent's death would not be seen while one sibling lives
    children_.clear();
    ::signal(SIGINT, SIG_DFL);
    return Birth{message.rank, static_cast<uint32_t>(message.id), message.body.at("environment"),
                 std::move(message.descriptors)};
  }
  ::setpgid(pid, pid);
  children_.push_back({pid, open_pidfd(pid)});
  send({Type::forked, message.rank, 0, message.id, {{"pid", pid}}, {}});
  return std::nullopt;
}

void WarmParent::reap_children() {
  // Only our own children: the user's imports may have started processes that somebody else waits for.
  for (size_t index = 0; index < children_.size();) {
    Ending ending;
    pid_t pid = children_[index].pid;
    if (!reap(pid, ending)) {
      ++index;
      continue;
    }
    children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(index));
    send({Type::child_exited,
          wire::kNoRank,
          0,
          0,
          {{"pid", pid},
           {"exit_code", ending.exit_code},
           {"signal", ending.signal},
           {"why", describe(ending)},
           {"user_seconds", ending.user_seconds},
           {"system_seconds", ending.system_seconds},
           {"max_rss_kib", ending.max_rss_kib}},
          {}});
  }
}

// Our children, at once. Then whoever else is of this group: a worker that a warm parent before us has forked, and that
// is stopped, cannot see the end of its socket. Not the coordinator, which may be in the middle of an orderly end.
void WarmParent::kill_all() {
  for (const Child& child : children_) {
    ::kill(-child.pid, SIGKILL);
    ::kill(child.pid, SIGKILL);
  }
  const char* marker = ::getenv("DDIP_GROUP");
  if (marker && *marker) sweep_processes_with("DDIP_GROUP", marker, {::getppid()});
}

}  // namespace ddip::worker
