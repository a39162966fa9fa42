#include "ddip/pipeline/frame.h"

#include <fmt/format.h>

#include <cstring>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

constexpr uint32_t kMagic = 0x70696464;  // "ddip"
enum Kind : uint32_t { a_value, blank };

// Vector instructions like it, and so does a tensor of any type.
constexpr size_t kAlignment = 64;
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A tensor whose bytes can be copied as they lie, with its strides: channels-last stays channels-last.
at::Tensor in_one_piece(const at::Tensor& tensor) {
  at::Tensor here = tensor.detach();
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

size_t span_bytes(const Layout& layout) {
  size_t elements = 1;
  for (int64_t size : layout.sizes) {
    if (size < 0 || (size > 0 && elements > (size_t{1} << 48) / static_cast<size_t>(size)))
      throw ProtocolError("a message between stages is broken: a tensor has an impossible size");
    elements *= static_cast<size_t>(size);
  }
  return elements * c10::elementSize(layout.type);
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
  put_header({.magic = kMagic,
              .kind = a_value,
              .micro_batch = message.micro_batch,
              .count = message.count,
              .fingerprint = message.fingerprint,
              .structure = packed.structure.size(),
              .body = body_bytes(packed),
              .apart = fits ? 0u : 1u},
             out);
  if (fits) write_body(packed, out + kHeaderBytes);
}

void write_blank(std::byte* out) { put_header({.magic = kMagic, .kind = blank}, out); }

Header read_header(const std::byte* frame) {
  Header header;
  std::memcpy(&header, frame, sizeof header);
  if (header.magic != kMagic || header.kind > blank || header.structure > header.body)
    throw ProtocolError("a message between stages is broken: it does not begin like one");
  return header;
}

Message read_frame(const Header& header, const std::shared_ptr<std::byte>& body) {
  Message message{.micro_batch = header.micro_batch, .count = header.count, .fingerprint = header.fingerprint};
  std::string_view structure(reinterpret_cast<const char*>(body.get()), header.structure);
  size_t offset = aligned(header.structure);
  message.value = decode_structure(structure, [&](const Layout& layout) {
    size_t bytes = span_bytes(layout);
    size_t reach = at::detail::computeStorageNbytes(layout.sizes, layout.strides, c10::elementSize(layout.type));
    if (reach > bytes || bytes > header.body || offset > header.body - bytes)
      throw ProtocolError("a message between stages is broken: a tensor lies outside of it");
    std::byte* data = body.get() + offset;
    offset += aligned(bytes);
    auto options = at::TensorOptions().dtype(layout.type);
    if (bytes == 0) return at::empty_strided(layout.sizes, layout.strides, options);
    return at::from_blob(data, layout.sizes, layout.strides, [body](void*) {}, options);
  });
  return message;
}

}  // namespace ddip::pipeline
