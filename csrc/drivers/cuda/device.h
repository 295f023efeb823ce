// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "common/error.h"
#include "cuda/api.h"
#include "cuda/library.h"
#include "cuda/nvrtc.h"
#include "outboard/driver.h"

/// One GPU. Never deleted.
struct ob_device_t {
  ob_device_t(outboard::cuda::CUdevice id_, int capability_, const outboard::cuda::Nvrtc& compiler_,
              outboard::cuda::Architecture architecture_, const outboard::cuda::Libraries& libraries)
      : id(id_), capability(capability_), compiler(&compiler_), architecture(architecture_), functions(libraries) {}

  const outboard::cuda::CUdevice id;
  const int capability;  // 90 for 9.0
  const outboard::cuda::Nvrtc* const compiler;
  const outboard::cuda::Architecture architecture;
  unsigned most_groups[3] = {};  // of a launch, in each dimension
  unsigned most_items[3] = {};   // of a work-group, in each dimension

  std::atomic<bool> lost{false};
  std::string why_lost;  // written once, before `lost`

  outboard::cuda::FunctionTable functions;

  std::mutex mutex;
  std::atomic<outboard::cuda::CUcontext> context{nullptr};  // the primary one, from its first use on
  // Guarded by the mutex: streams that exist, and those that were destroyed with work left to do.
  std::list<ob_stream> streams;
  std::list<outboard::cuda::CUstream> leaving;
};

struct ob_stream_t {
  ob_device device;
  outboard::cuda::CUstream stream;
  outboard::cuda::Workspace workspace;
  bool capturing = false;  // guarded by the device's mutex
  std::list<ob_stream>::iterator place;
};

namespace outboard::cuda {

using common::fail;
using common::last_error;

/// Whether nothing in the device's context works after this error (the API's description of it says so).
bool is_final(CUresult result);
/// A result of a call on a device as a status, with a text for `last_error`. From a final error on, the device is lost.
ob_status status_of(ob_device device, CUresult result, const char* function);

/// The API. Must not be called before `Devices::get()`.
const Api& cu();

/// The usable GPUs of this machine, found once.
struct Devices {
  static Devices& get();

  std::deque<ob_device_t> list;
  std::string problem;  // why there is none

 private:
  Devices();
  void add(int number);
  std::unique_ptr<Nvrtc> compiler_;
  Libraries libraries_;
};

/// While it lives, the device's context is the calling thread's. What another library made the thread's context
/// comes back afterwards.
class Entry {
 public:
  explicit Entry(ob_device device);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  /// OB_OK, or why nothing can be done: the device is lost, or has no context.
  ob_status status() const { return status_; }

 private:
  ob_status retain(ob_device device);

  CUcontext before_ = nullptr;
  CUcontext own_ = nullptr;
  ob_status status_ = OB_OK;
};

/// The value of a device's attribute; 0 if the NVIDIA driver does not know it.
int attribute_of(ob_device device, int attribute);

}  // namespace outboard::cuda
