#include "ddip/comm/shm/mail.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ddip/base/cores.h"
#include "ddip/base/error.h"
#include "ddip/base/futex.h"
#include "ddip/base/quiet_thread.h"

namespace ddip::comm::shm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLookAgain = 20ms;
// Who waits looks for itself so long; then it sleeps, and is woken by our thread.
constexpr auto kHelp = 1ms;

struct Envelope {
  uint64_t bytes;
  int64_t tag;
};

struct RingLine {
  alignas(128) std::atomic<uint64_t> written;  // by the sender
  std::atomic<uint32_t> full;                  // the sender has more, and wants to hear when something was read
  alignas(128) std::atomic<uint64_t> read;     // by the receiver
  alignas(128) std::byte data[1];
};

// Looks at a bell so that nobody has to wake its listener.
class Watcher {
 public:
  explicit Watcher(Bell& bell) : bell_(bell) { bell_.watchers.fetch_add(1); }
  ~Watcher() {
    bell_.watchers.fetch_sub(1);
    if (bell_.rung.load() != heard_) bell_.ring();  // who rang it relied upon us
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  bool heard_something() {
    const uint32_t rung = bell_.rung.load();
    return std::exchange(heard_, rung) != rung || std::exchange(first_, false);
  }

 private:
  Bell& bell_;
  uint32_t heard_ = 0;
  bool first_ = true;
};

}  // namespace

// One direction between two ranks. Bytes only; what they mean is the Envelope's business.
struct Mail::Ring {
  RingLine* line;
  size_t capacity;

  size_t filled() const { return static_cast<size_t>(line->written.load() - line->read.load()); }

  // As many as there is room for.
  size_t write(const std::byte* data, size_t bytes) const {
    uint64_t at = line->written.load(std::memory_order_relaxed);
    bytes = std::min(bytes, capacity - filled());
    size_t first = std::min(bytes, capacity - at % capacity);
    if (first > 0) std::memcpy(line->data + at % capacity, data, first);
    if (bytes > first) std::memcpy(line->data, data + first, bytes - first);
    line->written.store(at + bytes);
    return bytes;
  }

  // As many as are there.
  size_t read(std::byte* data, size_t bytes) const {
    uint64_t at = line->read.load(std::memory_order_relaxed);
    bytes = std::min(bytes, filled());
    size_t first = std::min(bytes, capacity - at % capacity);
    if (first > 0) std::memcpy(data, line->data + at % capacity, first);
    if (bytes > first) std::memcpy(data + first, line->data, bytes - first);
    line->read.store(at + bytes);
    return bytes;
  }
};

// How long one message may take: as long as was right when it was handed over.
struct Mail::Limit {
  explicit Limit(std::chrono::milliseconds time) : patience(time), deadline(Clock::now() + time) {}
  std::chrono::milliseconds patience;
  Time deadline;
};

struct Mail::Sending {
  Envelope envelope;
  const std::byte* data;
  size_t sent = 0;  // of envelope and data together
  Done done;
  Limit limit;
};

struct Mail::Receiving {
  int from;
  int64_t tag;
  std::byte* data;
  size_t bytes;
  Done done;
  Limit limit;
  bool taken = false;  // a message is on its way into it
};

// What comes from one sender now, and what came before anybody asked for it.
struct Mail::Arriving {
  struct Letter {
    int64_t tag;
    std::vector<std::byte> bytes;
  };
  Envelope envelope{};
  size_t head = 0;  // bytes of the envelope that are here
  size_t got = 0;   // bytes of the message that are here
  bool begun = false;
  Receiving* into = nullptr;
  std::vector<std::byte> aside;  // if nobody has asked for it yet
  std::deque<Letter> stash;
};

Mail::Mail(const Segment& segment, int rank, size_t rings, size_t ring_bytes, std::chrono::milliseconds patience)
    : segment_(segment),
      rank_(rank),
      rings_(rings),
      ring_bytes_(ring_bytes),
      may_spin_(usable_cores() >= segment.world()),
      patience_(patience),
      sendings_(static_cast<size_t>(segment.world())),
      arriving_(static_cast<size_t>(segment.world())) {
  thread_ = start_quiet_thread([this] { run(); });
}

Mail::~Mail() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  segment_.line(rank_).bell.ring();
  thread_.join();
}

Mail::Ring Mail::ring(int from, int to) const {
  std::byte* begin = segment_.arena(from).data() + rings_ + static_cast<size_t>(to) * ring_bytes_;
  return {reinterpret_cast<RingLine*>(begin), ring_bytes_ - offsetof(RingLine, data)};
}

void Mail::require_peer(int peer) const {
  if (peer < 0 || peer >= segment_.world() || peer == rank_)
    throw ConfigError(fmt::format("rank {} cannot exchange messages with rank {}", rank_, peer));
}

void Mail::post(std::function<void()> add) {
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(add));
  }
  if (!move_now()) segment_.line(rank_).bell.ring();
}

void Mail::send(int to, int64_t tag, const void* data, size_t bytes, Done done) {
  require_peer(to);
  Limit limit(patience_);
  post([this, to,
        sending = Sending{{bytes, tag}, static_cast<const std::byte*>(data), 0, std::move(done), limit}]() mutable {
    sendings_[static_cast<size_t>(to)].push_back(std::move(sending));
  });
}

void Mail::receive(int from, int64_t tag, void* data, size_t bytes, Done done) {
  if (from != kAnyRank) require_peer(from);
  Limit limit(patience_);
  post([this, receiving = Receiving{from, tag, static_cast<std::byte*>(data), bytes, std::move(done),
                                    limit}]() mutable { receivings_.push_back(std::move(receiving)); });
}

void Mail::run() {
  Bell& bell = segment_.line(rank_).bell;
  for (;;) {
    uint32_t heard = bell.rung.load();
    bool moved = false;
    std::vector<std::function<void()>> ended;
    {
      std::lock_guard turn(turn_);
      {
        std::lock_guard lock(mutex_);
        if (stopping_) break;
      }
      moved = move_all();
      ended.swap(ended_);
    }
    for (auto& tell : ended) tell();
    if (!moved) bell.wait(heard, kLookAgain);
  }
  end_all(std::make_exception_ptr(PeerLost("the communicator was closed")));
  for (auto& tell : std::exchange(ended_, {})) tell();
}

// False: another thread does it now.
bool Mail::move_now() {
  std::vector<std::function<void()>> ended;
  {
    std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    move_all();
    ended.swap(ended_);
  }
  for (auto& tell : ended) tell();
  return true;
}

void Mail::help(const std::function<bool()>& enough) {
  if (!may_spin_ || enough()) return;
  Watcher watcher(segment_.line(rank_).bell);
  const auto until = Clock::now() + kHelp;
  do {
    if (watcher.heard_something())
      move_now();
    else
      std::this_thread::yield();  // whoever wants this core gets it
  } while (!enough() && Clock::now() < until);
}

// Whether something happened.
bool Mail::move_all() {
  std::deque<std::function<void()>> posted;
  {
    std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  for (auto& add : posted) add();
  if (uint32_t reason = segment_.header().poison.load()) {
    end_all(std::make_exception_ptr(
        PeerLost(reason == kAborted ? "the communicator was aborted" : fmt::format("rank {} is lost", reason - 1))));
    return false;  // what is half here has no place to go any more
  }
  bool moved = move_sendings();
  moved |= move_arrivals();
  give_stashed();
  moved |= end_overdue();
  return moved || !posted.empty();
}

// Not under the lock: who is told may want to send at once.
void Mail::end(Done done, std::exception_ptr error, int peer) {
  ended_.push_back([done = std::move(done), error = std::move(error), peer] { done(error, peer); });
}

bool Mail::move_sendings() {
  bool moved = false;
  for (int to = 0; to < segment_.world(); ++to) {
    auto& queue = sendings_[static_cast<size_t>(to)];
    while (!queue.empty()) {
      Sending& sending = queue.front();
      Ring out = ring(rank_, to);
      size_t before = sending.sent;
      if (sending.sent < sizeof(Envelope))
        sending.sent += out.write(reinterpret_cast<const std::byte*>(&sending.envelope) + sending.sent,
                                  sizeof(Envelope) - sending.sent);
      if (sending.sent >= sizeof(Envelope)) {
        size_t done = sending.sent - sizeof(Envelope);
        sending.sent += out.write(sending.data + done, sending.envelope.bytes - done);
      }
      if (sending.sent > before) {
        moved = true;
        segment_.line(to).bell.ring();
      }
      if (sending.sent < sizeof(Envelope) + sending.envelope.bytes) {
        // The receiver may have read meanwhile, and not known that we want to hear of it.
        if (out.line->full.exchange(1) == 0) continue;
        break;
      }
      Done done = std::move(sending.done);
      queue.pop_front();
      end(std::move(done), nullptr, to);
      moved = true;
    }
  }
  return moved;
}

bool Mail::move_arrivals() {
  bool moved = false;
  for (int from = 0; from < segment_.world(); ++from) {
    if (from == rank_) continue;
    Arriving& arriving = arriving_[static_cast<size_t>(from)];
    while (take(from, arriving)) moved = true;
  }
  return moved;
}

// Whether something came.
bool Mail::take(int from, Arriving& arriving) {
  Ring in = ring(from, rank_);
  size_t count = 0;
  if (arriving.head < sizeof(Envelope)) {
    count = in.read(reinterpret_cast<std::byte*>(&arriving.envelope) + arriving.head, sizeof(Envelope) - arriving.head);
    arriving.head += count;
    if (arriving.head < sizeof(Envelope)) return false;
  }
  if (!arriving.begun && !begin_arrival(from, arriving)) return false;
  std::byte* data = arriving.into ? arriving.into->data : arriving.aside.data();
  size_t more = in.read(data + arriving.got, arriving.envelope.bytes - arriving.got);
  arriving.got += more;
  if (count + more > 0 && in.line->full.load() != 0 && in.line->full.exchange(0) != 0) segment_.line(from).bell.ring();
  if (arriving.got < arriving.envelope.bytes) return more > 0;
  if (arriving.into) {
    Done done = std::move(arriving.into->done);
    receivings_.remove_if([&](const Receiving& entry) { return &entry == arriving.into; });
    end(std::move(done), nullptr, from);
  } else {
    arriving.stash.push_back({arriving.envelope.tag, std::move(arriving.aside)});
  }
  arriving.head = arriving.got = 0;
  arriving.begun = false;
  arriving.into = nullptr;
  arriving.aside = {};
  return true;
}

Mail::Receiving* Mail::wanted(int from, int64_t tag) {
  for (Receiving& receiving : receivings_) {
    if (!receiving.taken && receiving.tag == tag && (receiving.from == from || receiving.from == kAnyRank))
      return &receiving;
  }
  return nullptr;
}

// False: nobody waits for this sender, so it stays in the ring, and the sender waits when that is full. It is put aside
// only to reach what was asked for behind it.
bool Mail::begin_arrival(int from, Arriving& arriving) {
  Receiving* receiving = wanted(from, arriving.envelope.tag);
  // One that came earlier with this tag and waits in the stash goes first.
  bool older = std::ranges::any_of(arriving.stash,
                                   [&](const Arriving::Letter& letter) { return letter.tag == arriving.envelope.tag; });
  if (receiving && !older && receiving->bytes == arriving.envelope.bytes) {
    receiving->taken = true;
    arriving.into = receiving;
  } else if (std::ranges::any_of(receivings_, [&](const Receiving& entry) {
               return !entry.taken && (entry.from == from || entry.from == kAnyRank);
             })) {
    arriving.aside.resize(arriving.envelope.bytes);
  } else {
    return false;
  }
  arriving.begun = true;
  return true;
}

void Mail::give_stashed() {
  for (int from = 0; from < segment_.world(); ++from) {
    auto& stash = arriving_[static_cast<size_t>(from)].stash;
    for (auto letter = stash.begin(); letter != stash.end();) {
      Receiving* receiving = wanted(from, letter->tag);
      if (!receiving) {
        ++letter;
        continue;
      }
      std::exception_ptr error;
      if (receiving->bytes == letter->bytes.size()) {
        if (!letter->bytes.empty()) std::memcpy(receiving->data, letter->bytes.data(), letter->bytes.size());
      } else {
        error = std::make_exception_ptr(ConfigError(fmt::format("rank {} sent {} bytes, rank {} expected {}", from,
                                                                letter->bytes.size(), rank_, receiving->bytes)));
      }
      Done done = std::move(receiving->done);
      receivings_.remove_if([&](const Receiving& entry) { return &entry == receiving; });
      letter = stash.erase(letter);
      end(std::move(done), error, from);
    }
  }
}

bool Mail::nothing_comes_from(int peer) const {
  if (peer != kAnyRank) return segment_.line(peer).left.load() && ring(peer, rank_).filled() == 0;
  for (int one = 0; one < segment_.world(); ++one) {
    if (one != rank_ && !nothing_comes_from(one)) return false;
  }
  return true;
}

// Whether somebody's time was over.
bool Mail::end_overdue() {
  auto now = Clock::now();
  bool some = false;
  auto overdue = [&](const char* what, int peer, const Limit& limit) {
    some = true;
    return std::make_exception_ptr(
        TimedOut(fmt::format("rank {} met its timeout of {} s {} rank {}", rank_,
                             static_cast<double>(limit.patience.count()) / 1000, what, peer)));
  };
  for (auto receiving = receivings_.begin(); receiving != receivings_.end();) {
    bool left = !receiving->taken && nothing_comes_from(receiving->from);
    if (receiving->limit.deadline > now && !left) {
      ++receiving;
      continue;
    }
    // Half of it is here: nothing that follows could be read.
    if (receiving->taken) segment_.poison(kAborted);
    Done done = std::move(receiving->done);
    int from = receiving->from;
    Limit limit = receiving->limit;
    receiving = receivings_.erase(receiving);
    if (left) {
      some = true;
      std::string whom = from == kAnyRank ? "any rank, and all have" : fmt::format("rank {}, which has", from);
      end(std::move(done),
          std::make_exception_ptr(PeerLost(fmt::format("rank {} waits for a message of {} left", rank_, whom))), from);
    } else {
      end(std::move(done), overdue("waiting for a message of", from, limit), from);
    }
  }
  for (int to = 0; to < segment_.world(); ++to) {
    auto& queue = sendings_[static_cast<size_t>(to)];
    const bool left = segment_.line(to).left.load();  // nobody will make room
    for (auto sending = queue.begin(); sending != queue.end();) {
      // Not only the first: what was handed over after it may have less time.
      if (!left && sending->limit.deadline > now) {
        ++sending;
        continue;
      }
      Done done = std::move(sending->done);
      Limit limit = sending->limit;
      bool begun = sending->sent > 0;
      sending = queue.erase(sending);
      if (left) {
        some = true;
        end(std::move(done),
            std::make_exception_ptr(
                PeerLost(fmt::format("rank {} sends a message to rank {}, which has left", rank_, to))),
            to);
        continue;
      }
      end(std::move(done), overdue("sending a message to", to, limit), to);
      if (begun) segment_.poison(kAborted);  // half a message lies in the ring: nothing that follows could be read
    }
  }
  return some;
}

void Mail::end_all(const std::exception_ptr& error) {
  for (int to = 0; to < segment_.world(); ++to) {
    for (Sending& sending : std::exchange(sendings_[static_cast<size_t>(to)], {}))
      end(std::move(sending.done), error, to);
    arriving_[static_cast<size_t>(to)].into = nullptr;
  }
  for (Receiving& receiving : std::exchange(receivings_, {})) end(std::move(receiving.done), error, receiving.from);
}

}  // namespace ddip::comm::shm
