// Messages through shared memory. Each pair and direction has a ring in shared memory; large messages stream through
// it. Whoever calls moves what can be moved at once, and who waits may go on doing so (help): no other thread has to be
// woken then. A thread of ours moves the rest, so none waits for another's receiver.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "ddip/comm/collectives.h"
#include "ddip/comm/shm/segment.h"

namespace ddip::comm::shm {

class Mail : public comm::Mail {
 public:
  // `rings`: where this rank's rings begin in every arena, one ring of `ring_bytes` per receiver.
  Mail(const Segment& segment, int rank, size_t rings, size_t ring_bytes, std::chrono::milliseconds patience);
  ~Mail() override;

  void send(int to, int64_t tag, const void* data, size_t bytes, Done done) override;
  void receive(int from, int64_t tag, void* data, size_t bytes, Done done) override;
  void help(const std::function<bool()>& enough) override;
  void set_patience(std::chrono::milliseconds patience) override { patience_ = patience; }

 private:
  struct Ring;
  struct Limit;
  struct Sending;
  struct Receiving;
  struct Arriving;
  using Time = std::chrono::steady_clock::time_point;

  Ring ring(int from, int to) const;
  void run();
  bool move_now();
  bool move_all();
  bool move_sendings();
  bool move_arrivals();
  bool take(int from, Arriving& arriving);
  Receiving* wanted(int from, int64_t tag);
  bool begin_arrival(int from, Arriving& arriving);
  void give_stashed();
  bool nothing_comes_from(int peer) const;
  bool end_overdue();
  void end_all(const std::exception_ptr& error);
  void end(Done done, std::exception_ptr error, int peer);
  void require_peer(int peer) const;
  void post(std::function<void()> add);

  const Segment& segment_;
  const int rank_;
  const size_t rings_;
  const size_t ring_bytes_;
  const bool may_spin_;
  std::atomic<std::chrono::milliseconds> patience_;

  std::mutex mutex_;                          // guards the next two
  std::deque<std::function<void()>> posted_;  // run by whose turn it is
  bool stopping_ = false;
  std::mutex turn_;                            // who has it moves messages: guards the rest
  std::vector<std::function<void()>> ended_;   // to be told when the turn is over
  std::vector<std::deque<Sending>> sendings_;  // by receiver
  std::list<Receiving> receivings_;
  std::vector<Arriving> arriving_;  // by sender
  std::thread thread_;
};

}  // namespace ddip::comm::shm
