#include "ddip/data/parquet_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>
#include <vector>

#include "ddip/base/error.h"

namespace ddip::data {
namespace fs = std::filesystem;

namespace {

constexpr const char* kName = "libddip_parquet.so";

// Beside the program or extension module that this code is part of, as a working copy, `cmake --install` and pip have
// it.
std::vector<fs::path> places() {
  Dl_info about{};
  if (::dladdr(reinterpret_cast<void*>(&parquet_library), &about) == 0) return {};
  std::error_code error;
  // Of a program it is the name it was called by, which means nothing here: never look in the current folder.
  const fs::path file = about.dli_fname;
  const fs::path folder = fs::canonical(file.is_absolute() ? file : "/proc/self/exe", error).parent_path();
  if (error || folder.empty()) return {};
  std::vector<fs::path> found = {folder / kName, folder.parent_path() / kName,
                                 folder.parent_path() / "lib" / "ddip" / kName};
  for (const auto& entry : fs::directory_iterator(folder.parent_path() / "lib", error)) {
    if (entry.path().filename().string().starts_with("python"))
      found.push_back(entry.path() / "site-packages" / "ddip" / kName);
  }
  return found;
}

const ParquetLibrary* load() {
  for (const fs::path& place : places()) {
    std::error_code error;
    if (!fs::exists(place, error)) continue;
    void* library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      throw ConfigError(
          fmt::format("Parquet is not available: {}; expected the pyarrow this ddip was built with", ::dlerror()));
    return reinterpret_cast<GetParquetLibrary>(::dlsym(library, kGetParquetLibrary))();
  }
  throw ConfigError("Parquet is not available: this ddip was built without pyarrow; .npy works everywhere");
}

}  // namespace

const ParquetLibrary& parquet_library() {
  static std::mutex mutex;
  static const ParquetLibrary* library = nullptr;  // stays loaded: unloading Arrow is not safe
  const std::lock_guard lock(mutex);
  if (library == nullptr) library = load();
  return *library;
}

}  // namespace ddip::data
