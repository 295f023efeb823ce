// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/group_launch.h"
#include "common/kernel_library.h"
#include "common/thread_pool.h"
#include "opencl/pocl_binary.h"
#include "outboard/driver.h"

namespace outboard::opencl {

/// A kernel that PoCL 3.1 compiled and this driver runs itself, on the launching thread and a pool: PoCL's own queue
/// costs microseconds for each kernel and wakes its threads for each, which dwarfs small kernels.
/// Thread-safe.
class DirectKernel {
 public:
  /// Whether kernels of this platform can be run so: the interface between PoCL and its kernels changes with versions,
  /// and is known for one. OUTBOARD_OPENCL_DIRECT=0 says no.
  static bool supports(const std::string& platform);
  /// nullptr if there is no code to load, or so much is loaded already that the process would run out of mappings.
  static std::unique_ptr<DirectKernel> load(const PoclBinary::Kernel& kernel);
  DirectKernel(const DirectKernel&) = delete;
  DirectKernel& operator=(const DirectKernel&) = delete;

  /// Whether it can run with this local size and so many arguments; if not, let OpenCL say why.
  bool accepts(const uint32_t local[3], uint32_t argument_count) const;
  /// What `run` took the last time it was looked at, scaled to so many groups on one thread; UINT64_MAX if never.
  uint64_t expected_nanoseconds(uint64_t groups) const { return time_.expected(groups); }
  /// Runs the kernel and returns when it is done. Throws std::bad_alloc and std::system_error before it runs.
  void run(common::ThreadPool& pool, const uint64_t global[3], const uint32_t local[3], const ob_argument* arguments);
  /// The same for launches that do not depend on one another: threads that are done with one go on with the next.
  static void run_batch(common::ThreadPool& pool, const ob_launch* launches, DirectKernel* const* kernels,
                        size_t count);

 private:
  using WorkGroup = void (*)(const void* arguments, const void* context, uint64_t x, uint64_t y, uint64_t z);
  struct Launch;

  DirectKernel(std::unique_ptr<common::KernelLibrary> library, WorkGroup work_group, const PoclBinary::Kernel& kernel);
  static void run_groups(const void* launch, void* scratch, uint64_t begin, uint64_t end);

  std::unique_ptr<common::KernelLibrary> library_;
  WorkGroup work_group_;
  uint32_t arguments_;
  uint64_t required_local_size_[3];
  std::vector<size_t> local_offsets_;  // of the kernel's arrays in local memory
  size_t local_bytes_ = 0;
  common::GroupTime time_;
};

}  // namespace outboard::opencl
