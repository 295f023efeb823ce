// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "opencl/sub_groups.h"

/// What the OpenCL driver reports of sub-groups: of devices that are made up here, and of the real ones.
using namespace outboard::opencl;

namespace {

/// A device that is made up. OpenCL's functions have no place for it but this.
struct Fake {
  std::vector<size_t> sizes;  // that kernels may ask for
  bool builds = true;
  size_t of_a_kernel = 0;  // what a built kernel says
  cl_uint lanes = 1;       // of vectors of float
  int programs = 0, kernels = 0, built = 0;
};
Fake fake;

cl_int get_device_info(cl_device_id, cl_uint what, size_t size, void* value, size_t* needed) {
  if (what == CL_DEVICE_MAX_WORK_GROUP_SIZE) {
    const size_t most = 64;
    std::memcpy(value, &most, size);
    return CL_SUCCESS;
  }
  if (what == CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT) {
    std::memcpy(value, &fake.lanes, size);
    return CL_SUCCESS;
  }
  if (what != CL_DEVICE_SUB_GROUP_SIZES_INTEL) return CL_INVALID_VALUE;
  if (needed != nullptr) *needed = fake.sizes.size() * sizeof(size_t);
  if (value != nullptr) std::memcpy(value, fake.sizes.data(), size);
  return CL_SUCCESS;
}

cl_program create_program(cl_context, cl_uint, const char**, const size_t*, cl_int*) {
  ++fake.programs;
  return reinterpret_cast<cl_program>(&fake);
}

cl_int build_program(cl_program, cl_uint, const cl_device_id*, const char*, void*, void*) {
  ++fake.built;
  return fake.builds ? CL_SUCCESS : CL_BUILD_PROGRAM_FAILURE;
}

cl_int release_program(cl_program) {
  --fake.programs;
  return CL_SUCCESS;
}

cl_kernel create_kernel(cl_program, const char*, cl_int*) {
  ++fake.kernels;
  return reinterpret_cast<cl_kernel>(&fake);
}

cl_int release_kernel(cl_kernel) {
  --fake.kernels;
  return CL_SUCCESS;
}

cl_int get_kernel_info(cl_kernel, cl_device_id, cl_uint what, size_t, const void* group, size_t, void* value, size_t*) {
  size_t items = 0;
  std::memcpy(&items, group, sizeof(items));
  if (what != CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE || items > 64) return CL_INVALID_VALUE;
  std::memcpy(value, &fake.of_a_kernel, sizeof(size_t));
  return CL_SUCCESS;
}

Api made_up(Fake device) {
  fake = std::move(device);
  Api api{};
  api.clGetDeviceInfo = get_device_info;
  api.clCreateProgramWithSource = create_program;
  api.clBuildProgram = build_program;
  api.clReleaseProgram = release_program;
  api.clCreateKernel = create_kernel;
  api.clReleaseKernel = release_kernel;
  api.clGetKernelSubGroupInfo = get_kernel_info;
  return api;
}

cl_uint size_of(const Api& api, const char* extensions) { return sub_group_size(api, nullptr, nullptr, extensions); }

const char* const kRequired = "cl_khr_fp64 cl_khr_subgroup_shuffle cl_intel_required_subgroup_size";

/// The first device of the machine, with a context.
struct Real {
  const Api* api = nullptr;
  cl_device_id id = nullptr;
  cl_context context = nullptr;
  std::string extensions;

  Real() {
    CHECK_EQ(std::string(Api::load(&api)), "");
    cl_platform_id platform = nullptr;
    CHECK_EQ(api->clGetPlatformIDs(1, &platform, nullptr), CL_SUCCESS);
    CHECK_EQ(api->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &id, nullptr), CL_SUCCESS);
    cl_int code = CL_SUCCESS;
    context = api->clCreateContext(nullptr, 1, &id, nullptr, nullptr, &code);
    CHECK_EQ(code, CL_SUCCESS);
    size_t bytes = 0;
    api->clGetDeviceInfo(id, CL_DEVICE_EXTENSIONS, 0, nullptr, &bytes);
    extensions.resize(bytes);
    api->clGetDeviceInfo(id, CL_DEVICE_EXTENSIONS, bytes, extensions.data(), nullptr);
    extensions.back() = ' ';  // which was the end of the text
  }
};

}  // namespace

TEST(without_shuffles_there_are_none) {
  const Api api = made_up({{8, 16, 32}, true, 32});
  CHECK_EQ(size_of(api, ""), 1u);
  CHECK_EQ(size_of(api, "cl_khr_subgroups cl_khr_subgroup_shuffle_relative cl_intel_required_subgroup_size"), 1u);
  CHECK_EQ(fake.built, 0);
}

TEST(of_the_sizes_to_ask_for_the_usual_one_is_chosen) {
  CHECK_EQ(size_of(made_up({{8, 16, 32}}), kRequired), 32u);
  CHECK_EQ(size_of(made_up({{4, 8, 16, 32, 64}}), kRequired), 32u);
  CHECK_EQ(size_of(made_up({{16, 8}}), kRequired), 16u);
  CHECK_EQ(size_of(made_up({{128, 64}}), kRequired), 64u);
  CHECK_EQ(size_of(made_up({{}}), kRequired), 1u);
  CHECK_EQ(fake.built, 0);
}

TEST(a_processor_of_vectors_has_sub_groups_of_a_vector) {
  for (cl_uint lanes : {4u, 8u, 16u}) {
    CHECK_EQ(size_of(made_up({{4, 8, 16, 32, 64}, true, 0, lanes}), kRequired), lanes);
  }
}

TEST(elsewhere_a_kernel_tells) {
  for (const char* extension : {"cl_khr_subgroup_shuffle", "cl_intel_subgroups"}) {
    CHECK_EQ(size_of(made_up({{}, true, 24}), extension), 24u);
    CHECK_EQ(fake.built, 1);
    CHECK_EQ(fake.programs + fake.kernels, 0);
  }
}

TEST(what_cannot_be_built_cannot_be_used) {
  CHECK_EQ(size_of(made_up({{}, false, 32}), "cl_khr_subgroup_shuffle"), 1u);
  CHECK_EQ(fake.built, 1);
  CHECK_EQ(fake.programs, 0);
  Api old = made_up({{}, true, 32});
  old.clGetKernelSubGroupInfo = nullptr;
  CHECK_EQ(size_of(old, "cl_khr_subgroup_shuffle"), 1u);
}

TEST(the_kernel_is_built_by_the_runtime_that_is_there) {
  const Real real;
  const bool has = real.extensions.find("cl_khr_subgroup_shuffle ") != std::string::npos;
  const cl_uint size = sub_group_size(*real.api, real.context, real.id, "cl_khr_subgroup_shuffle");
  std::printf("     sub-groups of %u\n", size);
  CHECK_EQ(size > 1, has);
}

int main() { return check::run_all(); }
