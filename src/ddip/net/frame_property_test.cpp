#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "ddip/base/error.h"
#include "ddip/net/frame.h"

namespace ddip::net {
namespace {

struct Outcome {
  std::vector<std::pair<std::string, int>> frames;
  std::string error;
  bool operator==(const Outcome&) const = default;
};

Outcome read_in_pieces(const std::string& stream, const std::vector<size_t>& sizes) {
  Outcome outcome;
  FrameReader reader(kBodyCapBeforeHello);
  size_t at = 0, turn = 0;
  try {
    while (at < stream.size()) {
      size_t size = sizes.empty() ? stream.size() : sizes[turn++ % sizes.size()];
      reader.feed(std::string_view(stream).substr(at, size));
      at += size;
      while (auto frame = reader.next()) outcome.frames.emplace_back(frame->body, frame->descriptors);
    }
  } catch (const ProtocolError& error) {
    outcome.error = error.what();
  }
  return outcome;
}

struct Stream {
  std::string bytes;
  Outcome expected;
};

Stream any_stream() {
  Stream stream;
  for (int count = *rc::gen::inRange(0, 8); count > 0; --count) {
    std::string body = *rc::gen::nonEmpty(rc::gen::arbitrary<std::string>());
    int descriptors = *rc::gen::inRange(0, 9);
    stream.bytes += encode_frame(body, static_cast<uint8_t>(descriptors));
    stream.expected.frames.emplace_back(body, descriptors);
  }
  return stream;
}

auto any_sizes() { return rc::gen::nonEmpty(rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 40))); }

}  // namespace

RC_GTEST_PROP(FrameProperty, chunking_does_not_matter, ()) {
  Stream stream = any_stream();
  RC_ASSERT(read_in_pieces(stream.bytes, *any_sizes()) == stream.expected);
}

RC_GTEST_PROP(FrameProperty, damaged_byte_gives_the_same_prefix_and_reason_however_it_is_cut, ()) {
  Stream stream = any_stream();
  RC_PRE(!stream.bytes.empty());
  size_t at = *rc::gen::inRange<size_t>(0, stream.bytes.size());
  char change = *rc::gen::nonZero<char>();
  stream.bytes[at] = static_cast<char>(stream.bytes[at] ^ change);
  Outcome whole = read_in_pieces(stream.bytes, {});
  RC_ASSERT(read_in_pieces(stream.bytes, *any_sizes()) == whole);
  RC_ASSERT(whole.frames.size() < stream.expected.frames.size());
  for (size_t index = 0; index < whole.frames.size(); ++index) {
    RC_ASSERT(whole.frames[index] == stream.expected.frames[index]);
  }
}

RC_GTEST_PROP(FrameProperty, random_bytes_are_no_frames, (const std::string& bytes)) {
  Outcome outcome = read_in_pieces(bytes, {});
  RC_ASSERT(outcome.frames.empty());
  RC_ASSERT(bytes.size() < kHeaderBytes || !outcome.error.empty());
}

}  // namespace ddip::net
