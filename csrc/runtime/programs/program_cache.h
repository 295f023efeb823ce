// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "outboard/driver.h"

namespace outboard {

class Device;

/// A use of something that stays as long as it has any (`retain`, `release`).
template <typename T>
class Use {
 public:
  /// Of what nobody can end meanwhile: there is a use already, or a lock.
  explicit Use(T& used) : used_(&used) { used.retain(); }
  Use(const Use& other) : Use(*other.used_) {}
  Use(Use&& other) noexcept : used_(std::exchange(other.used_, nullptr)) {}
  Use& operator=(Use other) noexcept {
    std::swap(used_, other.used_);
    return *this;
  }
  ~Use() {
    if (used_ != nullptr) used_->release();
  }

  T* operator->() const { return used_; }
  T& operator*() const { return *used_; }

 private:
  T* used_;
};

/// A kernel that is being made ready by another thread. Lives as long as somebody has a use of it, and then until
/// the launches that the device's streams were given before are over. Thread-safe.
class Kernel {
 public:
  struct Program;
  Kernel(Program& program, std::string name) : program_(program), name_(std::move(name)) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// The driver's kernel; waits until its program is there. Throws Error(OB_BUILD_FAILED) with the build log. After a
  /// failure the next call tries again.
  ob_kernel get() {
    ob_kernel handle = handle_.load(std::memory_order_acquire);
    return handle != nullptr ? handle : wait();
  }
  /// The same without waiting; nullptr if nobody has waited for it yet.
  ob_kernel ready() const { return handle_.load(std::memory_order_acquire); }
  const std::string& name() const { return name_; }
  /// The binary of its program, as the driver gives it; waits for it. Empty if it gives none. Throws what building it
  /// threw.
  std::string binary();
  /// Throws Error(OB_INVALID_ARGUMENT) if the kernel, which is there, cannot run in work-groups of this size.
  void check_group(const uint32_t local[3]) const {
    if (uint64_t{local[0]} * local[1] * local[2] > max_group_.load(std::memory_order_relaxed)) refuse_group(local);
  }

 private:
  friend class Use<Kernel>;

  ob_kernel wait();
  void retain() const noexcept;
  void release() const noexcept;
  [[noreturn]] void refuse_group(const uint32_t local[3]) const;

  Program& program_;
  const std::string name_;
  std::atomic<uint32_t> max_group_{UINT32_MAX};  // work-items; known before the handle
  std::atomic<ob_kernel> handle_{nullptr};
};

/// The right to launch a kernel: while somebody has it, the kernel's program stays loaded.
using KernelUse = Use<Kernel>;

/// Programs of a device by (source, options): in memory, then as binaries under `<cache dir>/programs`, then those that
/// came with Outboard (`ShippedPrograms`), then the driver's compiler. Disk entries are written atomically (temporary
/// file + rename), carry a checksum and the program's whole key (a hash of source, options and the device's cache_key),
/// and are ignored and replaced when damaged or another's; what another user could have written is not read
/// (`trusted_file.h`). A directory that can only be read is used as it is. A binary that turns out to lack a kernel is
/// given up, and the program built from source. Thread-safe. Programs are loaded and built by threads of their own,
/// while the callers go on; where builds in one process wait for each other (`serial_builds`), all but one at a time
/// are left to other processes
/// (`BuildProcess`). Programs that nobody uses any more are kept for who may ask again, up to a number; then all of
/// them go, once the device's streams have done what they were given before.
class ProgramCache {
 public:
  explicit ProgramCache(Device& device);
  /// A kernel by source, options and name. Returns at once: see `Kernel::get`.
  KernelUse kernel(const std::string& source, const std::string& options, const std::string& entry);
  /// The same of a program that is there as a binary, of the form that the driver loads. What the driver refuses is
  /// thrown by `Kernel::get`, and nothing is built in its place.
  KernelUse kernel_of(const std::string& binary, const std::string& entry);
  /// What `binary` gave, for a device of equal `cache_key`, to be tried before the program is looked for elsewhere.
  /// That of another program, or anything else, is ignored.
  void offer(const std::string& source, const std::string& options, const std::string& binary);
  /// The binary of a program that `kernel` was asked for, sealed with the program's key; waits for it. Empty if there
  /// is none, or the driver gives none. Throws what building it threw.
  std::string binary(const std::string& source, const std::string& options);
  /// The binaries of all programs that were asked for, as the driver gives them, by `program_digest`; waits for them.
  /// Those of which it gives none are left out. Throws what building one threw.
  std::map<std::string, std::string> binaries();
  /// How many programs that nobody uses are kept. Process-wide.
  static void keep_unused(size_t count);
  /// Empty string: no disk cache. Process-wide.
  static void set_directory(const std::string& directory);
  /// Waits until no thread builds any more, in the whole process; programs asked for later are built by the caller. At
  /// the end of the process, when compilers must not be interrupted.
  static void stop() noexcept;
  /// Forgets programs that nobody has begun to load or build; at the end of the process.
  static void drop_waiting() noexcept;

  struct Statistics {
    int64_t built = 0;
    int64_t elsewhere = 0;  ///< of those built, by other processes
    int64_t loaded_from_disk = 0;
    int64_t waiting = 0;  ///< asked for, and neither there nor failed yet
    int64_t held = 0;     ///< by the driver, used or not
  };
  Statistics statistics() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace outboard
