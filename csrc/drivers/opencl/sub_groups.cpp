// SPDX-License-Identifier: Apache-2.0
#include "opencl/sub_groups.h"

#include <algorithm>
#include <vector>

namespace outboard::opencl {
namespace {

/// What most GPUs have.
constexpr cl_uint kUsualSize = 32;
/// Work-items of the group that a kernel is asked about.
constexpr size_t kGroup = 256;

/// Calls what the compiler's kernels call (words of `dialects/opencl`).
constexpr const char* kProbe = R"(
#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
#ifdef cl_khr_subgroup_shuffle
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
#define OB_SHUFFLE(value, lane) sub_group_shuffle(value, lane)
#else
#define OB_SHUFFLE(value, lane) intel_sub_group_shuffle(value, lane)
#endif
__kernel void probe(__global float* p) {
  const float mine = p[get_global_id(0)] + get_sub_group_id();
  p[get_global_id(0)] = OB_SHUFFLE(mine, get_sub_group_local_id() ^ 1u);
}
)";

bool lists(const std::string& extensions, const char* name) {
  return (" " + extensions + " ").find(" " + std::string(name) + " ") != std::string::npos;
}

/// Work-items that run in step: on a processor of vectors as many as these have lanes, for it takes larger sub-groups
/// apart.
size_t native_size(const Api& api, cl_device_id id) {
  cl_uint lanes = 1;
  const cl_int code = api.clGetDeviceInfo(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof(lanes), &lanes, nullptr);
  return code == CL_SUCCESS && lanes > 1 ? lanes : kUsualSize;
}

/// Of the sizes that kernels may ask for, the largest one that runs in step; 1 if the device does not tell.
cl_uint chosen_size(const Api& api, cl_device_id id) {
  size_t bytes = 0;
  if (api.clGetDeviceInfo(id, CL_DEVICE_SUB_GROUP_SIZES_INTEL, 0, nullptr, &bytes) != CL_SUCCESS) return 1;
  std::vector<size_t> sizes(bytes / sizeof(size_t));
  if (sizes.empty()) return 1;
  if (api.clGetDeviceInfo(id, CL_DEVICE_SUB_GROUP_SIZES_INTEL, bytes, sizes.data(), nullptr) != CL_SUCCESS) return 1;
  const size_t native = native_size(api, id);
  size_t best = *std::min_element(sizes.begin(), sizes.end());
  for (size_t size : sizes) {
    if (size <= native) best = std::max(best, size);
  }
  return static_cast<cl_uint>(best);
}

size_t largest_sub_group(const Api& api, cl_program program, cl_device_id id) {
  cl_int code = CL_SUCCESS;
  cl_kernel kernel = api.clCreateKernel(program, "probe", &code);
  if (kernel == nullptr) return 1;
  const size_t group = std::min(kGroup, [&] {
    size_t most = 1;
    const cl_int asked = api.clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(most), &most, nullptr);
    return asked == CL_SUCCESS ? most : size_t{1};
  }());
  size_t size = 1;
  code = api.clGetKernelSubGroupInfo(kernel, id, CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, sizeof(group), &group,
                                     sizeof(size), &size, nullptr);
  api.clReleaseKernel(kernel);
  return code == CL_SUCCESS ? size : 1;
}

cl_uint probed_size(const Api& api, cl_context context, cl_device_id id) {
  if (api.clGetKernelSubGroupInfo == nullptr) return 1;
  cl_int code = CL_SUCCESS;
  const char* source = kProbe;
  cl_program program = api.clCreateProgramWithSource(context, 1, &source, nullptr, &code);
  if (program == nullptr) return 1;
  const bool built = api.clBuildProgram(program, 1, &id, "", nullptr, nullptr) == CL_SUCCESS;
  const size_t size = built ? largest_sub_group(api, program, id) : 1;
  api.clReleaseProgram(program);
  return static_cast<cl_uint>(std::max<size_t>(size, 1));
}

}  // namespace

cl_uint sub_group_size(const Api& api, cl_context context, cl_device_id id, const std::string& extensions) {
  if (!lists(extensions, "cl_khr_subgroup_shuffle") && !lists(extensions, "cl_intel_subgroups")) return 1;
  if (lists(extensions, "cl_intel_required_subgroup_size")) return chosen_size(api, id);
  return probed_size(api, context, id);
}

}  // namespace outboard::opencl
