// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams/assertions.h"

#include "runtime/base/driver_call.h"
#include "runtime/base/interruption.h"
#include "runtime/device.h"

namespace outboard {
namespace {

/// Waits for one command of the word's own.
void finish(Device& device, Stream& stream, ob_status status, const char* what) {
  check(device.driver(), status, what);
  check(device.driver(), device.driver().stream_wait(stream.handle(), 1), what);
}

/// Makes the word 0, in the order of a stream.
void clear(Device& device, Stream& stream, ob_ptr word) {
  const int32_t zero = 0;
  finish(device, stream, device.driver().fill(stream.handle(), word, &zero, sizeof(zero), sizeof(zero)),
         "clearing memory");
}

}  // namespace

void Assertions::add(int32_t code, Kind kind, const std::string& text) {
  std::lock_guard lock(mutex_);
  meanings_.emplace(code, Meaning{kind, text});
}

ob_ptr Assertions::word() {
  const ob_ptr known = word_.load(std::memory_order_acquire);
  if (known != 0) return known;
  const Uninterrupted whole;  // a signal handler might wait for a thread that waits for this lock
  std::lock_guard lock(mutex_);
  if (word_.load(std::memory_order_relaxed) != 0) return word_.load(std::memory_order_relaxed);
  refuse_if_unusable(device_.driver());
  const DeviceDriver& driver = device_.driver();
  Stream& stream = device_.default_stream();
  ob_ptr made = 0;
  check(driver, driver.memory_alloc(device_.handle(), sizeof(int32_t), &made), "allocating device memory");
  stream.flush();
  clear(device_, stream, made);
  word_.store(made, std::memory_order_release);
  return made;
}

/// The word's value, which becomes 0. On a discrete device it is read beside the streams that compute.
int32_t Assertions::take(ob_ptr word) {
  if (device_.host_accessible()) {
    int32_t code = 0;
    auto* value = reinterpret_cast<int32_t*>(word);
    if (__atomic_load_n(value, __ATOMIC_ACQUIRE) != 0) code = __atomic_exchange_n(value, 0, __ATOMIC_ACQ_REL);
    return code;
  }
  const DeviceDriver& driver = device_.driver();
  Stream& stream = *device_.transfer_stream();
  finish(device_, stream,
         driver.copy(stream.handle(), OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(&landing_), word, sizeof(landing_)),
         "reading failed assertions");
  const int32_t code = landing_;
  if (code != 0) clear(device_, stream, word);
  return code;
}

void Assertions::report() {
  const ob_ptr word = word_.load(std::memory_order_acquire);
  if (word == 0) return;
  std::unique_lock lock(mutex_);
  const int32_t code = take(word);
  if (code == 0) return;
  const auto found = meanings_.find(code);
  if (found == meanings_.end()) throw Error(OB_INTERNAL, "a kernel failed an assertion that no plan has told of");
  const Meaning meaning = found->second;
  lock.unlock();
  if (meaning.kind == kIndexError) throw IndexError(meaning.text + kFoundLate);
  throw Error(OB_INVALID_ARGUMENT, meaning.text + kFoundLate);
}

}  // namespace outboard
