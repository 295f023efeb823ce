// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.h"

#include <utility>

namespace outboard::cuda {
namespace {

const Api* api = nullptr;

int value_of(CUdevice id, int attribute) {
  int value = 0;
  return api->cuDeviceGetAttribute(&value, attribute, id) == CUDA_SUCCESS ? value : 0;
}

std::string name_of(CUdevice id) {
  char name[256] = "";
  return api->cuDeviceGetName(name, sizeof(name), id) == CUDA_SUCCESS ? name : "GPU";
}

ob_status kind_of(CUresult result) {
  if (is_final(result)) return OB_DEVICE_LOST;
  switch (result) {
    case CUDA_SUCCESS:
      return OB_OK;
    case CUDA_ERROR_NOT_READY:
      return OB_NOT_READY;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return OB_OUT_OF_MEMORY;
    case CUDA_ERROR_NOT_SUPPORTED:
      return OB_UNSUPPORTED;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return OB_INVALID_ARGUMENT;
    default:
      return OB_INTERNAL;
  }
}

}  // namespace

bool is_final(CUresult result) {
  switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

ob_status status_of(ob_device device, CUresult result, const char* function) {
  if (result == CUDA_SUCCESS) return OB_OK;
  if (result == CUDA_ERROR_NOT_READY) return OB_NOT_READY;
  const std::string text = std::string(function) + " returned " + text_of(cu(), result);
  if (!is_final(result)) return fail(kind_of(result), text);
  {
    const std::lock_guard lock(device->mutex);
    if (!device->lost.load(std::memory_order_relaxed)) device->why_lost = text;
    device->lost.store(true, std::memory_order_release);
  }
  return fail(OB_DEVICE_LOST, text);
}

const Api& cu() { return *api; }

Devices& Devices::get() {
  static Devices* const instance = new Devices;  // leaked: queued work may outlive static destructors
  return *instance;
}

Devices::Devices() {
  problem = Api::load(&api);
  if (!problem.empty()) return;
  int count = 0;
  const CUresult result = api->cuDeviceGetCount(&count);
  if (result != CUDA_SUCCESS || count == 0) {
    problem = "no NVIDIA GPU: cuDeviceGetCount returned " + text_of(*api, result);
    return;
  }
  try {
    compiler_ = std::make_unique<Nvrtc>(Nvrtc::find());
  } catch (const std::exception& error) {
    problem = error.what();
    return;
  }
  libraries_ = Libraries::load();
  for (int number = 0; number < count; ++number) add(number);
}

void Devices::add(int number) {
  CUdevice id = 0;
  const CUresult result = api->cuDeviceGet(&id, number);
  if (result != CUDA_SUCCESS) {
    problem = "cuDeviceGet returned " + text_of(*api, result);
    return;
  }
  if (value_of(id, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == CU_COMPUTEMODE_PROHIBITED) {
    problem = name_of(id) + " is closed to computations: 'nvidia-smi --compute-mode=0' opens it";
    return;
  }
  const int capability = 10 * value_of(id, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                         value_of(id, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  const Architecture architecture = compiler_->architecture_for(capability);
  if (architecture.number == 0) {
    problem = name_of(id) + " has compute capability " + std::to_string(capability / 10) + "." +
              std::to_string(capability % 10) + ", and " + compiler_->version() + " compiles for " +
              std::to_string(compiler_->oldest() / 10) + "." + std::to_string(compiler_->oldest() % 10) +
              " and newer: an older NVRTC is needed (OUTBOARD_CUDA_NVRTC)";
    return;
  }
  ob_device_t& device = list.emplace_back(id, capability, *compiler_, architecture, libraries_);
  for (int i = 0; i < 3; ++i) {
    device.most_groups[i] = static_cast<unsigned>(value_of(id, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i));
    device.most_items[i] = static_cast<unsigned>(value_of(id, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i));
  }
}

Entry::Entry(ob_device device) {
  if (device->lost.load(std::memory_order_acquire)) {
    status_ = fail(OB_DEVICE_LOST, device->why_lost);
    return;
  }
  status_ = retain(device);
  if (status_ != OB_OK) return;
  own_ = device->context.load(std::memory_order_acquire);
  if (cu().cuCtxGetCurrent(&before_) != CUDA_SUCCESS) before_ = nullptr;
  if (before_ != own_) status_ = status_of(device, cu().cuCtxSetCurrent(own_), "cuCtxSetCurrent");
}

Entry::~Entry() {
  if (before_ != nullptr && before_ != own_) cu().cuCtxSetCurrent(before_);
}

/// A context takes hundreds of megabytes of the GPU: who never uses a device does not make one.
ob_status Entry::retain(ob_device device) {
  if (device->context.load(std::memory_order_acquire) != nullptr) return OB_OK;
  CUcontext context = nullptr;
  const CUresult result = [&] {
    const std::lock_guard lock(device->mutex);
    if (device->context.load(std::memory_order_relaxed) != nullptr) return CUresult{CUDA_SUCCESS};
    const CUresult retained = cu().cuDevicePrimaryCtxRetain(&context, device->id);
    if (retained == CUDA_SUCCESS) device->context.store(context, std::memory_order_release);
    return retained;
  }();
  return status_of(device, result, "cuDevicePrimaryCtxRetain");
}

int attribute_of(ob_device device, int attribute) { return value_of(device->id, attribute); }

}  // namespace outboard::cuda
