// Who runs where on this machine: a pure decision, with the sentence that explains it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddip/launch/devices.h"
#include "ddip/launch/group_options.h"

namespace ddip::launch::local {

using Environment = std::map<std::string, std::string>;

// Shape:
//   no flags    one rank per visible GPU; without GPUs 2 CPU ranks
//   -g          one rank per listed GPU, in the order listed
//   -g -n N     N ranks over the listed GPUs in turn
//   -n N        N CPU ranks, also where there are GPUs: those are then hidden from the workers, or every rank's
//               first .cuda() would land on the same one. The sentence says how to use them.
struct Plan {
  int world_size = 0;
  int threads = 1;                           // of each rank
  std::vector<int> gpus;                     // nvidia-smi's numbers in the user's order; empty: CPU ranks
  std::string backend;                       // as asked for; what auto is, each use of it knows
  std::optional<std::uint16_t> master_port;  // asked for by flag or exported MASTER_PORT; unset: bind a free one
  std::string sentence;                      // "2 CPU workers, 1 thread each: no GPU is visible"
  Environment common;                        // the variables that are the same on every rank, --env among them
};

// REQUIRES: cores >= 1. `user_env` is the client's environment; only MASTER_PORT is read from it. ConfigError: a GPU
// that is not there, an exported MASTER_PORT that is no port, nccl without a GPU for each rank.
Plan plan(const GroupOptions& options, const std::vector<Device>& devices, int cores, const Environment& user_env);

// Rank r's GPU as the worker counts them (cuda:0 is the first of plan.gpus): r mod their number. Unset: CPU.
std::optional<int> device_of(const Plan& plan, int rank);

// Known only when the ranks start.
struct StartedAt {
  std::uint16_t master_port = 0;  // bound and held by the caller
  int restart_count = 0;
};

// Variables to lay over the user's environment for one rank.
Environment worker_environment(const Plan& plan, int rank, const StartedAt& started);

}  // namespace ddip::launch::local
