// CUDA text made into code while we run, by NVRTC, which comes with torch's CUDA builds: building needs nothing of
// CUDA, and a machine without NVRTC meets an error that says so. Compiling needs no GPU.
#pragma once

#include <cstddef>
#include <string>

namespace ddip::tensors {

class CudaCompiler {
 public:
  // Throws ConfigError where no NVRTC is to be found.
  static const CudaCompiler& get();

  // What the driver loads on a GPU of this compute capability (90 is 9.0): its own machine code where NVRTC knows such
  // a GPU, else PTX of the nearest older one, which the driver translates. Throws ConfigError with NVRTC's first
  // complaint.
  std::string compile(const std::string& text, int capability) const;
  // Text that people can read.
  std::string ptx(const std::string& text, int capability) const;

 private:
  CudaCompiler();
  void require(int error, const char* what) const;
  int nearest_older(int capability) const;
  std::string compiled(const std::string& text, const std::string& architecture, bool to_ptx) const;
  std::string complaint(void* program) const;

  int (*create_)(void**, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*destroy_)(void**) = nullptr;
  int (*compile_)(void*, int, const char* const*) = nullptr;
  int (*ptx_size_)(void*, size_t*) = nullptr;
  int (*ptx_)(void*, char*) = nullptr;
  int (*binary_size_)(void*, size_t*) = nullptr;
  int (*binary_)(void*, char*) = nullptr;
  int (*log_size_)(void*, size_t*) = nullptr;
  int (*log_)(void*, char*) = nullptr;
  int (*count_architectures_)(int*) = nullptr;
  int (*architectures_)(int*) = nullptr;
  const char* (*error_text_)(int) = nullptr;
};

}  // namespace ddip::tensors
