// A value as one piece of memory that travels over a channel: a header, the structure, the tensors' bytes or where they
// lie.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ddip/pipeline/lane.h"
#include "ddip/pipeline/value.h"

namespace ddip::pipeline {

// A value on its way, with what belongs to its micro-batch.
struct Message {
  int64_t micro_batch = 0;
  double count = 0;  // samples, or what the loss was a sum over; 0: the micro-batch is empty, and so is the value
  uint64_t fingerprint = 0;  // of the inputs it began with; 0: not known
  double loss_scale = 1;     // of a gradient
  Value value;
};

constexpr size_t kHeaderBytes = 64;
// No frame is smaller: small messages then fit whatever they are.
constexpr size_t kLeastFrame = 4096;

struct Packed {
  std::string structure;
  std::vector<at::Tensor> tensors;  // each in one piece
  size_t bytes = 0;                 // of the whole frame
};

Packed measure(const Message& message);
// The frame, if it fits into `capacity`; otherwise the header alone, and the body is for a message of its own.
void write_frame(const Message& message, const Packed& packed, size_t capacity, std::byte* out);
// Its tensors lie in a lane.
void write_frame(const Message& message, const Packed& packed, const LanePlace& place, std::byte* out);
size_t lane_frame_bytes(const Packed& packed);
void write_body(const Packed& packed, std::byte* out);
size_t body_bytes(const Packed& packed);
void write_blank(std::byte* out);
// Of a frame that is written: its tensors were never computed.
void mark_failed(std::byte* frame);

// Where the tensors are: with the structure in the frame; with it in a message of their own; in a lane.
enum class Way : uint64_t { together, apart, lane };

struct Header {
  uint32_t magic = 0;
  uint32_t kind = 0;
  int64_t micro_batch = 0;
  double count = 0;
  uint64_t fingerprint = 0;
  double loss_scale = 1;
  uint64_t structure = 0;  // bytes
  uint64_t body = 0;       // bytes of the structure and what comes with it
  Way way = Way::together;
  bool failed() const;
};
Header read_header(const std::byte* frame);
// The tensors are views of the memory, and keep it.
Message read_frame(const Header& header, const std::shared_ptr<std::byte>& body);
// The tensors are copies.
Message read_frame(const Header& header, const std::byte* body, LaneReceiver& lane);

}  // namespace ddip::pipeline
