// The kernels compile for every GPU that torch serves, and read four floats at once. What they compute:
// tests/test_gpu.py on a GPU, tests/test_gpu_kernels.py without one.
#include "ddip/staleness/fused_cuda.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>

#include "ddip/base/error.h"
#include "ddip/tensors/cuda_compiler.h"

namespace ddip::staleness {
namespace {

using testing::HasSubstr;
using testing::Not;

const tensors::CudaCompiler* compiler(std::string& why) {
  try {
    return &tensors::CudaCompiler::get();
  } catch (const ConfigError& error) {
    why = error.what();
    return nullptr;
  }
}

TEST(FusedKernels, compile_for_old_and_new_gpus_into_loads_and_stores_of_sixteen_bytes) {
  std::string why;
  const tensors::CudaCompiler* nvrtc = compiler(why);
  if (!nvrtc) GTEST_SKIP() << why;
  for (int capability : {75, 80, 90}) {
    const std::string ptx = nvrtc->ptx(cuda::kernel_text(), capability);
    for (const std::string& name : cuda::kernel_names()) {
      const size_t begin = ptx.find(".entry " + name + "(");
      ASSERT_NE(begin, std::string::npos) << name;
      const std::string body = ptx.substr(begin, ptx.find(".entry ", begin + 1) - begin);
      EXPECT_THAT(body, HasSubstr("ld.global.v4.")) << name;
      EXPECT_THAT(body, HasSubstr("st.global.v4.")) << name;
    }
    EXPECT_THAT(ptx, Not(HasSubstr(".local "))) << "something went to the stack, which is slow memory";
    EXPECT_THAT(ptx, Not(HasSubstr(".ftz"))) << "torch keeps numbers below the smallest normal one";
    EXPECT_THAT(ptx, Not(HasSubstr(".approx")));
    EXPECT_FALSE(nvrtc->compile(cuda::kernel_text(), capability).empty());
  }
}

// tests/test_gpu_kernels.py has the same places and gives such structures to the text.
TEST(FusedKernels, take_the_structures_that_they_are_given) {
  using cuda::Range, cuda::Steps;
  EXPECT_EQ(offsetof(Range, head), 8);
  EXPECT_EQ(offsetof(Range, fours), 16);
  EXPECT_EQ(offsetof(Steps, steps[1].root), 20);
  EXPECT_EQ(offsetof(Steps, steps[1].moment), 24);
  EXPECT_EQ(offsetof(Steps, steps[1].gradient), 28);
  EXPECT_EQ(offsetof(Steps, eps), 1024);
  EXPECT_EQ(offsetof(Steps, first), 1028);
  EXPECT_EQ(offsetof(Steps, decay), 1032);
  EXPECT_EQ(offsetof(Steps, pending), 1036);
  EXPECT_EQ(offsetof(Steps, count), 1040);
  EXPECT_EQ(offsetof(Steps, through_moments), 1044);
  EXPECT_EQ(offsetof(Steps, moves_by_gradient), 1048);
  std::string why;
  const tensors::CudaCompiler* nvrtc = compiler(why);
  if (!nvrtc) GTEST_SKIP() << why;
  const auto sized = [](const char* type, size_t size) {
    return cuda::kernel_text() + fmt::format("static_assert(sizeof({}) == {}, \"\");", type, size);
  };
  EXPECT_NO_THROW(nvrtc->ptx(sized("Range", sizeof(Range)), 90));
  EXPECT_NO_THROW(nvrtc->ptx(sized("Steps", sizeof(Steps)), 90));
  EXPECT_THROW(nvrtc->ptx(sized("Steps", 1), 90), ConfigError);
}

TEST(FusedRange, has_fours_only_where_every_pointer_is_at_a_multiple_of_sixteen_bytes) {
  alignas(16) static float memory[64];
  for (int64_t elements : {0, 1, 2, 3, 4, 7, 8, 31})
    for (int first = 0; first < 8; ++first)
      for (int second = 0; second < 8; ++second) {
        const cuda::Range range =
            cuda::range_of(elements, std::array<const float*, 3>{memory + first, nullptr, memory + 32 + second});
        EXPECT_EQ(range.count, elements);
        EXPECT_LE(range.head + 4 * range.fours, elements);
        if (first % 4 != second % 4) {
          EXPECT_EQ(range.fours, 0);
          continue;
        }
        EXPECT_TRUE(range.fours == 0 || (first + range.head) % 4 == 0);
        EXPECT_LT(elements - 4 * range.fours, 7) << "fours were left out";
      }
}

TEST(Fused, without_a_gpu_the_kernels_say_why_and_the_processors_tensors_do_not_ask_them) {
  if (at::hasCUDA()) GTEST_SKIP() << "this torch is for GPUs";
  const std::string why = cuda::obstacle(at::Device(at::kCUDA, 0));
  EXPECT_FALSE(why.empty());
  EXPECT_EQ(cuda::obstacle(at::Device(at::kCUDA, 0)), why);
  EXPECT_EQ(why_unfused(at::ones(3, at::kDouble)), "it is not fp32");
  EXPECT_EQ(why_unfused(at::ones({3, 3}).t()), "it is not contiguous");
}

}  // namespace
}  // namespace ddip::staleness
