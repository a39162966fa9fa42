#include "ddip/pipeline/frame.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ddip/base/error.h"
#include "ddip/pipeline/packing.h"

namespace ddip::pipeline {
namespace {

Message through_a_frame(const Message& message, size_t capacity) {
  Packed packed = measure(message);
  std::shared_ptr<std::byte> frame(new std::byte[std::max(capacity, packed.bytes)], std::default_delete<std::byte[]>());
  write_frame(message, packed, capacity, frame.get());
  Header header = read_header(frame.get());
  std::shared_ptr<std::byte> body(frame, frame.get() + kHeaderBytes);
  if (header.way == Way::apart) {
    body = std::shared_ptr<std::byte>(new std::byte[header.body], std::default_delete<std::byte[]>());
    write_body(packed, body.get());
  }
  return read_frame(header, body);
}

Value everything() {
  at::Tensor image = at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  Value::Dict inner{
      {{"mask", Value{at::randint(0, 2, {3}, at::kBool)}}, {"none", Value{}}, {"name", Value{std::string("x")}}}};
  Value::List list{{Value{image}, Value{int64_t{-7}}, Value{2.5}, Value{true}}};
  return {Value::Tuple{{Value{list}, Value{inner}, Value{at::empty({0, 4})}, Value{at::rand({2, 6}).t()},
                        Value{at::rand({4}, at::kHalf)}, Value{at::tensor(3.0)}}}};
}

void expect_same(const Value& a, const Value& b) {
  EXPECT_EQ(describe(a), describe(b));
  auto left = tensors_of(a), right = tensors_of(b);
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_TRUE(at::equal(left[i], right[i])) << i;
    EXPECT_EQ(left[i].strides(), right[i].strides()) << i;
  }
}

TEST(Frame, HasEveryKindOfValueAgainOnTheOtherSide) {
  Message sent{.micro_batch = 41, .count = 8, .fingerprint = 99, .value = everything()};
  for (size_t capacity : {size_t{1} << 16, kHeaderBytes}) {  // together, and with the body apart
    Message found = through_a_frame(sent, capacity);
    EXPECT_EQ(found.micro_batch, 41);
    EXPECT_EQ(found.count, 8);
    EXPECT_EQ(found.fingerprint, 99u);
    expect_same(found.value, sent.value);
  }
}

TEST(Frame, ATensorThatIsConjugatedOrNegatedWhenItIsReadArrivesSo) {
  const at::Tensor numbers = at::randn({3, 4}, at::kComplexDouble);
  for (const at::Tensor& lazy : {numbers.conj(), at::_neg_view(numbers), at::imag(numbers.conj())}) {
    ASSERT_TRUE(lazy.is_conj() || lazy.is_neg());
    EXPECT_TRUE(at::equal(*through_a_frame({.value = Value{lazy}}, 1 << 12).value.tensor(), lazy));
  }
}

TEST(Frame, ATensorThatIsNotDenseArrivesInOnePiece) {
  at::Tensor whole = at::arange(24.0).view({4, 6});
  Message found = through_a_frame({.value = Value{whole.slice(1, 0, 6, 2)}}, 1 << 12);
  EXPECT_TRUE(at::equal(*found.value.tensor(), whole.slice(1, 0, 6, 2)));
}

TEST(Frame, TensorsKeepTheMemoryTheyLieIn) {
  at::Tensor kept;
  {
    Message found = through_a_frame({.value = Value{at::arange(100.0)}}, 1 << 12);
    kept = *found.value.tensor();
  }
  EXPECT_TRUE(at::equal(kept, at::arange(100.0)));  // the address sanitizer looks at this
}

TEST(Frame, BrokenBytesAreRefusedAndNothingIsReadBehindThem) {
  Message sent{.value = everything()};
  Packed packed = measure(sent);
  std::vector<std::byte> good(packed.bytes);
  write_frame(sent, packed, packed.bytes, good.data());
  int refused = 0;
  for (size_t at = 0; at < kHeaderBytes + packed.structure.size(); ++at) {
    std::shared_ptr<std::byte> bad(new std::byte[packed.bytes], std::default_delete<std::byte[]>());
    std::copy(good.begin(), good.end(), bad.get());
    bad.get()[at] ^= std::byte{0x80};
    try {
      Header header = read_header(bad.get());
      if (header.body > packed.bytes - kHeaderBytes || header.way == Way::apart) continue;  // the channel refuses these
      read_frame(header, std::shared_ptr<std::byte>(bad, bad.get() + kHeaderBytes));
    } catch (const std::exception&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 20);
}

TEST(Frame, OfALaneSaysWhereItsTensorsLieAndIsRefusedIfItDoesNot) {
  Message sent{.micro_batch = 3, .value = everything()};
  Packed packed = measure(sent);
  LanePlace place{.number = 2, .offset = 512, .bytes = 4096};
  std::vector<std::byte> frame(lane_frame_bytes(packed));
  EXPECT_LT(frame.size(), packed.bytes);  // the tensors are not in it
  write_frame(sent, packed, place, frame.data());
  Header header = read_header(frame.data());
  EXPECT_EQ(header.way, Way::lane);
  EXPECT_EQ(header.micro_batch, 3);
  EXPECT_EQ(kHeaderBytes + header.body, frame.size());
  LanePlace found;
  std::memcpy(&found, frame.data() + frame.size() - sizeof found, sizeof found);
  EXPECT_EQ(found.number, 2u);
  EXPECT_EQ(found.offset, 512u);
  EXPECT_EQ(found.bytes, 4096u);
  LaneReceiver none(at::kCPU);
  header.body -= 1;
  EXPECT_THROW(read_frame(header, frame.data() + kHeaderBytes, none), ProtocolError);
}

TEST(Frame, WhoseTensorsWereNeverComputedSaysSoAndABlankOneStaysBlank) {
  Message sent{.value = everything()};
  Packed packed = measure(sent);
  std::vector<std::byte> frame(packed.bytes);
  write_frame(sent, packed, packed.bytes, frame.data());
  EXPECT_FALSE(read_header(frame.data()).failed());
  mark_failed(frame.data());
  EXPECT_TRUE(read_header(frame.data()).failed());
  write_blank(frame.data());
  mark_failed(frame.data());
  EXPECT_FALSE(read_header(frame.data()).failed());
}

TEST(Packing, ATensorOutsideOfItsMemoryIsRefused) {
  Layout layout{.type = at::kFloat, .sizes = {4, 2}, .strides = {2, 1}};
  EXPECT_EQ(bytes_within(layout, 64, 96), 32u);
  EXPECT_THROW(bytes_within(layout, 65, 96), ProtocolError);
  EXPECT_THROW(bytes_within(layout, 0, 31), ProtocolError);
  layout.strides = {3, 1};  // it reaches further than its elements
  EXPECT_THROW(bytes_within(layout, 0, 1000), ProtocolError);
  layout = {.type = at::kFloat, .sizes = {int64_t{1} << 40, int64_t{1} << 40}, .strides = {1, 1}};
  EXPECT_THROW(bytes_within(layout, 0, 1000), ProtocolError);
  layout = {.type = at::kFloat, .sizes = {-1}, .strides = {1}};
  EXPECT_THROW(bytes_within(layout, 0, 1000), ProtocolError);
}

TEST(Value, IsDescribedForPeople) {
  EXPECT_EQ(describe({Value::Tuple{{Value{at::zeros({2, 3})}, Value{}, Value{Value::List{{Value{int64_t{4}}}}}}}}),
            "(Float [2, 3], None, [4])");
}

}  // namespace
}  // namespace ddip::pipeline
