// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/group_launch.h"
#include "common/kernel_library.h"
#include "host/compiler.h"
#include "host/item.h"

namespace outboard::host {

/// A kernel that can be run. Thread-safe.
class Kernel {
 public:
  Kernel(KernelInterface interface, RunGroups run) : interface_(std::move(interface)), run_(run) {}

  const KernelInterface& interface() const { return interface_; }
  /// The local size of a launch that leaves it open.
  void choose_local_size(uint32_t local[3]) const;
  /// What is wrong with a launch; an empty text if nothing is.
  std::string problem_with(const ob_launch& launch, const uint32_t local[3]) const;
  uint64_t expected_nanoseconds(const uint64_t global[3], const uint32_t local[3]) const;

 private:
  friend class Launch;

  KernelInterface interface_;
  RunGroups run_;
  common::GroupTime time_;
};

/// A launch as the threads that run it see it. Lives until it is done.
class Launch {
 public:
  /// The kernel must have no problem with it. `sub_group_size` is the device's.
  Launch(Kernel& kernel, const ob_launch& launch, const uint32_t local[3], uint32_t sub_group_size);

  /// The work-groups, for `common::run_groups`.
  common::GroupLaunch groups() const;
  /// True if a thread had no memory for work-items' stacks; some groups did not run then.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

 private:
  static void run_part(const void* job, void* scratch, uint64_t begin, uint64_t end);
  void run_row(Item& item, uint64_t begin, uint64_t end) const;
  void run_items(Item& item, uint64_t group) const;
  bool prepare_thread() const;

  Kernel& kernel_;
  const ob_argument* arguments_;
  Item item_{};
  uint64_t groups_ = 1;
  uint32_t items_ = 1;  // of a group
  mutable std::atomic<bool> failed_{false};
};

/// Machine code that is loaded, and its kernels.
class Program {
 public:
  /// Loads what a compiler made. Throws BuildError if the system does not take it.
  explicit Program(const Code& code);
  /// Loads what `binary` returned. Throws std::invalid_argument if it is something else, or made for processors of
  /// which the compiler's is none, and BuildError as above.
  static std::unique_ptr<Program> load(std::string_view binary, const Compiler& compiler);

  const std::string& binary() const { return binary_; }
  /// nullptr if there is none of this name.
  Kernel* find(const std::string& name) const;

 private:
  std::string binary_;
  std::unique_ptr<common::KernelLibrary> library_;
  std::unordered_map<std::string, std::unique_ptr<Kernel>> kernels_;
};

/// Work-items in a group, at most.
constexpr uint32_t kMostWorkItems = 1024;
/// Bytes of a group's arrays in local memory, at most.
constexpr uint64_t kMostLocalBytes = uint64_t{1} << 20;

}  // namespace outboard::host
