#include "ddip/tensors/cuda_kernels.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>

#include "ddip/base/error.h"
#include "ddip/tensors/cuda_compiler.h"
#include "ddip/tensors/library_function.h"

namespace ddip::tensors {
namespace {

constexpr int64_t kBlock = 256, kMostBlocks = int64_t{1} << 30;
constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*error_text)(int, const char**) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*context)(void**, int) = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*load)(void**, const void*) = nullptr;
  int (*function)(void**, void*, const char*) = nullptr;
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                void**) = nullptr;
  void* (*stream)(const c10::Stream*) = nullptr;

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  void require(int error, const char* what) const {
    if (error == 0) return;
    const char* text = nullptr;
    error_text(error, &text);
    throw ConfigError(fmt::format("{}: {}", what, text ? text : fmt::format("CUDA error {}", error)));
  }

 private:
  Driver() {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) throw ConfigError("no CUDA driver is to be found (libcuda.so.1)");
    find(library, "CUDA's driver", "cuInit", init);
    find(library, "CUDA's driver", "cuGetErrorString", error_text);
    find(library, "CUDA's driver", "cuDeviceGet", device);
    find(library, "CUDA's driver", "cuDeviceGetAttribute", attribute);
    find(library, "CUDA's driver", "cuDevicePrimaryCtxRetain", context);
    find(library, "CUDA's driver", "cuCtxPushCurrent_v2", push);
    find(library, "CUDA's driver", "cuCtxPopCurrent_v2", pop);
    find(library, "CUDA's driver", "cuModuleLoadData", load);
    find(library, "CUDA's driver", "cuModuleGetFunction", function);
    find(library, "CUDA's driver", "cuLaunchKernel", launch);
    void* torch = ::dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    if (!torch) throw ConfigError("this torch is for CPUs");
    // c10::cuda::CUDAStream::stream() const. A CUDAStream is a c10::Stream and nothing else. CPU builds have not even
    // its declaration, and c10::Stream itself tells its CUDA stream in newer versions only.
    find(torch, "torch", "_ZNK3c104cuda10CUDAStream6streamEv", stream);
    require(init(0), "CUDA's driver");
  }
};

// torch may never have used the device in this thread: then the driver would find none current.
class Current {
 public:
  explicit Current(void* context) { Driver::get().require(Driver::get().push(context), "the GPU's context"); }
  ~Current() {
    void* old = nullptr;
    Driver::get().pop(&old);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

}  // namespace

CudaKernels::CudaKernels(at::Device device, const std::string& text, const std::vector<std::string>& names)
    : device_(device) {
  const Driver& driver = Driver::get();
  int handle = 0, major = 0, minor = 0;
  driver.require(driver.device(&handle, device.index()), "the GPU");
  driver.require(driver.attribute(&major, kMajor, handle), "the GPU's capability");
  driver.require(driver.attribute(&minor, kMinor, handle), "the GPU's capability");
  const std::string code = CudaCompiler::get().compile(text, 10 * major + minor);
  driver.require(driver.context(&context_, handle), "the GPU's context");
  const Current current(context_);
  void* module = nullptr;
  driver.require(driver.load(&module, code.data()), "the driver refuses compiled kernels");
  for (const std::string& name : names)
    driver.require(driver.function(&functions_[name], module, name.c_str()), name.c_str());
}

void CudaKernels::launch_with(const std::string& name, int64_t threads, void** arguments) const {
  const Driver& driver = Driver::get();
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>((threads + kBlock - 1) / kBlock, 1, kMostBlocks));
  const Current current(context_);
  driver.require(
      driver.launch(functions_.at(name), blocks, 1, 1, kBlock, 1, 1, 0, driver.stream(&stream), arguments, nullptr),
      name.c_str());
}

}  // namespace ddip::tensors
