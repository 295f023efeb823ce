// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/api.h"
#include "outboard/driver.h"

namespace outboard::cuda {

/// Queues a fill as `fill` of driver.h says. The device's context must be the thread's.
ob_status enqueue_fill(ob_stream stream, CUdeviceptr dst, const void* pattern, uint32_t size, uint64_t bytes);

/// Queues a copy within the device, whose ranges may overlap. The device's context must be the thread's.
ob_status enqueue_device_copy(ob_stream stream, CUdeviceptr dst, CUdeviceptr src, uint64_t bytes);

}  // namespace outboard::cuda
