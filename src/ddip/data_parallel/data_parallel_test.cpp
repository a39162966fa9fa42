#include "ddip/data_parallel/data_parallel.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

namespace ddip {
namespace {

// One rank alone: what is synchronised is counted there too.
class DataParallelTest : public testing::Test {
 protected:
  uint64_t synchronised_by_a_backward() {
    model.stats();
    model.forward(torch::ones({1, 2})).sum().backward();
    return model.stats().steps;
  }

  Context context = Context::from_environment();
  DataParallel<torch::nn::Linear> model{context, torch::nn::Linear(2, 2)};
};

TEST_F(DataParallelTest, no_sync_lasts_until_its_own_end_also_around_another) {
  EXPECT_EQ(synchronised_by_a_backward(), 1u);
  {
    auto outer = model.no_sync();
    {
      auto inner = model.no_sync();
      EXPECT_EQ(synchronised_by_a_backward(), 0u);
    }
    EXPECT_EQ(synchronised_by_a_backward(), 0u);
  }
  EXPECT_EQ(synchronised_by_a_backward(), 1u);
}

}  // namespace
}  // namespace ddip
