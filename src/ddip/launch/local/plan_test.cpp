#include "ddip/launch/local/plan.h"

#include <gtest/gtest.h>

#include "ddip/base/testing/one_line.h"

namespace ddip::launch::local {
namespace {

std::vector<Device> gpus(const std::string& text) { return written_devices(text, std::nullopt)->devices(); }

Plan planned(const std::vector<std::string>& flags, const std::string& devices, int cores,
             const Environment& env = {}) {
  return plan(parse_group_flags(flags, "%makedip"), gpus(devices), cores, env);
}

struct Shape {
  std::vector<std::string> flags;
  std::string devices;
  int cores;
  int world_size;
  std::vector<int> gpus;
  std::string sentence;
};

TEST(LocalPlan, decides_the_shape_and_says_why) {
  const std::vector<Shape> shapes = {
      {{}, "0", 2, 2, {}, "2 CPU workers, 1 thread each: no GPU is visible"},
      {{}, "0", 8, 2, {}, "2 CPU workers, 4 threads each: no GPU is visible"},
      {{}, "4", 8, 4, {0, 1, 2, 3}, "4 workers on GPUs 0,1,2,3"},
      {{}, "1", 8, 1, {0}, "1 worker on GPU 0"},
      {{"-n", "4"}, "0", 2, 4, {}, "4 CPU workers, 1 thread each"},
      {{"-n", "1"}, "0", 2, 1, {}, "1 CPU worker, 2 threads each"},
      {{"-n", "4"}, "2", 8, 4, {}, "4 CPU workers, 2 threads each: to use the 2 GPUs add -g all"},
      {{"-n", "4"}, "1", 8, 4, {}, "4 CPU workers, 2 threads each: to use the GPU add -g all"},
      {{"-g", "3,1"}, "4", 8, 2, {3, 1}, "2 workers on GPUs 3,1"},
      {{"-g", "all"}, "2", 8, 2, {0, 1}, "2 workers on GPUs 0,1"},
      {{"-g", "0", "-n", "4"}, "2", 8, 4, {0}, "4 workers on GPU 0 (4 per GPU)"},
      {{"-g", "1,0", "-n", "3"}, "2", 8, 3, {1, 0}, "3 workers on GPUs 1,0 (up to 2 per GPU)"},
      {{"-g", "2,0,1", "-n", "2"}, "4", 8, 2, {2, 0, 1}, "2 workers on GPUs 2,0 (unused: GPU 1)"},
  };
  for (const Shape& shape : shapes) {
    const Plan made = planned(shape.flags, shape.devices, shape.cores);
    EXPECT_EQ(made.world_size, shape.world_size) << shape.sentence;
    EXPECT_EQ(made.gpus, shape.gpus) << shape.sentence;
    EXPECT_EQ(made.sentence, shape.sentence);
    EXPECT_EQ(made.backend, "auto");
  }
}

TEST(LocalPlan, nccl_is_refused_unless_each_worker_has_a_gpu) {
  const std::string needs = "--backend nccl: it needs a GPU for each worker, and ";
  EXPECT_EQ(config_error([] { planned({"-n", "2", "--backend", "nccl"}, "2", 8); }),
            needs + "2 workers would have none; expected -g, or --backend shm");
  EXPECT_EQ(config_error([] { planned({"-g", "0", "-n", "2", "--backend", "nccl"}, "2", 8); }),
            needs + "2 workers would have 1 GPU; expected -g, or --backend shm");
  EXPECT_EQ(planned({"-g", "0,1", "--backend", "nccl"}, "2", 8).backend, "nccl");
  EXPECT_EQ(planned({"--backend", "nccl"}, "1", 8).backend, "nccl");
}

TEST(LocalPlan, gives_each_rank_what_torch_distributed_reads) {
  const Plan made = planned({"-n", "2", "--env", "A=1"}, "0", 8);
  const Environment expected = {{"A", "1"},
                                {"RANK", "1"},
                                {"LOCAL_RANK", "1"},
                                {"WORLD_SIZE", "2"},
                                {"LOCAL_WORLD_SIZE", "2"},
                                {"MASTER_ADDR", "127.0.0.1"},
                                {"MASTER_PORT", "4321"},
                                {"GLOO_SOCKET_IFNAME", "lo"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"TORCHELASTIC_RESTART_COUNT", "3"},
                                {"OMP_NUM_THREADS", "4"}};
  EXPECT_EQ(worker_environment(made, 1, {4321, 3}), expected);
}

TEST(LocalPlan, shows_every_rank_the_users_gpus_in_the_users_order) {
  const Plan made = planned({"-g", "3,1", "-n", "5"}, "4", 8);
  for (int rank = 0; rank < 5; ++rank) {
    const Environment environment = worker_environment(made, rank, {1, 0});
    EXPECT_EQ(environment.at("CUDA_VISIBLE_DEVICES"), "3,1");
    EXPECT_EQ(environment.at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
    EXPECT_EQ(environment.at("LOCAL_RANK"), std::to_string(rank));
    EXPECT_EQ(device_of(made, rank), rank % 2);
  }
}

TEST(LocalPlan, hides_the_gpus_from_cpu_ranks_and_leaves_a_machine_without_gpus_alone) {
  const Plan beside_gpus = planned({"-n", "2"}, "2", 8);
  EXPECT_EQ(beside_gpus.common.at("CUDA_VISIBLE_DEVICES"), "");
  EXPECT_EQ(device_of(beside_gpus, 0), std::nullopt);
  EXPECT_FALSE(planned({"-n", "2"}, "0", 8).common.contains("CUDA_VISIBLE_DEVICES"));
}

TEST(LocalPlan, threads_are_a_fair_share_unless_asked_for) {
  EXPECT_EQ(planned({"-n", "3"}, "0", 8).threads, 2);
  EXPECT_EQ(planned({"-n", "16"}, "0", 8).threads, 1);
  EXPECT_EQ(planned({"-n", "16", "--threads", "5"}, "0", 8).threads, 5);
  EXPECT_EQ(planned({"-n", "2"}, "0", 8, {{"OMP_NUM_THREADS", "1"}}).threads, 4);
}

TEST(LocalPlan, master_port_is_the_flags_then_the_environments_then_free) {
  EXPECT_EQ(planned({}, "0", 2).master_port, std::nullopt);
  EXPECT_EQ(planned({}, "0", 2, {{"MASTER_PORT", "4000"}}).master_port, 4000);
  EXPECT_EQ(planned({"--master-port", "5000"}, "0", 2, {{"MASTER_PORT", "4000"}}).master_port, 5000);
  EXPECT_EQ(config_error([] { planned({}, "0", 2, {{"MASTER_PORT", "http"}}); }),
            "MASTER_PORT=http in the environment: expected a port from 1 to 65535");
}

TEST(LocalPlan, a_gpu_that_is_not_there_is_refused_with_those_that_are) {
  EXPECT_EQ(config_error([] { planned({"-g", "0,2"}, "A100:80,A100:80", 8); }),
            "%makedip -g 0,2: GPU 2 is not there; there are: 0 (A100, 80 GiB), 1 (A100, 80 GiB)");
  EXPECT_EQ(config_error([] { planned({"--gpus", "all"}, "0", 8); }),
            "%makedip --gpus all: no GPU is visible; for CPU workers expected -n N without -g");
}

}  // namespace
}  // namespace ddip::launch::local
