// NVRTC compiles without a GPU. Where there is none (torch for CPUs), what is left to see is that this is said.
#include "ddip/tensors/cuda_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddip/base/error.h"
#include "ddip/tensors/cuda_kernels.h"

namespace ddip::tensors {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class Compiler : public testing::Test {
 protected:
  void SetUp() override {
    try {
      compiler_ = &CudaCompiler::get();
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  const CudaCompiler* compiler_ = nullptr;
  const std::string text_ = "extern \"C\" __global__ void fill(float* out) { out[threadIdx.x] = 1; }";
};

TEST_F(Compiler, makes_machine_code_for_a_gpu_that_it_knows_and_ptx_for_one_that_it_does_not) {
  EXPECT_THAT(compiler_->compile(text_, 90), StartsWith("\177ELF"));
  const std::string newer = compiler_->compile(text_, 999);
  EXPECT_THAT(newer, HasSubstr(".entry fill"));
  EXPECT_THAT(compiler_->ptx(text_, 75), HasSubstr(".target sm_75"));
}

TEST_F(Compiler, complains_in_one_line_that_says_where) {
  try {
    compiler_->compile("\nextern \"C\" __global__ void fill() { nonsense; also; }", 90);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string line = error.what();
    EXPECT_EQ(line, "NVRTC refuses the text for sm_90: ddip.cu(2): error: identifier \"nonsense\" is undefined");
  }
  EXPECT_THROW(compiler_->compile(text_, 13), ConfigError);
}

TEST(Kernels, without_a_gpu_are_refused_in_one_line) {
  if (at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0) GTEST_SKIP() << "there is a GPU";
  try {
    const CudaKernels kernels(at::Device(at::kCUDA, 0), "", {});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace ddip::tensors
