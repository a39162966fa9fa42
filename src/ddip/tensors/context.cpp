#include "ddip/tensors/context.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <charconv>
#include <cstdlib>

#include "ddip/base/error.h"
#include "ddip/tensors/c10d_backend.h"

namespace ddip {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 30min;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int number(const char* name, int lowest, int highest) {
  std::string text = variable(name);
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty()) throw ConfigError(fmt::format("{} is not set: start with `ddip run` or torchrun", name));
  if (error != std::errc() || end != text.data() + text.size() || value < lowest || value > highest)
    throw ConfigError(
        fmt::format("{}='{}' in the environment: a number from {} to {} was expected", name, text, lowest, highest));
  return value;
}

}  // namespace

Context::Context(int rank, int world, std::string address, int port)
    : rank_(rank), world_(world), address_(std::move(address)), port_(port) {}

Context Context::from_environment() {
  if (variable("RANK").empty() && variable("WORLD_SIZE").empty()) return {0, 1, "", 0};
  int world = number("WORLD_SIZE", 1, 1 << 20);
  int rank = number("RANK", 0, world - 1);
  if (world == 1) return {0, 1, "", 0};
  int port = number("MASTER_PORT", 1, 65535);
  if (variable("MASTER_ADDR").empty()) throw ConfigError("MASTER_ADDR is not set: start with `ddip run` or torchrun");
  return {rank, world, variable("MASTER_ADDR"), port};
}

std::shared_ptr<Communicator> Context::communicator() {
  if (communicator_) return communicator_;
  if (world_ == 1) {
    store_ = c10::make_intrusive<c10d::HashStore>();
  } else {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port_);
    // The launcher may hold the store; otherwise rank 0 does.
    options.isServer = rank_ == 0 && variable("TORCHELASTIC_USE_AGENT_STORE") != "True";
    options.waitWorkers = false;
    options.timeout = kPatience;
    store_ = c10::make_intrusive<c10d::TCPStore>(address_, options);
  }
  auto backend = c10::make_intrusive<tensors::C10dBackend>(store_, rank_, world_, kPatience);
  communicator_ = std::make_shared<Communicator>(backend, "shm", "ranks on one host");
  return communicator_;
}

}  // namespace ddip
