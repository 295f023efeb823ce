// SPDX-License-Identifier: Apache-2.0
#include "opencl/cl_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <type_traits>

#include "opencl/pocl_cache.h"

namespace outboard::opencl {
namespace {

const char* chosen_library() { return std::getenv("OUTBOARD_OPENCL_LIBRARY"); }

void* open_loader() {
  if (chosen_library() != nullptr) return dlopen(chosen_library(), RTLD_NOW | RTLD_GLOBAL);
  for (const char* name : {"libOpenCL.so.1", "libOpenCL.so"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  return nullptr;
}

/// PoCL would compile each kernel twice: for any size of work-groups, which is what a program's binary holds, and, when
/// it is launched, for the size at hand. Ours say their size in the source and gain nothing from the second.
void compile_once() { setenv("POCL_WORK_GROUP_SPECIALIZATION", "0", /*overwrite=*/0); }

struct Loaded {
  Api api{};
  std::string problem;

  Loaded() {
    compile_once();
    place_pocl_cache();
    void* library = open_loader();
    if (library == nullptr) {
      problem = "no OpenCL loader (" +
                (chosen_library() != nullptr ? std::string(chosen_library()) : "libOpenCL.so.1") +
                ") was found. Install an OpenCL runtime: on Debian and Ubuntu 'apt install "
                "ocl-icd-libopencl1 pocl-opencl-icd', or 'pip install intel-opencl-rt intel-cmplr-lib-rt', or your GPU "
                "vendor's driver.";
      return;
    }
#define OUTBOARD_LOAD(name)                                               \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #name)); \
  if (api.name == nullptr) problem = "the OpenCL loader lacks " #name ": OpenCL 2.0 or newer is needed";
    OUTBOARD_LOAD(clGetPlatformIDs)
    OUTBOARD_LOAD(clGetPlatformInfo)
    OUTBOARD_LOAD(clGetDeviceIDs)
    OUTBOARD_LOAD(clGetDeviceInfo)
    OUTBOARD_LOAD(clCreateSubDevices)
    OUTBOARD_LOAD(clCreateContext)
    OUTBOARD_LOAD(clCreateCommandQueueWithProperties)
    OUTBOARD_LOAD(clReleaseCommandQueue)
    OUTBOARD_LOAD(clSVMAlloc)
    OUTBOARD_LOAD(clSVMFree)
    OUTBOARD_LOAD(clEnqueueSVMMemcpy)
    OUTBOARD_LOAD(clEnqueueSVMMemFill)
    OUTBOARD_LOAD(clCreateProgramWithSource)
    OUTBOARD_LOAD(clCreateProgramWithBinary)
    OUTBOARD_LOAD(clBuildProgram)
    OUTBOARD_LOAD(clGetProgramBuildInfo)
    OUTBOARD_LOAD(clGetProgramInfo)
    OUTBOARD_LOAD(clReleaseProgram)
    OUTBOARD_LOAD(clCreateKernel)
    OUTBOARD_LOAD(clReleaseKernel)
    OUTBOARD_LOAD(clGetKernelInfo)
    OUTBOARD_LOAD(clGetKernelArgInfo)
    OUTBOARD_LOAD(clGetKernelWorkGroupInfo)
    OUTBOARD_LOAD(clSetKernelArg)
    OUTBOARD_LOAD(clSetKernelArgSVMPointer)
    OUTBOARD_LOAD(clEnqueueNDRangeKernel)
    OUTBOARD_LOAD(clEnqueueMarkerWithWaitList)
    OUTBOARD_LOAD(clEnqueueBarrierWithWaitList)
    OUTBOARD_LOAD(clFlush)
    OUTBOARD_LOAD(clFinish)
    OUTBOARD_LOAD(clWaitForEvents)
    OUTBOARD_LOAD(clGetEventInfo)
    OUTBOARD_LOAD(clGetEventProfilingInfo)
    OUTBOARD_LOAD(clRetainEvent)
    OUTBOARD_LOAD(clReleaseEvent)
    OUTBOARD_LOAD(clGetExtensionFunctionAddressForPlatform)
#undef OUTBOARD_LOAD
    api.clGetKernelSubGroupInfo =
        reinterpret_cast<decltype(api.clGetKernelSubGroupInfo)>(dlsym(library, "clGetKernelSubGroupInfo"));
  }
};

}  // namespace

const char* Api::load(const Api** api) {
  static const Loaded* const loaded = new Loaded;  // leaked: queues outlive static destructors
  *api = &loaded->api;
  return loaded->problem.c_str();
}

bool CommandBufferApi::load(const Api& api, cl_platform_id platform) {
  bool complete = true;
  const auto find = [&](auto& function, const char* name) {
    void* address = api.clGetExtensionFunctionAddressForPlatform(platform, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    complete = complete && address != nullptr;
  };
  find(clCreateCommandBufferKHR, "clCreateCommandBufferKHR");
  find(clFinalizeCommandBufferKHR, "clFinalizeCommandBufferKHR");
  find(clReleaseCommandBufferKHR, "clReleaseCommandBufferKHR");
  find(clEnqueueCommandBufferKHR, "clEnqueueCommandBufferKHR");
  find(clCommandNDRangeKernelKHR, "clCommandNDRangeKernelKHR");
  return complete;
}

}  // namespace outboard::opencl
