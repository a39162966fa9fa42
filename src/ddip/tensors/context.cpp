#include "ddip/tensors/context.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <charconv>
#include <cstdlib>

#include "ddip/base/error.h"
#include "ddip/tensors/backends.h"

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

Context Context::from_environment(const std::string& backend) {
  Context context;
  bool told = !variable("RANK").empty() || !variable("WORLD_SIZE").empty();
  bool mpirun = !told && !variable("OMPI_COMM_WORLD_SIZE").empty();
  if (told || mpirun) {
    context.world_ = number(mpirun ? "OMPI_COMM_WORLD_SIZE" : "WORLD_SIZE", 1, 1 << 20);
    context.rank_ = number(mpirun ? "OMPI_COMM_WORLD_RANK" : "RANK", 0, context.world_ - 1);
  }
  context.backend_ = backend != "auto" ? backend : mpirun ? "mpi" : "shm";
  context.reason_ = backend != "auto" ? "asked for" : mpirun ? "started by mpirun" : "ranks on one host";
  if (context.backend_ == "mpi" && variable("OMPI_COMM_WORLD_SIZE").empty())
    throw ConfigError("backend mpi is for programs started by mpirun, and OMPI_COMM_WORLD_SIZE is not set");
  if (context.world_ > 1 && context.backend_ != "mpi") {
    context.port_ = number("MASTER_PORT", 1, 65535);
    context.address_ = variable("MASTER_ADDR");
    if (context.address_.empty()) throw ConfigError("MASTER_ADDR is not set: start with `ddip run` or torchrun");
  }
  return context;
}

std::shared_ptr<Communicator> Context::communicator() {
  if (communicator_) return communicator_;
  if (address_.empty()) {
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
  auto backend = tensors::make_backend(backend_, {store_, rank_, world_, kPatience});
  communicator_ = std::make_shared<Communicator>(backend, backend_, reason_);
  return communicator_;
}

}  // namespace ddip
