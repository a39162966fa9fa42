#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "ddip/launch/devices.h"
#include "doctor_checks.h"
#include "find_group.h"

namespace ddip::app {
namespace fs = std::filesystem;

namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr size_t kLongestSocket = 107;  // a unix socket's path
constexpr size_t kLongestName = 32;

std::string first_line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

double free_space(const fs::path& folder) {
  struct statvfs found{};
  return ::statvfs(folder.c_str(), &found) == 0
             ? static_cast<double>(found.f_bavail) * static_cast<double>(found.f_frsize)
             : -1;
}

// The folder itself, or where it would be made.
fs::path nearest_existing(fs::path folder) {
  std::error_code error;
  while (!folder.empty() && folder != folder.parent_path() && !fs::exists(folder, error)) folder = folder.parent_path();
  return folder;
}

Check check_folder(const std::string& name, const fs::path& folder, double wanted, const std::string& variable) {
  struct stat status{};
  const fs::path there = nearest_existing(folder);
  const double space = free_space(there);
  const std::string text = fmt::format("{}, {} free", folder.string(), bytes(space));
  const std::string elsewhere = variable + " names another folder";
  if (::lstat(folder.c_str(), &status) == 0) {
    if (!S_ISDIR(status.st_mode))
      return {name, Verdict::fail, folder.string() + " is not a directory", "remove it; or " + elsewhere};
    if (status.st_uid != ::geteuid())
      return {name, Verdict::fail, fmt::format("{} belongs to uid {}", folder.string(), status.st_uid), elsewhere};
    if ((status.st_mode & 077) != 0)
      return {name, Verdict::fail,
              fmt::format("{} is open to others (mode {:03o})", folder.string(), status.st_mode & 0777),
              "chmod 700 " + folder.string()};
  }
  if (::access(there.c_str(), W_OK) != 0)
    return {name, Verdict::fail, fmt::format("{} cannot be written: {}", there.string(), std::strerror(errno)),
            elsewhere};
  if (space >= 0 && space < wanted)
    return {name, Verdict::warn, text, fmt::format("expected {}; {}", bytes(wanted), elsewhere)};
  return {name, Verdict::ok, text};
}

std::optional<double> read_limit(const fs::path& path) {
  const std::string text = first_line_of(path);
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const double value = std::stod(text);
  return value < 1e18 ? std::optional(value) : std::nullopt;  // v1 writes "no limit" as a huge number
}

// The tightest memory limit of the control groups we are in, both versions.
std::optional<double> memory_limit() {
  std::optional<double> tightest;
  auto consider = [&](const fs::path& path) {
    auto limit = read_limit(path);
    if (limit && (!tightest || *limit < *tightest)) tightest = limit;
  };
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    fs::path own = line.substr(second + 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) continue;
    const fs::path root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (;; own = own.parent_path()) {
      consider(root / own.relative_path() / (v2 ? "memory.max" : "memory.limit_in_bytes"));
      if (own == own.parent_path() || own.empty()) break;
    }
  }
  return tightest;
}

Check check_memory() {
  const double all = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  const auto limit = memory_limit();
  const double usable = limit ? std::min(*limit, all) : all;
  const std::string text = limit && *limit < all
                               ? fmt::format("{} of {} (limit of this control group)", bytes(*limit), bytes(all))
                               : bytes(all) + ", no limit";
  if (usable < 2 * kGiB)
    return {"memory", Verdict::warn, text,
            "a worker with torch takes about 0.3 GiB; raise the container's limit or use fewer workers"};
  return {"memory", Verdict::ok, text};
}

std::string shown_limit(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : bytes(static_cast<double>(value));
}

Check check_locked_memory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string text = fmt::format("{} (hard {})", shown_limit(limit.rlim_cur), shown_limit(limit.rlim_max));
  if (limit.rlim_cur != RLIM_INFINITY && static_cast<double>(limit.rlim_cur) < 64.0 * 1024)
    return {"locked memory", Verdict::warn, text, "ulimit -l unlimited; NCCL over InfiniBand needs it"};
  return {"locked memory", Verdict::ok, text};
}

Check check_open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string text = std::to_string(limit.rlim_cur);
  if (limit.rlim_cur < 1024) return {"open files", Verdict::warn, text, "ulimit -n 4096; each worker takes about ten"};
  return {"open files", Verdict::ok, text};
}

Check check_shared_memory() {
  struct statvfs found{};
  if (::statvfs("/dev/shm", &found) != 0)
    return {"/dev/shm", Verdict::warn, std::strerror(errno), "mount -t tmpfs tmpfs /dev/shm; data loaders need it"};
  const double size = static_cast<double>(found.f_blocks) * static_cast<double>(found.f_frsize);
  const std::string text = fmt::format("{}, {} free", bytes(size), bytes(free_space("/dev/shm")));
  if (size < kGiB)
    return {"/dev/shm", Verdict::warn, text,
            "data loaders with workers may die with a bus error: docker run --shm-size=8g, or mount -o remount,size=8g "
            "/dev/shm"};
  return {"/dev/shm", Verdict::ok, text};
}

Check check_ptrace() {
  const std::string scope = first_line_of("/proc/sys/kernel/yama/ptrace_scope");
  if (scope.empty() || scope == "0") return {"ptrace", Verdict::ok, "a debugger may attach to workers"};
  if (scope == "1" && ::geteuid() != 0)
    return {"ptrace", Verdict::warn, "yama ptrace_scope 1: gdb -p cannot attach to workers",
            "sysctl kernel.yama.ptrace_scope=0 while you debug"};
  if (scope == "3" || ::geteuid() != 0)
    return {"ptrace", Verdict::warn, "yama ptrace_scope " + scope + ": no debugger can attach to workers",
            "sysctl kernel.yama.ptrace_scope=0 while you debug (3 needs a reboot)"};
  return {"ptrace", Verdict::ok, "yama ptrace_scope " + scope + ", and you are root"};
}

}  // namespace

std::vector<Check> check_gpus(const Context& context) {
  std::optional<std::string> visible;
  if (auto found = context.environment.find("CUDA_VISIBLE_DEVICES"); found != context.environment.end())
    visible = found->second;
  const auto all = launch::nvidia_devices(std::nullopt)->devices();
  const auto seen = launch::nvidia_devices(visible)->devices();
  const std::string driver = first_line_of("/proc/driver/nvidia/version");
  if (all.empty() && driver.empty()) return {{"GPUs", Verdict::ok, "none; workers run on the CPU"}};
  if (all.empty())
    return {{"GPUs", Verdict::warn, "a driver is loaded but NVML lists no GPU: " + driver,
             "is libnvidia-ml.so.1 there, and /dev/nvidia0 readable?"}};
  std::vector<Check> checks = {{"GPUs", Verdict::ok, launch::describe(seen)}};
  if (seen.size() < all.size())
    checks.front() = {"GPUs", Verdict::warn,
                      fmt::format("{} of {} visible: {}", seen.size(), all.size(), launch::describe(seen)),
                      "CUDA_VISIBLE_DEVICES=" + visible.value_or("") + " hides the others; unset it"};
  checks.push_back({"GPU driver", Verdict::ok, driver.empty() ? "loaded" : driver});
  return checks;
}

std::vector<Check> check_folders(const Context& context) {
  std::vector<Check> checks = {check_folder("runtime folder", context.runtime, 16.0 * 1024 * 1024, "DDIP_RUNTIME_DIR"),
                               check_folder("state folder", context.state, kGiB, "XDG_STATE_HOME")};
  const size_t longest = context.runtime.string().size() + 1 + kLongestName + std::strlen("/socket");
  if (longest > kLongestSocket) {
    checks.front() = {"runtime folder", Verdict::warn,
                      fmt::format("{} leaves {} characters for a group's name", context.runtime.string(),
                                  static_cast<int>(kLongestName) - static_cast<int>(longest - kLongestSocket)),
                      "DDIP_RUNTIME_DIR names a folder with a shorter path"};
  }
  for (const KnownGroup& group : known_groups(context)) {
    if (!group.running)
      checks.push_back(
          {"groups", Verdict::warn, "group " + group.folder.name() + " was lost",
           "ddip log " + group.folder.name() + " shows its output, ddip down " + group.folder.name() + " forgets it"});
  }
  return checks;
}

std::vector<Check> check_limits() {
  std::vector<Check> checks = {check_memory(), check_locked_memory(), check_open_files(), check_shared_memory(),
                               check_ptrace()};
  if (::geteuid() == 0)
    checks.push_back({"user", Verdict::warn, "you are root; so are your workers", "use an ordinary user"});
  return checks;
}

}  // namespace ddip::app
