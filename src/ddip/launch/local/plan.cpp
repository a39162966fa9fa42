#include "ddip/launch/local/plan.h"

#include <algorithm>
#include <cstddef>

#include "ddip/base/check.h"
#include "ddip/base/error.h"

namespace ddip::launch::local {
namespace {

constexpr int kDefaultCpuRanks = 2;

std::string counted(int n, const std::string& noun) { return std::to_string(n) + " " + noun + (n == 1 ? "" : "s"); }

// Ordered as CUDA counts them, so never shortened to ranges.
std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(number);
  }
  return text;
}

std::string on_gpus(const std::vector<int>& gpus) { return (gpus.size() == 1 ? "GPU " : "GPUs ") + joined(gpus); }

std::string gpu_sentence(int world_size, const std::vector<int>& gpus) {
  const int count = static_cast<int>(gpus.size());
  const auto unused = gpus.begin() + std::min(world_size, count);
  std::string text = counted(world_size, "worker") + " on " + on_gpus({gpus.begin(), unused});
  if (world_size == count) return text;
  if (world_size < count) return text + " (unused: " + on_gpus({unused, gpus.end()}) + ")";
  const bool even = world_size % count == 0;
  return text + (even ? " (" : " (up to ") + std::to_string((world_size + count - 1) / count) + " per GPU)";
}

std::string cpu_sentence(const Plan& plan, bool asked, std::size_t gpus_there) {
  std::string text = counted(plan.world_size, "CPU worker") + ", " + counted(plan.threads, "thread") + " each";
  if (gpus_there > 0) {
    return text + ": to use the " + (gpus_there == 1 ? "GPU" : std::to_string(gpus_there) + " GPUs") + " add -g all";
  }
  return asked ? text : text + ": no GPU is visible";
}

std::optional<std::uint16_t> wanted_port(const GroupOptions& options, const Environment& user_env) {
  if (options.master_port) return options.master_port;
  const auto exported = user_env.find("MASTER_PORT");
  if (exported == user_env.end() || exported->second.empty()) return std::nullopt;
  const FlagText text{"MASTER_PORT=" + shown(exported->second) + " in the environment", exported->second};
  return static_cast<std::uint16_t>(whole_number(text, {"a port", 1, 65535}));
}

// NCCL would find out itself, deep inside, or wait for ever.
void require_gpu_per_rank(const Plan& plan) {
  const int gpus = static_cast<int>(plan.gpus.size());
  if (gpus >= plan.world_size) return;
  throw ConfigError("--backend nccl: it needs a GPU for each worker, and " + counted(plan.world_size, "worker") +
                    " would have " + (gpus == 0 ? "none" : counted(gpus, "GPU")) + "; expected -g, or --backend shm");
}

}  // namespace

Plan plan(const GroupOptions& options, const std::vector<Device>& devices, int cores, const Environment& user_env) {
  DDIP_CHECK(cores >= 1, "a machine has a core");
  Plan plan;
  const bool cpu_asked = options.workers && !options.gpus;
  if (!cpu_asked && (options.gpus || !devices.empty()))
    plan.gpus = choose_gpus(options.gpus.value_or("all"), devices, options.gpus_where);
  const int without_n = plan.gpus.empty() ? kDefaultCpuRanks : static_cast<int>(plan.gpus.size());
  plan.world_size = options.workers.value_or(without_n);
  plan.threads = options.threads.value_or(std::max(1, cores / plan.world_size));
  plan.backend = options.backend;
  if (plan.backend == "nccl") require_gpu_per_rank(plan);
  plan.master_port = wanted_port(options, user_env);
  plan.sentence =
      plan.gpus.empty() ? cpu_sentence(plan, cpu_asked, devices.size()) : gpu_sentence(plan.world_size, plan.gpus);

  Environment& common = plan.common;
  for (const auto& [name, value] : options.env) common[name] = value;
  common["WORLD_SIZE"] = common["LOCAL_WORLD_SIZE"] = std::to_string(plan.world_size);
  common["MASTER_ADDR"] = "127.0.0.1";
  common["GLOO_SOCKET_IFNAME"] = "lo";
  common["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  common["OMP_NUM_THREADS"] = std::to_string(plan.threads);
  // On a machine without GPUs the variable is left as the user has it.
  if (!devices.empty()) {
    common["CUDA_VISIBLE_DEVICES"] = joined(plan.gpus);
    common["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  }
  return plan;
}

std::optional<int> device_of(const Plan& plan, int rank) {
  DDIP_CHECK(rank >= 0 && rank < plan.world_size, "a rank of this plan");
  if (plan.gpus.empty()) return std::nullopt;
  return rank % static_cast<int>(plan.gpus.size());
}

Environment worker_environment(const Plan& plan, int rank, const StartedAt& started) {
  DDIP_CHECK(rank >= 0 && rank < plan.world_size, "a rank of this plan");
  DDIP_CHECK(started.master_port != 0, "the port is bound before the ranks start");
  Environment environment = plan.common;
  environment["RANK"] = environment["LOCAL_RANK"] = std::to_string(rank);
  environment["MASTER_PORT"] = std::to_string(started.master_port);
  environment["TORCHELASTIC_RESTART_COUNT"] = std::to_string(started.restart_count);
  return environment;
}

}  // namespace ddip::launch::local
