// The few calls of CUDA's runtime that torch does not offer, taken from the library that torch has loaded: building
// needs nothing of CUDA, and a machine without it meets an error that says so.
#pragma once

#include <cstddef>

namespace ddip::tensors {

struct IpcHandle {
  char bytes[64];
};

class CudaRuntime {
 public:
  // Throws ConfigError where no CUDA runtime is loaded.
  static const CudaRuntime& get();

  // On the current device.
  void* allocate(size_t bytes) const;
  void free(void* memory) const noexcept;
  // For another process on this host.
  IpcHandle offer(void* memory) const;
  void* open(const IpcHandle& handle) const;
  void close(void* memory) const noexcept;

  // This thread's calls do not end the recording of a CUDA graph on another thread.
  void leave_captures_alone() const;

 private:
  CudaRuntime();
  void require(int error, const char* what) const;

  int (*malloc_)(void**, size_t) = nullptr;
  int (*free_)(void*) = nullptr;
  int (*get_handle_)(IpcHandle*, void*) = nullptr;
  int (*open_handle_)(void**, IpcHandle, unsigned) = nullptr;
  int (*close_handle_)(void*) = nullptr;
  const char* (*error_text_)(int) = nullptr;
  int (*last_error_)() = nullptr;
  int (*capture_mode_)(int*) = nullptr;
};

}  // namespace ddip::tensors
