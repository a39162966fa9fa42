#include "ddip/tensors/cuda_runtime.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/tensors/library_function.h"

namespace ddip::tensors {
namespace {

constexpr unsigned kLazyEnablePeerAccess = 1;
constexpr int kCaptureModeThreadLocal = 1;

void* loaded_library() {
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"}) {
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  }
  throw ConfigError("no CUDA runtime is loaded: this torch is for CPUs");
}

}  // namespace

const CudaRuntime& CudaRuntime::get() {
  static const CudaRuntime runtime;
  return runtime;
}

CudaRuntime::CudaRuntime() {
  void* library = loaded_library();
  find(library, "the CUDA runtime", "cudaMalloc", malloc_);
  find(library, "the CUDA runtime", "cudaFree", free_);
  find(library, "the CUDA runtime", "cudaIpcGetMemHandle", get_handle_);
  find(library, "the CUDA runtime", "cudaIpcOpenMemHandle", open_handle_);
  find(library, "the CUDA runtime", "cudaIpcCloseMemHandle", close_handle_);
  find(library, "the CUDA runtime", "cudaGetErrorString", error_text_);
  find(library, "the CUDA runtime", "cudaGetLastError", last_error_);
  find(library, "the CUDA runtime", "cudaThreadExchangeStreamCaptureMode", capture_mode_);
}

void CudaRuntime::require(int error, const char* what) const {
  if (error == 0) return;
  last_error_();  // CUDA keeps it otherwise, and torch would take it for its next kernel's
  throw ConfigError(fmt::format("{}: {}", what, error_text_(error)));
}

void* CudaRuntime::allocate(size_t bytes) const {
  void* memory = nullptr;
  require(malloc_(&memory, bytes), "memory on the GPU");
  return memory;
}

void CudaRuntime::free(void* memory) const noexcept {
  if (free_(memory) != 0) last_error_();
}

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

void CudaRuntime::close(void* memory) const noexcept {
  if (close_handle_(memory) != 0) last_error_();
}

void CudaRuntime::leave_captures_alone() const {
  int mode = kCaptureModeThreadLocal;
  require(capture_mode_(&mode), "a thread beside the recording of CUDA graphs");
}

}  // namespace ddip::tensors
