#include "ddip/models/unet/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>

#include <fstream>

#include "ddip/base/error.h"
#include "ddip/base/file.h"

namespace ddip::models::unet {
namespace fs = std::filesystem;

namespace {

constexpr const char* kSettings = "settings.json";
constexpr uint64_t kLongest = 1 << 20;

}  // namespace

RunFolder RunFolder::create(const fs::path& folder, const Settings& settings) {
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error))
    throw ConfigError(fmt::format("{}: it is there and no folder; expected a new one", folder.string()));
  if (fs::exists(folder / kSettings, error))
    throw ConfigError(fmt::format("{}: a run is there already; --resume goes on with it", folder.string()));
  if (fs::exists(folder, error) && !fs::is_empty(folder, error))
    throw ConfigError(fmt::format("{}: it has files that are no run; expected a new or empty folder", folder.string()));
  fs::create_directories(folder, error);
  if (error) throw ConfigError(fmt::format("{}: {}", folder.string(), error.message()));
  const std::string text = settings.json();
  NewFile file(folder / kSettings);
  file.write(std::as_bytes(std::span(text)), 0);
  file.publish();
  return {folder, settings};
}

RunFolder RunFolder::open(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kSettings, error))
    throw ConfigError(fmt::format("{}: there is no run: ddip unet train --out makes one", folder.string()));
  const std::string text = read_small_file(folder / kSettings, kLongest);
  try {
    return {folder, Settings::from_json(text)};
  } catch (const ConfigError& damaged) {
    throw ConfigError(fmt::format("{}: {}", (folder / kSettings).string(), damaged.what()));
  }
}

checkpoint::Manifest RunFolder::best() const {
  if (auto found = store_.best()) return *found;
  if (auto found = store_.last()) return *found;
  throw ConfigError(fmt::format("{}: it has no checkpoint yet", folder_.string()));
}

void RunFolder::lock() {
  lock_ = Fd(::open((folder_ / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock_) throw ConfigError(fmt::format("{}: {}", (folder_ / "lock").string(), std::strerror(errno)));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
    throw ConfigError(fmt::format("{}: another process trains in it", folder_.string()));
}

bool RunFolder::log(const std::string& line) const {
  std::ofstream file(folder_ / "log.jsonl", std::ios::app);
  file << line << "\n";
  file.flush();
  return file.good();
}

}  // namespace ddip::models::unet
