#include "stop_group.h"

#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "ddip/base/error.h"
#include "ddip/base/process_scan.h"
#include "find_group.h"
#include "style.h"

namespace ddip::app {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

bool is_gone(const client::GroupFolder& folder) {
  std::error_code error;
  return !fs::exists(folder.path, error) || !client::is_running(folder);
}

}  // namespace

void kill_group(const client::GroupFolder& folder) {
  std::ifstream file(folder.marker());
  std::string marker;
  if (std::getline(file, marker) && !marker.empty()) sweep_processes_with("DDIP_GROUP", marker, {});
  std::error_code error;
  fs::remove_all(folder.path, error);
}

std::string stop_group(const client::GroupFolder& folder, double patience) {
  if (is_gone(folder)) {
    kill_group(folder);
    return fmt::format("group {} was lost before; what was left of it is gone", folder.name());
  }
  size_t workers = 0;
  const auto begun = Clock::now();
  const auto deadline = begun + std::chrono::duration<double>(patience);
  try {
    auto client = std::make_unique<client::Client>(folder, "shell", std::chrono::milliseconds(2000));
    workers = client->welcome().value("world_size", size_t{0});
    client->send(wire::Type::stop, wire::json::object());
    while (!is_gone(folder) && Clock::now() < deadline) std::this_thread::sleep_for(5ms);
    while (is_gone(folder) && !client->wait_for_end(100ms) && Clock::now() < deadline) {
    }
  } catch (const std::exception&) {
    // It does not answer, or went while we spoke; what counts is whether it is gone.
    while (!is_gone(folder) && Clock::now() < begun + 2s) std::this_thread::sleep_for(5ms);
  }
  const bool orderly = is_gone(folder);
  std::error_code error;
  if (fs::exists(folder.path, error)) kill_group(folder);  // not otherwise: a new group may have taken the name
  const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
  if (!orderly) return fmt::format("group {} did not answer and was killed ({})", folder.name(), duration(seconds));
  return fmt::format("group {} stopped: {} ended ({})", folder.name(), counted(workers, "worker"), duration(seconds));
}

}  // namespace ddip::app
