#include "ddip/launch/devices.h"

#include <gtest/gtest.h>

#include "ddip/base/testing/one_line.h"

namespace ddip::launch {
namespace {

std::vector<int> indices(const std::vector<Device>& devices) {
  std::vector<int> out;
  for (const Device& device : devices) out.push_back(device.index);
  return out;
}

std::vector<Device> four() { return written_devices("4", std::nullopt)->devices(); }

using Numbers = std::vector<int>;

TEST(WrittenDevices, are_counted_or_named) {
  EXPECT_EQ(indices(four()), (Numbers{0, 1, 2, 3}));
  EXPECT_TRUE(written_devices("", std::nullopt)->devices().empty());
  EXPECT_TRUE(written_devices("0", std::nullopt)->devices().empty());
  const auto named = written_devices("A100:80,T4:16", std::nullopt)->devices();
  EXPECT_EQ(describe(named), "0 (A100, 80 GiB), 1 (T4, 16 GiB)");
}

TEST(WrittenDevices, refuse_bad_text_in_one_line) {
  for (const std::string text : {"A100", "A100:", "A100:x", ":80", "A100:80,", "-1", "1e9", "1000000000"}) {
    EXPECT_NE(config_error([&] { written_devices(text, std::nullopt); }).find("expected"), std::string::npos) << text;
  }
}

TEST(VisibleDevices, follow_cuda_visible_devices_in_its_order) {
  struct Case {
    std::string visible;
    Numbers seen;
  };
  const std::vector<Case> cases = {
      {"3,1", {3, 1}},
      {" 2 , 0 ", {2, 0}},
      {"GPU-test-2,0", {2, 0}},
      {"0,GPU-test-3", {0, 3}},
      {"GPU-test-", {}},  // four begin with it
      {"", {}},
      {"-1", {}},
      {"0,-1,1", {0}},  // as in CUDA: the list ends at the first bad entry
      {"0,9,1", {0}},
      {"99999999999,0", {}},
      {"1,1", {1}},
      {"MIG-abc", {}},
      {"NoDevFiles", {}},
  };
  for (const Case& c : cases) EXPECT_EQ(indices(visible_devices(four(), c.visible)), c.seen) << c.visible;
  EXPECT_EQ(indices(visible_devices(four(), std::nullopt)), (Numbers{0, 1, 2, 3}));
}

TEST(ChooseGpus, keeps_the_users_order) {
  EXPECT_EQ(choose_gpus("3,1", four()), (Numbers{3, 1}));
  EXPECT_EQ(choose_gpus("2-3,0", four()), (Numbers{2, 3, 0}));
  EXPECT_EQ(choose_gpus("all", four()), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(choose_gpus("all", visible_devices(four(), "3,1")), (Numbers{3, 1}));
}

TEST(ChooseGpus, refuses_in_one_line_and_lists_those_that_are_there) {
  const auto two = written_devices("A100:80,T4:16", std::nullopt)->devices();
  const auto hidden = written_devices("A100:80,T4:16", "1")->devices();
  struct Case {
    std::string spec;
    std::vector<Device> devices;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"7", two, "-g 7: GPU 7 is not there; there are: 0 (A100, 80 GiB), 1 (T4, 16 GiB)"},
      {"0-1000000000", two, "-g 0-1000000000: GPU 2 is not there; there are: 0 (A100, 80 GiB), 1 (T4, 16 GiB)"},
      {"0-2147483647", {}, "-g 0-2147483647: GPU 0 is not there; no GPU is visible"},
      {"0", hidden, "-g 0: GPU 0 is not there; there are: 1 (T4, 16 GiB)"},
      {"0", {}, "-g 0: GPU 0 is not there; no GPU is visible"},
      {"all", {}, "-g all: no GPU is visible; for CPU workers expected -n N without -g"},
      {"1,1", two, "-g 1,1: GPU 1 is listed twice; expected each once (several workers per GPU: add -n N)"},
      {"-1", two, "-g -1: -1 is not a GPU number; expected GPU numbers such as 0,2-3, or all"},
      {"cuda:0", two, "-g cuda:0: cuda:0 is not a GPU number; expected GPU numbers such as 0,2-3, or all"},
      {"", two, "-g: the list is empty; expected GPU numbers such as 0,2-3, or all"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(config_error([&] { choose_gpus(c.spec, c.devices); }), c.message) << c.spec;
  }
}

// Runs everywhere: without a driver the answer is none, with one the numbers are 0, 1, … and the rest is filled in.
TEST(NvidiaDevices, are_listed_from_zero_and_described) {
  const auto devices = nvidia_devices(std::nullopt)->devices();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    EXPECT_EQ(devices[i].index, static_cast<int>(i));
    EXPECT_FALSE(devices[i].name.empty());
    EXPECT_TRUE(devices[i].uuid.starts_with("GPU-")) << devices[i].uuid;
  }
  RecordProperty("devices", describe(devices));
  EXPECT_TRUE(nvidia_devices("")->devices().empty());
}

}  // namespace
}  // namespace ddip::launch
