#include "ddip/tensors/cuda_runtime.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "ddip/base/error.h"

namespace ddip::tensors {
namespace {

constexpr unsigned kLazyEnablePeerAccess = 1;

void* loaded_library() {
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"}) {
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  }
  throw ConfigError("no CUDA runtime is loaded: this torch is for CPUs");
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (!function) throw ConfigError(fmt::format("the CUDA runtime has no {}", name));
}

}  // namespace

const CudaRuntime& CudaRuntime::get() {
  static const CudaRuntime runtime;
  return runtime;
}

CudaRuntime::CudaRuntime() {
  void* library = loaded_library();
  find(library, "cudaMalloc", malloc_);
  find(library, "cudaFree", free_);
  find(library, "cudaIpcGetMemHandle", get_handle_);
  find(library, "cudaIpcOpenMemHandle", open_handle_);
  find(library, "cudaIpcCloseMemHandle", close_handle_);
  find(library, "cudaGetErrorString", error_text_);
}

void CudaRuntime::require(int error, const char* what) const {
  if (error != 0) throw ConfigError(fmt::format("{}: {}", what, error_text_(error)));
}

void* CudaRuntime::allocate(size_t bytes) const {
  void* memory = nullptr;
  require(malloc_(&memory, bytes), "memory on the GPU");
  return memory;
}

void CudaRuntime::free(void* memory) const noexcept { free_(memory); }

IpcHandle CudaRuntime::offer(void* memory) const {
  IpcHandle handle{};
  require(get_handle_(&handle, memory), "memory on the GPU cannot be shared");
  return handle;
}

void* CudaRuntime::open(const IpcHandle& handle) const {
  void* memory = nullptr;
  require(open_handle_(&memory, handle, kLazyEnablePeerAccess), "memory of another rank on the GPU");
  return memory;
}

void CudaRuntime::close(void* memory) const noexcept { close_handle_(memory); }

}  // namespace ddip::tensors
