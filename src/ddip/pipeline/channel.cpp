#include "ddip/pipeline/channel.h"

#include <cstring>
#include <mutex>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

enum { kGreeting, kFrames, kBodies };  // added to a channel's tag

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

Sender::Sender(std::shared_ptr<tensors::Communicator> ranks, Address address, int frames, bool pinned)
    : ranks_(std::move(ranks)),
      address_(address),
      frames_(static_cast<size_t>(std::max(frames, 1))),
      completions_(*ranks_),
      pool_(pinned) {}

void Sender::start(std::shared_ptr<std::byte> memory, size_t bytes, int tag) {
  auto work = ranks_->start_send(bytes_of(memory, bytes), address_.peer, address_.tag + tag);
  under_way_.push_back({completions_.watch(work), std::move(memory)});
  bytes_ += bytes;
}

void Sender::retire(size_t left, const Poll& poll) {
  while (!under_way_.empty() && (under_way_.size() > left || under_way_.front().completion.is_done())) {
    under_way_.front().completion.wait(poll);
    under_way_.pop_front();
  }
}

void Sender::send(const Message& message, const Poll& poll) {
  Packed packed = measure(message);
  if (!capacity_) {
    capacity_ = std::max(packed.bytes, kLeastFrame);
    FramePool once;
    auto greeting = once.take(sizeof(uint64_t));
    uint64_t said = *capacity_;
    std::memcpy(greeting.get(), &said, sizeof said);
    start(std::move(greeting), sizeof said, kGreeting);
  }
  retire(frames_ - 1, poll);
  auto frame = pool_.take(*capacity_);
  write_frame(message, packed, *capacity_, frame.get());
  start(std::move(frame), *capacity_, kFrames);
  ++sent_;
  if (packed.bytes > *capacity_) {
    size_t bytes = body_bytes(packed);
    FramePool once;
    auto body = once.take(bytes);
    write_body(packed, body.get());
    start(std::move(body), bytes, kBodies);
  }
}

void Sender::flush(const Poll& poll) { retire(0, poll); }

void Sender::level(int64_t posted, const Poll& poll) {
  while (sent_ < posted) {
    auto frame = pool_.take(*capacity_);
    write_blank(frame.get());
    start(std::move(frame), *capacity_, kFrames);
    ++sent_;
  }
  flush(poll);
}

// --- Receiver

Receiver::Receiver(std::shared_ptr<tensors::Communicator> ranks, Address address, int frames, bool pinned)
    : ranks_(std::move(ranks)),
      address_(address),
      frames_(static_cast<size_t>(std::max(frames, 1))),
      completions_(*ranks_),
      pool_(pinned) {}

Receiver::Posted Receiver::start(size_t bytes, int tag) {
  FramePool once;
  auto memory = tag == kFrames ? pool_.take(bytes) : once.take(bytes);
  auto work = ranks_->start_receive(bytes_of(memory, bytes), address_.peer, address_.tag + tag);
  return {completions_.watch(work), std::move(memory)};
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

Message Receiver::receive(const Poll& poll) {
  if (!capacity_) learn_capacity(poll);
  if (waiting_.empty() && expected_ == 0) throw ConfigError("a stage waits for a message that nobody announced");
  post();
  waiting_.front().completion.wait(poll);
  auto frame = std::move(waiting_.front().memory);
  waiting_.pop_front();
  Header header = read_header(frame.get());
  std::shared_ptr<std::byte> body(frame, frame.get() + kHeaderBytes);
  if (header.apart) {
    Posted apart = start(header.body, kBodies);
    apart.completion.wait(poll);
    body = std::move(apart.memory);
  } else if (header.body > *capacity_ - kHeaderBytes) {
    throw ProtocolError("a message between stages is broken: it is longer than its frame");
  }
  Message message = read_frame(header, body);
  // Posted when the one before it has been taken: a frame that is still looked at is not counted as one of ours.
  post();
  return message;
}

void Receiver::level(int64_t sent, const Poll& poll) {
  expected_ = 0;
  if (sent > 0 && !capacity_) learn_capacity(poll);
  while (posted_ < sent) {
    waiting_.push_back(start(*capacity_, kFrames));
    ++posted_;
  }
  for (const Posted& one : waiting_) {
    one.completion.wait(poll);
    Header header = read_header(one.memory.get());
    if (header.apart) start(header.body, kBodies).completion.wait(poll);
  }
  waiting_.clear();
}

}  // namespace ddip::pipeline
