// Waits for messages under way without losing sight of an interrupt. Every backend's handles can be waited for; few can
// be waited for and still be interrupted, so a waiting thread of ours is told by them instead.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ddip/pipeline/after_stream.h"
#include "ddip/tensors/communicator.h"

namespace ddip::pipeline {

// Asked now and then while somebody waits; throws to end the wait (Ctrl-C).
using Poll = std::function<void()>;

class Completion {
 public:
  bool is_done() const;
  // Likewise, after a look at what has come.
  bool has_come() const;
  // Throws what the message ended with, or what `poll` threw; then it may be waited for again.
  void wait(const Poll& poll) const;

 private:
  friend class Completions;
  struct State;
  explicit Completion(std::shared_ptr<State> state) : state_(std::move(state)) {}

  friend void wait_for_any(const std::vector<Completion>& some, const Poll& poll);

  std::shared_ptr<State> state_;
};

// Until one of them is done, however it ended. Throws what `poll` threw.
void wait_for_any(const std::vector<Completion>& some, const Poll& poll);

// Of one channel.
class Completions {
 public:
  // What happens at the end to messages that are still under way, where a thread of ours waits for them: they are
  // aborted, which a message that nobody will send survives, or the thread is left to wait for them.
  enum class AtTheEnd { leave, abort };
  explicit Completions(const tensors::Communicator& ranks, AtTheEnd at_the_end = AtTheEnd::leave);
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;
  ~Completions();
  Completion watch(const tensors::Communicator::Work& work);
  // Of a message that is handed over later, by `start`, which is told whether the GPU came there.
  Completion watch_after(AfterStream& stream, std::function<tensors::Communicator::Work(bool came)> start);

 private:
  void tell(const tensors::Communicator::Work& work, const std::shared_ptr<Completion::State>& state);

  const c10::intrusive_ptr<c10d::Backend> backend_;
  tensors::C10dBackend* const ours_;  // the same, if it calls us when a message is through
  // Otherwise: a thread waits for one after the other.
  struct UnderWay;
  const AtTheEnd at_the_end_;
  const std::shared_ptr<UnderWay> under_way_;
  std::unique_ptr<tensors::WorkerThread> waiter_;
};

}  // namespace ddip::pipeline
