// SPDX-License-Identifier: Apache-2.0
#include "opencl/direct_kernel.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/floating_point.h"

namespace outboard::opencl {

using common::FloatingPoint;
using common::group_count;
using common::GroupLaunch;
using common::KernelLibrary;
using common::Scratch;
using common::ThreadPool;

namespace {

constexpr uint32_t kMostArguments = 64;

/// What a work-group function of PoCL 3.1 reads besides its arguments (PoCL's `include/pocl_context.h`).
struct Context {
  uint64_t group_count[3];
  uint64_t global_offset[3];
  uint64_t local_size[3];
  void* printf_buffer;
  uint32_t* printf_position;
  uint32_t printf_capacity;
  uint32_t dimensions;
};

}  // namespace

/// A launch as the threads that run it see it.
struct DirectKernel::Launch {
  Launch(DirectKernel& kernel_, const uint64_t global[3], const uint32_t local[3], const ob_argument* arguments_,
         uint32_t* printf_position)
      : kernel(kernel_), arguments(arguments_) {
    context.printf_position = printf_position;
    context.dimensions = global[2] > 1 ? 3 : global[1] > 1 ? 2 : 1;
    for (int i = 0; i < 3; ++i) {
      context.local_size[i] = local[i];
      context.group_count[i] = group_count(global[i], local[i]);
      groups *= context.group_count[i];
    }
  }

  GroupLaunch groups_of() const { return {{groups, run_groups, this, kernel.local_bytes_}, &kernel.time_}; }

  DirectKernel& kernel;
  Context context = {};
  const ob_argument* arguments;
  uint64_t groups = 1;
};

bool DirectKernel::supports([[maybe_unused]] const std::string& platform) {
#if defined(__x86_64__) && defined(__linux__)
  const char* wanted = std::getenv("OUTBOARD_OPENCL_DIRECT");
  if (wanted != nullptr && std::strcmp(wanted, "0") == 0) return false;
  return platform.find(" PoCL 3.1") != std::string::npos;
#else
  return false;
#endif
}

std::unique_ptr<DirectKernel> DirectKernel::load(const PoclBinary::Kernel& kernel) {
  if (!is_whole_library(kernel.library) || kernel.arguments + kernel.locals.size() > kMostArguments) return nullptr;
  std::unique_ptr<KernelLibrary> library = KernelLibrary::load(kernel.library);
  if (library == nullptr) return nullptr;
  auto work_group = reinterpret_cast<WorkGroup>(library->find("_pocl_kernel_" + kernel.name + "_workgroup"));
  if (work_group == nullptr) return nullptr;
  return std::unique_ptr<DirectKernel>(new DirectKernel(std::move(library), work_group, kernel));
}

DirectKernel::DirectKernel(std::unique_ptr<KernelLibrary> library, WorkGroup work_group,
                           const PoclBinary::Kernel& kernel)
    : library_(std::move(library)), work_group_(work_group), arguments_(kernel.arguments) {
  std::memcpy(required_local_size_, kernel.required_local_size, sizeof(required_local_size_));
  for (const uint64_t bytes : kernel.locals) {
    local_offsets_.push_back(local_bytes_);
    local_bytes_ += (bytes + Scratch::kAlignment - 1) / Scratch::kAlignment * Scratch::kAlignment;
  }
}

bool DirectKernel::accepts(const uint32_t local[3], uint32_t argument_count) const {
  if (argument_count != arguments_ || local[0] == 0) return false;
  for (int i = 0; i < 3; ++i) {
    if (required_local_size_[i] != 0 && required_local_size_[i] != local[i]) return false;
  }
  return true;
}

void DirectKernel::run_groups(const void* job, void* scratch, uint64_t begin, uint64_t end) {
  const auto& launch = *static_cast<const Launch*>(job);
  const DirectKernel& kernel = launch.kernel;
  // An argument is a pointer to its value; arrays in local memory are further arguments.
  const void* arguments[kMostArguments];
  void* locals[kMostArguments];
  for (uint32_t i = 0; i < kernel.arguments_; ++i) arguments[i] = launch.arguments[i].value;
  for (size_t i = 0; i < kernel.local_offsets_.size(); ++i) {
    locals[i] = static_cast<char*>(scratch) + kernel.local_offsets_[i];
    arguments[kernel.arguments_ + i] = &locals[i];
  }
  const FloatingPoint standard;
  const uint64_t* count = launch.context.group_count;
  uint64_t x = 0, y = 0, z = 0;
  if (begin != 0) {
    x = begin % count[0];
    y = begin / count[0] % count[1];
    z = begin / count[0] / count[1];
  }
  for (uint64_t i = begin; i < end; ++i) {
    kernel.work_group_(arguments, &launch.context, x, y, z);
    if (++x < count[0]) continue;
    x = 0;
    if (++y < count[1]) continue;
    y = 0;
    ++z;
  }
}

void DirectKernel::run(ThreadPool& pool, const uint64_t global[3], const uint32_t local[3],
                       const ob_argument* arguments) {
  uint32_t printf_position = 0;
  const Launch launch(*this, global, local, arguments, &printf_position);
  common::run_groups(pool, launch.groups_of());
}

void DirectKernel::run_batch(ThreadPool& pool, const ob_launch* launches, DirectKernel* const* kernels, size_t count) {
  uint32_t printf_position = 0;
  std::vector<Launch> all;
  std::vector<GroupLaunch> groups;
  all.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const ob_launch& one = launches[i];
    groups.push_back(all.emplace_back(*kernels[i], one.global, one.local, one.arguments, &printf_position).groups_of());
  }
  common::run_groups(pool, groups.data(), groups.size());
}

}  // namespace outboard::opencl
