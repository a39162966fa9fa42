#include "ddip/net/connection.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <fmt/format.h>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/net/transfer.h"

namespace ddip::net {
namespace {

constexpr size_t kReadBytes = 256u << 10;
// A loop that reads one peer for ever starves the others.
constexpr int kReadsPerTurn = 8;
constexpr size_t kDrainedBelow = 1u << 20;
constexpr auto kCompanyWait = std::chrono::microseconds(500);

// A frame that was not wholly sent yet.
struct Outgoing {
  std::string bytes;
  size_t sent = 0;
  std::vector<Fd> descriptors;
};

}  // namespace

struct Connection::Core : std::enable_shared_from_this<Connection::Core> {
  Core(Loop& loop, Fd socket, uint32_t body_cap, Events events)
      : loop(loop), reader(body_cap), events(std::move(events)), socket(std::move(socket)) {}

  void start() {
    int flags = ::fcntl(socket.get(), F_GETFL);
    if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) < 0) throw_errno("set non-blocking");
    std::weak_ptr<Core> weak = weak_from_this();
    readable = loop.when_readable(socket.get(), [weak] {
      if (auto self = weak.lock()) self->read_some();
    });
  }

  void read_some() {
    try {
      for (int turn = 0; turn < kReadsPerTurn && !closed; ++turn) {
        if (!read_once()) return;
      }
    } catch (const std::exception& error) {
      close(error.what());
    }
  }

  // False when there is nothing more to read now: a short read has emptied the socket.
  bool read_once() {
    scratch.resize(kReadBytes);
    ssize_t count = receive(socket.get(), scratch, received, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) {
      close(count == 0 || errno == ECONNRESET ? kClosedByPeer : std::strerror(errno));
      return false;
    }
    reader.feed({scratch.data(), static_cast<size_t>(count)});
    deliver();
    return static_cast<size_t>(count) == scratch.size();
  }

  void deliver() {
    while (!closed) {
      std::optional<Frame> frame = reader.next();
      if (!frame) return;
      Parcel parcel;
      parcel.body = std::move(frame->body);
      if (received.size() < frame->descriptors) throw ProtocolError("frame without its descriptors");
      for (int index = 0; index < frame->descriptors; ++index) {
        parcel.descriptors.push_back(std::move(received.front()));
        received.pop_front();
      }
      events.on_parcel(std::move(parcel));
    }
  }

  // Loop's thread.
  void write_some() {
    std::lock_guard lock(mutex);
    if (closed) return;
    transmit_queue();
    if (queue.empty()) {
      writable.cancel();
    } else if (!writable) {
      std::weak_ptr<Core> weak = weak_from_this();
      writable = loop.when_writable(socket.get(), [weak] {
        if (auto self = weak.lock()) self->write_some();
      });
    }
  }

  // Under the lock. As much as the socket takes now.
  void transmit_queue() {
    while (!queue.empty()) {
      Outgoing& first = queue.front();
      std::vector<int> to_pass;  // they travel with the first byte of their frame
      for (const Fd& fd : first.descriptors) to_pass.push_back(fd.get());
      ssize_t count = transmit(socket.get(), std::string_view(first.bytes).substr(first.sent), to_pass, MSG_DONTWAIT);
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS) break;
        std::string reason = errno == EPIPE || errno == ECONNRESET ? kClosedByPeer : std::strerror(errno);
        loop.post([self = shared_from_this(), reason] { self->close(reason); });
        return;
      }
      first.descriptors.clear();
      first.sent += static_cast<size_t>(count);
      queued -= static_cast<size_t>(count);
      if (first.sent < first.bytes.size()) continue;
      queue.pop_front();
    }
    if (was_full && queued < kDrainedBelow) {
      was_full = false;
      // Told on a later turn: we may be inside the sender's own send().
      std::weak_ptr<Core> weak = weak_from_this();
      loop.post([weak] {
        auto self = weak.lock();
        if (self && !self->closed && self->events.on_drained) self->events.on_drained();
      });
    }
  }

  // Any thread.
  void send(Outgoing outgoing) {
    std::lock_guard lock(mutex);
    if (closed) return;
    if (!unhurried.empty()) {
      outgoing.bytes.insert(0, unhurried);
      unhurried.clear();
    }
    enqueue(std::move(outgoing));
  }

  // Under the lock.
  void enqueue(Outgoing outgoing) {
    queued += outgoing.bytes.size();
    if (queued > kDrainedBelow) was_full = true;
    queue.push_back(std::move(outgoing));
    if (queue.size() > 1) return;
    transmit_queue();
    if (queue.empty()) return;
    // The loop's thread sends the rest when there is room.
    loop.post([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->write_some();
    });
  }

  // Loop's thread. The timer is left to run when company came earlier: it then finds nothing, or sends what was added
  // since a little early.
  void send_soon(const std::string& frame) {
    std::lock_guard lock(mutex);
    if (closed) return;
    unhurried += frame;
    if (std::exchange(company_timer_runs, true)) return;
    company_timer = loop.after(kCompanyWait, [weak = weak_from_this()] {
      auto self = weak.lock();
      if (!self) return;
      std::lock_guard lock(self->mutex);
      self->company_timer_runs = false;
      if (!self->closed && !self->unhurried.empty()) self->enqueue({std::exchange(self->unhurried, {}), 0, {}});
    });
  }

  // Loop's thread.
  void close(const std::string& reason) {
    if (closed) return;
    forget_socket();
    // Told on a later turn: the one who closed may still be in the middle of something.
    loop.post([self = shared_from_this(), reason] {
      if (!self->abandoned && self->events.on_closed) {
        auto on_closed = std::move(self->events.on_closed);
        self->events = {};
        on_closed(reason);
      }
    });
  }

  void forget_socket() {
    std::lock_guard lock(mutex);
    closed = true;
    readable.cancel();
    writable.cancel();
    company_timer.cancel();
    socket.reset();
    queue.clear();
    unhurried.clear();
    queued = 0;
  }

  Loop& loop;
  FrameReader reader;
  Events events;
  Loop::Handle readable;
  Loop::Handle writable;
  Loop::Handle company_timer;
  bool company_timer_runs = false;
  std::string scratch;
  std::deque<Fd> received;
  bool abandoned = false;  // the owner is gone: nobody is told anything any more

  mutable std::mutex mutex;  // guards all below; those that only the loop's thread changes it reads without
  Fd socket;                 // changed by the loop's thread only
  bool closed = false;       // likewise
  std::deque<Outgoing> queue;
  size_t queued = 0;
  bool was_full = false;
  std::string unhurried;  // frames that wait for company
};

Connection::Connection(Loop& loop, Fd socket, uint32_t body_cap, Events events)
    : core_(std::make_shared<Core>(loop, std::move(socket), body_cap, std::move(events))) {
  core_->start();
}

Connection::~Connection() {
  core_->abandoned = true;
  core_->forget_socket();
  // One of the callbacks may be running right now, so what they captured is freed only on a later turn.
  core_->loop.post([core = core_] { core->events = {}; });
}

void Connection::send(std::string_view body, const std::vector<int>& descriptors) {
  Outgoing outgoing;
  outgoing.bytes = encode_frame(body, descriptors.size());
  for (int fd : descriptors) {
    Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!copy) throw_errno("dup descriptor to send");
    outgoing.descriptors.push_back(std::move(copy));
  }
  core_->send(std::move(outgoing));
}

void Connection::send_soon(std::string_view body) { core_->send_soon(encode_frame(body, 0)); }

size_t Connection::queued_bytes() const {
  std::lock_guard lock(core_->mutex);
  return core_->queued + core_->unhurried.size();
}

void Connection::raise_cap(uint32_t body_cap) { core_->reader.raise_cap(body_cap); }
void Connection::close(const std::string& reason) { core_->close(reason); }
bool Connection::open() const { return !core_->closed; }
int Connection::socket() const { return core_->socket.get(); }

}  // namespace ddip::net
