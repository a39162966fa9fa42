#include "ddip/pipeline/channel.h"

#include <fmt/format.h>

#include <cstring>
#include <mutex>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

enum { kGreeting, kFrames, kBodies, kTaken };  // added to a channel's tag; the last ones go the other way

at::Tensor bytes_of(const std::shared_ptr<std::byte>& memory, size_t bytes) {
  return at::from_blob(memory.get(), {static_cast<int64_t>(bytes)}, [memory](void*) {}, at::kByte);
}

}  // namespace

struct FramePool::Free {
  std::mutex mutex;
  size_t bytes = 0;
  std::vector<at::Tensor> frames;
};

std::shared_ptr<std::byte> FramePool::take(size_t bytes) {
  if (!free_ || free_->bytes != bytes) {
    free_ = std::make_shared<Free>();
    free_->bytes = bytes;
  }
  at::Tensor frame;
  {
    std::lock_guard lock(free_->mutex);
    if (!free_->frames.empty()) {
      frame = std::move(free_->frames.back());
      free_->frames.pop_back();
    }
  }
  if (!frame.defined())
    frame = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned_));
  auto* memory = reinterpret_cast<std::byte*>(frame.mutable_data_ptr<uint8_t>());
  return {memory, [free = free_, frame](std::byte*) {
            std::lock_guard lock(free->mutex);
            free->frames.push_back(frame);
          }};
}

// --- Sender

void require_messages(const tensors::Communicator& ranks) {
  if (ranks.name() == "nccl")
    throw ConfigError(
        "backend nccl: a pipeline does not send its messages by it; expected shm, which goes from GPU to GPU, or gloo, "
        "mpi");
}

Sender::Sender(std::shared_ptr<tensors::Communicator> ranks, Address address, int frames, const TensorsOf& tensors)
    : ranks_(std::move(ranks)),
      address_(address),
      frames_(static_cast<size_t>(std::max(frames, 1))),
      completions_(*ranks_),
      pool_(tensors.gpu && !tensors.lane),
      stream_(tensors.stream) {
  if (tensors.lane) lane_.emplace(*tensors.lane, frames_);
}

// Where there is a lane all messages go after the stream: none may overtake one whose tensors are not there yet.
void Sender::start(std::shared_ptr<std::byte> memory, size_t bytes, int tag) {
  auto begin = [ranks = ranks_, address = address_, tag, memory, bytes](bool came) {
    if (!came && tag == kFrames) mark_failed(memory.get());
    return ranks->start_send(bytes_of(memory, bytes), address.peer, address.tag + tag);
  };
  Completion completion = stream_ ? completions_.watch_after(*stream_, begin) : completions_.watch(begin(true));
  under_way_.push_back({std::move(completion), std::move(memory), tag});
  if (tag == kFrames) ++frames_under_way_;
  bytes_ += bytes;
}

void Sender::retire(size_t left, const Poll& poll) {
  // A body that travels by itself, and the greeting, are no messages: the checker has counted those.
  while (!under_way_.empty() && (frames_under_way_ > left || under_way_.front().completion.is_done())) {
    under_way_.front().completion.wait(poll);
    if (under_way_.front().tag == kFrames) --frames_under_way_;
    under_way_.pop_front();
  }
}

void Sender::all_left(const Poll& poll) {
  retire(0, poll);
  for (; !under_way_.empty(); under_way_.pop_front()) under_way_.front().completion.wait(poll);
}

void Sender::greet(size_t capacity) {
  capacity_ = std::max(capacity, kLeastFrame);
  FramePool once;
  auto greeting = once.take(sizeof(uint64_t));
  uint64_t said = *capacity_;
  std::memcpy(greeting.get(), &said, sizeof said);
  start(std::move(greeting), sizeof said, kGreeting);
}

void Sender::wait_until_taken(size_t left, const Poll& poll) {
  while (!taken_.empty() && (taken_.size() > left || taken_.front().completion.is_done())) {
    taken_.front().completion.wait(poll);
    taken_.pop_front();
  }
}

std::optional<LanePlace> Sender::put_in_lane(const Packed& packed, const Poll& poll) {
  if (!lane_ || !lane_->takes(packed.tensors) || (capacity_ && lane_frame_bytes(packed) > *capacity_)) return {};
  wait_until_taken(frames_ - 1, poll);
  LanePlace place;
  try {
    place = lane_->put(packed.tensors);
  } catch (const ConfigError&) {  // no memory for a larger one; what lies in it stays until it is taken
    return {};
  }
  bytes_ += place.bytes;
  return place;
}

void Sender::ask_when_taken() {
  FramePool once;
  auto answer = once.take(1);
  auto work = ranks_->start_receive(bytes_of(answer, 1), address_.peer, address_.tag + kTaken);
  taken_.push_back({completions_.watch(work), std::move(answer)});
}

void Sender::send(const Message& message, const Poll& poll) {
  Packed packed = measure(message);
  retire(frames_ - 1, poll);
  std::optional<LanePlace> place = put_in_lane(packed, poll);
  if (!capacity_) greet(place ? lane_frame_bytes(packed) : packed.bytes);
  auto frame = pool_.take(*capacity_);
  std::shared_ptr<std::byte> apart;
  if (place) {
    write_frame(message, packed, *place, frame.get());
  } else {
    write_frame(message, packed, *capacity_, frame.get());
    // Written before anything is sent: the other end waits for it as soon as it has the frame.
    if (packed.bytes > *capacity_) {
      apart = FramePool().take(body_bytes(packed));
      write_body(packed, apart.get());
    }
  }
  start(std::move(frame), *capacity_, kFrames);
  ++sent_;
  if (place) ask_when_taken();
  if (apart) start(std::move(apart), body_bytes(packed), kBodies);
}

void Sender::flush(const Poll& poll) {
  all_left(poll);
  wait_until_taken(0, poll);
}

void Sender::level(int64_t posted, const Poll& poll) {
  FramePool plain;  // not pinned: the GPU may be what has failed
  while (sent_ < posted) {
    auto frame = plain.take(*capacity_);
    write_blank(frame.get());
    start(std::move(frame), *capacity_, kFrames);
    ++sent_;
  }
  all_left(poll);
}

// --- Receiver

Receiver::Receiver(std::shared_ptr<tensors::Communicator> ranks, Address address, int frames, const TensorsOf& tensors)
    : ranks_(std::move(ranks)),
      address_(address),
      frames_(static_cast<size_t>(std::max(frames, 1))),
      completions_(*ranks_),
      pool_(tensors.gpu && !tensors.lane),
      stream_(tensors.stream) {
  if (tensors.lane) lane_.emplace(*tensors.lane);
}

Receiver::Posted Receiver::start(size_t bytes, int tag) {
  FramePool once;
  auto memory = tag == kFrames ? pool_.take(bytes) : once.take(bytes);
  auto work = ranks_->start_receive(bytes_of(memory, bytes), address_.peer, address_.tag + tag);
  if (tag == kBodies && !bodies_) bodies_.emplace(*ranks_);
  return {(tag == kBodies ? *bodies_ : completions_).watch(work), std::move(memory)};
}

void Receiver::learn_capacity(const Poll& poll) {
  if (!greeting_) greeting_ = start(sizeof(uint64_t), kGreeting);
  greeting_->completion.wait(poll);
  uint64_t said = 0;
  std::memcpy(&said, greeting_->memory.get(), sizeof said);
  greeting_.reset();
  if (said < kLeastFrame) throw ProtocolError("a channel between stages begins with an impossible size");
  capacity_ = said;
}

void Receiver::post() {
  while (expected_ > 0 && waiting_.size() < frames_) {
    waiting_.push_back(start(*capacity_, kFrames));
    ++posted_;
    --expected_;
  }
}

std::optional<Completion> Receiver::awaited() {
  if (!capacity_) {
    if (!greeting_) greeting_ = start(sizeof(uint64_t), kGreeting);
    if (!greeting_->completion.has_come()) return greeting_->completion;
    learn_capacity({});
  }
  post();
  if (waiting_.empty() || waiting_.front().completion.has_come()) return {};
  return waiting_.front().completion;
}

Message Receiver::receive(const Poll& poll) {
  if (!capacity_) learn_capacity(poll);
  if (waiting_.empty() && expected_ == 0) throw ConfigError("a stage waits for a message that nobody announced");
  post();
  waiting_.front().completion.wait(poll);
  auto frame = std::move(waiting_.front().memory);
  waiting_.pop_front();
  Header header = read_header(frame.get());
  std::shared_ptr<std::byte> body(frame, frame.get() + kHeaderBytes);
  if (header.way == Way::apart) {
    Posted apart = start(header.body, kBodies);
    apart.completion.wait(poll);
    body = std::move(apart.memory);
  } else if (header.body > *capacity_ - kHeaderBytes) {
    throw ProtocolError("a message between stages is broken: it is longer than its frame");
  }
  if (header.failed()) {
    if (header.way == Way::lane) tell_taken();
    throw StageFailed(fmt::format("the GPU of rank {} has failed", address_.peer));
  }
  Message message = header.way == Way::lane ? take_from_lane(header, body.get()) : read_frame(header, body);
  // Posted when the one before it has been taken: a frame that is still looked at is not counted as one of ours.
  post();
  return message;
}

void Receiver::tell_taken() {
  stream_->call([ranks = ranks_, to = address_.peer, tag = address_.tag + kTaken](bool) {
    static const at::Tensor nothing = at::zeros({1}, at::kByte);
    try {
      ranks->start_send(nothing, to, tag);
    } catch (const std::exception&) {
      // Who waits for it is gone, or learns from the communicator that we are.
    }
  });
}

Message Receiver::take_from_lane(const Header& header, const std::byte* body) {
  if (!lane_) throw ProtocolError("a message between stages came by a lane that this end does not have");
  std::optional<Message> message;
  try {
    message = read_frame(header, body, *lane_);
  } catch (...) {
    tell_taken();  // it is not wanted any more
    throw;
  }
  tell_taken();
  return std::move(*message);
}

void Receiver::level(int64_t sent, const Poll& poll) {
  expected_ = 0;
  if (sent > 0 && !capacity_) learn_capacity(poll);
  while (posted_ < sent) {
    waiting_.push_back(start(*capacity_, kFrames));
    ++posted_;
  }
  while (!waiting_.empty()) {
    waiting_.front().completion.wait(poll);
    Header header = read_header(waiting_.front().memory.get());
    waiting_.pop_front();  // before the next wait, which may be ended: nothing is taken twice
    if (header.way == Way::lane) tell_taken();
    if (header.way == Way::apart) start(header.body, kBodies).completion.wait(poll);
  }
}

}  // namespace ddip::pipeline
