// SPDX-License-Identifier: Apache-2.0
#include "opencl/direct_kernel.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "opencl/pocl_cache.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace outboard::opencl {
namespace {

using Clock = std::chrono::steady_clock;

/// A process may have 65,530 mappings, and each library takes five.
constexpr int kMostLibraries = 6000;
/// Shorter launches are done before another thread has noticed them, or has been woken.
constexpr uint64_t kWorthSharing = 6000, kWorthWaking = 30000;  // ns
constexpr uint32_t kMostArguments = 64;
/// Launches of one group of which one is timed: looking at the clock twice takes as long as the smallest kernels.
constexpr uint32_t kTimedEvery = 16;

std::atomic<int> libraries{0};

/// Rounding and denormal numbers as OpenCL wants them, whatever the thread has set for itself.
class FloatingPoint {
 public:
#ifdef __x86_64__
  FloatingPoint() : before_(_mm_getcsr()) {
    if (differs()) _mm_setcsr(kDefault);
  }
  ~FloatingPoint() {
    if (differs()) _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80, kFlags = 0x3f;  // flags of what happened, which nobody reads

  bool differs() const { return (before_ & ~kFlags) != kDefault; }

  unsigned before_;
#endif
};

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

/// A file that is gone when its owner is. Not a file of memory: debuggers open the paths of libraries, and would read
/// whatever descriptor of their own has the same number.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view content) {
    path_ = trusted_temporary_folder() + "/outboard-kernel-XXXXXX";
    const int file = mkstemp(path_.data());
    if (file < 0) return;
    complete_ = write(file, content.data(), content.size()) == static_cast<ssize_t>(content.size());
    close(file);
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool complete() const { return complete_; }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
  bool complete_ = false;
};

/// Loads a library from its image, or returns nullptr.
void* load_library(std::string_view image) {
  const TemporaryFile file(image);
  return file.complete() ? dlopen(file.path(), RTLD_NOW | RTLD_LOCAL) : nullptr;
}

}  // namespace

/// A launch as the threads that run it see it.
struct DirectKernel::Launch {
  Launch(DirectKernel& kernel_, const uint64_t global[3], const uint32_t local[3], const ob_argument* arguments_,
         uint32_t* printf_position)
      : kernel(kernel_),
        arguments(arguments_),
        group_nanoseconds(kernel.group_nanoseconds_.load(std::memory_order_relaxed)) {
    context.printf_position = printf_position;
    context.dimensions = global[2] > 1 ? 3 : global[1] > 1 ? 2 : 1;
    for (int i = 0; i < 3; ++i) {
      context.local_size[i] = local[i];
      context.group_count[i] = group_count(global[i], local[i]);
      groups *= context.group_count[i];
    }
  }

  ThreadPool::Job job() const { return {groups, run_groups, this, kernel.local_bytes_}; }

  DirectKernel& kernel;
  Context context = {};
  const ob_argument* arguments;
  const float group_nanoseconds;  // expected; 0 if unknown
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
  if (libraries.fetch_add(1, std::memory_order_relaxed) < kMostLibraries) {
    if (void* library = load_library(kernel.library); library != nullptr) {
      const std::string symbol = "_pocl_kernel_" + kernel.name + "_workgroup";
      auto work_group = reinterpret_cast<WorkGroup>(dlsym(library, symbol.c_str()));
      if (work_group != nullptr) return std::unique_ptr<DirectKernel>(new DirectKernel(library, work_group, kernel));
      dlclose(library);
    }
  }
  libraries.fetch_sub(1, std::memory_order_relaxed);
  return nullptr;
}

DirectKernel::DirectKernel(void* library, WorkGroup work_group, const PoclBinary::Kernel& kernel)
    : library_(library), work_group_(work_group), arguments_(kernel.arguments) {
  std::memcpy(required_local_size_, kernel.required_local_size, sizeof(required_local_size_));
  for (const uint64_t bytes : kernel.locals) {
    local_offsets_.push_back(local_bytes_);
    local_bytes_ += (bytes + Scratch::kAlignment - 1) / Scratch::kAlignment * Scratch::kAlignment;
  }
}

DirectKernel::~DirectKernel() {
  dlclose(library_);
  libraries.fetch_sub(1, std::memory_order_relaxed);
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

uint64_t DirectKernel::expected_nanoseconds(uint64_t groups) const {
  const float each = group_nanoseconds_.load(std::memory_order_relaxed);
  return each == 0 ? UINT64_MAX : static_cast<uint64_t>(each * static_cast<float>(groups));
}

bool DirectKernel::worth_sharing(const ThreadPool& pool, uint64_t nanoseconds) {
  return nanoseconds >= (pool.awake() ? kWorthSharing : kWorthWaking);
}

void DirectKernel::run(ThreadPool& pool, const uint64_t global[3], const uint32_t local[3],
                       const ob_argument* arguments) {
  uint32_t printf_position = 0;
  run(pool, Launch(*this, global, local, arguments, &printf_position));
}

void DirectKernel::run(ThreadPool& pool, const Launch& launch) {
  DirectKernel& kernel = launch.kernel;
  const uint64_t groups = launch.groups;
  const uint32_t launches = kernel.launches_.load(std::memory_order_relaxed);
  kernel.launches_.store(launches + 1, std::memory_order_relaxed);
  if (groups < 2 && launches % kTimedEvery != 0) return ThreadPool::run_alone(launch.job());
  const bool shared = groups > 1 && worth_sharing(pool, kernel.expected_nanoseconds(groups));
  const auto begin = Clock::now();
  if (shared) {
    pool.run(launch.job());
  } else {
    ThreadPool::run_alone(launch.job());
  }
  const float elapsed = std::chrono::duration<float, std::nano>(Clock::now() - begin).count();
  const float threads = shared ? static_cast<float>(std::min<uint64_t>(pool.threads(), groups)) : 1.0f;
  if (groups > 0) kernel.expect(elapsed * threads / static_cast<float>(groups));
}

void DirectKernel::run_batch(ThreadPool& pool, const ob_launch* launches, DirectKernel* const* kernels, size_t count) {
  uint32_t printf_position = 0;
  std::vector<Launch> known;  // of which it is known how long they take
  std::vector<ThreadPool::Job> jobs;
  known.reserve(count);
  float expected = 0;
  for (size_t i = 0; i < count; ++i) {
    const Launch launch(*kernels[i], launches[i].global, launches[i].local, launches[i].arguments, &printf_position);
    if (launch.group_nanoseconds == 0) {
      run(pool, launch);
      continue;
    }
    expected += launch.group_nanoseconds * static_cast<float>(launch.groups);
    jobs.push_back(known.emplace_back(launch).job());
  }
  if (expected == 0) return;
  const bool shared = worth_sharing(pool, static_cast<uint64_t>(expected));
  const auto begin = Clock::now();
  if (shared) {
    pool.run(jobs.data(), jobs.size());
  } else {
    ThreadPool::run_alone(jobs.data(), jobs.size());
  }
  // Which took how much of it is not known: all are taken to be as much slower or faster than expected.
  const float elapsed = std::chrono::duration<float, std::nano>(Clock::now() - begin).count();
  const float threads = shared ? static_cast<float>(pool.threads()) : 1.0f;
  const float factor = elapsed * threads / expected;
  for (const Launch& launch : known) launch.kernel.expect(launch.group_nanoseconds * factor);
}

}  // namespace outboard::opencl
