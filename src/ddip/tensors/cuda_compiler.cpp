#include "ddip/tensors/cuda_compiler.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "ddip/base/error.h"
#include "ddip/tensors/library_function.h"
#include "ddip/tensors/torch.h"

namespace ddip::tensors {
namespace {

namespace fs = std::filesystem;

// The folder of a library, by one of its functions or by a handle.
fs::path folder_of_torch() {
  Dl_info info{};
  const auto* function = reinterpret_cast<const void*>(&c10::GetAllocator);
  return ::dladdr(function, &info) != 0 && info.dli_fname ? fs::path(info.dli_fname).parent_path() : fs::path();
}
fs::path folder_of(void* library) {
  link_map* map = nullptr;
  return ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map ? fs::path(map->l_name).parent_path() : fs::path();
}

// NVRTC's code must suit the driver, so the one that torch itself uses comes first: a small library of torch's links to
// it. Then one as old as the CUDA runtime, if that is loaded.
std::vector<std::string> candidates() {
  std::vector<std::string> all;
  if (const fs::path torch = folder_of_torch(); !torch.empty()) all.push_back(torch / "libcaffe2_nvrtc.so");
  for (const char* version : {"13", "12"}) {
    const std::string name = fmt::format("libnvrtc.so.{}", version);
    void* runtime = ::dlopen(fmt::format("libcudart.so.{}", version).c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (!runtime) continue;
    all.push_back(name);
    if (const fs::path folder = folder_of(runtime); !folder.empty()) {
      all.push_back(folder / name);                                                     // in one folder
      all.push_back(folder.parent_path().parent_path() / "cuda_nvrtc" / "lib" / name);  // or in packages side by side
    }
    ::dlclose(runtime);
  }
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) all.push_back(name);
  return all;
}

void* found_library() {
  for (const std::string& candidate : candidates()) {
    void* library = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    if (::dlsym(library, "nvrtcCompileProgram")) return library;  // searches what it links to as well
    ::dlclose(library);
  }
  throw ConfigError("no NVRTC is to be found: torch's CUDA builds bring it along");
}

}  // namespace

const CudaCompiler& CudaCompiler::get() {
  static const CudaCompiler compiler;
  return compiler;
}

CudaCompiler::CudaCompiler() {
  void* library = found_library();
  find(library, "NVRTC", "nvrtcCreateProgram", create_);
  find(library, "NVRTC", "nvrtcDestroyProgram", destroy_);
  find(library, "NVRTC", "nvrtcCompileProgram", compile_);
  find(library, "NVRTC", "nvrtcGetPTXSize", ptx_size_);
  find(library, "NVRTC", "nvrtcGetPTX", ptx_);
  find(library, "NVRTC", "nvrtcGetCUBINSize", binary_size_);
  find(library, "NVRTC", "nvrtcGetCUBIN", binary_);
  find(library, "NVRTC", "nvrtcGetProgramLogSize", log_size_);
  find(library, "NVRTC", "nvrtcGetProgramLog", log_);
  find(library, "NVRTC", "nvrtcGetNumSupportedArchs", count_architectures_);
  find(library, "NVRTC", "nvrtcGetSupportedArchs", architectures_);
  find(library, "NVRTC", "nvrtcGetErrorString", error_text_);
}

void CudaCompiler::require(int error, const char* what) const {
  if (error != 0) throw ConfigError(fmt::format("{}: {}", what, error_text_(error)));
}

int CudaCompiler::nearest_older(int capability) const {
  int count = 0, nearest = 0;
  require(count_architectures_(&count), "NVRTC's list of GPUs");
  std::vector<int> all(static_cast<size_t>(count));
  require(architectures_(all.data()), "NVRTC's list of GPUs");
  for (int one : all)
    if (one <= capability) nearest = std::max(nearest, one);
  if (nearest == 0) throw ConfigError(fmt::format("NVRTC knows no GPU as old as capability {}", capability));
  return nearest;
}

std::string CudaCompiler::compile(const std::string& text, int capability) const {
  const int nearest = nearest_older(capability);
  const bool known = nearest == capability;
  return compiled(text, fmt::format("{}_{}", known ? "sm" : "compute", nearest), !known);
}

std::string CudaCompiler::ptx(const std::string& text, int capability) const {
  return compiled(text, fmt::format("compute_{}", capability), true);
}

std::string CudaCompiler::compiled(const std::string& text, const std::string& architecture, bool to_ptx) const {
  void* made = nullptr;
  require(create_(&made, text.c_str(), "ddip.cu", 0, nullptr, nullptr), "NVRTC's program");
  const std::unique_ptr<void, std::function<void(void*)>> program(made, [this](void* old) { destroy_(&old); });
  const std::string target = "--gpu-architecture=" + architecture;
  const char* options[] = {target.c_str(), "--std=c++17"};
  if (compile_(made, 2, options) != 0)
    throw ConfigError(fmt::format("NVRTC refuses the text for {}: {}", architecture, complaint(made)));
  size_t size = 0;
  require((to_ptx ? ptx_size_ : binary_size_)(made, &size), "NVRTC's result");
  std::string code(size, '\0');
  require((to_ptx ? ptx_ : binary_)(made, code.data()), "NVRTC's result");
  return code;
}

std::string CudaCompiler::complaint(void* program) const {
  size_t size = 0;
  if (log_size_(program, &size) != 0 || size == 0) return "without a word";
  std::string log(size, '\0');
  if (log_(program, log.data()) != 0) return "without a word";
  return log.substr(0, log.find_first_of(std::string("\n\0", 2)));
}

}  // namespace ddip::tensors
