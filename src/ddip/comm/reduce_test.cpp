#include "ddip/comm/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace ddip::comm {
namespace {

std::vector<const void*> pointers(const std::vector<std::vector<float>>& parts) {
  std::vector<const void*> all;
  for (const auto& part : parts) all.push_back(part.data());
  return all;
}

std::vector<std::vector<float>> random_parts(size_t ranks, size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> parts(ranks, std::vector<float>(count));
  for (auto& part : parts) {
    for (float& value : part) value = normal(random);
  }
  return parts;
}

uint16_t bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);  // tests use values that need no rounding
}

template <typename T>
std::vector<T> reduced(Element element, Reduction reduction, const std::vector<std::vector<T>>& parts,
                       double scale = 1.0) {
  std::vector<const void*> inputs;
  for (const auto& part : parts) inputs.push_back(part.data());
  std::vector<T> out(parts[0].size());
  reduce(element, reduction, scale, inputs, out.data(), out.size());
  return out;
}

}  // namespace

// Every count around the vector and block widths; the order of additions is the ranks', so equality is exact.
TEST(Reduce, sum_is_that_of_a_plain_loop_in_rank_order) {
  for (size_t ranks : {1u, 2u, 3u, 5u, 8u}) {
    for (size_t count : {0u, 1u, 7u, 8u, 63u, 2047u, 2048u, 2049u, 10000u}) {
      auto parts = random_parts(ranks, count);
      std::vector<float> out(count + 1, 42);
      auto inputs = pointers(parts);
      reduce(Element::f32, Reduction::sum, 1.0, inputs, out.data(), count);
      for (size_t index = 0; index < count; ++index) {
        float expected = parts[0][index];
        for (size_t rank = 1; rank < ranks; ++rank) expected += parts[rank][index];
        ASSERT_EQ(out[index], expected) << ranks << " ranks, element " << index;
      }
      EXPECT_EQ(out[count], 42) << "wrote past the end";
    }
  }
}

TEST(Reduce, out_may_be_an_input) {
  auto parts = random_parts(3, 5000);
  auto expected = reduced(Element::f32, Reduction::sum, parts);
  auto inputs = pointers(parts);
  reduce(Element::f32, Reduction::sum, 1.0, inputs, parts[1].data(), 5000);
  EXPECT_EQ(parts[1], expected);
}

TEST(Reduce, mean_divides_the_sum) {
  EXPECT_EQ(reduced<float>(Element::f32, Reduction::mean, {{1}, {2}, {4}}), std::vector<float>{7.0f / 3});
  EXPECT_EQ(reduced<double>(Element::f64, Reduction::mean, {{1}, {2}, {4}}), std::vector<double>{7.0 / 3});
}

TEST(Reduce, scaled_sum_multiplies) {
  EXPECT_EQ(reduced<float>(Element::f32, Reduction::scaled_sum, {{1}, {2}}, 0.25), std::vector<float>{0.75f});
}

TEST(Reduce, least_greatest_product) {
  EXPECT_EQ(reduced<float>(Element::f32, Reduction::min, {{3, -1}, {2, 5}}), (std::vector<float>{2, -1}));
  EXPECT_EQ(reduced<float>(Element::f32, Reduction::max, {{3, -1}, {2, 5}}), (std::vector<float>{3, 5}));
  EXPECT_EQ(reduced<float>(Element::f32, Reduction::product, {{3, -1}, {2, 5}}), (std::vector<float>{6, -5}));
  EXPECT_EQ(reduced<int64_t>(Element::i64, Reduction::max, {{INT64_MAX}, {INT64_MIN}}),
            std::vector<int64_t>{INT64_MAX});
}

TEST(Reduce, nan_on_any_rank_is_seen) {
  float nan = std::numeric_limits<float>::quiet_NaN();
  for (Reduction reduction : {Reduction::sum, Reduction::min, Reduction::max, Reduction::product, Reduction::mean}) {
    for (size_t where : {0u, 1u, 2u}) {
      std::vector<std::vector<float>> parts(3, std::vector<float>(20, 1.0f));
      parts[where][13] = nan;
      auto out = reduced(Element::f32, reduction, parts);
      EXPECT_TRUE(std::isnan(out[13])) << name_of(reduction) << " with it on rank " << where;
      EXPECT_FALSE(std::isnan(out[12]));
    }
  }
}

TEST(Reduce, integers_wrap_and_bits_are_bits) {
  EXPECT_EQ(reduced<int8_t>(Element::i8, Reduction::sum, {{100}, {100}}), std::vector<int8_t>{-56});
  EXPECT_EQ(reduced<uint8_t>(Element::u8, Reduction::sum, {{200}, {100}}), std::vector<uint8_t>{44});
  EXPECT_EQ(reduced<int32_t>(Element::i32, Reduction::bit_and, {{12}, {10}}), std::vector<int32_t>{8});
  EXPECT_EQ(reduced<int32_t>(Element::i32, Reduction::bit_or, {{12}, {10}}), std::vector<int32_t>{14});
  EXPECT_EQ(reduced<int16_t>(Element::i16, Reduction::bit_xor, {{12}, {10}}), std::vector<int16_t>{6});
}

TEST(Reduce, truth_stays_truth) {
  EXPECT_EQ(reduced<uint8_t>(Element::boolean, Reduction::sum, {{1, 1, 0}, {1, 0, 0}}),
            (std::vector<uint8_t>{1, 1, 0}));
  EXPECT_EQ(reduced<uint8_t>(Element::boolean, Reduction::product, {{1, 1, 0}, {1, 0, 0}}),
            (std::vector<uint8_t>{1, 0, 0}));
  EXPECT_EQ(reduced<uint8_t>(Element::boolean, Reduction::min, {{1, 1, 0}, {1, 0, 0}}),
            (std::vector<uint8_t>{1, 0, 0}));
}

// 256 + 1 + 1 is 258 in 32 bits and after one rounding; rounded after each step bfloat16 would stay at 256.
TEST(Reduce, sixteen_bits_are_summed_in_thirty_two_and_rounded_once) {
  auto out = reduced<uint16_t>(Element::bf16, Reduction::sum, {{bfloat(256)}, {bfloat(1)}, {bfloat(1)}});
  EXPECT_EQ(out[0], bfloat(258));
  // 60000 + 60000 is over what a half holds, their mean is not.
  auto half = [](float value) {
    _Float16 small = static_cast<_Float16>(value);
    uint16_t bits;
    std::memcpy(&bits, &small, sizeof bits);
    return bits;
  };
  EXPECT_EQ(reduced<uint16_t>(Element::f16, Reduction::mean, {{half(60000)}, {half(60000)}})[0], half(60000));
}

TEST(Reduce, bfloat16_rounds_to_nearest_even_and_keeps_nan) {
  // 1 + 2^-8 lies half-way between 1 and 1 + 2^-7: to even, which is 1. 1 + 3·2^-8 goes up to 1 + 2^-6.
  EXPECT_EQ(reduced<uint16_t>(Element::bf16, Reduction::sum, {{bfloat(1)}, {bfloat(1.0f / 256)}})[0], bfloat(1));
  EXPECT_EQ(reduced<uint16_t>(Element::bf16, Reduction::sum, {{bfloat(1)}, {bfloat(3.0f / 256)}})[0],
            bfloat(1.0f + 1.0f / 64));
  uint16_t nan = 0x7f81;  // its payload would be lost by plain rounding
  uint16_t out = reduced<uint16_t>(Element::bf16, Reduction::sum, {{nan}, {bfloat(1)}})[0];
  EXPECT_TRUE((out & 0x7f80) == 0x7f80 && (out & 0x7f) != 0);
}

TEST(Reduce, what_does_not_exist_is_said) {
  EXPECT_FALSE(can_reduce(Element::i32, Reduction::mean));
  EXPECT_FALSE(can_reduce(Element::f32, Reduction::bit_and));
  EXPECT_TRUE(can_reduce(Element::boolean, Reduction::sum));
  EXPECT_TRUE(can_reduce(Element::bf16, Reduction::mean));
}

}  // namespace ddip::comm
