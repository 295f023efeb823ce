// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "outboard/driver.h"
#include "runtime/device.h"
#include "runtime/memory/allocation.h"
#include "runtime/plans/executor.h"
#include "runtime/streams/launch.h"

/// The device under test: the first one of the driver that CMake names in OUTBOARD_TEST_DRIVER, which is the
/// fault-injecting one over a real driver.
namespace fixture {

outboard::Device& device();

/// Makes the nth next call of a driver function fail with `status`; nth = 0 cancels.
void fail(const char* function, uint64_t nth, ob_status status);
/// Calls of a driver function so far.
uint64_t calls(const char* function);

/// Objects of a kind (memory, host_memory, stream, event, program, function, graph) that the runtime got and has not
/// destroyed.
int64_t live(const char* kind);

/// Runs all tests, and then one that finds what they leaked. The exit code for main().
int run_all();

/// True on the strict driver, of which `run_all` finds out whether the runtime broke the contract.
bool is_strict();
/// True on the simulator, of which one stream can be stopped while others go on.
bool can_pause();

/// Stops a stream of the simulator, or all of the strict driver: what is submitted waits until the Pause ends.
class Pause {
 public:
  explicit Pause(outboard::Stream& stream);
  ~Pause() { end(); }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  void end();

 private:
  outboard::Stream* stream_;
};

/// Owns one reference of an Allocation.
class Holder {
 public:
  explicit Holder(outboard::Allocation* allocation) : allocation_(allocation) {}
  Holder(Holder&& other) noexcept : allocation_(other.allocation_) { other.allocation_ = nullptr; }
  Holder& operator=(Holder&& other) noexcept {
    std::swap(allocation_, other.allocation_);
    return *this;
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() {
    if (allocation_ != nullptr) allocation_->release();
  }
  outboard::Allocation* operator->() const { return allocation_; }
  outboard::Allocation& operator*() const { return *allocation_; }
  outboard::Allocation* get() const { return allocation_; }

 private:
  outboard::Allocation* allocation_;
};

Holder upload(const std::vector<float>& values);
std::vector<float> download(outboard::Allocation& allocation, size_t count);

/// Runs a plan whose inputs are vectors of `count` floats.
void run(const outboard::Executable& executable, outboard::Stream& stream, std::initializer_list<const Holder*> vectors,
         int64_t count);

/// A launch of so many work-items, in groups of one, of a kernel whose argument is a pointer.
outboard::Launch launch_of(outboard::Kernel& kernel, ob_ptr x, uint64_t items = 1, uint64_t batch = 0);

/// A kernel that counts to `n` (about a nanosecond per step and item) and then adds 1 to x[0].
outboard::Kernel& slow_kernel();
/// Keeps `stream` busy for some tens of milliseconds; adds 1 to the float at `x`.
void keep_busy(outboard::Stream& stream, ob_ptr x);

/// Runs this program again with `argument` in a child process; its exit code, or 128 + the signal that ended it.
/// -1: it took longer than a minute (and was ended).
int run_again(const std::string& argument);

}  // namespace fixture
