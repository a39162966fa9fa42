// One direction of one edge between two ranks: messages arrive in the order in which they were sent. Memory is bounded:
// as many frames as were asked for are posted ahead or on their way, and each is used again.
//
// A frame has a fixed size, that of the channel's first message, so that a receive can be posted before its message is
// sent. A smaller message leaves the rest of its frame unused; the body of a larger one travels by itself.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "ddip/pipeline/completion.h"
#include "ddip/pipeline/frame.h"

namespace ddip::pipeline {

// ConfigError if a pipeline's messages cannot go by them.
void require_messages(const tensors::Communicator& ranks);

// Frames of one size that are used again when nobody looks at them any more.
class FramePool {
 public:
  // `pinned`: a GPU copies to and from it, several times as fast as other memory.
  explicit FramePool(bool pinned = false) : pinned_(pinned) {}
  std::shared_ptr<std::byte> take(size_t bytes);

 private:
  struct Free;
  const bool pinned_;
  std::shared_ptr<Free> free_;  // null until the size is known
};

// Where a channel's messages are told apart from others'.
struct Address {
  int peer = 0;
  int tag = 0;  // and the next three
};
constexpr int kTagsOfAChannel = 4;

// Where a channel's tensors are, on both of its ends.
struct TensorsOf {
  bool gpu = false;                // not the CPU, which looks at its frames where they lie
  std::optional<at::Device> lane;  // they go by a lane of this GPU
  AfterStream* stream = nullptr;   // of that GPU; it ends before the channel
};

class Sender {
 public:
  // At most `frames` messages are under way.
  Sender(std::shared_ptr<tensors::Communicator> ranks, Address address, int frames, const TensorsOf& tensors);

  // Waits only if all frames are under way.
  void send(const Message& message, const Poll& poll);
  // Until everything sent has left, and has been taken out of the lane.
  void flush(const Poll& poll);

  int64_t sent() const { return sent_; }
  uint64_t bytes() const { return bytes_; }
  // After a failure: as many frames as the other end has posted receives for. When that one has taken them: flush.
  void level(int64_t posted, const Poll& poll);

 private:
  struct UnderWay {
    Completion completion;
    std::shared_ptr<std::byte> memory;
    int tag = 0;
  };
  // Until so many messages at the most are under way.
  void retire(size_t left, const Poll& poll);
  void all_left(const Poll& poll);
  void start(std::shared_ptr<std::byte> memory, size_t bytes, int tag);
  void greet(size_t capacity);
  // Nothing: it is not for the lane, or there is no memory for one.
  std::optional<LanePlace> put_in_lane(const Packed& packed, const Poll& poll);
  void ask_when_taken();
  void wait_until_taken(size_t left, const Poll& poll);

  const std::shared_ptr<tensors::Communicator> ranks_;
  const Address address_;
  const size_t frames_;
  Completions completions_;
  FramePool pool_;
  std::optional<size_t> capacity_;
  std::deque<UnderWay> under_way_;  // frames, bodies that travel by themselves, and the greeting
  size_t frames_under_way_ = 0;
  AfterStream* const stream_;  // null: there is no lane
  std::optional<LaneSender> lane_;
  std::deque<UnderWay> taken_;  // what tells us so, for each message that lies in the lane
  int64_t sent_ = 0;
  uint64_t bytes_ = 0;
};

class Receiver {
 public:
  Receiver(std::shared_ptr<tensors::Communicator> ranks, Address address, int frames, const TensorsOf& tensors);

  // So many messages will come before the next call: receives for them are posted as far as there are frames.
  void expect(int64_t messages) { expected_ += messages; }
  Message receive(const Poll& poll);
  // What the next receive would wait for; nothing: its message is there.
  std::optional<Completion> awaited();

  int64_t posted() const { return posted_; }
  // After a failure: takes everything that was sent.
  void level(int64_t sent, const Poll& poll);
  // Between two runs: the sender may free its memory.
  void close_lane() {
    if (lane_) lane_->close();
  }

 private:
  struct Posted {
    Completion completion;
    std::shared_ptr<std::byte> memory;
  };
  void learn_capacity(const Poll& poll);
  void post();
  Posted start(size_t bytes, int tag);
  Message take_from_lane(const Header& header, const std::byte* body);
  void tell_taken();

  const std::shared_ptr<tensors::Communicator> ranks_;
  const Address address_;
  const size_t frames_;
  Completions completions_;
  // Of bodies that travel by themselves: who waits for messages one after the other, as some backends make us do, would
  // come to a body only after all frames that were posted before it.
  std::optional<Completions> bodies_;
  FramePool pool_;
  std::optional<Posted> greeting_;  // the first message, which says how large a frame is
  std::optional<size_t> capacity_;
  std::deque<Posted> waiting_;
  AfterStream* const stream_;  // null: there is no lane
  std::optional<LaneReceiver> lane_;
  int64_t expected_ = 0;
  int64_t posted_ = 0;
};

}  // namespace ddip::pipeline
