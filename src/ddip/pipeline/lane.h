// Memory on a GPU that another rank of this host reads: messages between ranks that share a GPU, or between GPUs that
// see each other's memory, do not go through the host's.
//
// Nothing on a GPU waits for another rank, which may be killed: each rank waits for its own stream (after_stream.h) and
// then tells the other one.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "ddip/pipeline/value.h"
#include "ddip/tensors/communicator.h"
#include "ddip/tensors/cuda_runtime.h"

namespace ddip::pipeline {

// The GPU of this rank, if lanes can be had between all ranks: all of them on this host, each with stages and all of
// these on one GPU, `senders` being the ranks that send to this one. All ranks together, and all get an answer of the
// same kind.
std::optional<at::Device> gpu_of_lanes(tensors::Communicator& ranks, const std::vector<at::Device>& stages,
                                       const std::set<int>& senders);

// Where the tensors of a message lie, one behind the other.
struct LanePlace {
  tensors::IpcHandle memory{};
  uint64_t number = 0;  // of the memory, among those of its lane
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class LaneSender {
 public:
  LaneSender(at::Device device, size_t slots) : device_(device), slots_(slots) {}
  LaneSender(const LaneSender&) = delete;
  LaneSender& operator=(const LaneSender&) = delete;
  ~LaneSender();

  // Whether this is a message for a lane: tensors of its GPU, and no others.
  bool takes(const std::vector<at::Tensor>& tensors) const;
  // The tensors are there when the stream has come so far. Their places are used in turn: the caller knows that the
  // message so many slots before this one has been taken.
  LanePlace put(const std::vector<at::Tensor>& tensors);

 private:
  void grow(size_t bytes);

  const at::Device device_;
  const size_t slots_;
  size_t slot_bytes_ = 0;
  uint64_t messages_ = 0;
  // The last one is in use. Those before it were too small: what lies there may not have been taken yet.
  std::vector<std::byte*> memories_;
  tensors::IpcHandle offer_{};
};

class LaneReceiver {
 public:
  explicit LaneReceiver(at::Device device) : device_(device) {}
  LaneReceiver(const LaneReceiver&) = delete;
  LaneReceiver& operator=(const LaneReceiver&) = delete;
  ~LaneReceiver();

  // The value with tensors of our own. When the stream has come so far the place is the sender's again.
  Value take(const LanePlace& place, std::string_view structure);
  // Lets go of the sender's memory, which must not be freed before; it is opened again when it is needed.
  void close();

 private:
  void open(const LanePlace& place);

  const at::Device device_;
  uint64_t number_ = 0;
  std::byte* memory_ = nullptr;  // the sender's, of that number; null: none
};

}  // namespace ddip::pipeline
