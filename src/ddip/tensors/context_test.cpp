#include "ddip/tensors/context.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "ddip/base/error.h"

namespace ddip {
namespace {

// The variables that are read, as given and no others.
Context context(const std::map<std::string, std::string>& given, const std::string& backend = "auto") {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"})
    unsetenv(name);
  for (const auto& [name, value] : given) setenv(name.c_str(), value.c_str(), 1);
  return Context::from_environment(backend);
}

std::string refused(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Context, is_one_rank_alone_where_nobody_says_more) {
  Context alone = context({});
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.world_size(), 1);
  auto ranks = alone.communicator();
  EXPECT_EQ(ranks->name(), "shm");
  EXPECT_EQ(ranks->reason(), "ranks on one host");
}

TEST(Context, knows_its_place_under_mpirun) {
  Context third = context({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_EQ(third.rank(), 2);
  EXPECT_EQ(third.world_size(), 4);
}

TEST(Context, what_ddip_run_and_torchrun_say_goes_before_mpirun) {
  Context second = context({{"OMPI_COMM_WORLD_RANK", "0"},
                            {"OMPI_COMM_WORLD_SIZE", "1"},
                            {"RANK", "1"},
                            {"WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", "1234"}});
  EXPECT_EQ(second.rank(), 1);
  EXPECT_EQ(second.world_size(), 2);
}

TEST(Context, refuses_what_cannot_be_in_one_line) {
  EXPECT_EQ(refused([] { context({}, "mpi"); }),
            "backend mpi is for programs started by mpirun, and OMPI_COMM_WORLD_SIZE is not set");
  EXPECT_EQ(refused([] { context({{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}}); }),
            "OMPI_COMM_WORLD_RANK='4' in the environment: a number from 0 to 3 was expected");
  EXPECT_EQ(refused([] { context({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, "shm"); }),
            "MASTER_PORT is not set: start with `ddip run` or torchrun");
  EXPECT_EQ(refused([] { context({}, "gluu").communicator(); }),
            "backend 'gluu' is unknown, one of auto, shm, mpi, nccl was expected");
#ifndef DDIP_NCCL
  EXPECT_EQ(refused([] { context({}, "nccl").communicator(); }),
            "backend nccl: ddip was built with a torch that has no NCCL, or without NCCL's and CUDA's headers");
#endif
}

}  // namespace
}  // namespace ddip
