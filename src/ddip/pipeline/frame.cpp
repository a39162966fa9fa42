#include "ddip/pipeline/frame.h"

#include <fmt/format.h>

#include <cstring>

#include "ddip/base/error.h"
#include "ddip/pipeline/packing.h"

namespace ddip::pipeline {
namespace {

constexpr uint32_t kMagic = 0x70696464;  // "ddip"
enum Kind : uint32_t { a_value, blank, failed_value };

// A tensor whose bytes can be copied as they lie, with its strides: channels-last stays channels-last. One that is
// marked to be conjugated or negated when it is read becomes what it says.
at::Tensor in_one_piece(const at::Tensor& tensor) {
  at::Tensor here = tensor.detach().resolve_conj().resolve_neg();
  return here.is_non_overlapping_and_dense() ? here : here.contiguous();
}

void put_bytes(const at::Tensor& tensor, std::byte* out) {
  if (tensor.nbytes() == 0) return;
  if (tensor.is_cpu()) {
    std::memcpy(out, tensor.const_data_ptr(), tensor.nbytes());
  } else {  // without another copy on the way
    at::Tensor flat = tensor.as_strided({tensor.numel()}, {1});
    at::from_blob(out, flat.sizes(), flat.options().device(at::kCPU)).copy_(flat);
  }
}

void put_header(const Header& header, std::byte* out) {
  static_assert(sizeof(Header) <= kHeaderBytes);
  std::memcpy(out, &header, sizeof header);
}

Header header_of(const Message& message, const Packed& packed, size_t body, Way way) {
  return {.magic = kMagic,
          .kind = a_value,
          .micro_batch = message.micro_batch,
          .count = message.count,
          .fingerprint = message.fingerprint,
          .loss_scale = message.loss_scale,
          .structure = packed.structure.size(),
          .body = body,
          .way = way};
}

Message without_value(const Header& header) {
  return {.micro_batch = header.micro_batch,
          .count = header.count,
          .fingerprint = header.fingerprint,
          .loss_scale = header.loss_scale};
}

std::string_view structure_of(const Header& header, const std::byte* body) {
  return {reinterpret_cast<const char*>(body), header.structure};
}

}  // namespace

Packed measure(const Message& message) {
  Packed packed;
  Value whole = with_tensors(message.value, in_one_piece);
  packed.tensors = tensors_of(whole);
  packed.structure = encode_structure(whole);
  packed.bytes = kHeaderBytes + body_bytes(packed);
  return packed;
}

size_t lane_frame_bytes(const Packed& packed) {
  return kHeaderBytes + aligned(packed.structure.size()) + sizeof(LanePlace);
}

size_t body_bytes(const Packed& packed) {
  size_t bytes = aligned(packed.structure.size());
  for (const at::Tensor& tensor : packed.tensors) bytes += aligned(tensor.nbytes());
  return bytes;
}

void write_body(const Packed& packed, std::byte* out) {
  std::memcpy(out, packed.structure.data(), packed.structure.size());
  out += aligned(packed.structure.size());
  for (const at::Tensor& tensor : packed.tensors) {
    put_bytes(tensor, out);
    out += aligned(tensor.nbytes());
  }
}

void write_frame(const Message& message, const Packed& packed, size_t capacity, std::byte* out) {
  bool fits = packed.bytes <= capacity;
  put_header(header_of(message, packed, body_bytes(packed), fits ? Way::together : Way::apart), out);
  if (fits) write_body(packed, out + kHeaderBytes);
}

void write_frame(const Message& message, const Packed& packed, const LanePlace& place, std::byte* out) {
  const size_t behind = aligned(packed.structure.size());
  put_header(header_of(message, packed, behind + sizeof place, Way::lane), out);
  std::memcpy(out + kHeaderBytes, packed.structure.data(), packed.structure.size());
  std::memcpy(out + kHeaderBytes + behind, &place, sizeof place);
}

void mark_failed(std::byte* frame) {
  Header header = read_header(frame);
  if (header.kind == a_value) header.kind = failed_value;
  put_header(header, frame);
}

bool Header::failed() const { return kind == failed_value; }

void write_blank(std::byte* out) { put_header({.magic = kMagic, .kind = blank}, out); }

Header read_header(const std::byte* frame) {
  Header header;
  std::memcpy(&header, frame, sizeof header);
  if (header.magic != kMagic || header.kind > failed_value || header.way > Way::lane || header.structure > header.body)
    throw ProtocolError("a message between stages is broken: it does not begin like one");
  return header;
}

Message read_frame(const Header& header, const std::shared_ptr<std::byte>& body) {
  Message message = without_value(header);
  size_t offset = aligned(header.structure);
  message.value = decode_structure(structure_of(header, body.get()), [&](const Layout& layout) {
    size_t bytes = bytes_within(layout, offset, header.body);
    std::byte* data = body.get() + offset;
    offset += aligned(bytes);
    auto options = at::TensorOptions().dtype(layout.type);
    if (bytes == 0) return at::empty_strided(layout.sizes, layout.strides, options);
    return at::from_blob(data, layout.sizes, layout.strides, [body](void*) {}, options);
  });
  return message;
}

Message read_frame(const Header& header, const std::byte* body, LaneReceiver& lane) {
  Message message = without_value(header);
  LanePlace place;
  if (header.body < aligned(header.structure) + sizeof place)
    throw ProtocolError("a message between stages is broken: it does not say where its tensors are");
  std::memcpy(&place, body + aligned(header.structure), sizeof place);
  message.value = lane.take(place, structure_of(header, body));
  return message;
}

}  // namespace ddip::pipeline
