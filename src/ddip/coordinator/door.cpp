#include "ddip/coordinator/door.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ddip/base/log.h"
#include "ddip/base/pidfd.h"
#include "ddip/net/local_socket.h"

namespace ddip::coordinator {
namespace {

using namespace std::chrono_literals;

constexpr int kAcceptsPerTurn = 8;
// A client's socket, the watches on it in both directions, its pidfd and the watch on that.
constexpr int kDescriptorsPerClient = 5;
constexpr auto kRest = 100ms;

// Tried with duplicates of one that is open.
bool has_room_for_a_client(const Fd& any) {
  std::array<Fd, kDescriptorsPerClient> tries;
  return std::ranges::all_of(tries, [&](Fd& one) {
    one.reset(::fcntl(any.get(), F_DUPFD_CLOEXEC, 3));
    return bool(one);
  });
}

// Every byte is looked at, so that timing tells nothing about the key.
bool equal_keys(const std::string& left, const std::string& right) {
  if (left.size() != right.size()) return false;
  unsigned char difference = 0;
  for (size_t index = 0; index < left.size(); ++index)
    difference |= static_cast<unsigned char>(left[index] ^ right[index]);
  return difference == 0;
}

}  // namespace

// Connected, not yet authenticated; nothing is told to it.
struct Door::Pending {
  pid_t pid = 0;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  std::unique_ptr<wire::Channel> channel;
  net::Loop::Handle deadline;
};

Door::Door(net::Loop& loop, Fd listener, std::string key, Events events, DoorLimits limits)
    : loop_(loop), listener_(std::move(listener)), key_(std::move(key)), limits_(limits), events_(std::move(events)) {
  open();
}

Door::~Door() = default;

Session* Door::find(uint64_t number) {
  for (Session& session : sessions_) {
    if (session.number == number) return &session;
  }
  return nullptr;
}

void Door::open() {
  if (!has_room_for_a_client(listener_)) return rest();
  accepting_ = loop_.when_readable(listener_.get(), [this] { accept_all(); });
}

void Door::close_for(std::chrono::nanoseconds time) {
  accepting_.cancel();
  closed_for_a_moment_ = loop_.after(time, [this] { open(); });
}

// The listener stays readable as long as somebody waits there, so trying again at once would be a loop without pause.
void Door::rest() {
  if (!std::exchange(resting_, true)) log("no descriptors are left; clients wait at the door until there are some");
  close_for(kRest);
}

// A few at a time, so that those who have come are heard before more come in. When all places are taken the one that
// has been silent longest gives way, but not before it had a moment to say hello: a real client does so at once. Until
// then the others wait in the listener's queue.
void Door::accept_all() {
  for (int count = 0; count < kAcceptsPerTurn; ++count) {
    pollfd waiting{listener_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 0) <= 0) return;  // nobody is to give way to nobody
    if (pending_.size() >= limits_.pending) {
      auto age = std::chrono::steady_clock::now() - pending_.begin()->second->since;
      if (age < limits_.moment) return close_for(limits_.moment - age);
      drop_pending(pending_.begin()->first, "others came");
    }
    if (!has_room_for_a_client(listener_)) return rest();
    resting_ = false;
    Fd socket = net::accept_from(listener_.get());
    if (!socket) return;
    net::Peer peer = net::peer_of(socket.get());
    if (!net::may_connect(peer)) {
      // The first few and then every thousandth: a flood must not become a flood of log lines.
      if (++refused_ <= 3 || refused_ % 1000 == 0)
        log("refused uid {} pid {} ({} so far)", peer.uid, peer.pid, refused_);
      continue;
    }
    uint64_t number = ++last_number_;
    auto pending = std::make_unique<Pending>();
    pending->pid = peer.pid;
    pending->channel =
        std::make_unique<wire::Channel>(loop_, std::move(socket),
                                        wire::Channel::Events{[this, number](wire::Message message) {
                                                                if (pending_.contains(number))
                                                                  return on_hello(number, std::move(message));
                                                                if (Session* session = find(number))
                                                                  events_.on_message(*session, std::move(message));
                                                              },
                                                              [this, number](const std::string& reason) {
                                                                if (pending_.contains(number))
                                                                  return drop_pending(number, reason);
                                                                leave(number, reason);
                                                              },
                                                              [this, number] {
                                                                if (Session* session = find(number))
                                                                  events_.on_drained(*session);
                                                              }},
                                        net::kBodyCapBeforeHello);
    pending->deadline = loop_.after(limits_.handshake, [this, number] { drop_pending(number, "no hello in time"); });
    pending_.emplace(number, std::move(pending));
  }
}

void Door::drop_pending(uint64_t number, const std::string& reason) {
  if (++refused_ <= 3 || refused_ % 1000 == 0)
    log("dropped a connection before its hello: {} ({} so far)", reason, refused_);
  // It may be in the middle of delivering a message of its own: it goes on the next turn.
  auto found = pending_.find(number);
  if (found == pending_.end()) return;
  std::shared_ptr<Pending> gone = std::move(found->second);
  pending_.erase(found);
  loop_.post([gone] {});
}

void Door::on_hello(uint64_t number, wire::Message message) {
  std::string role = message.type == wire::Type::hello ? message.body.value("role", "") : "";
  std::string key;
  if (auto found = message.body.find("key"); found != message.body.end() && found->is_binary()) {
    const auto& bytes = found->get_binary();
    key.assign(bytes.begin(), bytes.end());
  }
  if (role != "client" || !equal_keys(key, key_)) {
    return drop_pending(number, "bad hello (" + wire::name_of(message.type) + ")");
  }
  std::string client = message.body.value("client", "");  // throws if it is no text, so before anything is changed
  std::unique_ptr<Pending> pending = std::move(pending_.at(number));
  pending_.erase(number);
  Session& session = sessions_.emplace_back();
  session.number = number;
  session.client = std::move(client);
  session.pid = pending->pid;
  session.channel = std::move(pending->channel);
  session.channel->raise_cap(net::kBodyCap);
  // A forked child of the client keeps the socket open, so its death is seen through a pidfd, not through EOF.
  session.pidfd = open_pidfd(session.pid);
  if (session.pidfd)
    session.died = loop_.when_readable(session.pidfd.get(), [this, number] { leave(number, "its process died"); });
  events_.on_enter(session, std::move(message));
}

void Door::leave(uint64_t number, const std::string& reason) {
  for (auto session = sessions_.begin(); session != sessions_.end(); ++session) {
    if (session->number != number) continue;
    events_.on_leave(*session, reason);
    session->died.cancel();
    // Destroyed on the next turn: its channel may be delivering right now.
    auto gone = std::make_shared<std::list<Session>>();
    gone->splice(gone->begin(), sessions_, session);
    loop_.post([gone] {});
    return;
  }
}

}  // namespace ddip::coordinator
