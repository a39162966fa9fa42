#include "ddip/comm/mpi_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "ddip/base/error.h"

namespace ddip::comm {
namespace {

constexpr const char* kLibrary = "libddip_mpi.so";
using Open = Collectives*(int64_t patience_ms);

// Beside the module that this code is part of (the Python package), else wherever the loader looks for that (a
// program's run path has the folder of the installed ddip).
void* load() {
  Dl_info here{};
  std::string beside;
  if (dladdr(reinterpret_cast<void*>(&load), &here) && here.dli_fname)
    beside = std::filesystem::path(here.dli_fname).replace_filename(kLibrary).string();
  // MPI does not come back after it was unloaded.
  int how = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  bool there = !beside.empty() && std::filesystem::exists(beside);
  void* library = dlopen(there ? beside.c_str() : kLibrary, how);
  if (!library) throw ConfigError(fmt::format("backend mpi: {} (Open MPI: libopenmpi3, openmpi-bin)", dlerror()));
  return library;
}

}  // namespace

std::unique_ptr<Collectives> open_mpi(std::chrono::milliseconds patience) {
  static void* const library = load();
  auto* open = reinterpret_cast<Open*>(dlsym(library, "ddip_mpi_open"));
  if (!open) throw ConfigError(fmt::format("backend mpi: {} is not ddip's", kLibrary));
  return std::unique_ptr<Collectives>(open(patience.count()));
}

}  // namespace ddip::comm
