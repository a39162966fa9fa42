#include "ddip/net/connection.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <fmt/format.h>
#include <cerrno>
#include <cstring>

#include "ddip/base/error.h"
#include "ddip/net/transfer.h"

namespace ddip::net {
namespace {

constexpr size_t kReadBytes = 256u << 10;
// A loop that reads one peer for ever starves the others.
constexpr int kReadsPerTurn = 8;
constexpr size_t kDrainedBelow = 1u << 20;

struct Outgoing {
  std::string bytes;
  size_t sent = 0;
  std::vector<Fd> descriptors;
};

}  // namespace

struct Connection::Core : std::enable_shared_from_this<Connection::Core> {
  Core(Loop& loop, Fd socket, uint32_t body_cap, Events events)
      : loop(loop), socket(std::move(socket)), reader(body_cap), events(std::move(events)) {}

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
      close(count == 0 || errno == ECONNRESET ? "closed by peer" : std::strerror(errno));
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

  void write_some() {
    while (!closed && !queue.empty()) {
      Outgoing& first = queue.front();
      std::vector<int> to_pass;  // they travel with the first byte of their frame
      for (const Fd& fd : first.descriptors) to_pass.push_back(fd.get());
      ssize_t count = transmit(socket.get(), std::string_view(first.bytes).substr(first.sent), to_pass, MSG_DONTWAIT);
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS) break;
        close(errno == EPIPE || errno == ECONNRESET ? "closed by peer" : std::strerror(errno));
        return;
      }
      first.descriptors.clear();
      first.sent += static_cast<size_t>(count);
      queued -= static_cast<size_t>(count);
      if (first.sent < first.bytes.size()) continue;
      queue.pop_front();
    }
    if (closed) return;
    if (queue.empty()) {
      writable.cancel();
    } else if (!writable) {
      std::weak_ptr<Core> weak = weak_from_this();
      writable = loop.when_writable(socket.get(), [weak] {
        if (auto self = weak.lock()) self->write_some();
      });
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

  void close(const std::string& reason) {
    if (closed) return;
    closed = true;
    readable.cancel();
    writable.cancel();
    socket.reset();
    queue.clear();
    queued = 0;
    // Told on a later turn: the one who closed may still be in the middle of something.
    loop.post([self = shared_from_this(), reason] {
      if (!self->abandoned && self->events.on_closed) {
        auto on_closed = std::move(self->events.on_closed);
        self->events = {};
        on_closed(reason);
      }
    });
  }

  Loop& loop;
  Fd socket;
  FrameReader reader;
  Events events;
  Loop::Handle readable;
  Loop::Handle writable;
  std::string scratch;
  std::deque<Fd> received;
  std::deque<Outgoing> queue;
  size_t queued = 0;
  bool was_full = false;
  bool closed = false;
  bool abandoned = false;  // the owner is gone: nobody is told anything any more
};

Connection::Connection(Loop& loop, Fd socket, uint32_t body_cap, Events events)
    : core_(std::make_shared<Core>(loop, std::move(socket), body_cap, std::move(events))) {
  core_->start();
}

Connection::~Connection() {
  core_->closed = true;
  core_->abandoned = true;
  core_->readable.cancel();
  core_->writable.cancel();
  core_->socket.reset();
  // One of the callbacks may be running right now, so what they captured is freed only on a later turn.
  core_->loop.post([core = core_] { core->events = {}; });
}

void Connection::send(std::string_view body, const std::vector<int>& descriptors) {
  if (core_->closed) return;
  Outgoing outgoing;
  outgoing.bytes = encode_frame(body, descriptors.size());
  for (int fd : descriptors) {
    Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!copy) throw_errno("dup descriptor to send");
    outgoing.descriptors.push_back(std::move(copy));
  }
  core_->queued += outgoing.bytes.size();
  if (core_->queued > kDrainedBelow) core_->was_full = true;
  core_->queue.push_back(std::move(outgoing));
  if (core_->queue.size() == 1) core_->write_some();
}

size_t Connection::queued_bytes() const { return core_->queued; }
void Connection::raise_cap(uint32_t body_cap) { core_->reader.raise_cap(body_cap); }
void Connection::close(const std::string& reason) { core_->close(reason); }
bool Connection::open() const { return !core_->closed; }
int Connection::socket() const { return core_->socket.get(); }

}  // namespace ddip::net
